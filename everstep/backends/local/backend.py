"""The local cluster: real processes on this machine, one agent for each pod. `base.py` has the promises.

The books (SQLite) say what is wanted, agents and the machine say what is. Nothing that matters is in
the memory of a worker: another one goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from everstep.agent import wire
from everstep.agent.storage import journal as journal_files
from everstep.agent_client import storage, views
from everstep.agent_client.news import JobNews
from everstep.agent_client.watch import Agents
from everstep.backends.base import NO_FOLDERS, Backend
from everstep.backends.local import clock
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, closing, endings, identity, nodes, placing, pods
from everstep.backends.local.database.folders import Folders, KnownFolders
from everstep.backends.local.database.placing import Moment
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.faults import LocalScene
from everstep.backends.local.reconciling import adopting, checking, generations, reading
from everstep.backends.local.reconciling.liveness import Life
from everstep.backends.local.reconciling.pod_reconciler import PodReconciler
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules.faults import heal
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, NobodyToAsk
from everstep.core.facts import Fact
from everstep.core.world import (
    Checkpoint,
    FenceOrder,
    FenceState,
    GoneState,
    HealState,
    JobRef,
    Leftover,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
    PrecheckOrder,
    PrecheckState,
    SetAside,
    SetAsideOrder,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)

T = TypeVar("T")


class LocalBackend(Backend):
    """One worker's view of the machine."""

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.store = Store(settings.database)
        self.news = JobNews()
        self.cluster = ""  # what tells the books of this state directory from others
        self._offset = 0.0
        self.agents = Agents(
            link=lambda uid: settings.folder(uid).link(),
            is_gone=lambda uid: settings.folder(uid).life() is Life.GONE,
            clock=self._now,
            changed=lambda uid: self.news.add(self.reconciler.job_of(uid)),
            is_cut_off=lambda uid: self.reconciler.service_of(uid) == "cut_off",
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
        self.cluster = await identity.settle(self.store, settings.database)
        await self.reconciler.begin()
        return self

    def _now(self) -> float:
        return clock.now(self._offset)

    @property
    def _means(self) -> LocalCluster:
        return LocalCluster(
            identity=self.cluster,
            settings=self.settings,
            store=self.store,
            agents=self.agents,
            now=self._now,
        )

    async def _folders_of(self, job_id: str) -> Folders:
        return await self._folders.of(self.store, job_id)

    async def _with(self, work: Callable[[Moment], T]) -> T:
        """One transaction that knows the time."""
        return await self.store.run(
            lambda db: work(Moment(db=db, settings=self.settings, now=self._now()))
        )

    # -- seeing ----------------------------------------------------------------------------------

    async def clock(self) -> float:
        await self.store.changes()  # a cluster out of reach has no time for us
        return self._now()

    async def identity(self) -> str:
        return self.cluster

    async def nodes(self) -> tuple[NodeView, ...]:
        return await self._with(lambda moment: moment.nodes())

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        await self.store.run(lambda db: books.known(db, job, above))
        named, server = (await self._folders_of(job.id)).named(folders), self.settings.server
        given = await self.store.run(
            lambda db: books.generation(db, job, key, above=above, folders=named, server=server)
        )
        self.news.add("")
        return given

    async def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        if await self.store.run(lambda db: books.is_known(db, job, generation)):
            return ""
        if job.books not in ("", self.cluster):
            where, owner = await self._folders.anew(self.store, job.id), (job.id, job.books)
            relative = [where.at(f) for f in folders if not Path(f).is_absolute()]
            await adopting.refuse_elsewhere(relative, owner)
            mine = where.named(folders)
            generation = await adopting.outdate(mine, owner, generation=generation)
        job_pods = await self.store.run(pods.uids)
        await adopting.end_processes((job.id, job.books or self.cluster), spare=job_pods)
        await self.store.run(lambda db: books.adopt(db, job, generation))
        self.news.add("")
        return self.cluster

    async def observe(
        self, job: JobRef, *, cursor: int, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        look = partial(self._seen, job, cursor)
        return await self.news.seen(job.id, look, now=self._now, until=until, wait_s=wait_s)

    async def _seen(self, job: JobRef, cursor: int) -> Observation:
        def read(
            db: Db,
        ) -> tuple[int, list[Pod], tuple[Fact, ...], int, dict[str, wire.AgentState]]:
            newest = books.known(db, job).newest
            taken = self.reconciler.take_in(db, job.id)
            facts, after = books.facts_after(db, job.id, cursor)
            return newest, pods.of_job(db, job.id), facts, after, taken

        newest, own, facts, after, taken = await self.store.run(read)
        for uid, state in taken.items():
            self.agents.written(uid, state)
        watched = [self.agents.known[pod.uid] for pod in own if pod.uid in self.agents.known]
        return Observation(
            now=self._now(),
            cursor=after,
            pods=tuple(views.pod_view(pod, self.agents.known.get(pod.uid)) for pod in own),
            checkpoint=views.newest_checkpoint(watched),
            facts=facts,
            generation=newest,
        )

    async def check(self, job: JobRef) -> tuple[Fact, ...]:
        own = await self.store.run(lambda db: pods.in_place(db, job))
        await asyncio.gather(*(self.agents.look(pod.uid) for pod in own if not pod.is_lost))
        return await self.store.run(lambda db: nodes.present(db, job.id))

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        def read(db: Db) -> tuple[books.Job, list[Pod], tuple[float, ...], bool]:
            known, own = books.known(db, job), pods.of_job(db, job.id)
            watched = [self.agents.known.get(pod.uid) for pod in own]
            for agent in watched:
                endings.note(db, job.id, agent, now=self._now())
            is_over = all(endings.is_well(agent, known.newest) for agent in watched)
            return known, own, endings.of(db, job.id), is_over

        known, own, ended, is_over = await self.store.run(read)
        if known.checkpoints_path is None:
            return ()
        question: wire.CheckpointsQuestion = {
            "path": known.checkpoints_path,
            "format": known.checkpoints_format,
            "pattern": known.checkpoints_pattern,
            "phase": known.checkpoints_of,
            "ended": list(ended),
            "is_over": is_over,
        }
        uids = [pod.uid for pod in own if not pod.is_out]
        return await storage.checkpoints(self.agents, uids, question)

    async def ensure_set_aside(self, order: SetAsideOrder) -> SetAside:
        known, own = await self.store.run(
            lambda db: (
                books.owned(db, order.job, order.generation),
                pods.of_job(db, order.job.id),
            )
        )
        if known.checkpoints_path is None:
            return SetAside()
        uids = [pod.uid for pod in own if not pod.is_out]
        folder, pattern = known.checkpoints_path, known.checkpoints_pattern
        return await storage.set_aside(self.agents, uids, folder, pattern, order)

    async def leftovers(self) -> tuple[Leftover, ...]:
        return await self.store.run(books.leftovers)

    # -- stopping and healing --------------------------------------------------------------------

    async def ensure_stopped(self, order: StopOrder) -> StopState:
        with self.news.reading(order.job.id):
            return await generations.ensure_stopped(self._means, order)

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        def work(moment: Moment) -> tuple[HealState, float | None]:
            books.owned(moment.db, job, generation)
            scene = LocalScene(moment=moment)
            asked = scene.device(node, device)
            state = heal(scene, *asked, takes_s=self.settings.heal_s)
            return state, asked[1].heals_at

        state, ends_at = await self._with(work)
        if ends_at is not None and state.state == "healing":
            self.news.add_later("", ends_at - self._now())
        return state

    # -- placing ---------------------------------------------------------------------------------

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        with self.news.reading(order.job.id):
            state, opens_at = await self._with(
                lambda moment: (placing.ask(moment, order), placing.opens_at(moment, order))
            )
            await self.reconciler.reconcile()
        if opens_at is not None and not state.placed:
            self.news.add_later(order.job.id, opens_at - self._now())
        if not state.placed:
            return state
        for ref in state.pods.values():
            watched = self.agents.known.get(ref.uid)
            if watched is None or watched.state is None:
                wait = f"{ref.uid} on {ref.node} to be ready"
                return PlaceState(placed=False, places=len(state.pods), waiting_for=wait)
        return state

    async def ensure_prechecked(self, order: PrecheckOrder) -> PrecheckState:
        with self.news.reading(order.job.id):
            state = await checking.ensure(self._means, order)
        if not state.done:
            self.news.add_later(order.job.id, checking.AGAIN_S)
        return state

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        await self.store.run(lambda db: nodes.isolate(db, node, reason))

    async def ensure_released(self, node: str) -> None:
        def work(moment: Moment) -> None:
            nodes.release(moment.db, node)
            placing.serve_queue(moment)

        await self._with(work)
        await self.reconciler.reconcile()
        self.news.add("")

    # -- starting --------------------------------------------------------------------------------

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        order = (await self._folders_of(order.job.id)).to_fence(order)
        with self.news.reading(order.job.id):
            state, holds_at = await generations.ensure_fenced(self._means, order)
        if holds_at is not None:
            self.news.add_later(order.job.id, holds_at - self._now())
        return state

    async def ensure_started(self, order: StartOrder) -> StartState:
        order = (await self._folders_of(order.job.id)).to_start(order)
        with self.news.reading(order.job.id):
            return await generations.ensure_started(self._means, order)

    # -- ending ----------------------------------------------------------------------------------

    async def ensure_recorded(self, job: JobRef, entries: tuple[Entry, ...]) -> None:
        known, own = await self.store.run(
            lambda db: (books.known(db, job), pods.of_job(db, job.id) + pods.leaving(db, job.id))
        )
        if known.unwritable is not None:
            raise BackendUnavailable(known.unwritable.message)
        uids = [pod.uid for pod in own if not pod.is_out]
        mine = await self._folders_of(job.id)
        for asked in storage.journal_commands(job.id, entries, mine.model_dir):
            try:
                await self.agents.ask_any(uids, wire.JOURNAL, asked, within_s=wire.STORAGE_S)
            except NobodyToAsk:  # its pods are gone, or stopped: this machine is left
                await reading.read(f"the records of {job.id}", partial(journal_files.write, asked))

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        closed = await self.store.run(lambda db: closing.close(db, job, grace_s))
        await self.reconciler.reconcile()
        if closed.left:
            return GoneState(done=False, waiting_for=f"{closed.left[0]} to go")
        await generations.release(job.id, self.cluster, closed)
        await self.store.run(lambda db: closing.forget(db, job, closed.generation))
        self._folders.forget(job.id)
        return GoneState(done=True)

    async def close(self) -> None:
        await self.reconciler.close()
        await self.agents.close()
        self.store.close()
