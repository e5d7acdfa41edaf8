"""Apply operators' commands to the state of a job: at once, at the next turn, or after the running plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from everstep.core.bounds import TEXT_MOST, cut, short_id
from everstep.core.deciding.decision import Plan
from everstep.core.levels import Level
from everstep.core.loop import commands, outcomes
from everstep.core.loop.job_events import NoticesWanted, Paused, Resumed
from everstep.core.loop.waiting_commands import JOINS, queued
from everstep.core.recovering.avoiding import released
from everstep.core.recovering.plans import pause_plan
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.core.state import Command, JobState, Mode, happened, remember_ids, with_ledger


def interrupts(state: JobState) -> bool:
    """Whether a waiting command should end what is being done now."""
    if state.mode in (Mode.CLOSING, Mode.ENDED, Mode.READING, Mode.DECIDING):
        return False
    names = {command.name for command in state.commands}
    return bool(names & INTERRUPTING[state.mode])


_HARD = frozenset({"stop", "cancel"})
_WITHOUT_DECISION = _HARD | {"pause"}
INTERRUPTING: Mapping[Mode, frozenset[str]] = {
    Mode.PENDING: _HARD,
    Mode.LAUNCHING: _HARD | {"pause", "adopt", "release"},
    Mode.RECOVERING: _HARD | {"pause", "adopt", "release"},
    Mode.WATCHING: _HARD | {"pause", "restart", "report_fault", "adopt"},
    Mode.REPORTING: _HARD | {"pause", "adopt"},
    Mode.PAUSING: _HARD | {"adopt"},
    Mode.PAUSED: _HARD | {"resume"},
}


def must_end(state: JobState) -> bool:
    return any(command.name in _HARD for command in state.commands)


def needs_no_decision(state: JobState) -> bool:
    """Whether a command waits that a job obeys without an answer to its question."""
    return any(command.name in _WITHOUT_DECISION for command in state.commands)


def obey(state: JobState) -> JobState:
    """Apply each command that the mode allows, `stop` and `cancel` first. The others stay queued."""
    for command in sorted(state.commands, key=lambda c: c.name not in _HARD):
        if command not in state.commands:  # an earlier one did its work, as a resume does
            continue
        handler = OBEY.get((state.mode, command.name)) or OBEY_ANYWHERE.get(command.name)
        if handler is None:
            continue
        rest = list(state.commands)
        rest.remove(command)
        state = handler(replace(state, commands=tuple(rest)), command.args)
    return state


def _stop(state: JobState, args: Mapping[str, Any]) -> JobState:
    if state.mode in (Mode.CLOSING, Mode.ENDED):
        return state
    never_placed = state.mode is Mode.PENDING and state.generation == 0
    return replace(
        outcomes.ending(
            _without_plan(outcomes.defer_open_isolations(state)),
            str(args.get("status", "Terminated")),
            cut(str(args.get("reason") or "stopped by an operator"), TEXT_MOST),
            mode=Mode.ENDED if never_placed else Mode.CLOSING,
        ),
        waiting=None,
        unstopped=None,
        stop_grace_s=args.get("grace_s"),
    )


def _without_plan(state: JobState) -> JobState:
    """The state without its plan. The record of a Recovery under way is closed as lost."""
    if state.mode is Mode.RECOVERING and state.plan is not None:
        state = outcomes.lost(state, state.plan)
    return replace(state, plan=None, lost_plan=None)


def _pause(state: JobState, args: Mapping[str, Any]) -> JobState:
    reason = cut(str(args.get("reason") or ""), TEXT_MOST)  # an earlier version took any
    paused = Paused(at=state.now, reason=reason, step=state.generation_step, saved=state.saved)
    state = happened(_without_plan(state), paused)
    state = replace(state, mode=Mode.PAUSING, paused_reason=reason, unreachable=())
    return replace(state, plan=pause_plan(state))


def _restart(state: JobState, args: Mapping[str, Any]) -> JobState:
    fact = commands.restart_fact(args, at=state.now, generation=state.generation)
    return replace(state, mode=Mode.DECIDING, pending_facts=(*state.pending_facts, fact))


def _adopted(state: JobState, args: Mapping[str, Any]) -> JobState:
    """The pods are in books that no worker reads any more: recreate all of them."""
    fact = commands.adopted_fact(args, at=state.now, generation=state.generation)
    return replace(state, mode=Mode.DECIDING, pending_facts=(*state.pending_facts, fact))


def _report_fault(state: JobState, args: Mapping[str, Any]) -> JobState:
    fact = commands.reported_fact(args, at=state.now, earlier_ids=_earlier_ids(state))
    return replace(state, mode=Mode.DECIDING, pending_facts=(*state.pending_facts, fact))


def _earlier_ids(state: JobState) -> frozenset[str]:
    return frozenset((*state.seen_ids, *(fact.id for fact in state.pending_facts)))


def _note_fault(state: JobState, args: Mapping[str, Any]) -> JobState:
    fact = commands.reported_fact(args, at=state.now, earlier_ids=_earlier_ids(state))
    return replace(state, pending_facts=(*state.pending_facts, fact))


def _resume(state: JobState, args: Mapping[str, Any]) -> JobState:
    """Resume the job where it was paused: with the launch, the open incident, or a planned restart.

    Each of them is also the restart that was requested during the pause, if any, and answers the faults that
    were reported meanwhile.
    """
    state = _with_reports(state)
    resumed = replace(state, paused_reason="", unstopped=None, waiting=None)
    state = happened(resumed, Resumed(at=state.now))
    restarts = [command for command in state.commands if command.name == "restart"]
    state = without_restarts(state)
    was_placed = any(slot.uid for slot in state.slots.values())
    if state.incident is None and not was_placed:
        return replace(_without_failed_launch(state), mode=Mode.LAUNCHING)
    # Before the fact of the resume: of two facts with the same weight, the first one has the level.
    for restart in restarts:
        state = _restart(state, restart.args)
    if state.incident is not None:
        return replace(state, mode=Mode.DECIDING)
    fact = commands.resume_fact(args, at=state.now, generation=state.generation)
    return replace(state, mode=Mode.DECIDING, pending_facts=(*state.pending_facts, fact))


def _with_reports(state: JobState) -> JobState:
    """The state with the reported faults that waited as facts to be answered."""
    reports = [command for command in state.commands if command.name == "report_fault"]
    remaining = tuple(command for command in state.commands if command.name != "report_fault")
    state = replace(state, commands=remaining)
    for report in reports:
        state = _note_fault(state, report.args)
    return state


def without_restarts(state: JobState) -> JobState:
    """The state without restarts that wait: what comes next is one."""
    remaining = tuple(command for command in state.commands if command.name != "restart")
    return replace(state, commands=remaining)


def _without_failed_launch(state: JobState) -> JobState:
    """The state before a new launch: how the one before it failed needs no answer any more."""
    if state.outcome is None:
        return state
    cause = state.outcome.cause
    facts = tuple(fact for fact in state.pending_facts if fact != cause)
    return replace(state, outcome=None, pending_facts=facts)


def _set_budget(state: JobState, args: Mapping[str, Any]) -> JobState:
    return replace(state, limits={**state.limits, str(args["name"]): args["limit"]})


def _release(state: JobState, args: Mapping[str, Any]) -> JobState:
    """No longer avoid the node. A plan under way was ended for it, and is made again."""
    return released(state, str(args["node"]))


Obey = Callable[[JobState, Mapping[str, Any]], JobState]


def _unchanged(state: JobState, _args: Mapping[str, Any]) -> JobState:
    """Change nothing: the sender did the work, and only the command's id is stored."""
    return state


OBEY_ANYWHERE: Mapping[str, Obey] = {
    "stop": _stop,
    "cancel": _stop,
    "set_budget": _set_budget,
    "release": _release,
    "note": _unchanged,
}

OBEY: Mapping[tuple[Mode, str], Obey] = {
    (Mode.WATCHING, "pause"): _pause,
    (Mode.DECIDING, "pause"): _pause,
    (Mode.READING, "pause"): _pause,
    (Mode.LAUNCHING, "pause"): _pause,
    (Mode.RECOVERING, "pause"): _pause,
    (Mode.REPORTING, "pause"): _pause,
    (Mode.WATCHING, "restart"): _restart,
    (Mode.WATCHING, "adopt"): _adopted,
    **{(mode, "adopt"): _unchanged for mode in Mode if mode is not Mode.WATCHING},
    (Mode.WATCHING, "report_fault"): _report_fault,
    (Mode.DECIDING, "report_fault"): _note_fault,
    (Mode.PAUSED, "resume"): _resume,
}

AT_ONCE = frozenset({"set_budget", "note"})
"""Commands that touch nothing but the books take effect when they are accepted."""


JOINED_BY: Mapping[Level, frozenset[Level]] = {
    Level.IN_PLACE: frozenset(
        {
            *(Level.IN_PLACE, Level.SUSPENSION, Level.POD, Level.JOB),
            *(Level.ELASTIC, Level.ROLLBACK),
        }
    ),
    # A restart of pods replaces those that the fault concerns, and an operator means all of them.
    Level.POD: frozenset({Level.JOB}),
    Level.JOB: frozenset({Level.JOB}),
}
"""By the level of a requested restart, the levels that end with all the same processes new."""


def restart_joined(state: JobState, command: Command) -> str | None:
    """The restart or launch under way that does what this requested restart would; None if none does."""
    if command.name != "restart" or interrupts(state):  # what is under way may not come to its end
        return None
    if state.mode is Mode.LAUNCHING:
        return "the launch"
    plan = state.plan if state.mode is Mode.RECOVERING else None
    if plan is None or not plan.n or not _does(plan, command):
        return None
    return f"restart {plan.n} ({plan.level})"


def _does(plan: Plan, restart: Command) -> bool:
    """Whether all processes are new after this plan, and the pods at its level."""
    level = Level(restart.args.get("level") or Level.IN_PLACE)
    return plan.starts_ranks and not plan.keep and plan.level in JOINED_BY[level]


def without_joined(state: JobState, plan: Plan) -> JobState:
    """The state after this plan, without the restarts that joined it. Until here they wait: it may fail."""
    remaining = tuple(
        command
        for command in state.commands
        if not (command.name == "restart" and command.args.get(JOINS) and _does(plan, command))
    )
    return replace(state, commands=remaining)


def commanded(state: JobState, command: Command, *, may_join: bool = True) -> JobState:
    """The state with an accepted command: applied at once, or kept until its time comes.

    A requested restart may join one that is under way. One for a changed document may not: what is under
    way follows the old one.
    """
    if may_join and restart_joined(state, command):
        command = replace(command, args={**command.args, JOINS: True})
    if command_id := command.args.get("id"):
        new = (short_id(str(command_id)),)
        state = replace(state, applied_ids=remember_ids(state.applied_ids, new))
    if command.name in AT_ONCE:
        return OBEY_ANYWHERE[command.name](state, command.args)
    if command.name == "release":
        is_of_plan = command.args["node"] in _plan_avoids(state)
        state = _release(state, command.args)
        if not is_of_plan:
            return state
    commands = queued(state.commands, command)
    return state if commands is state.commands else replace(state, commands=commands)


def _plan_avoids(state: JobState) -> tuple[str, ...]:
    """The nodes that pods do not get which are placed now: a launch has its plan from the state."""
    if state.mode is Mode.LAUNCHING:
        return state.avoid
    plan = state.plan if state.mode is Mode.RECOVERING else None
    return () if plan is None else plan.remedy.avoid


PLACED_WITH = ("nodes", "accelerator", "accelerators_per_node", "image", "pod_template")
"""What pods are made from: a change of it needs new ones."""


SIZED_BY = (
    *("command", "env", "env_from", "workdir", "image", "pod_template", "files", "prefetch"),
    *("processes_per_node", "accelerator", "accelerators_per_node"),
)
"""Fields that decide whether a number of nodes works: a change of one makes that unknown again."""


def restart_for(before: PhaseSpec, after: PhaseSpec) -> dict[str, str]:
    """Arguments of the restart that applies a changed document."""
    reason = {"reason": "the document was changed"}
    is_for_pods = any(getattr(before, name) != getattr(after, name) for name in PLACED_WITH)
    return {**reason, "level": str(Level.JOB)} if is_for_pods else reason


def respecified(state: JobState, spec: JobSpec) -> JobState:
    """The state with a changed document: the next start follows it."""
    notices = NoticesWanted(at=state.now, wanted=spec.events)
    after = replace(state, spec=spec)
    if any(getattr(state.phase, name) != getattr(after.phase, name) for name in SIZED_BY):
        since = state.generation + 1
        after = with_ledger(after, bad_sizes=(), prefetched=(), sizes_since=since)
    return happened(after, notices)
