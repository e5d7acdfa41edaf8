"""The local cluster's books as a port: transactions of one job in SQLite, and the claims of all jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from everstep.backends.agents import cursors, ports
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import Books, JobBooks
from everstep.backends.local import volumes
from everstep.backends.local.database import books, folder_claims, identity, nodes, pods
from everstep.backends.local.database.store import Db, Store
from everstep.backends.rules import ownership
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.errors import FolderTaken, WrongCluster
from everstep.core.facts import Fact
from everstep.core.world import JobRef

T = TypeVar("T")


class LocalJobBooks(JobBooks):
    """One job inside one transaction. Each change is a statement in it."""

    def __init__(self, db: Db, job_id: str) -> None:
        self.db = db
        self._record = books.job(db, job_id)
        self._new_facts: dict[int, Fact] = {}  # stored by this transaction, by their numbers

    @property
    def record(self) -> JobRecord:
        return self._record

    @record.setter
    def record(self, record: JobRecord) -> None:
        before, self._record = self._record, record
        if record == before:
            return
        books.store(self.db, record)
        if (record.newest, record.closed) != (before.newest, before.closed):
            self.db.execute("DELETE FROM queue WHERE job = ?", (record.id,))  # an outdated order

    def refuse_others(self, ref: JobRef) -> None:
        """Refuse jobs of other books, and every job if these were copied with their state directory."""
        if (copied := identity.original(self.db, ref.books)) is not None:
            raise WrongCluster.copied(ref.id, original=copied.path, copy=copied.copy)
        ownership.refuse_strange(ref, identity.identity(self.db))

    def pods(self) -> Sequence[Pod]:
        return pods.of_job(self.db, self._record.id)

    def leaving(self) -> Sequence[Pod]:
        return pods.leaving(self.db, self._record.id)

    def set_answered(self, uid: str) -> None:
        pods.answered(self.db, uid)

    def set_lost(self, uid: str) -> None:
        pods.lost(self.db, uid)

    def standbys(self) -> Sequence[Pod]:
        return pods.standing_by(self.db, self._record.id)

    def end_standbys(self, *, spares: Collection[int] = ()) -> None:
        for pod in self.standbys():
            if pod.slot not in spares:
                pods.let_go(self.db, pod.uid)

    def end_pods(self, grace_s: float) -> None:
        self.end_standbys()
        for pod in self.pods():
            pods.let_go(self.db, pod.uid, grace_s=grace_s)

    def forget(self) -> None:
        self.db.execute("DELETE FROM facts WHERE job = ?", (self._record.id,))
        self._new_facts = {}
        folder_claims.release(self.db, self._record.id)

    def drop(self, uid: str) -> None:
        pods.remove(self.db, uid)

    def add_fact(self, fact: Fact) -> None:
        number = books.tell(self.db, self._record.id, fact)
        if number is not None:
            self._new_facts[number] = fact

    def facts_after(self, cursor: str) -> tuple[tuple[Fact, ...], str]:
        own_books = identity.identity(self.db)
        after = cursors.number(
            own_books,
            cursor,
            newest=books.newest_number(self.db),
            fact_id=partial(books.fact_id, self.db, self._record.id),
        )
        stored = books.facts_after(
            self.db, self._record.id, after, below=min(self._new_facts, default=None)
        )
        facts = stored | self._new_facts
        return tuple(facts.values()), cursors.behind(own_books, facts, cursor=cursor, after=after)

    def present_faults(self) -> tuple[Fact, ...]:
        return nodes.present(self.db, self._record.id)

    def rehearsed_checks(self, pod: Pod) -> Mapping[str, bool]:
        return nodes.every(self.db)[pod.node].prechecks


def owned(db: Db, ref: JobRef, generation: int) -> JobRecord:
    """The job's record; raises as `ports.owned_record`."""
    return ports.owned_record(LocalJobBooks(db, ref.id), ref, generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBooks(Books):
    """The books of a state directory."""

    identity: str
    store: Store

    async def change(self, job_id: str, work: Callable[[JobBooks], T]) -> T:
        return await self.store.run(lambda db: work(LocalJobBooks(db, job_id)))

    async def claim(self, job_id: str, claims: Sequence[FolderClaim]) -> None:
        try:
            await self.store.run(lambda db: folder_claims.claim(db, job_id, claims))
        except FolderTaken as taken:
            owner = taken.owner
            await self._renew(owner)
            await self.store.run(lambda db: folder_claims.claim(db, job_id, claims))

    async def _renew(self, owner: str) -> None:
        """Claim the owner's folders where they are now: a file system reuses the numbers of removed ones."""
        folders = await self.store.run(lambda db: folder_claims.folders(db, owner))
        claims = await volumes.claims(dict.fromkeys(folders, ""))
        await self.store.run(lambda db: folder_claims.replace(db, owner, claims))
