"""Whose each folder is, in the books. Each function is part of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everstep.backends.local.database import books
from everstep.backends.local.database.store import Db
from everstep.backends.rules import ownership
from everstep.backends.rules.ownership import FolderClaim, FolderPlace


def claim(db: Db, job: str, claims: Sequence[FolderClaim]) -> None:
    """Make all of the folders this job's. Raises FolderTaken if one is another's."""
    places = {place for claim in claims for place in claim.places}
    owners = _owners(db, {place.volume for place in places})
    ownership.claimed(job, claims, owners)
    if places <= owners.keys():
        return
    books.store(db, books.job(db, job))  # so that a claim without a generation is a leftover too
    replace(db, job, claims)


def replace(db: Db, job: str, claims: Sequence[FolderClaim]) -> None:
    """Store where these folders of the job are now. A folder without a place stays as it is stored."""
    for one in claims:
        if one.places:
            db.execute("DELETE FROM claims WHERE job = ? AND folder = ?", (job, one.path))
        db.executemany(
            "INSERT OR IGNORE INTO claims (volume, path, job, folder) VALUES (?, ?, ?, ?)",
            [(*place, job, one.path) for place in one.places],
        )


def folders(db: Db, job: str) -> list[str]:
    rows = db.execute("SELECT DISTINCT folder FROM claims WHERE job = ?", (job,))
    return [row["folder"] for row in rows]


def release(db: Db, job: str) -> None:
    db.execute("DELETE FROM claims WHERE job = ?", (job,))


def _owners(db: Db, volumes: Iterable[str]) -> dict[FolderPlace, str]:
    """The job of each claimed folder on these volumes."""
    return {
        FolderPlace(row["volume"], row["path"]): str(row["job"])
        for volume in volumes
        for row in db.execute("SELECT volume, path, job FROM claims WHERE volume = ?", (volume,))
    }
