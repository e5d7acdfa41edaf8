"""The books: facts, jobs, their generations and folders. Each function is part of a transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from everstep.backends.local.database import identity
from everstep.backends.local.database.store import Db
from everstep.backends.rules import ownership
from everstep.core.errors import OtherBooks
from everstep.core.facts import Fact
from everstep.core.world import JobRef, Leftover

# -- Facts --------------------------------------------------------------------------------------


def to_text(fact: Fact) -> str:
    return json.dumps(asdict(fact))


def from_text(text: str) -> Fact:
    return Fact(**json.loads(text))


def fact_or_none(text: str | None) -> Fact | None:
    return None if text is None else from_text(text)


def tell(db: Db, job: str, fact: Fact) -> None:
    """The job is told, once for each identity, whoever tells it."""
    db.execute(
        "INSERT OR IGNORE INTO facts (job, id, fact) VALUES (?, ?, ?)",
        (job, fact.id, to_text(fact)),
    )


def facts_after(db: Db, job: str, cursor: int) -> tuple[tuple[Fact, ...], int]:
    """What the job was told after the cursor, and the cursor after that."""
    rows = db.execute(
        "SELECT n, fact FROM facts WHERE job = ? AND n > ? ORDER BY n", (job, cursor)
    ).fetchall()
    return tuple(from_text(row["fact"]) for row in rows), (rows[-1]["n"] if rows else cursor)


def number(db: Db, name: str) -> int:
    """A number never given before, for identities."""
    db.execute("INSERT INTO settings VALUES (?, '0') ON CONFLICT DO NOTHING", (f"number/{name}",))
    row = db.execute(
        "UPDATE settings SET value = value + 1 WHERE name = ? RETURNING value", (f"number/{name}",)
    ).fetchone()
    return int(row["value"])


# -- Jobs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's ID and what is known of it."""

    id: str
    newest: int  # generation
    newest_run: str
    closed: int  # nothing of this generation or older is made any more
    found: int  # the newest generation that was found on storage
    checkpoints_path: str | None
    checkpoints_format: str
    checkpoints_pattern: str | None
    checkpoints_of: str | None
    unwritable: Fact | None  # that told of it
    placed: int | None  # generation of the newest placement
    fenced: int | None  # generation of the newest fence
    fenced_at: float | None  # None: there was nowhere to write it
    fence_holds: bool


def job(db: Db, job_id: str) -> Job:
    """The job, known from now on."""
    db.execute("INSERT INTO jobs (id) VALUES (?) ON CONFLICT DO NOTHING", (job_id,))
    row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    read = {"unwritable": fact_or_none(row["unwritable"]), "fence_holds": bool(row["fence_holds"])}
    return Job(**{**row, **read})


def known(db: Db, ref: JobRef, generation: int = 0) -> Job:
    """The job, if these are its books and they know it up to this generation."""
    if (copied := identity.original(db, ref.books)) is not None:
        raise OtherBooks.copied(ref.id, original=copied.path, copy=copied.copy)
    ownership.refuse_strange(ref, identity.identity(db))
    found = job(db, ref.id)
    ownership.refuse_unknown(found, generation)
    return found


def is_known(db: Db, ref: JobRef, generation: int) -> bool:
    """Whether these books know all of the job, and did not adopt it at this very generation."""
    try:
        known(db, ref, generation)
    except OtherBooks:
        return False
    adopted = db.execute(
        "SELECT 1 FROM adoptions WHERE job = ? AND generation = ?", (ref.id, generation)
    )
    return adopted.fetchone() is None


def owned(db: Db, ref: JobRef, generation: int) -> Job:
    """The job, if the order's generation still owns it."""
    found = known(db, ref)
    ownership.refuse_other(found, generation)
    return found


def folders(db: Db, job_id: str, *more: str) -> list[str]:
    """All that the job ever wrote to, these among them from now on."""
    for folder in more:
        db.execute("INSERT INTO folders VALUES (?, ?) ON CONFLICT DO NOTHING", (job_id, folder))
    rows = db.execute("SELECT folder FROM folders WHERE job = ? ORDER BY folder", (job_id,))
    return [row["folder"] for row in rows]


def generation(
    db: Db, ref: JobRef, key: str, *, above: int, folders: Mapping[str, str], server: str
) -> int:
    """The generation of this key; a new one is higher than any known, in the books or on storage."""
    job_known = known(db, ref, above)
    owners = {row["folder"]: row["job"] for row in db.execute("SELECT folder, job FROM claims")}
    claims = ownership.claimed(ref.id, folders, owners)
    db.executemany("INSERT OR IGNORE INTO claims VALUES (?, ?)", claims.items())
    asked = (ref.id, ref.run, key)
    row = db.execute(
        "SELECT generation FROM generations WHERE job = ? AND run = ? AND key = ?", asked
    ).fetchone()
    before = None if row is None else row["generation"]
    new = ownership.given(job_known, before, above=above)
    if new != before:
        db.execute("INSERT OR REPLACE INTO generations VALUES (?, ?, ?, ?)", (*asked, new))
        db.execute(
            "UPDATE jobs SET newest = ?, newest_run = ? WHERE id = ?", (new, ref.run, ref.id)
        )
        db.execute("INSERT OR REPLACE INTO servers VALUES (?, ?)", (ref.id, server))
        db.execute("DELETE FROM queue WHERE job = ?", (ref.id,))  # of an older generation
    return new


def knows_half(db: Db, job_id: str) -> None:
    """Pods of the job may run that are not in these books; until a fence held by its time alone."""
    db.execute("INSERT INTO half_known VALUES (?) ON CONFLICT DO NOTHING", (job_id,))


def outdone(db: Db, job_id: str, newer: int, *, is_held: bool) -> None:
    """This generation was found on storage. One that the job still has: these books are an older copy."""
    db.execute("UPDATE jobs SET found = MAX(found, ?) WHERE id = ?", (newer, job_id))
    if is_held:
        knows_half(db, job_id)


def is_half_known(db: Db, job_id: str) -> bool:
    row = db.execute("SELECT job FROM half_known WHERE job = ?", (job_id,)).fetchone()
    return row is not None


def adopt(db: Db, ref: JobRef, generation: int) -> None:
    """From now on the job is in these books, and at this generation at least."""
    job(db, ref.id)
    db.execute(
        "INSERT OR REPLACE INTO adoptions VALUES (?, ?, ?)",
        (ref.id, ref.books or identity.identity(db), generation),
    )
    knows_half(db, ref.id)
    db.execute(
        "UPDATE jobs SET newest = MAX(newest, ?), newest_run = ? WHERE id = ?",
        (generation, ref.run, ref.id),
    )


def earlier(db: Db, job_id: str) -> list[str]:
    """The identities of the other books that had the job before."""
    rows = db.execute(
        "SELECT books FROM adoptions WHERE job = ? AND books != ?", (job_id, identity.identity(db))
    )
    return [row["books"] for row in rows]


def leftovers(db: Db) -> tuple[Leftover, ...]:
    rows = db.execute(
        "SELECT id, newest_run, server FROM jobs LEFT JOIN servers ON servers.job = jobs.id WHERE id IN"
        " (SELECT job FROM pods UNION SELECT job FROM queue UNION SELECT job FROM claims) ORDER BY id"
    ).fetchall()
    return tuple(
        Leftover(job=JobRef(id=row["id"], run=row["newest_run"]), server=row["server"] or "")
        for row in rows
    )
