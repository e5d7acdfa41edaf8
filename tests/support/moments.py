"""Exact moments of a job's life at which a test kills or ends something, and what must not differ.

A `Moment` is a call to the cluster (a verb, before or after it was carried out: `Call`) or an event in a
history (`Event`). Time stands still around it (`StandingClock`), so a disturbed run can be compared with an
undisturbed one to the millisecond (`trace`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.backends.base import Backend
from everstep.backends.fake.backend import Admin
from everstep.backends.fake.gates import Side
from everstep.backends.fake.settings import EPOCH
from everstep.core import names
from everstep.core.levels import Level, Step
from everstep.core.world import JobRef
from everstep.dialects import job_memo
from tests.support.patience import HUNG_S
from tests.support.rows import recoveries
from tests.support.stage import Handle, Stage

BACK_S = 60.0
"""A slow machine's time for what should take five seconds; the tests print what it took."""

T = TypeVar("T")
ANCHOR = JobRef(id="anchor", run="test")


class StandingClock:
    """A job without pods that holds the cluster's clock: time passes only up to a given moment."""

    def __init__(self, fake: Backend) -> None:
        self._fake = fake

    async def hold(self) -> None:
        await self._fake.ensure_generation(ANCHOR, "hold")

    async def hold_with(self, admin: Admin, submit: Coroutine[Any, Any, T], jobs: int = 1) -> T:
        """Submit jobs while the clock stands: they hold it too once they have their first generations."""
        await self.hold()
        before = (await admin.calls())["ensure_generation"]
        submitted = await submit
        while (await admin.calls())["ensure_generation"] < before + jobs:
            await asyncio.sleep(0.01)
        return submitted

    async def pass_to(self, seconds: float) -> None:
        """Let time pass until this many seconds after the cluster began; then the clock stands again."""
        moment = EPOCH + seconds
        cursor = ""
        while (now_and_cursor := await self._observe(cursor, moment))[0] < moment:
            cursor = now_and_cursor[1]

    async def pass_for(self, seconds: float) -> None:
        """Let time pass for so long; then the clock stands again."""
        now, _ = await self._observe("", EPOCH)
        await self.pass_to(now - EPOCH + seconds)

    async def _observe(self, cursor: str, until: float) -> tuple[float, str]:
        observation = await self._fake.observe(ANCHOR, cursor=cursor, until=until, wait_s=10.0)
        return observation.now, observation.cursor

    async def let_go(self) -> None:
        """From now on only the job holds the clock."""
        await self._fake.ensure_gone(ANCHOR)


class Moment(Protocol):
    """Some point in the life of a job."""

    async def arm(self, stage: Stage) -> None:
        """Called while time stands still, before it."""

    async def reached(self, stage: Stage) -> None:
        """Returns when it has come."""


@dataclass(frozen=True, slots=True)
class Call:
    """The nth call of a verb from now on; its caller waits for an answer."""

    verb: str
    when: Side
    nth: int = 1
    late: bool = False  # the call is carried out after its caller was killed

    def __str__(self) -> str:
        return f"{self.when} {self.verb} {self.nth}" + (", which comes late" if self.late else "")

    async def arm(self, stage: Stage) -> None:
        await stage.admin.hold(self.verb, nth=self.nth, when=self.when, late=self.late)
        if self.verb == "observe":  # one is open already; the next one is ours
            await _until_called(stage, "observe")

    async def reached(self, stage: Stage) -> None:
        try:
            await stage.admin.wait_held(timeout_s=HUNG_S)
        except TimeoutError:
            raise AssertionError(
                f"{self} never came; called was {await stage.admin.calls()}"
            ) from None


@dataclass(frozen=True, slots=True)
class Event:
    """As soon as the history of a workflow shows the nth event of a kind, since it began."""

    workflow: str
    kind: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.workflow} shows {self.kind} {self.nth}"

    async def arm(self, stage: Stage) -> None:
        """Histories keep what was missed."""

    async def reached(self, stage: Stage) -> None:
        kind = EventType.Value(f"EVENT_TYPE_{self.kind}")
        work = _has(stage.client, self.workflow, lambda event: event.event_type == kind, self.nth)
        await asyncio.wait_for(work, HUNG_S)


@dataclass(frozen=True, slots=True)
class Begun:
    """As soon as a Recovery has begun one of its steps."""

    recovery: str
    step: Step

    def __str__(self) -> str:
        return f"{self.recovery} has begun to {self.step}"

    async def arm(self, stage: Stage) -> None:
        """Histories keep what was missed."""

    async def reached(self, stage: Stage) -> None:
        def is_it(event: HistoryEvent) -> bool:
            scheduled = event.activity_task_scheduled_event_attributes
            return bool(scheduled.activity_type.name == self.step)

        await asyncio.wait_for(_has(stage.client, self.recovery, is_it, 1), HUNG_S)


async def _has(
    client: Client, workflow: str, is_it: Callable[[HistoryEvent], bool], nth: int
) -> None:
    """Wait until the history of a workflow has so many of these events."""
    while True:
        count = 0
        try:
            history = client.get_workflow_handle(workflow).fetch_history_events(wait_new_event=True)
            async for event in history:
                count += is_it(event)
                if count == nth:
                    return
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        await asyncio.sleep(0.005)


async def _until_called(stage: Stage, verb: str) -> None:
    before = (await stage.admin.calls()).get(verb, 0)
    while (await stage.admin.calls()).get(verb, 0) == before:
        await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A job's document and what goes wrong with it, and when (seconds since the cluster began)."""

    body: Mapping[str, Any]
    faults: Sequence[str]
    begins_s: float
    levels: tuple[Level, ...] = ()  # of its Recoveries in peace, where a test needs to know them


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Everything a run leaves behind. Two runs that differ only in who was killed leave the same."""

    report: Any
    status: Any
    restarts: Any
    effects: tuple[str, ...]
    rows: tuple[str, ...]
    isolated: Any


async def trace(stage: Stage, job: Handle) -> Trace:
    report = _without_take_overs(await job.result())
    memo = await (await job.describe()).memo()
    rows = await recoveries(stage.client, job)
    return Trace(
        report=report,
        status=job_memo.read("status", memo["status"], memo["report"]),
        restarts=job_memo.restarts_of(memo["report"]),
        effects=tuple(f"{e.at:g} {e.what}" for e in await stage.admin.effects()),
        rows=tuple(f"{row} {status.name}" for row, status in sorted(rows.items())),
        isolated=await isolated(stage),
    )


def _without_take_overs(report: dict[str, Any]) -> dict[str, Any]:
    """The report as if one worker had watched the job all the time. Nothing else of a kill may show."""
    events = [e for e in report["events"] if "watches the job, which worker" not in e["message"]]
    return {**report, "events": [{**e, "number": n} for n, e in enumerate(events, start=1)]}


async def isolated(stage: Stage) -> Any:
    """The nodes that the quarantine has; None if there never was one."""
    try:
        quarantine = stage.client.get_workflow_handle(names.quarantine_id(stage.cluster))
        return await quarantine.query("nodes")
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def until_incident(stage: Stage, incident: Incident) -> tuple[Handle, StandingClock]:
    """The job, running, just before the incident: the clock stands."""
    clock = StandingClock(stage.fake)
    job = await clock.hold_with(stage.admin, stage.submit(incident.body))
    await clock.pass_to(incident.begins_s)
    for fault in incident.faults:
        await stage.admin.fault(fault)
    return job, clock


JANITORS = frozenset({"leftovers", "clock"})
"""Verbs that are called without any job going on."""


async def calls_of_jobs(stage: Stage) -> int:
    calls = await stage.admin.calls()
    return sum(times for verb, times in calls.items() if verb not in JANITORS)


async def until_it_goes_on(stage: Stage, calls: int) -> float:
    """How long it took until the next call to the cluster."""
    began = time.monotonic()
    while await calls_of_jobs(stage) <= calls:
        if time.monotonic() - began >= BACK_S:
            raise AssertionError(f"no call within {BACK_S:g} s; pending: {await _pending(stage)}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def _pending(stage: Stage) -> list[str]:
    """What the server has under way of each workflow that is open."""
    lines = [f"calls {await stage.admin.calls()}"]
    async for workflow in stage.client.list_workflows("ExecutionStatus = 'Running'"):
        handle = stage.client.get_workflow_handle(workflow.id)
        raw = (await handle.describe()).raw_description
        lines.append(f"{workflow.id}: {raw.pending_activities} {raw.pending_workflow_task}")
    return lines


async def until_nothing_is_held(stage: Stage) -> None:
    """The cluster has noticed that the caller of the held call is gone."""
    while True:
        try:
            await stage.admin.wait_held(timeout_s=0.01)
        except TimeoutError:
            return
        # A cluster in this process has to see that the connection is closed.
        await asyncio.sleep(0.01)
