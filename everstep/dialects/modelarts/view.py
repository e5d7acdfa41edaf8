"""A job as the ModelArts API returns it: details, a record for each start, the recovery of each restart.

State to plain values, without rules. Names and units are those of ModelArts: records count in seconds since
1970, times of the job in milliseconds. Every job has this view, whatever its dialect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.chronicle.chronicle import STARTS_KEPT, Chronicle, Record, Start
from everstep.chronicle.views import ENDED_STATE, reschedules, shown_state
from everstep.core.bounds import dated
from everstep.core.deciding.budgets import limit_of
from everstep.core.levels import FaultClass, Level
from everstep.core.spec import Origin
from everstep.core.state import JobState, Mode
from everstep.dialects.modelarts.policy import JOB_BUDGET
from everstep.protocol.exits import KILLED

Value = dict[str, Any]

PHASE: Mapping[str, tuple[str, str]] = {
    "unread": ("Creating", "Creating"),  # the document has not been read yet
    "pending": ("Creating", "Creating"),
    "launching": ("Pending", "Queuing"),
    "running": ("Running", "Running"),
    "unreachable": ("Running", "Unknown"),  # unknown is not failed
    "recovering": ("Running", "Running"),
    "requeued": ("Pending", "Queuing"),  # a restart that waits for its places
    "paused": ("Pending", "Pending"),
    "stopping": ("Terminating", "Terminating"),
    "completed": ("Completed", "Completed"),
    "failed": ("Failed", "Failed"),
    "refused": ("Failed", "CreateFailed"),  # its document was not accepted
    "stopped": ("Terminated", "Terminated"),
    "lost": ("Abnormal", "Lost"),  # the workflow was terminated
}
"""Our states, as `phase` and `secondary_phase`."""


def details(state: JobState, chronicle: Chronicle) -> Value:
    """The whole job."""
    nodes, origin = state.phase.nodes, state.spec.origin
    return _shape(
        _head(state.job.id, state.spec.name, origin, chronicle.created_at),
        _phase_row(state),
        {
            "duration": _duration(state, chronicle),
            "start_time": _ms(chronicle.started_at),
            "node_count_metrics": _node_counts(chronicle),
            "restarts": reschedules(state),
            "max_restarts": _max_restarts(state),
            "tasks": [_worker(slot) for slot in sorted(state.slots) or range(nodes)],
            "task_statuses": _task_statuses(state, chronicle),
            "running_records": running_records(chronicle),
        },
        {"node_count": nodes, "pool_id": origin.pool_id, "flavor_id": origin.flavor_id},
    )


def unread(
    job_id: str, row: str = "unread", *, created_at: float | None = None, reason: str | None = None
) -> Value:
    """The details of a job without a state. `row` is one of `PHASE`, `reason` why the job ended."""
    never_began: Value = {
        **dict.fromkeys(RUNNING_RECORD),
        "end_reason": reason,
        "recover_records": [],
    }
    return _shape(
        _head(job_id, job_id, Origin(), created_at),
        row,
        {
            **dict.fromkeys(("duration", "start_time", "max_restarts")),
            **{key: [] for key in ("node_count_metrics", "tasks", "task_statuses")},
            "restarts": 0,
            "running_records": [] if reason is None else [never_began],
        },
        dict.fromkeys(("node_count", "pool_id", "flavor_id")),
    )


def _shape(head: Value, row: str, status: Value, resource: Value) -> Value:
    phase, secondary = PHASE[row]
    status = {"phase": phase, "secondary_phase": secondary, **status}
    return {**head, "status": status, "spec": {"resource": resource}}


def aged(value: Value, now: float) -> Value:
    """The details with the duration that a running job has at a later time."""
    status = value["status"]
    if status["start_time"] is None or status["phase"] not in ("Running", "Pending"):
        return value
    duration = max(status["duration"] or 0, int(now * 1000) - status["start_time"])
    return {**value, "status": {**status, "duration": duration}}


def _head(job_id: str, name: str, origin: Origin, created_at: float | None) -> Value:
    return {
        "kind": origin.kind,
        "metadata": {
            "id": job_id,
            "name": name,
            "description": origin.description,
            "workspace_id": origin.workspace_id,
            "create_time": _ms(created_at),
            "annotations": dict(origin.annotations),
        },
    }


def _phase_row(state: JobState) -> str:
    """The row of `PHASE`. A job that is being removed from the cluster has ended, unless it was stopped."""
    if state.ending == "Invalid":
        return "refused"
    if state.mode is Mode.CLOSING and state.ending in ("Completed", "Failed"):
        return ENDED_STATE[state.ending]
    waits_for_places = state.plan is not None and state.plan.remedy.places_pods
    if state.mode is Mode.RECOVERING and waits_for_places and state.waiting is not None:
        return "requeued"
    return shown_state(state)


def _duration(state: JobState, chronicle: Chronicle) -> int | None:
    if chronicle.started_at is None:
        return None
    is_over = state.mode in (Mode.CLOSING, Mode.ENDED)
    ended_at = chronicle.starts[-1].ended_at if is_over and chronicle.starts else None
    return _span_ms(chronicle.started_at, ended_at or state.now)


def _max_restarts(state: JobState) -> int | None:
    """The limit of this phase's job budget; None: no such budget, or no limit."""
    limits = (limit_of(b, state.limits) for b in state.phase.policy.budgets if b.name == JOB_BUDGET)
    return next(limits, None)


def _span_ms(began: float, ended: float) -> int:
    return max(int(ended * 1000) - int(began * 1000), 0)


def _node_counts(chronicle: Chronicle) -> list[list[int]]:
    """Times at which the number of training nodes changed, with the number."""
    changes: list[list[int]] = []
    for start in chronicle.starts:
        changes.append([int(start.at * 1000), start.nodes])
        if start.ended_at is not None:
            changes.append([int(start.ended_at * 1000), 0])
    return changes


def _task_statuses(state: JobState, chronicle: Chronicle) -> list[Value]:
    """Exit codes of the workers of the newest start that exited."""
    exits = dict(chronicle.exits)
    if state.ending == "Completed":
        exits = {slot: exits.get(slot, 0) for slot in state.active}
    return [
        {"task": _worker(slot), "exit_code": code, "message": _exit_text(code)}
        for slot, code in sorted(exits.items())
    ]


def _exit_text(code: int) -> str:
    if code > KILLED:
        return f"ended by signal {code - KILLED}"
    return f"exit code {code}" if code else ""


def _ms(at: float | None) -> int | None:
    return None if at is None else int(dated(at) * 1000)


def _s(at: float | None) -> int | None:
    return None if at is None else int(dated(at))


# -- names of a restart -----------------------------------------------------------------------------

RECOVER: Mapping[Level, str] = {
    Level.OPERATOR_ONLINE: "npu_step_retry",
    Level.PROCESS_ONLINE: "npu_step_retry",
    Level.PROCESS: "proc_restart",
    Level.IN_PLACE: "proc_restart",
    Level.SUSPENSION: "proc_restart",
    Level.ROLLBACK: "proc_restart",
    Level.POD: "pod_reschedule",
    Level.ELASTIC: "job_reschedule",
    Level.JOB: "job_reschedule",
}

FAULT_SCENARIO: Mapping[FaultClass, str | None] = {
    FaultClass.CRASH: "job_failed",
    FaultClass.HANG: "job_hanged",
    FaultClass.DEVICE: "chip_fault",
    FaultClass.DEVICE_USER: "chip_fault",
    FaultClass.DEVICE_FATAL: "chip_fault",
    FaultClass.NODE: "node_fault",
    FaultClass.UNREACHABLE: "node_fault",
    FaultClass.PRECHECK: "node_fault",
    FaultClass.NETWORK: "job_failed",
    FaultClass.SUBHEALTH: "job_subhealth",
    FaultClass.SLOW: "job_subhealth",
    FaultClass.NUMERIC: "error_in_log",
    FaultClass.CHECKPOINT: "job_failed",
    FaultClass.STORAGE: "job_failed",
    FaultClass.PREEMPTED: None,
    FaultClass.MAINTENANCE: None,
    FaultClass.PLANNED: None,
    FaultClass.UNKNOWN: "job_failed",
}

CHIP = frozenset({FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL})


def of_record(r: Record) -> Value:
    """The fields of a restart's record that ModelArts defines."""
    decision, fault = r.decision, r.decision.fault
    return {
        "recover": _recover(decision.level, fault.cls, isolated=r.isolated),
        "recover_before_downgrade": _before_downgrade(r),
        "fault_scenario": FAULT_SCENARIO[fault.cls],
        "recover_start_at": _s(fault.at),
        "recover_end_at": _s(r.ended_at),
        "related_task": _worker(r.worker),
        "start_type": "init_or_rescheduled" if r.places_pods else "restarted",
    }


def _recover(level: Level, cls: FaultClass, *, isolated: bool) -> str | None:
    if level is Level.IN_PLACE and cls in CHIP:
        return "npu_proc_restart"
    if level is Level.JOB and isolated:
        return "job_reschedule_with_taint"
    return RECOVER.get(level)


def _before_downgrade(r: Record) -> str | None:
    first = r.decision.instead_of
    if first is None or first is r.decision.level:
        return None
    return _recover(first, r.decision.fault.cls, isolated=False)


def _worker(slot: int | None) -> str | None:
    return None if slot is None else f"worker-{slot}"


# -- running_records ------------------------------------------------------------------------------


def running_records(chronicle: Chronicle) -> list[Value]:
    """A record for each start of all processes, the newest 50, oldest first.

    A launch that needed restarts before its first start has one without `start_at`.
    """
    return [
        _running_record(start, tuple(followed))
        for start, followed in _with_records(chronicle.starts, chronicle.records)
        if start is not None or followed
    ]


def _with_records(
    starts: tuple[Start, ...], records: tuple[Record, ...]
) -> Iterator[tuple[Start | None, list[Record]]]:
    """Each start with the restarts that followed it; None with those of the launch before the first start."""
    phases = dict.fromkeys((*(s.phase for s in starts), *(r.phase for r in records)))
    is_whole = len(starts) < STARTS_KEPT
    for phase in phases:
        phase_starts = [start for start in starts if start.phase == phase]
        phase_records = [r for r in records if r.phase == phase]
        ends = [start.generation for start in phase_starts]
        # Else these records may belong to starts that are not kept any more.
        if is_whole or not phase_starts or phase_starts[0] is not starts[0]:
            yield None, [r for r in phase_records if not ends or r.generation_from < ends[0]]
        for start, end in zip(phase_starts, [*ends, None][1:], strict=True):
            followed = [
                r
                for r in phase_records
                if r.generation_from >= start.generation
                and (end is None or r.generation_from < end)
            ]
            yield start, followed


RUNNING_RECORD = (
    *("start_at", "end_at", "xpu_start_at", "start_type", "end_reason", "end_related_task"),
    *("end_recover", "end_recover_before_downgrade", "recover_records"),
)


def _running_record(start: Start | None, records: tuple[Record, ...]) -> Value:
    executed = [r for r in records if r.refused_by is None]
    ended_at = start.ended_at if start is not None else records[0].decision.at
    worker = start.worker if start is not None else records[0].worker
    is_same_place = start is not None and start.is_same_place
    return {
        "start_at": _s(start.at) if start is not None else None,
        "end_at": _s(ended_at),
        "xpu_start_at": _s(start.first_step_at) if start is not None else None,
        "start_type": "restarted" if is_same_place else "init_or_rescheduled",
        "end_reason": _end_reason(start, executed),
        "end_related_task": _worker(worker),
        "end_recover": of_record(executed[-1])["recover"] if executed else None,
        "end_recover_before_downgrade": _recover_before_downgrade(executed),
        "recover_records": [_recover_record(r) for r in records],
    }


def _end_reason(start: Start | None, executed: list[Record]) -> str | None:
    if start is not None and start.why:
        return start.why
    return (executed[-1].end_reason or executed[0].decision.reason) if executed else None


def _recover_before_downgrade(executed: list[Record]) -> str | None:
    """The recovery that was tried first in the newest incident; None if no other one followed it.

    Its record may itself be a downgrade from a level that was never carried out.
    """
    if not executed:
        return None
    newest = first = executed[-1]
    for earlier in reversed(executed[:-1]):
        if earlier.incident != newest.incident or earlier.result != "downgrade":
            break
        first = earlier
    fields = of_record(first)
    own_downgrade: str | None = fields["recover_before_downgrade"]
    if own_downgrade is None and first is not newest:
        return str(fields["recover"])
    return own_downgrade


def _recover_record(r: Record) -> Value:
    fields = {**of_record(r), "reason": r.decision.reason, "recover_result": r.result}
    keys = ("recover_start_at", "recover_end_at", "recover", "fault_scenario", "reason")
    return {key: fields[key] for key in (*keys, "related_task", "recover_result")}
