"""State and chronicle in the pinned JSON shapes: status, restarts, report, explanation. No rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.chronicle import record_rows
from everstep.chronicle.chronicle import NOTHING_REUSED, Chronicle, Record, Start
from everstep.chronicle.shapes import moment
from everstep.core import names
from everstep.core.bounds import cut
from everstep.core.deciding.budgets import limit_of
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.escaping import in_markdown, link_in_markdown
from everstep.core.recovering import avoiding, placement
from everstep.core.spec import PhaseSpec
from everstep.core.state import JobState, Ledger, Mode, PhaseResult, Wait, phase_result
from everstep.core.world import PodState

SHOWN_STATE: Mapping[Mode, str] = {
    Mode.PENDING: "pending",
    Mode.LAUNCHING: "launching",
    Mode.WATCHING: "running",
    Mode.DECIDING: "recovering",
    Mode.RECOVERING: "recovering",
    Mode.READING: "recovering",
    Mode.REPORTING: "running",
    Mode.PAUSING: "paused",
    Mode.PAUSED: "paused",
    Mode.CLOSING: "stopping",
    Mode.ENDED: "stopping",
}

WATCHED = (Mode.WATCHING, Mode.REPORTING)
"""Modes in which all ranks run: the monitor watches, or is between two watches."""

ENDED_STATE: Mapping[str, str] = {
    "Completed": "completed",
    "Failed": "failed",
    "Invalid": "failed",
    "Terminated": "stopped",
    "Canceled": "stopped",
}

REPORTED_STATUS: Mapping[str, str] = {"Canceled": "Terminated", "Invalid": "Failed"}


def shown_state(state: JobState) -> str:
    """The state under one of the pinned names."""
    if state.mode is Mode.ENDED and state.ending is not None:
        return ENDED_STATE[state.ending]
    if state.mode in WATCHED and (state.unreachable or state.waiting):
        return "unreachable"  # some slots, or the whole cluster: its monitor cannot report
    if state.mode is Mode.PENDING and state.finished:  # between two phases
        return "launching"
    return SHOWN_STATE[state.mode]


# -- status -------------------------------------------------------------------------------------


def status(state: JobState, chronicle: Chronicle | None = None) -> dict[str, Any]:
    """The status of the job. With its chronicle the times of the job are added."""
    phase, ledger = state.phase, state.ledger
    pods, usual = _with_usual_incarnations(_pods(state))
    return {
        "id": state.job.id,
        "state": shown_state(state),
        "as_of": moment(state.now or None),  # what is shown was seen at this time
        **_times(state, chronicle),
        "phase": phase.name,
        "phases": _phases(state),
        "generation": state.generation,
        "step": step(state),
        "steps_from": state.learned.steps_from or None,  # where no pattern is given
        "last_step": phase.last_step,  # at which the phase is over, where the document says so
        "step_at": None,  # this and what follows is in the heartbeat of the watch
        "step_age_s": None,
        "seen_age_s": None,  # the age of the newest look at the job
        "unseen_why": None,  # why there was none since
        "still_s": None,
        "still_limit_s": None,
        "checkpoint_step": state.checkpoint_step,
        "checkpoint_path": None if state.saved is None else state.saved.path,
        "resumed_from": _resumed_from(chronicle),
        **_wait(state.waiting),
        "recovery": _recovery(state),
        "pods": pods,
        "device_use": None,  # in the heartbeat too
        "incarnations": usual,
        "budgets": _budgets(phase, ledger, state.limits),
        "series": _series(phase, ledger),
        "restarts": restarts(state),
        "reschedules": reschedules(state),
        "failed_levels": failed_levels(state),
        "lost_steps": 0 if chronicle is None else chronicle.totals.lost_steps,
        "isolated_nodes": sorted(state.isolated),
        "avoided_nodes": avoided_nodes(state),
        "sizes": {"failed": [*ledger.bad_sizes], "prefetched": [*ledger.prefetched]},
        "links": dict(state.spec.links),
        "ui": None,
        "time_scale": state.spec.time_scale,
        "reason": state.ending_reason or state.paused_reason or _suspicion(state),
        "warnings": [
            {"kind": warning.kind, "since": moment(warning.at), "message": warning.text}
            for warning in state.warnings
        ],
    }


def _resumed_from(chronicle: Chronicle | None) -> dict[str, Any] | None:
    """From where the newest start of all processes went on. None: there was none yet."""
    if chronicle is None or chronicle.origin is None:
        return None
    return chronicle.origin._asdict()


def avoided_nodes(state: JobState) -> list[dict[str, Any]]:
    """The nodes on which the job is not placed again: why, since when, and what ends that."""
    return [
        {
            "node": avoided.node,
            "why": avoided.why,
            "since": moment(avoided.since),
            "until": avoiding.until(avoided, state.job.id),
        }
        for avoided in avoiding.avoided_nodes(state)
    ]


def step(state: JobState) -> int | None:
    """The newest step of the generation that runs. While none does, the newest of all generations."""
    return state.generation_step if state.mode in WATCHED else state.step


def _times(state: JobState, chronicle: Chronicle | None) -> dict[str, Any]:
    created_at = None if chronicle is None else chronicle.created_at
    return {
        "created_at": moment(created_at),
        "started_at": moment(None if chronicle is None else chronicle.started_at),
        "ended_at": moment(state.now if state.mode is Mode.ENDED else None),
        "duration_s": None if created_at is None else round(max(0.0, state.now - created_at), 3),
    }


def _wait(wait: Wait | None) -> dict[str, str | None]:
    if wait is None:
        return dict.fromkeys(("waiting_for", "waiting_reason", "waiting_since", "waiting_until"))
    return {
        "waiting_for": wait.what,
        "waiting_reason": wait.reason or None,
        "waiting_since": moment(wait.since),
        "waiting_until": moment(wait.until),
    }


def _suspicion(state: JobState) -> str | None:
    """The suspicion about a job that goes on."""
    return state.suspected.text if state.suspected is not None else None


def _phases(state: JobState) -> list[dict[str, str]]:
    done = {result.name: result.state for result in state.finished}
    return [
        {"name": p.name, "state": done.get(p.name) or _phase_state(state, index)}
        for index, p in enumerate(state.spec.phases)
    ]


def _phase_state(state: JobState, index: int) -> str:
    if index < state.spec.first_phase:
        return "skipped"
    return shown_state(state) if index == state.phase_index else "pending"


def _recovery(state: JobState) -> str | None:
    if state.mode is not Mode.RECOVERING or state.plan is None:
        return None
    return names.recovery_id(state.job.id, state.plan.key)


def _pods(state: JobState) -> list[dict[str, Any]]:
    ranks = placement.node_ranks(state.active)
    return [_pod(state, slot, ranks) for slot in sorted(state.slots)]


RUN = frozenset({PodState.RUNNING, PodState.EXITED, PodState.UNREACHABLE, PodState.LEAVING})
"""Pods in these states were last seen with processes of the newest generation."""


def _pod(state: JobState, slot: int, node_ranks: Mapping[int, int]) -> dict[str, Any]:
    """One pod of the status, with its ranks and the generations in which their processes were started."""
    pod, ranks = state.slots[slot], range(0)
    if slot in node_ranks:
        ranks = placement.ranks_of(slot, node_ranks, state.phase.processes_per_node)
    started = ranks if pod.state in RUN else ()
    return {
        "slot": slot,
        "node": pod.node or None,
        "uid": pod.uid or None,
        "state": str(pod.state),
        "schedule_count": pod.schedule_count,
        "process_start_count": pod.process_start_count,
        "first_rank": ranks.start if ranks else None,
        "incarnations": [state.older_ranks.get(rank, state.generation) for rank in started],
    }


INCARNATIONS_MOST = 4_096
"""A status of more ranks would come near to what the server takes as an answer."""


def _with_usual_incarnations(
    pods: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[int] | None]:
    """Pods, and in a large job the incarnations that most of them share: those pods have null instead."""
    counted = Counter(tuple(pod["incarnations"]) for pod in pods)
    if sum(len(ranks) * times for ranks, times in counted.items()) <= INCARNATIONS_MOST:
        return pods, None
    usual = list(counted.most_common(1)[0][0])
    rows = [{**p, "incarnations": None} if p["incarnations"] == usual else p for p in pods]
    return rows, usual


def _budgets(
    phase: PhaseSpec, ledger: Ledger, overrides: Mapping[str, int | None]
) -> dict[str, dict[str, int | None]]:
    return {
        b.name: {"limit": limit_of(b, overrides), "used": ledger.used.get(b.name, 0)}
        for b in phase.policy.budgets
    }


def units_used(state: JobState) -> dict[str, int]:
    """Units of budgets that are used, over all phases."""
    used: Counter[str] = Counter()
    for result in _phase_results(state):
        used.update(result.ledger.used)
    return dict(+used)


def _series(phase: PhaseSpec, ledger: Ledger) -> dict[str, int]:
    counted = {s.name: ledger.series.get(s.name, 0) for s in phase.policy.series}
    if phase.policy.no_progress_restarts is not None:
        counted["no_progress"] = ledger.no_progress
    if phase.policy.rollbacks is not None:
        counted["rollbacks"] = ledger.rollbacks.times
    return counted


def restarts(state: JobState) -> int:
    """How many restarts were made, over all phases."""
    return sum(result.restarts for result in _phase_results(state))


def reschedules(state: JobState) -> int:
    """How often pods were placed again, over all phases."""
    return sum(result.reschedules for result in _phase_results(state))


def failed_levels(state: JobState) -> int:
    """How many of the restarts failed, over all phases: another level followed, or the end."""
    return sum(result.ledger.failed for result in _phase_results(state))


# -- the document -------------------------------------------------------------------------------


def document(job_id: str, in_force: Any, chronicle: Chronicle) -> dict[str, Any]:
    """The document in force, and the newest changes of it, oldest first."""
    return {"id": job_id, "document": in_force, "changes": changes(chronicle)}


def changes(chronicle: Chronicle) -> list[dict[str, Any]]:
    """The newest changes of the document, oldest first."""
    return [
        {
            "at": moment(change.at),
            "what": list(change.what),
            "when": "now" if change.is_now else "next_restart",
            "by": change.by,
        }
        for change in chronicle.changes
    ]


# -- restarts -----------------------------------------------------------------------------------


def record(r: Record) -> dict[str, Any]:
    """One restart, in our own words; what is not known is null."""
    decision, fault = r.decision, r.decision.fault
    reused = r.reused or NOTHING_REUSED
    return {
        "n": r.n,
        "incident": r.incident,
        "phase": r.phase,
        "at": moment(decision.at),
        "fault": {
            "class": str(fault.cls),
            "kind": fault.kind,
            "node": fault.node,
            "slot": fault.slot,
            "rank": fault.rank,
            "device": fault.device,
            "code": fault.code,
            "owner": str(fault.owner),
        },
        "level": str(decision.level),
        "isolated": r.isolated,
        "recover_result": r.result,
        "ended": r.ended,
        "bills": dict(r.bills),
        "reason": decision.reason,
        "generation": {"from": r.generation_from, "to": r.generation_to},
        "nodes": {
            "before": {str(n): node or None for n, node in r.before.items()},
            "after": {str(n): node or None for n, node in r.after.items()},
        },
        "step": r.step,
        "resume_step": r.resume_step,
        "resume_path": r.resume_path,
        "resume_from": r.resume_from,
        "kept_ranks": reused.kept_ranks or None,
        "lost_steps": _lost_steps(r),
        "newer_checkpoints": r.newer_checkpoints or None,
        "evidence": r.evidence,
        "stages_s": {name: r.stages_s.get(name) for name in STAGES},
        "seen": list(decision.seen),
        "passed_over": list(decision.passed_over),
        "refused_by": r.refused_by,
        "end_reason": r.end_reason,
        "notes": [*r.notes, *_unknown_step(r)],
        "waited": [
            {"for": waited.what, "s": waited.s, "reason": waited.reason or None}
            for waited in r.waited
        ],
        "spares": record_rows.spares(reused.stood_up_s),
    }


def _lost_steps(r: Record) -> int | None:
    """The steps that are made again, as far as they were seen; None: unknown, or nothing was started."""
    if r.result != "success" or r.step is None or r.resume_step is None:
        return None
    return max(0, r.step - r.resume_step)


def _unknown_step(r: Record) -> tuple[str, ...]:
    is_unknown = r.result == "success" and r.resume_step is None
    return ("no checkpoint names the step from which it resumes",) if is_unknown else ()


STAGES = ("detect", "decide", "standby", "space", "stop", "heal", "place", "start", "first_step")


# -- report -------------------------------------------------------------------------------------


def report(
    state: JobState, chronicle: Chronicle, record_view: Callable[[Record], dict[str, Any]]
) -> dict[str, Any]:
    """The JobReport: the workflow's result, the failure's details, the memo."""
    return {
        "id": state.job.id,
        "status": REPORTED_STATUS.get(state.ending or "", state.ending),
        "reason": state.ending_reason,
        "created_at": moment(chronicle.created_at),
        "started_at": moment(chronicle.started_at),
        "ended_at": moment(state.now) if state.mode is Mode.ENDED else None,
        "runs": [run(start) for start in chronicle.starts],
        "phases": [
            _phase_report(state, chronicle, result, record_view) for result in _phase_results(state)
        ],
    }


def run(start: Start) -> dict[str, Any]:
    """One start of all processes, and how that run of them ended; what is not known is null."""
    return {
        "phase": start.phase,
        "generation": start.generation,
        "started_at": moment(start.at),
        "first_step_at": moment(start.first_step_at),
        "ended_at": moment(start.ended_at),
        "nodes": start.nodes,
        "starting_step": start.starting_step,
        "step": start.step,
        "why": start.why or None,
        "paused_at": moment(start.paused_at),
    }


def _phase_results(state: JobState) -> tuple[PhaseResult, ...]:
    if any(result.name == state.phase.name for result in state.finished):
        return state.finished
    return (*state.finished, phase_result(state, shown_state(state)))


def _phase_report(
    state: JobState,
    chronicle: Chronicle,
    result: PhaseResult,
    record_view: Callable[[Record], dict[str, Any]],
) -> dict[str, Any]:
    phase = next(p for p in state.spec.phases if p.name == result.name)
    span = chronicle.phases.get(result.name)
    return {
        "name": result.name,
        "state": result.state,
        "began_at": moment(span.began_at if span else None),
        "ended_at": moment(span.ended_at if span else None),
        "restarts": [record_view(r) for r in chronicle.records if r.phase == result.name],
        "recoveries": result.ledger.recoveries,
        "budgets": _budgets(phase, result.ledger, result.limits),
        "isolated_nodes": sorted(result.isolated_nodes),
        "last_checkpoint_step": result.last_checkpoint_step,
        "stages_s": dict(chronicle.stages_s.get(result.name, {})),
    }


# -- explanations and the page in the UI --------------------------------------------------------


def page(state: JobState, chronicle: Chronicle) -> str:
    """The markdown that the Temporal UI shows of a living job."""
    waiting = f" · waits for {in_markdown(state.waiting.what)}" if state.waiting else ""
    heading = (
        f"**{state.phase.name}** {shown_state(state)}{waiting} · generation {state.generation}"
    )
    links = " · ".join(link_in_markdown(name, at) for name, at in state.spec.links.items())
    heading += f"\n\n{links}" if links else ""
    newest = chronicle.records[-20:]
    if not newest:
        return heading
    table = [_row(COLUMNS), _row(["---"] * len(COLUMNS)), *(_row(_cells(r)) for r in newest)]
    why = [f"- **{r.n}** {r.phase}: {in_markdown(cut(r.decision.reason, 160))}" for r in newest]
    return "\n".join([heading, "", *table, "", *why])


COLUMNS = ("n", "at (UTC)", "level", "cause", "result", "took", "step")
BETWEEN = "\u00a0\u00a0"
"""The UI sets the columns of a table edge to edge, and breaks or drops what usual spaces hold apart."""


def _cells(r: Record) -> list[str]:
    at = (moment(r.decision.at) or "")[5:19].replace("T", " ").replace("-", "/")
    took_s = record_rows.took_s(record(r))
    took = "" if r.ended_at is None or took_s is None else f"{took_s:.1f} s"
    step = "" if r.resume_step is None else str(r.resume_step)
    cause, level = r.decision.fault.label, str(r.decision.level)
    return [str(r.n), at, level, cause, record_rows.result_in_words(record(r)), took, step]


def _row(cells: Sequence[str]) -> str:
    plain = map(in_markdown, cells)
    whole = (cell if cell == "---" else cell.replace(" ", BETWEEN[0]) + BETWEEN for cell in plain)
    return "".join(f"| {cell} " for cell in whole) + "|"


def occasion(inputs: DecisionInput) -> str:
    """What a decision is about, as a line of a timeline: `node.down on n1, pod.gone and 2 more`."""
    failed = [f"{inputs.failed_step} failed"] if inputs.result == "failed" else []
    facts = [f"{fact.kind} on {fact.where}" if fact.where else fact.kind for fact in inputs.facts]
    more = f" and {len(facts) - 2} more" if len(facts) > 2 else ""
    return ", ".join([*failed, *facts[:2]]) + more or "how to go on"
