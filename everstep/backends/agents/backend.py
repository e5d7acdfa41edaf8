"""The verbs that are the same on every cluster of agents. `backends/base.py` has their promises.

Each verb calls a function of this package with the ports of the cluster (`AgentCluster`); a backend adds
the ports and the verbs that place pods. A verb runs inside `news.reading`, so that what it changes itself
does not end the next wait for news.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from everstep.backends.agents import (
    checking,
    dumping,
    fence_proof,
    job_end,
    job_record,
    job_storage,
    observing,
    prewarming,
    saving,
)
from everstep.backends.agents.folders import JobFolders
from everstep.backends.agents.job_end import JobEnd
from everstep.backends.agents.news import ALL_JOBS, JobNews
from everstep.backends.agents.ports import AgentCluster, JobBooks, record_of
from everstep.backends.agents.starting import ensure_started
from everstep.backends.agents.stopping import ensure_stopped
from everstep.backends.base import NO_FOLDERS, Backend
from everstep.backends.rules.ownership import FolderClaim
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import WrongCluster
from everstep.core.facts import Fact
from everstep.core.waits import WaitCause
from everstep.core.world import (
    Checkpoint,
    DumpOrder,
    DumpState,
    FenceOrder,
    FenceState,
    GoneState,
    JobRef,
    Observation,
    PrecheckOrder,
    PrecheckState,
    SaveOrder,
    SaveState,
    SetAside,
    SetAsideOrder,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)
from everstep.protocol import wire


class AgentBackend(Backend):
    """A backend whose pods hold agents. A cluster adds its ports, and how pods and nodes come and go."""

    news: JobNews

    @property
    @abstractmethod
    def agent_cluster(self) -> AgentCluster:
        """The ports, and what else the verbs are carried out with."""

    def cluster_of(self, job: JobRef) -> AgentCluster:  # noqa: ARG002  # one for all jobs
        """The cluster with which the verbs of this job are carried out."""
        return self.agent_cluster

    @abstractmethod
    async def folders_of(self, job_id: str) -> JobFolders:
        """The folders of this job."""

    @abstractmethod
    async def claims_of(self, job_id: str, folders: Mapping[str, str]) -> Sequence[FolderClaim]:
        """The folders (path -> the field that names it) and the job's own, each with its places.

        A folder whose volume is not known yet is left out. Raises InvalidSpec for one that cannot be used.
        """

    @property
    def server(self) -> str:
        """The Temporal server whose jobs this worker runs."""
        return ""

    # -- seeing ----------------------------------------------------------------------------------

    async def identity(self) -> str:
        return self.agent_cluster.books.identity

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        now = self.agent_cluster.now
        look = partial(self.observe_now, job, cursor)
        return await self.news.observe(job.id, look, now=now, until=until, wait_s=wait_s)

    async def observe_now(self, job: JobRef, cursor: str) -> Observation:
        """Everything about the job now, with the facts after the cursor."""
        return await observing.observe(self.cluster_of(job), job, cursor)

    async def check(self, job: JobRef) -> tuple[Fact, ...]:
        return await observing.check(self.cluster_of(job), job)

    async def check_storage(self, job: JobRef) -> str:
        return await job_storage.write_problem(self.cluster_of(job), job)

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        return await job_storage.checkpoints(self.cluster_of(job), job)

    # -- owning ----------------------------------------------------------------------------------

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        books = self.cluster_of(job).books
        # Books of another cluster refuse the job before it claims folders.
        await books.change(job.id, lambda job_books: record_of(job_books, job, above))
        await books.claim(job.id, await self.claims_of(job.id, folders))

        def give(job_books: JobBooks) -> int:
            record = record_of(job_books, job, above)
            job_books.record, generation = job_record.with_generation(
                record, job, key, above=above, server=self.server
            )
            return generation

        generation = await books.change(job.id, give)
        self.news.add(ALL_JOBS)
        return generation

    # -- doing -----------------------------------------------------------------------------------

    async def ensure_stopped(self, order: StopOrder) -> StopState:
        with self.news.reading(order.job.id):
            return await ensure_stopped(self.cluster_of(order.job), order)

    async def ensure_prechecked(self, order: PrecheckOrder) -> PrecheckState:
        with self.news.reading(order.job.id):
            state = await checking.ensure_prechecked(self.cluster_of(order.job), order)
        if not state.done:
            self.news.add_later(order.job.id, checking.AGAIN_S)
        return state

    async def ensure_prewarmed(self, job: JobRef, *, spares: tuple[int, ...]) -> None:
        await prewarming.ensure_prewarmed(self.cluster_of(job), job, spares)

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        folders = await self.folders_of(order.job.id)
        order = replace(order, run=folders.to_run(order.run))
        with self.news.reading(order.job.id):
            state, holds_at = await fence_proof.ensure_fenced(self.cluster_of(order.job), order)
        if holds_at is not None:
            self.news.add_later(order.job.id, holds_at - self.agent_cluster.now())
        return state

    async def ensure_started(self, order: StartOrder) -> StartState:
        folders = await self.folders_of(order.job.id)
        order = replace(order, run=folders.to_run(order.run))
        with self.news.reading(order.job.id):
            return await ensure_started(self.cluster_of(order.job), order)

    async def ensure_set_aside(self, order: SetAsideOrder) -> SetAside:
        return await job_storage.ensure_set_aside(self.cluster_of(order.job), order)

    async def ensure_recorded(self, job: JobRef, entries: tuple[Entry, ...]) -> None:
        folders = await self.folders_of(job.id)
        await job_storage.ensure_recorded(
            self.cluster_of(job),
            job,
            [folders.to_record(entry) for entry in entries],
            write=partial(self.write_journal, job),
        )

    async def ensure_save_requested(self, order: SaveOrder) -> SaveState:
        return await saving.ensure_save_requested(self.cluster_of(order.job), order)

    async def ensure_dumped(self, order: DumpOrder) -> DumpState:
        return await dumping.ensure_dumped(self.cluster_of(order.job), order)

    # -- adopting and ending ---------------------------------------------------------------------

    async def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        books = self.cluster_of(job).books
        is_complete = partial(_is_complete, job=job, identity=books.identity, generation=generation)
        if await books.change(job.id, is_complete):
            return ""  # there is nothing to adopt
        generation = await self.take_over(job, generation, folders)

        def adopt(job_books: JobBooks) -> None:
            record = job_books.record
            job_books.record = job_record.adopted(record, job, books.identity, generation)

        await books.change(job.id, adopt)
        self.news.add(ALL_JOBS)
        return books.identity

    @abstractmethod
    async def take_over(self, job: JobRef, generation: int, folders: Mapping[str, str]) -> int:
        """End what other books made of the job, and outdate its fences.

        Returns the newest generation found. Raises CommandRejected where that cannot be done.
        """

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        return await job_end.ensure_gone(
            self.cluster_of(job),
            job,
            grace_s=grace_s,
            remove_pods=partial(self.remove_pods, job),
            release_folders=partial(self.release_folders, job),
        )

    @abstractmethod
    async def remove_pods(self, job: JobRef) -> Sequence[WaitCause]:
        """Remove the job's pods that were ordered to end; return a wait for each that may be left."""

    @abstractmethod
    async def release_folders(self, job: JobRef, end: JobEnd) -> WaitCause | None:
        """Release the fences of a job that has no pod any more; a folder out of reach stays the job's.

        Returns what that waits for; None once it is done.
        """

    @abstractmethod
    async def write_journal(self, job: JobRef, command: wire.JournalCommand) -> None:
        """Write the journal without an agent of the job, as none answers. Raises BackendUnavailable."""


def _is_complete(job_books: JobBooks, job: JobRef, identity: str, generation: int) -> bool:
    """Whether there is nothing to adopt. A repeat of the call that adopted the job is answered as before."""
    try:
        return job_record.is_complete(record_of(job_books, job), job, identity, generation)
    except WrongCluster:
        return False
