"""Watching a job for as long as it is quiet, and looking at it once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from everstep.core.errors import BackendUnavailable
from everstep.core.facts import Fact, bounded, distinct
from everstep.core.recovering import growth
from everstep.core.seeing import watching
from everstep.core.seeing.glance import glance
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.seeing.watching import AskAll, Watch
from everstep.core.world import Observation
from everstep.steps.looking import StepContext

QUIET_POLL_S = 3.0
"""So often a job of which there is no news is looked at: its heartbeat shows how far it is.

A rehearsal, whose limits are short, is looked at each second: its first signs of life are no news.
"""

CHECK_S = 2.0
"""So long, of real time, the cluster may take to answer a check; then it is answered without."""

GROW_POLL_S = 60.0
"""So often a job that runs with fewer nodes than it wanted looks for room."""

ATTRIBUTABLE = frozenset({"process", "agent", "pod", "hang"})
"""Facts for which a check may find the cause: a crash may be a device's doing."""


async def watch(context: StepContext, order: WatchOrder, leave: asyncio.Event) -> WatchReport:
    """Until there is news. `leave` ends it early, with whatever was gathered; nothing is lost."""
    report = await _watched(context, order, leave)
    return replace(report, facts=bounded(report.facts))


async def _watched(context: StepContext, order: WatchOrder, leave: asyncio.Event) -> WatchReport:
    memory = Watch(learned=order.learned)
    cursor = order.cursor
    until: float | None = order.since
    seen: Observation | None = None
    present: tuple[Fact, ...] = ()
    while (fresh := await _news(context, order, leave, cursor=cursor, until=until)) is not None:
        if seen is None:
            await context.waits(None)  # for others to look at it, as it may have waited for before
        cursor, seen = fresh.cursor, fresh
        memory, verdict = watching.look(order, memory, fresh)
        context.beat(glance(order, memory, fresh))
        if isinstance(verdict, AskAll):
            present, until = await _ask(context, order), order.since
            continue
        if isinstance(verdict, WatchReport):
            return await _last_saved(context, order, _with_causes(order, verdict, present))
        until = verdict.until
        if order.room_for is None or order.is_paused:
            continue
        room = await _room(context, order, fresh)
        if room is not None:
            return watching.report(order, memory, fresh, "facts", extra=(room,))
        until = fresh.now + GROW_POLL_S if until is None else min(until, fresh.now + GROW_POLL_S)
    seen = await context.backend.observe(order.job, cursor=cursor, until=0.0, wait_s=0.0)
    memory, _ = watching.look(order, memory, seen)
    return watching.report(order, memory, seen, "interrupted")


async def _news(
    context: StepContext,
    order: WatchOrder,
    leave: asyncio.Event,
    *,
    cursor: int,
    until: float | None,
) -> Observation | None:
    """What the cluster shows next; None as soon as the watch is to be left."""
    if leave.is_set():
        return None
    wait_s = max(QUIET_POLL_S / order.time_scale, 1.0)
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


async def _room(context: StepContext, order: WatchOrder, seen: Observation) -> Fact | None:
    if not growth.may_grow(order, seen):
        return None
    return growth.room(order, seen, await context.backend.nodes())


async def _ask(context: StepContext, order: WatchOrder) -> tuple[Fact, ...]:
    """Have every agent tell what it sees now, for the next look; the faults that the cluster knows of."""
    try:
        return await asyncio.wait_for(context.backend.check(order.job), timeout=CHECK_S)
    except TimeoutError:
        return ()


async def look_once(context: StepContext, order: WatchOrder) -> WatchReport:
    """The world as it is now."""
    seen = await context.backend.observe(order.job, cursor=order.cursor, until=0.0, wait_s=0.0)
    memory, _ = watching.look(order, Watch(learned=order.learned), seen)
    report = watching.report(order, memory, seen, "refresh")
    # Facts stay with the backend: the watch that follows is to group and settle them.
    return replace(report, facts=(), cursor=order.cursor)


def _with_causes(order: WatchOrder, report: WatchReport, present: tuple[Fact, ...]) -> WatchReport:
    """A crash along with the faults that are there and may be its cause."""
    if report.news != "facts" or not any(f.family in ATTRIBUTABLE for f in report.facts):
        return report
    news = tuple(fact for fact in present if fact.id not in order.seen_ids)
    return replace(report, facts=distinct((*report.facts, *news)))


async def _last_saved(context: StepContext, order: WatchOrder, report: WatchReport) -> WatchReport:
    """At an end that nothing may follow: the newest checkpoint, which no agent may have seen before it."""
    is_last = report.news == "facts" and order.is_last_run
    if report.news != "done" and not is_last:
        return report
    try:
        saved = await asyncio.wait_for(context.backend.checkpoints(order.job), timeout=CHECK_S)
    except (TimeoutError, BackendUnavailable):  # it is done all the same
        return report
    newest = next((one for one in saved if one.good), None)
    return report if newest is None else replace(report, checkpoint=newest)
