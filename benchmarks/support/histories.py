"""Reading histories: which events there were, and what they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

MONITOR = "monitor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A report of the monitor that led to a Recovery: the job's events between, and the Recovery's."""

    recovery_id: str
    job: tuple[HistoryEvent, ...]  # from the monitor's completion to the child's start
    recovery: tuple[HistoryEvent, ...]


async def history(client: Client, workflow_id: str) -> tuple[HistoryEvent, ...]:
    fetched = await client.get_workflow_handle(workflow_id).fetch_history()
    return tuple(fetched.events)


async def runs(client: Client, workflow_id: str) -> list[tuple[HistoryEvent, ...]]:
    """The histories of all runs, oldest first."""
    found: list[tuple[HistoryEvent, ...]] = []
    run: str | None = None
    while run != "":
        handle = client.get_workflow_handle(workflow_id, run_id=run)
        found.insert(0, tuple((await handle.fetch_history()).events))
        started = found[0][0].workflow_execution_started_event_attributes
        run = started.continued_execution_run_id
    return found


async def incidents(client: Client, job_id: str) -> list[Incident]:
    """All of the job, oldest first."""
    found = []
    for run in await runs(client, job_id):
        for events in _reactions(run):
            started = events[-1].child_workflow_execution_started_event_attributes
            recovery_id = started.workflow_execution.workflow_id
            mine = await history(client, recovery_id)
            found.append(Incident(recovery_id=recovery_id, job=events, recovery=mine))
    return found


def _reactions(events: Iterable[HistoryEvent]) -> Iterator[tuple[HistoryEvent, ...]]:
    """From each completion of the monitor to the child that followed; a second child has none."""
    monitors: set[int] = set()
    since: list[HistoryEvent] = []
    for event in events:
        if is_of(event, "ACTIVITY_TASK_SCHEDULED"):
            kind = event.activity_task_scheduled_event_attributes.activity_type.name
            monitors |= {event.event_id} if kind == MONITOR else set()
        if is_of(event, "ACTIVITY_TASK_COMPLETED"):
            scheduled = event.activity_task_completed_event_attributes.scheduled_event_id
            since = [event] if scheduled in monitors else []
        elif since:
            since.append(event)
        if since and is_of(event, "CHILD_WORKFLOW_EXECUTION_STARTED"):
            yield tuple(since)
            since = []


def is_of(event: HistoryEvent, kind: str) -> bool:
    return event.event_type == EventType.Value(f"EVENT_TYPE_{kind}")


def first(events: Iterable[HistoryEvent], kind: str) -> HistoryEvent:
    return next(event for event in events if is_of(event, kind))


def at_ms(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e6


ENDS_OF_RECOVERIES = ("CHILD_WORKFLOW_EXECUTION_COMPLETED", "CHILD_WORKFLOW_EXECUTION_FAILED")


def cycles(events: Iterable[HistoryEvent]) -> list[tuple[HistoryEvent, ...]]:
    """What each incident added to its job: from one watch's report to the next one's start.

    Between two Recoveries there is one; the last ends where the training is watched again.
    """
    monitors: list[HistoryEvent] = []
    found: list[tuple[HistoryEvent, ...]] = []
    since: list[HistoryEvent] = []
    for event in events:
        if is_of(event, "ACTIVITY_TASK_SCHEDULED") and _activity(event) == MONITOR:
            monitors.append(event)
            if any(is_of(one, end) for one in since for end in ENDS_OF_RECOVERIES):
                found.append((*since, event))
            since = []
        elif monitors and _ends(event, monitors[-1]):
            since = [event]
        elif since:
            since.append(event)
    return found


def _activity(scheduled: HistoryEvent) -> str:
    return scheduled.activity_task_scheduled_event_attributes.activity_type.name


def _ends(event: HistoryEvent, monitor: HistoryEvent) -> bool:
    done = event.activity_task_completed_event_attributes.scheduled_event_id
    return is_of(event, "ACTIVITY_TASK_COMPLETED") and done == monitor.event_id


def largest_payload(events: Iterable[HistoryEvent]) -> tuple[int, str]:
    """Its bytes, and the event that it is in."""
    sizes = [
        (len(payload.data), f"{EventType.Name(event.event_type)[11:].lower()} ({event.event_id})")
        for event in events
        for payload in _payloads(event)
    ]
    return max(sizes, default=(0, "nowhere"))


def _payloads(message: Message) -> Iterator[Payload]:
    """All that are in a message, however deep."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        several = isinstance(value, Iterable)
        for one in value.values() if is_map else value if several else (value,):
            if isinstance(one, Message):
                yield from _payloads(one)
