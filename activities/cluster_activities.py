"""Activities that touch the cluster: one per step, the monitor, the look, the clearing, the sweep."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.service import RPCError

from activities.earlier_quarantine import earlier_quarantine
from activities.heartbeat import Heartbeat, heartbeating
from activities.recovery_ids import end_recovery
from activities.visibility import (
    FAILS_VISIBLY_FROM,
    SIGNAL_WITHIN,
    signal_wait,
    visible,
)
from everstep.backends.base import Backend
from everstep.core import names
from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import CountOrder
from everstep.core.deciding.decision import Isolation, StepOrder, StepResult
from everstep.core.levels import Step
from everstep.core.seeing.glance import saved_in, step_in
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.state import Wait
from everstep.core.world import Checkpoint, ClusterReached, GoneState, JobRef, SaveOrder, SaveState
from everstep.steps.counting import (
    count_faults,
)
from everstep.steps.perform import hand_over, perform
from everstep.steps.step_run import QuarantineClient, StepContext
from everstep.steps.watch import observe_once, watch
from everstep.telemetry.worker_log import log_with

WATCHED_BY = "worker"
"""The key of a monitor's heartbeat with the identity of its worker."""

SAVED_POLL_S = 0.5
END_SHOWN_S = 10.0
"""A job shows what its end waits for only after so long, and a change of it as late: each is a signal."""


async def report_takeover(job: JobRef, *, earlier: str) -> None:
    """Report that this worker watches the job now. Only for display, as `signal_wait`."""
    client = activity.client()
    workers = {"worker": client.identity, "earlier": earlier}
    try:
        handle = client.get_workflow_handle(job.id)
        await handle.signal("taken_over", workers, rpc_timeout=SIGNAL_WITHIN)
    except RPCError as error:
        activity.logger.info(
            "the job could not be sent that %s watches it: %s", client.identity, error
        )


def _beat(heartbeat: Heartbeat, worker: str, glance: Mapping[str, object]) -> None:
    heartbeat.beat({**glance, WATCHED_BY: worker})


async def _show_nothing(_wait: Wait | None) -> None:
    return None


async def until_gone(
    backend: Backend,
    job: JobRef,
    beat: Callable[..., None],
    *,
    grace_s: float = 0.0,
    within_s: float = math.inf,
    show: Callable[[Wait | None], Awaitable[None]] = _show_nothing,
) -> GoneState:
    """Repeat the order until nothing of the job is left, with a heartbeat each time, or the time is over.

    `show` is called with what a long end waits for, and with None once that is over.
    """
    cursor, ends_at = "", time.monotonic() + within_s
    wait, show_at = None, time.monotonic() + END_SHOWN_S
    saved: Checkpoint | None = None
    while True:
        state = await backend.ensure_gone(job, grace_s=grace_s)
        saved = state.saved or saved
        beat(state.waiting_for)
        if state.done or time.monotonic() >= ends_at:
            if wait is not None:
                await show(None)
            return replace(state, saved=saved)
        if state.wait != wait and time.monotonic() >= show_at:
            wait, show_at = state.wait, time.monotonic() + END_SHOWN_S
            await show(None if wait is None else Wait.of(wait))
        cursor = (await backend.observe(job, cursor=cursor, until=None, wait_s=1.0)).cursor


async def until_saved(
    backend: Backend, order: SaveOrder, beat: Callable[..., None], *, within_s: float
) -> SaveState:
    """Repeat the request until something is saved, nothing is to be waited for, or the time is over."""
    ends_at = time.monotonic() + within_s
    while True:
        state = await backend.ensure_save_requested(order)
        beat()
        is_awaited = state.saved is None and (state.signalled or state.silent)
        if not is_awaited or time.monotonic() >= ends_at:
            return state
        await asyncio.sleep(SAVED_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterActivities:
    """What one worker does on one cluster."""

    backend: Backend
    quarantine: QuarantineClient
    monitors: set[Heartbeat] = field(default_factory=set)  # of the jobs that are monitored here

    def glances(self) -> list[Mapping[str, Any]]:
        """The newest glance at each of these jobs."""
        newest = (heartbeat.details[:1] for heartbeat in self.monitors)
        return [glance for (glance,) in filter(None, newest) if isinstance(glance, Mapping)]

    def all(self) -> list[Callable[..., Any]]:
        return [
            *(self._step(step) for step in Step),
            self.monitor,
            self.look,
            self.clear,
            self.hand_over,
            self.reach,
            self.adopt,
            end_recovery,
            self.count_faults,
            self.devices_of,
            self.request_save,
            earlier_quarantine,
            self.cluster_isolations,
            self.isolate_on_cluster,
            self.release_on_cluster,
        ]

    def _context(self, heartbeat: Heartbeat) -> StepContext:
        return StepContext(
            backend=self.backend,
            quarantine=self.quarantine,
            beat=heartbeat.beat,
            monitored_jobs=lambda: len(self.monitors),
        )

    def _step(self, step: Step) -> Callable[..., Any]:
        """The activity that carries out this step; its name is the step's."""

        @activity.defn(name=str(step))
        async def carry_out(order: StepOrder) -> StepResult:
            plan = order.plan
            log_with(generation=order.generation)
            async with heartbeating() as heartbeat, visible(str(order.step), plan.job.id, plan.key):
                context = self._context(heartbeat)
                send_wait = partial(signal_wait, plan.job.id, plan.key)
                return await perform(replace(context, send_wait=send_wait), order)

        return carry_out

    @activity.defn(name="monitor")
    async def monitor(self, order: WatchOrder) -> WatchReport:
        """Watches until there is news. A cancelled one returns what it gathered, so nothing is lost."""
        leave = asyncio.Event()
        async with heartbeating() as heartbeat, visible("monitor", order.job.id):
            context = self._context(heartbeat)
            # A step that fails once is not worth a word: its worker may just have been replaced.
            if activity.info().attempt > FAILS_VISIBLY_FROM:
                context = replace(context, send_wait=partial(signal_wait, order.job.id, None))
            before, worker = next(iter(heartbeat.details), None), activity.client().identity
            saved, step = saved_in(before), step_in(before, generation=order.generation)
            glance: Mapping[str, object] = before if isinstance(before, Mapping) else {}
            earlier = glance.get(WATCHED_BY)
            context = replace(context, beat=partial(_beat, heartbeat, worker))
            if earlier not in (None, worker):
                await report_takeover(order.job, earlier=str(earlier))
                # A try that fails before its first look leaves this to the next one.
                heartbeat.send({**glance, WATCHED_BY: worker})
            looking = asyncio.ensure_future(watch(context, order, leave, saved=saved, step=step))
            self.monitors.add(heartbeat)
            try:
                return await asyncio.shield(looking)
            except asyncio.CancelledError:
                details = activity.cancellation_details()
                if details is None or not details.cancel_requested:
                    looking.cancel()
                    raise
                leave.set()
                return await looking
            finally:
                self.monitors.discard(heartbeat)

    @activity.defn(name="look")
    async def look(self, order: WatchOrder) -> WatchReport:
        """The world as it is now."""
        async with heartbeating() as heartbeat, visible("look", order.job.id):
            return await observe_once(self._context(heartbeat), order)

    @activity.defn(name="clear")
    async def clear(self, job: JobRef, grace_s: float, key: str | None = None) -> GoneState:
        """Removes everything of the job; returns when nothing is left.

        With a key it takes a generation first: only a run that lives may end what a later one began.
        """
        async with heartbeating() as heartbeat, visible("clear", job.id):
            if key is not None:
                await self.backend.ensure_generation(job, key)
            show = partial(signal_wait, job.id, None)
            return await until_gone(self.backend, job, heartbeat.beat, grace_s=grace_s, show=show)

    @activity.defn(name="hand_over")
    async def hand_over(
        self, job: JobRef, cluster: str, isolations: tuple[Isolation, ...]
    ) -> tuple[str, ...]:
        """Sends the quarantine what it did not answer while the job lived; which nodes it isolated."""
        async with heartbeating() as heartbeat, visible("hand_over", job.id):
            return await hand_over(self._context(heartbeat), job, cluster, isolations)

    @activity.defn(name="reach")
    async def reach(self) -> ClusterReached:
        """The backend's time, and which books the job is in from now on. The quarantine orders it as well."""
        caller = activity.info()
        job = caller.workflow_id if caller.workflow_type == names.TRAINING_JOB else None
        async with heartbeating(), nullcontext() if job is None else visible("reach", job):
            books = await self.backend.identity()
            return ClusterReached(now=await self.backend.clock(), books=books)

    @activity.defn(name="adopt")
    async def adopt(self, job: JobRef, generation: int, folders: dict[str, str]) -> str:
        """Has the books of this worker take over a job that is missing in them, or incomplete."""
        async with heartbeating(), visible("adopt", job.id):
            return await self.backend.ensure_adopted(job, generation=generation, folders=folders)

    @activity.defn(name="count_faults")
    async def count_faults(self, order: CountOrder) -> tuple[FaultCount, ...]:
        """Reports device faults to the quarantine; how often each was seen over all jobs."""
        async with heartbeating() as heartbeat, visible("count_faults", order.job):
            return await count_faults(self._context(heartbeat), order)

    @activity.defn(name="marks")
    async def cluster_isolations(self) -> dict[str, str]:
        """The nodes and devices that the cluster itself shows as isolated, and why."""
        async with heartbeating():
            nodes = await self.backend.nodes()
        devices = {f"{n.name}/{d.index}": d.isolated for n in nodes for d in n.devices}
        isolated = {name: reason for name, reason in devices.items() if reason is not None}
        return {**{n.name: n.reason for n in nodes if n.isolated}, **isolated}

    @activity.defn(name="devices_of")
    async def devices_of(self, node: str) -> tuple[int, ...]:
        """The indexes of the node's devices, none if the cluster shows no such node."""
        async with heartbeating():
            nodes = await self.backend.nodes()
        indexes = (tuple(d.index for d in one.devices) for one in nodes if one.name == node)
        return next(indexes, ())

    @activity.defn(name="request_save")
    async def request_save(self, order: SaveOrder, within_s: float) -> SaveState:
        """Has the ranks of a job save now, and returns what they saved within this time."""
        async with heartbeating() as heartbeat:
            return await until_saved(self.backend, order, heartbeat.beat, within_s=within_s)

    @activity.defn(name="mark")
    async def isolate_on_cluster(self, node: str, reason: str) -> None:
        """Lets nothing new land on the node."""
        async with heartbeating():
            await self.backend.ensure_isolated(node, reason=reason)

    @activity.defn(name="release_mark")
    async def release_on_cluster(self, node: str) -> None:
        """Lets new pods land on the node again."""
        async with heartbeating():
            await self.backend.ensure_released(node)
