"""Brings the pods of the machine to the state in the books: starts agents, ends them, records their ends.

`reconcile` runs after every change of the books and twice a second. It starts an agent for each new pod and
polls it, and has one task for each leaving pod (`_end`): end the agent, kill what is left, free the
devices, wait until the place is cleared, drop the pod. Any worker may do this, and repeat it after one was
killed in the middle: the books have the wanted state, locks and marks on the machine show the actual one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.processes import proc
from everstep.backends.agents import endings
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import environment
from everstep.backends.local import logs
from everstep.backends.local.database import placing, pods
from everstep.backends.local.database.job_books import LocalJobBooks
from everstep.backends.local.database.placing import Transaction
from everstep.backends.local.database.pods import LocalPod
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.agents import (
    AgentFolder,
    clean_up,
    kill_agent,
    reap_agents,
    spawn,
)
from everstep.backends.local.reconciling.liveness import Life
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules.nodes import Service
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire

LOG = logging.getLogger(__name__)

POLL_S = 0.05
"""Time between two looks whether another worker, or a rehearsed fault, changed the books."""
CARE_S = 0.5
"""Time between two rounds over the pods while no order comes."""
STRAYS_EVERY = 20
"""Rounds between two comparisons of all agents of the machine with the books."""
SPAWN_AGAIN_S = 10.0
"""Time after which an agent that was started and is still missing is started again."""
PROOF_S = 0.02
"""Time between two looks at whether an agent has ended."""
QUIT_S = 1.0
"""Time that an agent has to quit, beside the grace of its ranks; then it is killed."""
CLEARING_POLL_S = 0.5


@dataclass(slots=True, kw_only=True)
class PodReconciler:
    """Reconciles the pods of the machine, for one worker."""

    settings: LocalSettings
    store: Store
    agents: Agents
    clock: Callable[[], float]
    add_news: Callable[[str], None]  # of the job with this ID, or of all jobs: ""
    pods: Mapping[str, LocalPod] = field(default_factory=dict)  # by uid, as the books had them last
    spawned: dict[str, float] = field(default_factory=dict)  # when the agent of a uid was started
    ending: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # the task by uid

    tasks: tuple[asyncio.Task[None], ...] = ()

    async def begin(self) -> None:
        """Reconcile, and again and again until `close`."""
        await self.reconcile()
        self.tasks = (
            asyncio.create_task(self._follow_the_books(), name="follow the books"),
            asyncio.create_task(self._keep_reconciling(), name="look after pods"),
        )

    async def _follow_the_books(self) -> None:
        version_before = -1
        while True:
            with _errors_logged():
                version = await self.store.changes()
                if version != version_before:
                    version_before = version
                    await self.reconcile()
                    self.add_news("")
            await asyncio.sleep(POLL_S)

    async def _keep_reconciling(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(CARE_S)
            with _errors_logged():
                reap_agents()
                await self.reconcile()
                if number % STRAYS_EVERY == 0:
                    await self.end_strays()

    def job_of(self, uid: str) -> str:
        return self.pods[uid].job if uid in self.pods else ""

    def service_of(self, uid: str) -> Service | None:
        return self.pods[uid].service if uid in self.pods else None

    async def reconcile(self) -> None:
        """Bring every pod of the machine to the state in the books."""
        self.pods = {pod.uid: pod for pod in await self.store.run(pods.all_pods)}
        for uid in [uid for uid, task in self.ending.items() if task.done()]:
            del self.ending[uid]  # begun again below if the pod is still there
        for pod in self.pods.values():
            self._reconcile_one(pod)
        for uid in [uid for uid in self.agents.by_uid if uid not in self.pods]:
            self.agents.forget(uid)
        for uid in self.spawned.keys() - self.pods.keys():
            del self.spawned[uid]

    def _reconcile_one(self, pod: LocalPod) -> None:
        uid = pod.uid
        if pod.is_leaving:
            if uid not in self.ending:
                self.ending[uid] = asyncio.create_task(self._try_to_end(pod), name=f"end {uid}")
            return
        if pod.is_out:
            return
        watched = self.agents.watch(uid, has_answered=pod.has_answered)
        if watched.state is None and not pod.has_answered and pod.service == "ready":
            self._start(pod)

    def _start(self, pod: LocalPod) -> None:
        uid, now = pod.uid, self.clock()
        if (
            now - self.spawned.get(uid, 0.0) < SPAWN_AGAIN_S
            or self.settings.folder(uid).life() is Life.ALIVE
        ):
            return
        try:
            spawn(
                self.settings.folder(uid),
                self.settings.agent,
                job=pod.job,
                slot=pod.slot,
                node=pod.node,
                uid=uid,
                orphan_s=self.settings.orphan_s,
                log_mb=self.settings.log_mb,
                has_namespace=self.settings.has_namespace,
                environ=environment.passed(self.settings.environ, environment.FOR_AGENTS),
            )
        except OSError as error:  # the next round tries again; other pods do not wait for this one
            LOG.warning(
                "the agent of %s cannot be started now: %s", uid, error, extra={"job": pod.job}
            )
            return
        self.spawned[uid] = now

    # -- ending ----------------------------------------------------------------------------------

    async def _try_to_end(self, pod: LocalPod) -> None:
        try:
            await self._end(pod)
        except (OSError, BackendUnavailable) as error:  # the next round begins again
            LOG.warning("pod %s cannot be ended now: %s", pod.uid, error, extra={"job": pod.job})

    async def _end(self, pod: LocalPod) -> None:
        """End the pod. Returns when nothing of it runs any more and its place is free."""
        uid = pod.uid
        if pod.service == "cut_off":
            return  # out of reach: what is not proven is not done
        await self._end_agent(uid, grace_s=pod.grace_s)
        path = self.settings.folder(uid).path
        for looks in itertools.count(1):  # the kernel does not report the end of another's child
            if await asyncio.to_thread(liveness.sweep, path) is Life.GONE:
                break
            await asyncio.sleep(proc.pause_s(looks))
        await self.store.run(lambda db: self._record_end(db, pod))
        self.add_news(pod.job)
        await asyncio.to_thread(clean_up, self.settings.folder(uid))
        # Read again now and then: the node may be lost meanwhile, without any event.
        while (left_s := await self.store.run(lambda db: self._clearing_s(db, uid))) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, CLEARING_POLL_S))
        await self.store.run(lambda db: self._drop_pod(db, uid))
        self.agents.forget(uid)
        self.add_news("")

    async def _end_agent(self, uid: str, *, grace_s: float) -> None:
        """Have the agent quit, or kill it. Returns when it is proven that none lives or will."""
        folder = self.settings.folder(uid)
        if folder.life() is not Life.GONE:
            try:
                body = {"grace_s": grace_s}
                await folder.request("POST", wire.QUIT, body, within_s=grace_s + QUIT_S)
            except (NoAnswer, Refused):
                kill_agent(folder)
        ends_at = self.clock() + grace_s + QUIT_S
        while not _is_gone_for_good(folder):
            if self.clock() > ends_at:
                kill_agent(folder)
            await asyncio.sleep(PROOF_S)

    def _record_end(self, db: Db, pod: LocalPod) -> None:
        """Record that nothing of the pod runs: its devices are free, its place not yet."""
        agent, now, job = self.agents.by_uid.get(pod.uid), self.clock(), LocalJobBooks(db, pod.job)
        job.record = endings.with_ends_of(
            job.record, agent, now=now, wall_now=time.time(), ended_since=now
        )
        pods.dead(db, pod.uid, now)
        placing.serve_queue(Transaction(db=db, settings=self.settings, now=now))

    def _clearing_s(self, db: Db, uid: str) -> float:
        """How long its place is still being cleared; a node out of service has nothing to clear."""
        pod = pods.by_uid(db, uid)
        if pod is None or pod.service == "down" or pod.dead_at is None:
            return 0.0
        return pod.dead_at + pod.teardown_s - self.clock()

    def _drop_pod(self, db: Db, uid: str) -> None:
        pods.remove(db, uid)
        placing.serve_queue(Transaction(db=db, settings=self.settings, now=self.clock()))

    async def end_strays(self) -> None:
        """End agents of pods that are not in the books: their worker was killed, or was too late.

        An agent of a generation that these books never gave is left alone: the books are an older copy, or
        others, and it may belong to a healthy job.
        """
        # First the living agents, then the books: in between a pod may be entered and its agent started.
        here = await asyncio.to_thread(self.settings.living)
        uids = {pod.uid for pod in await self.store.run(pods.all_pods)}
        for uid in await self.store.run(lambda db: self._from_these_books(db, here - uids)):
            liveness.shut(self.settings.folder(uid).path)
            kill_agent(self.settings.folder(uid))
            await asyncio.to_thread(liveness.sweep, self.settings.folder(uid).path)
            await asyncio.to_thread(clean_up, self.settings.folder(uid))

    def _from_these_books(self, db: Db, uids: set[str]) -> list[str]:
        return [uid for uid in sorted(uids) if pods.gave(db, uid, logs.job_of(self._path(uid)))]

    def _path(self, uid: str) -> Path:
        return self.settings.folder(uid).path

    async def close(self) -> None:
        tasks = (*self.tasks, *self.ending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_gone_for_good(folder: AgentFolder) -> bool:
    """Whether no agent lives in this folder, nor ever will."""
    if folder.life() is Life.ALIVE:
        return False
    liveness.shut(folder.path)
    return folder.life() is Life.GONE


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Log an exception of the block and go on: the next round tries again."""
    try:
        yield
    except BackendUnavailable:
        pass  # the caller of a verb gets the error
    except Exception:
        LOG.exception("looking after the pods failed; it is tried again")
