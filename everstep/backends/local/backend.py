"""The local cluster: real processes on this machine, one agent for each pod. `base.py` has the promises.

The books (SQLite) say what is wanted, agents and the machine say what is. Nothing that matters is in
the memory of a worker: another one goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from everstep.agent.storage import journal as journal_files
from everstep.backends.agents.backend import AgentBackend
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import ranks
from everstep.backends.agents.folders import JobFolders
from everstep.backends.agents.job_end import JobEnd
from everstep.backends.agents.news import ALL_JOBS, JobNews
from everstep.backends.agents.ports import AgentCluster, AgentSettings
from everstep.backends.local import clock, volumes
from everstep.backends.local.database import books, identity, nodes, placing, pods
from everstep.backends.local.database.folders import KnownFolders
from everstep.backends.local.database.job_books import LocalBooks, owned
from everstep.backends.local.database.placing import Transaction
from everstep.backends.local.database.store import Store
from everstep.backends.local.faults import LocalScene
from everstep.backends.local.pods import LocalPods
from everstep.backends.local.reconciling import adopting, slow_storage
from everstep.backends.local.reconciling.pod_reconciler import PodReconciler
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules.faults import heal
from everstep.backends.rules.ownership import FolderClaim
from everstep.backends.rules.placing import standby_state
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import (
    GoneState,
    HealState,
    JobRef,
    Leftover,
    NodeView,
    PlaceOrder,
    PlaceState,
    PodRef,
)
from everstep.protocol import wire

T = TypeVar("T")


class LocalBackend(AgentBackend):
    """One worker's view of the machine."""

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.store = Store(settings.database)
        self.news = JobNews()
        self.books_id = ""  # the identity of the books of this state directory
        self._offset = 0.0
        self.pods = LocalPods(
            settings=settings, cut_off=lambda uid: self.reconciler.service_of(uid) == "cut_off"
        )
        self.agents = Agents(
            link=self.pods.link,
            is_gone=self.pods.is_gone,
            clock=self._now,
            changed=lambda uid: self.news.add(self.reconciler.job_of(uid)),
            is_cut_off=self.pods.is_cut_off,
        )
        self.reconciler = PodReconciler(
            settings=settings,
            store=self.store,
            agents=self.agents,
            clock=self._now,
            add_news=self.news.add,
        )
        self._folders = KnownFolders(settings)

    @classmethod
    async def open(cls, settings: LocalSettings) -> LocalBackend:
        self = cls(settings)
        self._offset = await self.store.run(clock.anchor)
        settings.make_folders()
        await self.store.run(lambda db: nodes.set_up(db, settings))
        self.books_id = await identity.settle(self.store, settings.database)
        await self.reconciler.begin()
        return self

    def _now(self) -> float:
        return clock.now(self._offset)

    @property
    def agent_cluster(self) -> AgentCluster:
        settings = self.settings
        return AgentCluster(
            books=LocalBooks(identity=self.books_id, store=self.store),
            pods=self.pods,
            agents=self.agents,
            settings=AgentSettings(
                ranks=ranks.RankSettings(
                    cluster=self.books_id,
                    fence_s=settings.fence_s,
                    environ=settings.environ,
                    pass_env=settings.pass_env,
                ),
                fence_margin_s=settings.fence_margin_s,
                thresholds=settings.thresholds,
            ),
            now=self._now,
        )

    async def folders_of(self, job_id: str) -> JobFolders:
        return await self._folders.of(self.store, job_id)

    async def claims_of(self, job_id: str, folders: Mapping[str, str]) -> Sequence[FolderClaim]:
        return await volumes.claims((await self.folders_of(job_id)).field_of_each(folders))

    @property
    def server(self) -> str:
        return self.settings.server

    async def _with(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction, with the time."""
        return await self.store.run(
            lambda db: work(Transaction(db=db, settings=self.settings, now=self._now()))
        )

    # -- seeing ----------------------------------------------------------------------------------

    async def clock(self) -> float:
        await self.store.changes()  # a cluster out of reach has no time for us
        return self._now()

    async def nodes(self, job: JobRef | None = None) -> tuple[NodeView, ...]:  # noqa: ARG002  # all may use all
        return await self._with(lambda transaction: transaction.nodes())

    async def leftovers(self) -> tuple[Leftover, ...]:
        return await self.store.run(books.leftovers)

    # -- adopting --------------------------------------------------------------------------------

    async def take_over(self, job: JobRef, generation: int, folders: Mapping[str, str]) -> int:
        # Relative folders begin where the job's first worker stood, so only there its fences are found.
        if job.books not in ("", self.books_id):
            where, owner = await self._folders.reload(self.store, job.id), (job.id, job.books)
            relative = [where.at(f) for f in folders if not Path(f).is_absolute()]
            await adopting.refuse_elsewhere(relative, owner)
            generation = await adopting.outdate(
                where.field_of_each(folders), owner, generation=generation
            )
        own_pods = await self.store.run(pods.uids)
        await adopting.end_processes((job.id, job.books or self.books_id), spare=own_pods)
        return generation

    # -- healing ---------------------------------------------------------------------------------

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        def work(transaction: Transaction) -> tuple[HealState, float | None]:
            owned(transaction.db, job, generation)
            scene = LocalScene(transaction=transaction)
            try:
                device_place = scene.device(node, device)
            except ValueError as error:  # the machine has lost it since
                return HealState(state="failed", message=str(error)), None
            state = heal(scene, *device_place, takes_s=self.settings.heal_s)
            return state, device_place[1].heals_at

        state, ends_at = await self._with(work)
        if ends_at is not None and state.state == "healing":
            self.news.add_later(ALL_JOBS, ends_at - self._now())
        return state

    # -- placing ---------------------------------------------------------------------------------

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        with self.news.reading(order.job.id):
            state, frees_at = await self._with(
                lambda transaction: (
                    placing.take_order(transaction, order, lost=self._lost_pods()),
                    placing.opens_at(transaction, order),
                )
            )
            await self.reconciler.reconcile()
        if frees_at is not None and not state.placed:
            self.news.add_later(order.job.id, frees_at - self._now())
        if not state.placed:
            return state
        for ref in state.pods.values():
            if not self._answers(ref.uid):
                wait = WaitKind.POD_READY.of(f"{ref.uid} on {ref.node}")
                return PlaceState(placed=False, places=len(state.pods), wait=wait)
        return state

    async def ensure_standby(self, order: PlaceOrder) -> PlaceState:
        lost = self._lost_pods()
        with self.news.reading(order.job.id):
            standbys = await self._with(
                lambda transaction: placing.ensure_standbys(transaction, order, lost=lost)
            )
            await self.reconciler.reconcile()
        await self._note_ready([pod.uid for pod in standbys if self._answers(pod.uid)])
        refs = {pod.slot: PodRef(node=pod.node, uid=pod.uid) for pod in standbys}
        unready = [str(pod) for pod in standbys if not self._answers(pod.uid)]
        missing = [slot for slot in order.recreate if slot not in refs]
        return standby_state(missing, unready, refs)

    def _lost_pods(self) -> set[str]:
        return {uid for uid, agent in self.agents.by_uid.items() if agent.is_gone}

    async def _note_ready(self, uids: Sequence[str]) -> None:
        def note(transaction: Transaction) -> None:
            for uid in uids:
                pods.answered(transaction.db, uid)
                pods.spare_ready(transaction.db, uid, transaction.now)

        if uids:
            await self._with(note)

    def _answers(self, uid: str) -> bool:
        agent = self.agents.by_uid.get(uid)
        return agent is not None and agent.state is not None

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        await self.store.run(lambda db: nodes.isolate(db, node, reason))

    async def ensure_released(self, node: str) -> None:
        def work(transaction: Transaction) -> None:
            nodes.release(transaction.db, node)
            placing.serve_queue(transaction)

        await self._with(work)
        await self.reconciler.reconcile()
        self.news.add(ALL_JOBS)

    # -- ending ----------------------------------------------------------------------------------

    async def write_journal(self, job: JobRef, command: wire.JournalCommand) -> None:
        await slow_storage.read(f"the records of {job.id}", partial(journal_files.write, command))

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        state = await super().ensure_gone(job, grace_s=grace_s)
        if state.done:
            self._folders.forget(job.id)
        return state

    async def remove_pods(self, job: JobRef) -> Sequence[WaitCause]:
        await self.reconciler.reconcile()
        return [
            WaitKind.POD_GONE.of(pod)
            for pod in self.reconciler.pods.values()
            if pod.job == job.id and pod.is_leaving
        ]

    async def release_folders(self, job: JobRef, end: JobEnd) -> None:  # noqa: ARG002  # `end` has it
        await slow_storage.release(self.settings.agent, end.command)

    async def close(self) -> None:
        await self.reconciler.close()
        await self.agents.close()
        self.store.close()
