"""The end of one job: what is let go, and what is forgotten once nothing of it is left."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.backends.agents import job_record
from everstep.backends.agents.transactions import known
from everstep.backends.local.database import folder_claims, identity, pods
from everstep.backends.local.database.job_books import LocalJobBooks
from everstep.backends.local.database.pods import LocalPod
from everstep.backends.local.database.store import Db
from everstep.core.world import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A job of which nothing up to this generation is made any more, and what is left of it."""

    generation: int
    left: list[LocalPod]
    folders: tuple[str, ...]
    earlier: list[str]  # the identities of the other books that had it before


def close(db: Db, ref: JobRef, grace_s: float) -> Closed:
    """Let everything of the job go."""
    books = LocalJobBooks(db, ref.id)
    books.record = job_record.closed(known(books, ref), ref)
    for pod in books.pods():
        pods.let_go(db, pod.uid, grace_s=grace_s)
    return Closed(
        generation=books.record.newest,
        left=pods.leaving(db, ref.id),
        folders=books.record.folders,
        earlier=books.record.earlier(identity.identity(db)),
    )


def forget(db: Db, ref: JobRef, generation: int) -> None:
    """Nothing is left of the job, unless it was begun again meanwhile."""
    books = LocalJobBooks(db, ref.id)
    if books.record.newest > generation:
        return
    books.record = job_record.forgotten(books.record, generation)
    db.execute("DELETE FROM facts WHERE job = ?", (ref.id,))
    folder_claims.release(db, ref.id)
