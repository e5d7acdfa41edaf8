"""What a decision is made from: everything that it may depend on, and nothing else.

It goes to the activity that decides, so it grows with what was seen and not with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.core.counting.occurrences import FaultCount, Occurrence
from everstep.core.counting.relations import causes_of
from everstep.core.deciding.decision import Checking, Outcome, Result, RollbackCount, RunEnd
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Step
from everstep.core.spec import Policy
from everstep.core.state import Incident, JobState
from everstep.core.world import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInput:
    """What is new, what was under way, and what the job says, has and has counted."""

    now: float
    facts: tuple[Fact, ...] = ()
    answered_ids: tuple[str, ...] = ()  # IDs of those facts that were answered before
    lost_containers: tuple[int, ...] = ()  # slots whose container does not exist any more
    can: tuple[str, ...] = ()  # capabilities that every rank declares

    incident: Incident | None = None
    result: Result | None = None  # of the plan in progress, if it returned one
    failed_step: Step | None = None
    step_failure: Fact | None = None  # why that step failed

    policy: Policy
    nodes: int
    nodes_min: int
    bad_sizes: tuple[int, ...] = ()  # numbers of nodes that do not work
    grace_s: float
    time_scale: float = 1.0
    limits: Mapping[str, int | None] = field(default_factory=dict)  # set_budget overrides

    generation: int
    is_placed: bool  # it has slots at all
    active: tuple[int, ...]
    processes_per_node: int = 1
    # Slot -> node: slots on nodes of the facts, and the lowest, with rank 0.
    nodes_by_slot: Mapping[int, str]
    isolated: tuple[str, ...] = ()  # of the nodes of the facts
    has_deferred: bool = False  # isolations have still to be sent to the quarantine
    occurrences: tuple[Occurrence, ...] = ()  # earlier ones on these nodes, or of these codes
    # Of the device faults among the facts, over all jobs. An activity adds them.
    counts: tuple[FaultCount, ...] = ()

    runs: int = 0  # starts of all processes in this phase
    shows_steps: bool = False
    step: int | None = None
    stepped_in: int = 0  # generation of that step
    resume: Checkpoint | None = None  # checkpoint that the newest run began with
    saved: Checkpoint | None = None
    saves_to: str | None = None

    used: Mapping[str, int] = field(default_factory=dict)  # budget -> units
    # Restarts in a row without progress:
    series: Mapping[str, int] = field(default_factory=dict)  # of each series
    no_progress: int = 0  # of the owners that `no_progress_restarts` counts
    spacing: int = 0  # of any owner: the row of `SPACING_S` for the next restart
    escalation: Mapping[FaultClass, int] = field(default_factory=dict)  # of each class
    by_node: Mapping[str, int] = field(default_factory=dict)  # where the node is suspected
    recoveries: int = 0  # the newest record's n
    restarts: int = 0  # executed levels, of any kind
    last_end: RunEnd | None = None  # how the last run ended, and how many before it did the same
    early: int = 0  # restarts in a row that ended before a step
    checking: Checking = field(default_factory=Checking)
    rollbacks: RollbackCount = field(default_factory=RollbackCount)  # without progress since
    no_standby: bool = False  # whether a pod was not ready to stand by in time once

    @property
    def has_run(self) -> bool:
        """Whether it ever came further than its first start."""
        saved = None if self.saved is None else self.saved.step
        return self.runs > 1 or self.step is not None or saved is not None


def decision_input(
    state: JobState, *, now: float, facts: tuple[Fact, ...] = (), outcome: Outcome | None = None
) -> DecisionInput:
    """Collect from the state what a decision about these facts and the plan's outcome may depend on."""
    failed = outcome is not None and outcome.result == "failed"
    step_failure = outcome.cause if outcome is not None and failed else None
    phase, ledger, active = state.phase, state.ledger, state.active
    codes = {fact.code for fact in facts if fact.code is not None}
    causes = causes_of(phase.policy.relations, codes)
    nodes = _nodes(facts if step_failure is None else (*facts, step_failure), state, causes)
    codes |= causes
    ids, lowest = {fact.id for fact in facts}, active[:1]
    return DecisionInput(
        now=now,
        facts=tuple({fact.id: fact for fact in facts}.values()),  # as they were reported last
        answered_ids=tuple(fact_id for fact_id in state.seen_ids if fact_id in ids),
        lost_containers=state.lost_containers,
        can=state.can,
        incident=state.incident,
        result=None if outcome is None else outcome.result,
        failed_step=outcome.step if outcome is not None and failed else None,
        step_failure=step_failure,
        policy=phase.policy,
        nodes=phase.nodes,
        nodes_min=phase.nodes_min,
        bad_sizes=ledger.bad_sizes,
        grace_s=phase.limits.grace_s,
        time_scale=state.spec.time_scale,
        limits=state.limits,
        generation=state.generation,
        is_placed=bool(state.slots),
        active=active,
        processes_per_node=phase.processes_per_node,
        nodes_by_slot={
            n: slot.node for n, slot in state.slots.items() if slot.node in nodes or n in lowest
        },
        isolated=tuple(node for node in state.isolated if node in nodes),
        has_deferred=bool(state.deferred),
        occurrences=tuple(o for o in state.occurrences if o.node in nodes or o.code in codes),
        runs=state.runs,
        shows_steps=phase.log_pattern is not None or state.step is not None,
        step=state.step,
        stepped_in=state.stepped_in,
        resume=None if state.snapshot is not None else state.resume,
        saved=state.saved,
        saves_to=phase.checkpoints_path,
        used=ledger.used,
        series=ledger.series,
        no_progress=ledger.no_progress,
        spacing=ledger.spacing,
        escalation=ledger.escalation,
        by_node=_of(nodes, ledger.by_node),
        recoveries=ledger.recoveries,
        restarts=ledger.restarts,
        last_end=ledger.last_end,
        early=ledger.early,
        checking=ledger.checking,
        rollbacks=ledger.rollbacks,
        no_standby=ledger.no_standby,
    )


def _of(nodes: frozenset[str], counts: Mapping[str, int]) -> dict[str, int]:
    return {node: times for node, times in counts.items() if node in nodes}


def _nodes(facts: tuple[Fact, ...], state: JobState, causes: set[str]) -> frozenset[str]:
    """The nodes of the facts, of codes that may have caused them, and of the incident in progress."""
    nodes = {fact.node for fact in facts if fact.node is not None}
    nodes |= {o.node for o in state.occurrences if o.code in causes}
    if state.incident is None:
        return frozenset(nodes)
    last = state.incident.decision
    isolated = (isolation.node for isolation in last.remedy.isolate)
    faulty = (node for fault in (last.fault, *last.other_faults) for node in fault.nodes)
    return frozenset((*nodes, *isolated, *faulty))
