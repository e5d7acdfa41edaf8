"""How much an incident adds to the histories: little, and as many events for 1,000 pods as for two."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from benchmarks.support.histories import largest_payload
from tests.support import rows
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, StageOfProcesses, document

FAULTS = (
    "at step 15 of JOB kill JOB 1 exit 1",
    "at step 35 of JOB device n0 0 80E01801 heals",
    "at step 55 of JOB node-down n1",
)
EVENTS_OF_JOB, EVENTS_OF_RECOVERY = 35, 60
"""What one incident may cost: a job that restarts every hour fills a history in half a year."""
LARGEST_KB = 512
"""Kilobytes of one payload; the server takes 2 MB, and warns from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one job with three incidents. A new run is suggested at 4 MB or 4,096 events."""

    kinds: tuple[tuple[str, ...], ...]  # of each history; how work was bundled in tasks may differ
    incidents: tuple[int, ...]
    recoveries: tuple[int, ...]
    kb: float
    recoveries_kb: tuple[float, ...]
    largest_kb: float


def kb(events: Sequence[HistoryEvent]) -> float:
    return round(sum(event.ByteSize() for event in events) / 1024, 1)


async def sizes(stage: StageOfProcesses, pods: int) -> Sizes:
    name = f"of-{pods}-pods"
    for fault in FAULTS:
        await stage.admin.fault(fault.replace("JOB", name))
    job = await stage.submit(document(name, nodes=pods, env={"STEPS": "80"}))
    report = await job.result()
    assert [r["level"] for r in report["phases"][0]["restarts"]] == ["in_place", "in_place", "pod"]
    own_events = (await job.fetch_history()).events
    recoveries = [await recovery(stage, name, n) for n in (1, 2, 3)]
    monitored = [event.event_id for event in own_events if activity_of(event) == "monitor"]
    largest = max(event.ByteSize() for events in (own_events, *recoveries) for event in events)
    return Sizes(
        kinds=tuple(tuple(kinds(events)) for events in (own_events, *recoveries)),
        incidents=tuple(end - begin for begin, end in pairwise(monitored)),
        recoveries=tuple(len(events) for events in recoveries),
        kb=kb(own_events),
        recoveries_kb=tuple(kb(events) for events in recoveries),
        largest_kb=round(largest / 1024, 1),
    )


async def recovery(stage: StageOfProcesses, job: str, n: int) -> Sequence[HistoryEvent]:
    parent: Handle = stage.client.get_workflow_handle(job)
    child: Handle = stage.client.get_workflow_handle(await rows.recovery(stage.client, parent, n))
    return (await child.fetch_history()).events


def kinds(events: Sequence[HistoryEvent]) -> Iterator[str]:
    """The kinds of the events in their order, without those of what is published beside them."""
    publish_ids = {event.event_id for event in events if activity_of(event) == "publish"}
    for event in events:
        kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
        is_beside = not publish_ids.isdisjoint({event.event_id, schedule(event)})
        if not (is_beside or kind.startswith(("WORKFLOW_TASK_", "TIMER_"))):
            yield kind


def activity_of(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_type.name


def schedule(event: HistoryEvent) -> int:
    """The event that scheduled the activity of this one."""
    attributes = getattr(event, event.WhichOneof("attributes") or "")
    return getattr(attributes, "scheduled_event_id", 0)


@pytest.mark.long
async def test_an_incident_costs_as_many_events_for_1000_pods_as_for_two(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with StageOfProcesses(server, namespace, tmp_path, nodes=1_004) as stage:
        small = await sizes(stage, 2)
        await stage.admin.reset(nodes=1_004)
        large = await sizes(stage, 1_000)
    for pods, counts in ((2, small), (1_000, large)):
        numbers = {k: v for k, v in asdict(counts).items() if k != "kinds"}
        sys.stdout.write(f"{pods} pods: {numbers}\n")
    assert large.kinds == small.kinds
    assert max(*small.incidents, *large.incidents) <= EVENTS_OF_JOB
    assert max(*small.recoveries, *large.recoveries) <= EVENTS_OF_RECOVERY
    assert large.largest_kb <= LARGEST_KB


MOST_KB = 1_024
"""Of one payload of the largest jobs there are; the server takes 2 MB."""


@pytest.mark.long
@pytest.mark.timeout(6 * HUNG_S)
async def test_no_payload_of_10000_pods_is_above_one_megabyte(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    name = "of-10000-pods"
    async with StageOfProcesses(server, namespace, tmp_path, nodes=10_004) as stage:
        await stage.admin.fault(f"at step 15 of {name} node-down n1")
        await stage.admin.fault(f"at step 35 of {name} preempt {name}")
        job = await stage.submit(document(name, nodes=10_000, env={"STEPS": "60"}))
        report = await asyncio.wait_for(job.result(), 4 * HUNG_S)
        assert [r["level"] for r in report["phases"][0]["restarts"]] == ["pod", "job"]
        histories = [(await job.fetch_history()).events]
        histories += [await recovery(stage, name, n) for n in (1, 2)]
    size, where = max(largest_payload(events) for events in histories)
    sys.stdout.write(f"largest payload: {size / 1024:.1f} KB, {where}\n")
    assert size <= MOST_KB * 1024
