"""Explains what would happen under a document, for every class of fault and for a fault code.

It calls the rules themselves: `decide` gets an example fact of each class, rung after rung, as if each level
had failed. Ladders, budgets and precedence are not repeated here; a changed rule changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from everstep.chronicle import views
from everstep.core.counting.occurrences import Occurrence
from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision, Outcome
from everstep.core.deciding.decision_input import decision_input
from everstep.core.deciding.playbook import CATCH_ALL, PLAYBOOK, PlaybookRow, row_for
from everstep.core.deciding.remedies import SPACING_S
from everstep.core.facts import Detail, Fact
from everstep.core.levels import CAPABILITIES, FaultClass, Level
from everstep.core.spec import Budget, JobSpec, PhaseSpec, Policy, RepeatRule, Rule, Series
from everstep.core.state import Incident, JobState, Slot
from everstep.core.world import JobRef
from everstep.faults.catalogue import look_up
from everstep.faults.meanings import DEVICE_FAULT, fault_class, with_meaning
from everstep.faults.severities import LEVELS

DEVICE, NO_CODE = 0, "00000000"
"""The device of the example faults, and a code that no list has."""

NODE, SLOTS = "n{}", 2
"""The example job, a small one: decisions do not depend on the number of slots."""

EXAMPLE = Fact(id="example", kind="example", at=0.0, node=NODE.format(SLOTS - 1), slot=SLOTS - 1)
"""At its last slot."""

EXAMPLES: tuple[Mapping[str, Detail], ...] = (
    {},
    {"severity": "critical"},
    {"user_induced": True},
    {"hardware": True},
)
"""Details that a row of the playbook may need, plain ones first."""


def explained(spec: JobSpec) -> dict[str, Any]:
    """The whole document: its notes, and each phase with every class of fault."""
    return {
        "name": spec.name,
        "dialect": spec.dialect,
        "cluster": spec.cluster,
        "notes": [asdict(note) for note in spec.notes],
        "phases": [_phase(phase, _state(spec, index)) for index, phase in enumerate(spec.phases)],
    }


def possible_levels(spec: JobSpec) -> dict[str, Any]:
    """The levels that faults of this job can lead to, gentlest first, and why it cannot have others."""
    levels = _levels(explained(spec)["phases"])
    adds = levels["levels_with_library"]  # whether its ranks have it is seen only once they run
    missing = [line for line in levels["levels_missing"] if line.partition(":")[0] not in adds]
    return {**levels, "levels_missing": missing}


def _levels(phases: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The levels of these phases, those that the train library would add, and why the others are missing."""
    faults = [fault for phase in phases for fault in phase["faults"]]
    always = {rung["level"] for fault in faults for rung in fault["ladder"]}
    with_library = {level for fault in faults for level in fault["with_library"] or ()}
    lines = _unique(line for fault in faults for line in fault["passed_over"])
    return {
        "levels": _levels_in_order(always),
        "levels_with_library": _levels_in_order(with_library - always),
        "levels_missing": [line for line in lines if line.partition(":")[0] not in always],
    }


def _levels_in_order(levels: set[str]) -> list[str]:
    return [str(level) for level in Level if level in levels - {Level.FAIL, Level.NOTE}]


def explained_now(state: JobState) -> dict[str, Any]:
    """What the next fault of a job would lead to, after all that was counted in its phase until now."""
    idle = replace(state, incident=None, plan=None)
    counted = {
        "restarts": views.restarts(state),
        "budgets": views.status(state)["budgets"],
        "series": views.status(state)["series"],
    }
    phases = [{**_phase(state.phase, idle), "counted": counted}]
    return {
        "name": state.job.id,
        "dialect": state.spec.dialect,
        "cluster": state.spec.cluster,
        "notes": [],
        "phases": phases,
        **_levels(phases),
    }


def _phase(phase: PhaseSpec, state: JobState) -> dict[str, Any]:
    policy = phase.policy
    faults = [_fault(state, cls) for cls in FaultClass]
    return {
        "name": phase.name,
        "nodes": {"min": phase.nodes_min, "wanted": phase.nodes},
        "spares": phase.spares,
        "rules": [_rule(rule) for rule in policy.rules],
        "budgets": [_budget(budget) for budget in policy.budgets],
        "repeats": [_repeat(rule, policy) for rule in policy.repeats],
        "series": [asdict(s) for s in policy.series if _can_count(s, policy.rules, faults)],
        "no_progress_restarts": policy.no_progress_restarts,
        "no_progress_owners": list(policy.no_progress_owners),
        "rollbacks": policy.rollbacks,
        "suspects_checkpoints": policy.suspects_checkpoints,
        "only_checkpoints": policy.only_checkpoints,
        "needs_checkpoint": policy.needs_checkpoint,
        "checks_numbers_steps": policy.number_check.steps if policy.number_check else None,
        "escalates": policy.escalates,
        "spacing_s": list(SPACING_S) if policy.spaced else [],
        "prechecked": policy.precheck,
        "limits": _limits(phase),
        "faults": faults,
        "code_levels": [*_code_levels(state)],
    }


def _repeat(rule: RepeatRule, policy: Policy) -> dict[str, Any]:
    """The rule, and whether the cluster counts over all jobs and isolates the device."""
    return {**rule._asdict(), "counts_over_jobs": policy.counts_over_jobs}


def _can_count(series: Series, rules: Iterable[Rule], faults: Iterable[dict[str, Any]]) -> bool:
    """Whether anything that may happen under this document is a restart of this series."""
    rungs = (rung for fault in faults for rung in fault["ladder"])
    levels = (level for rule in rules for level in rule.levels)
    return any(series.name in rung["counts_in"] for rung in rungs) or any(
        level in series.levels for level in levels
    )


def _limits(phase: PhaseSpec) -> dict[str, Any]:
    """Times that decide over a job, in seconds; null is learned, or none."""
    limits = phase.limits
    return {
        "hang_s": limits.hang_s,
        "still_s": limits.still_s,
        "run_s": limits.run_s,
        "run_s_over": "stopped" if phase.policy.stops_at_limit else "failed",
    }


def _rule(rule: Rule) -> dict[str, Any]:
    match = {key: value for key, value in asdict(rule.match).items() if value not in (None, ())}
    if "cls" in match:
        match["class"] = match.pop("cls")
    return {
        "match": match,
        "action": rule.action,
        "levels": list(rule.levels),
        "class": rule.cls,
        "why": rule.why,
        "origin": rule.origin,
    }


def _budget(budget: Budget) -> dict[str, Any]:
    lists = {key: list(getattr(budget, key)) for key in ("levels", "owners", "free")}
    return {**asdict(budget), **lists}


# -- One class ----------------------------------------------------------------------------------


def _fault(state: JobState, cls: FaultClass) -> dict[str, Any]:
    rows = [row for row in (*PLAYBOOK, CATCH_ALL) if row.cls is cls and not row.is_harmless]
    fact = _at_place(_example(rows), state)
    walked = list(_rungs(state, fact))
    last = walked[-1]
    return {
        "class": str(cls),
        "owner": str(last.fault.owner),
        "seen": [{"kinds": list(row.kinds), "why": row.why} for row in rows],
        "ladder": [_rung(decision) for decision in walked],
        "passed_over": _unique(line for decision in walked for line in _obstacles(decision)),
        "with_library": _other_ladder(state, fact, walked),
        "waits_for": last.waiting_for,
    }


def _code_levels(state: JobState) -> Iterator[dict[str, Any]]:
    """What a device fault of each level leads to, where the answer depends on the level of its code."""
    if not any(row.code_levels for row in state.phase.policy.ladders):
        return
    for level in LEVELS:
        fact = replace(EXAMPLE, generation=1, kind=DEVICE_FAULT, device=DEVICE, code=NO_CODE)
        walked = list(_rungs(state, with_meaning(replace(fact, details={"level": level}))))
        yield {
            "code_level": level,
            "class": str(walked[-1].fault.cls),
            "owner": str(walked[-1].fault.owner),
            "ladder": [_rung(decision) for decision in walked],
        }


def _example(rows: Iterable[PlaybookRow]) -> Fact:
    """A fact that one of these rows is meant for, of a proven fault if there is one."""
    candidates = (
        (row, _fact(row, details))
        for row in sorted(rows, key=lambda row: not row.is_proven)
        for details in EXAMPLES
    )
    return next(fact for row, fact in candidates if row_for(fact) is row)


def _fact(row: PlaybookRow, details: Mapping[str, Detail]) -> Fact:
    kind = row.kinds[0] if row.kinds else "example."
    kind = f"{kind}example" if kind.endswith(".") else kind
    return replace(EXAMPLE, generation=1, kind=kind, message=row.why, details=details)


def _state(spec: JobSpec, phase_index: int) -> JobState:
    """A job that runs and has never met a fault; the last slot is the one that will."""
    slots = min(spec.phases[phase_index].nodes, SLOTS)
    first = SLOTS - slots
    return JobState(
        job=JobRef(id=spec.name, run="example"),
        spec=spec,
        phase_index=phase_index,
        generation=1,
        slots={n: Slot(node=NODE.format(n), uid=f"example-{n}") for n in range(first, SLOTS)},
    )


def _at_place(fact: Fact, state: JobState) -> Fact:
    """The fact at the last slot that lives, of the generation that runs."""
    if not state.active:
        return fact
    slot = state.active[-1]
    return replace(fact, slot=slot, node=state.slots[slot].node, generation=state.generation)


def _rungs(state: JobState, fact: Fact) -> Iterator[Decision]:
    """What is decided, and what next each time it did not work, to the end."""
    decision = decide(decision_input(state, now=state.now, facts=(replace(fact, at=state.now),)))
    yield decision
    for _ in Level:
        if not decision.is_executed:
            return
        incident = Incident(n=1, started_at=state.now, decision=decision)
        # It failed after it had isolated; a later level isolates only what is newly faulty.
        kept_off = {isolation.node: isolation.reason for isolation in decision.remedy.isolate}
        state = replace(state, isolated={**state.isolated, **kept_off}, incident=incident)
        decision = decide(decision_input(state, now=state.now, outcome=_failure(state)))
        yield decision


def _failure(state: JobState) -> Outcome:
    cause = Fact(
        id="example/failure", kind="start.example", at=state.now, message="it did not work"
    )
    return Outcome(
        result="failed",
        now=state.now,
        cursor="",
        generation=state.generation,
        active=state.active,
        cause=cause,
    )


def _rung(decision: Decision) -> dict[str, Any]:
    return {
        "level": str(decision.level),
        "steps": [str(step) for step in decision.remedy.steps],
        "bills": dict(decision.bills),
        "counts_in": list(decision.counts),
        "isolates": bool(decision.remedy.isolate),
    }


def _obstacles(decision: Decision) -> Iterator[str]:
    yield from decision.passed_over
    yield from (f"{r.level}: budget {r.budget} has no unit" for r in decision.refused)


def _other_ladder(state: JobState, fact: Fact, without: list[Decision]) -> list[str] | None:
    """The levels if every rank used the train library; None if they are the same."""
    levels = [str(decision.level) for decision in _rungs(replace(state, can=CAPABILITIES), fact)]
    return None if levels == [str(decision.level) for decision in without] else levels


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


# -- One code -----------------------------------------------------------------------------------


def code_explained(code: str, spec: JobSpec | None = None) -> dict[str, Any]:
    """The code's entry; with a document, what each phase would do when a device shows it."""
    entry = look_up(code)
    fact = with_meaning(replace(EXAMPLE, kind="device.fault", device=DEVICE, code=code.strip()))
    return {
        "code": entry.code,
        "vendor": entry.vendor,
        "known": entry.is_known,
        "means": entry.means,
        "level": entry.level,
        "severity": entry.severity,
        "owner": str(entry.owner),
        "heals": entry.heals,
        "class": str(fault_class(entry)),
        "source": entry.source,
        "rule": entry.rule or None,
        "document": None if spec is None else _document(spec, fact),
    }


def _document(spec: JobSpec, fact: Fact) -> dict[str, Any]:
    phases = [_of_code(phase, _state(spec, index), fact) for index, phase in enumerate(spec.phases)]
    return {"name": spec.name, "dialect": spec.dialect, "phases": phases}


def _of_code(phase: PhaseSpec, state: JobState, fact: Fact) -> dict[str, Any]:
    """What the phase does about it, rung after rung, the first time and when it was seen often."""
    before = Occurrence(node=fact.node or "", device=DEVICE, code=fact.code or "", at=0.0)
    rule = phase.policy.repeat_rule(fact.code)
    often = replace(state, occurrences=(before,) * (rule.times - 1 if rule else 0))
    first = list(_rungs(state, fact))
    again = _rungs(often, replace(fact, id="again"))
    return {
        "name": phase.name,
        "reason": first[0].reason,
        "ladder": [_rung(decision) for decision in first],
        "again": [_rung(decision) for decision in again],
        "repeats": None if rule is None else _repeat(rule, phase.policy),
    }
