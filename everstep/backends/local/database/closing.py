"""The end of one job: what is let go, and what is forgotten once nothing of it is left."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.backends.local.database import books, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.rules import ownership
from everstep.core.world import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A job of which nothing up to this generation is made any more, and what is left of it."""

    generation: int
    left: list[Pod]
    folders: list[str]
    earlier: list[str]  # the identities of the other books that had it before


def close(db: Db, ref: JobRef, grace_s: float) -> Closed:
    """Let everything of the job go."""
    job = books.known(db, ref)
    mine = db.execute(
        "SELECT MAX(generation) AS newest FROM generations WHERE job = ? AND run = ?",
        (ref.id, ref.run),
    ).fetchone()["newest"]
    ownership.refuse_late_end(job, ref.run, mine)
    db.execute("UPDATE jobs SET closed = newest WHERE id = ?", (ref.id,))
    db.execute("DELETE FROM queue WHERE job = ?", (ref.id,))
    for pod in pods.of_job(db, ref.id):
        pods.let_go(db, pod.uid, grace_s=grace_s)
    return Closed(
        generation=job.newest,
        left=pods.leaving(db, ref.id),
        folders=books.folders(db, ref.id),
        earlier=books.earlier(db, ref.id),
    )


def forget(db: Db, ref: JobRef, generation: int) -> None:
    """Nothing is left of the job, unless it was begun again meanwhile."""
    if books.job(db, ref.id).newest > generation:
        return
    db.execute("DELETE FROM facts WHERE job = ?", (ref.id,))
    db.execute("DELETE FROM claims WHERE job = ?", (ref.id,))
    db.execute("DELETE FROM adoptions WHERE job = ?", (ref.id,))
    db.execute("UPDATE jobs SET placed = NULL, fenced = NULL WHERE id = ?", (ref.id,))
