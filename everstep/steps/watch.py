"""Watch a job until something needs a decision (`watch`), or observe it once (`observe_once`).

The activities of these names call it. What an observation means is judged in `core.seeing.watching`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from everstep.core.errors import BackendUnavailable, WrongCluster
from everstep.core.facts import Fact, bounded, distinct
from everstep.core.recovering import growth
from everstep.core.recovering.avoiding import maintenance_over
from everstep.core.recovering.growth import Room
from everstep.core.seeing import watching
from everstep.core.seeing.glance import glance
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.seeing.watching import PollAll, Watch
from everstep.core.world import Checkpoint, Observation, PodState
from everstep.steps.spares import KeptSpares
from everstep.steps.step_run import StepContext

QUIET_LEAST_S, QUIET_POLL_S = 0.75, 3.0
"""Seconds between two observations of a job without news, whose heartbeat shows its progress.

In a rehearsal, whose limits are short, it is a second at most.
"""

QUIET_JOBS_PER_S, QUIET_PODS_PER_S = 33, 300
"""Most jobs and pods that a worker observes for their progress alone: of more, each is observed later."""

CHECK_S = 2.0
"""Real seconds for a check of the cluster; after that the report is made without it."""

GROW_POLL_S = 60.0
"""Longest time between two looks at the nodes, for room that a job lacks or for the end of a maintenance:
others come with news."""

GROW_SETTLE_S = 10.0
"""Seconds that a job waits for further nodes before it grows: those that return together cost one restart."""

ATTRIBUTABLE = frozenset({"process", "agent", "pod", "hang"})
"""Families of facts that may have a cause which a check finds, such as a faulty device."""


async def watch(
    context: StepContext,
    order: WatchOrder,
    leave: asyncio.Event,
    *,
    saved: Checkpoint | None = None,
    step: int | None = None,
) -> WatchReport:
    """Watch until there is news. `leave` ends the watch early, with what was gathered; nothing is lost.

    `saved`, `step`: the newest checkpoint and the newest step that an earlier try observed.
    """
    memory = Watch(learned=order.learned, saved=saved, step=step)
    report = await _watched(context, order, leave, memory)
    return replace(report, facts=bounded(report.facts))


async def _watched(
    context: StepContext, order: WatchOrder, leave: asyncio.Event, memory: Watch
) -> WatchReport:
    cursor = order.cursor
    # The first observation returns at once, later ones with news or at this time.
    until: float | None = order.since
    observation: Observation | None = None
    present: tuple[Fact, ...] = ()
    grows_at: float | None = None
    serviced = _ServicedNodes(context=context, order=order)
    spares = KeptSpares(context=context, order=order.spares, time_scale=order.time_scale)
    while (fresh := await _news(context, order, leave, cursor=cursor, until=until)) is not None:
        if observation is None:
            # An earlier try may have reported a wait for an observation.
            await context.send_wait(None)
        _refuse_older(order, fresh)
        cursor, observation = fresh.cursor, fresh
        memory, verdict = watching.check(order, memory, fresh)
        if context.has_heartbeat:
            context.beat(glance(order, memory, fresh) | spares.values())
        if isinstance(verdict, PollAll):
            present, until = await _check_now(context, order), order.since
            continue
        if isinstance(verdict, WatchReport):
            return await _last_saved(context, order, _with_causes(order, verdict, present))
        if over := await serviced.open_again(fresh.now):
            news = watching.report(order, memory, fresh, "refresh")
            return replace(news, maintenance_over=over)
        await spares.keep(fresh.now)
        until = _earliest(verdict.until, serviced.look_at, spares.look_at)
        if order.room_for is None or order.is_paused:
            continue
        room = await _room(context, order, fresh)
        if room is None:
            grows_at = None
            look_at = fresh.now + GROW_POLL_S
        else:
            grows_at = grows_at or fresh.now + GROW_SETTLE_S / order.time_scale
            if room.is_for_all or fresh.now >= grows_at:
                return watching.report(order, memory, fresh, "facts", extra=(room.fact,))
            look_at = grows_at
        until = _earliest(until, look_at)
    observation = await _observed_now(context, order, cursor)
    memory, _ = watching.check(order, memory, observation)
    return watching.report(order, memory, observation, "interrupted")


async def _news(
    context: StepContext,
    order: WatchOrder,
    leave: asyncio.Event,
    *,
    cursor: str,
    until: float | None,
) -> Observation | None:
    """The next observation; None as soon as the watch is to end."""
    if leave.is_set():
        return None
    wait_s = quiet_s(context.monitored_jobs(), len(order.active), order.time_scale)
    looking = asyncio.ensure_future(
        context.backend.observe(order.job, cursor=cursor, until=until, wait_s=wait_s)
    )
    leaving = asyncio.ensure_future(leave.wait())
    try:
        await asyncio.wait((looking, leaving), return_when=asyncio.FIRST_COMPLETED)
        return looking.result() if looking.done() else None
    finally:
        looking.cancel()
        leaving.cancel()


def quiet_s(jobs: int, pods: int, time_scale: float) -> float:
    """How long to wait for news of one of these jobs, which has so many pods."""
    most_s = max(QUIET_POLL_S / time_scale, 1.0)
    return min(most_s, max(QUIET_LEAST_S, jobs / QUIET_JOBS_PER_S, pods / QUIET_PODS_PER_S))


async def _room(context: StepContext, order: WatchOrder, observation: Observation) -> Room | None:
    if not growth.may_grow(order, observation):
        return None
    return growth.room(order, observation, await context.backend.nodes(order.job))


def _earliest(*times: float | None) -> float | None:
    return min((at for at in times if at is not None), default=None)


@dataclass(slots=True, kw_only=True)
class _ServicedNodes:
    """The nodes that the job avoids for their maintenance, looked at from time to time."""

    context: StepContext
    order: WatchOrder
    look_at: float | None = None  # the next time

    async def open_again(self, now: float) -> tuple[str, ...]:
        """Those in service again, if it is time to look. What cannot be looked at stays avoided."""
        names = self.order.in_maintenance
        if not names or (self.look_at is not None and now < self.look_at):
            return ()
        self.look_at = now + GROW_POLL_S
        try:
            nodes = await self.context.backend.nodes(self.order.job)
        except BackendUnavailable:
            return ()
        return maintenance_over(names, nodes)


async def _check_now(context: StepContext, order: WatchOrder) -> tuple[Fact, ...]:
    """Have every agent sample now, for the next observation; return the cluster's current faults."""
    try:
        async with asyncio.timeout(CHECK_S):
            return await context.backend.check(order.job)
    except TimeoutError:
        return ()


async def _observed_now(context: StepContext, order: WatchOrder, cursor: str) -> Observation:
    """What is there now. A worker that has just begun polls its agents first: pods unheard of look gone."""
    observe = partial(context.backend.observe, order.job, cursor=cursor, until=0.0, wait_s=0.0)
    observation = await observe()
    if any(pod.state is PodState.PENDING for pod in observation.pods):
        await _check_now(context, order)
        observation = await observe()
    _refuse_older(order, observation)
    return observation


def _refuse_older(order: WatchOrder, observation: Observation) -> None:
    """Raise WrongCluster if the cluster database never gave the job its generation: it is an older copy.

    The pods that it shows as lost are not those that train.
    """
    newest = observation.generation
    if 0 < newest < order.generation:
        raise WrongCluster.older(order.job.id, newest=newest, ordered=order.generation)


async def observe_once(context: StepContext, order: WatchOrder) -> WatchReport:
    """The job as it is now."""
    observation = await _observed_now(context, order, order.cursor)
    memory, _ = watching.check(order, Watch(learned=order.learned), observation)
    report = watching.report(order, memory, observation, "refresh")
    # Facts stay with the backend: the watch that follows is to group and settle them.
    return replace(report, facts=(), cursor=order.cursor)


def _with_causes(order: WatchOrder, report: WatchReport, present: tuple[Fact, ...]) -> WatchReport:
    """The report of a crash, with current faults that may be its cause."""
    if report.news != "facts" or not any(f.family in ATTRIBUTABLE for f in report.facts):
        return report
    news = tuple(fact for fact in present if fact.id not in order.seen_ids)
    return replace(report, facts=distinct((*report.facts, *news)))


async def _last_saved(context: StepContext, order: WatchOrder, report: WatchReport) -> WatchReport:
    """The report of a last run, with its newest checkpoint, which may not have been observed yet."""
    is_last = report.news == "facts" and order.is_last_run
    if report.news != "done" and not is_last:
        return report
    try:
        async with asyncio.timeout(CHECK_S):
            saved = await context.backend.checkpoints(order.job)
    except (TimeoutError, BackendUnavailable):  # it is done all the same
        return report
    newest = next((one for one in saved if one.good), None)
    return report if newest is None else replace(report, checkpoint=newest)
