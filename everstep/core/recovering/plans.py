"""From a decision to a plan: what the steps need, looked up once, before anything is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.core import names
from everstep.core.deciding.decision import Counts, Decision, PlaceRules, Plan, Remedy
from everstep.core.facts import EXAMPLES_KEPT, SCALE_OUT
from everstep.core.levels import LAUNCH_STEPS, FaultClass, Level, Step
from everstep.core.recovering import growth, snapshots, survivors
from everstep.core.recovering.avoiding import in_maintenance
from everstep.core.recovering.placement import usable
from everstep.core.spec import CHECKS_NUMBERS, PhaseSpec, PrefetchOrder
from everstep.core.state import JobState, Slot

ANSWERED_KEPT = 2 * EXAMPLES_KEPT
"""IDs of facts of this incident, and of the one before, which the cluster may still show."""
NEW_SLOT = Slot(node="", uid="", schedule_count=0)


def launch_plan(state: JobState) -> Plan:
    """The first start of a phase: every slot in a new pod."""
    slots = tuple(range(state.phase.nodes))
    steps = tuple(s for s in LAUNCH_STEPS if s is not Step.PRECHECK or state.phase.policy.precheck)
    return replace(
        _bare(state, _own_key(state, "launch"), f"launch {state.phase.name}"),
        level=Level.JOB,
        remedy=Remedy(
            steps=steps,
            recreate=slots,
            avoid=state.avoid,
            last_choice=state.last_choice,
            in_maintenance=in_maintenance(state),
            gives_way_to=(FaultClass.PREEMPTED, FaultClass.NODE, FaultClass.DEVICE_FATAL),
            older_than_step=state.ledger.rollbacks.below,
        ),
        slots={slot: Counts() for slot in slots},
        places=_place_rules(state, wait_s=state.phase.limits.queue_s),
        avoid_devices=state.avoid_devices,
        priority=state.spec.priority,
        restarts=state.ledger.restarts,
    )


def pause_plan(state: JobState) -> Plan:
    """Stop all processes after asking them to save; the pods stay."""
    return replace(
        _bare(state, _own_key(state, "pause"), "pause"),
        remedy=Remedy(steps=(Step.STOP,), grace_s=state.phase.limits.grace_s),
        slots=_kept_counts(state, state.active),
    )


def report_plan(state: JobState) -> Plan:
    """The plan to send deferred isolations to the quarantine; nothing is stopped."""
    bare = _bare(state, _own_key(state, "tell"), "report to the quarantine")
    return replace(bare, remedy=Remedy(steps=(Step.ISOLATE,), isolate=state.deferred))


def _bare(state: JobState, key: str, title: str) -> Plan:
    """What every plan has of the state; it does nothing yet."""
    return Plan(
        key=key,
        title=title,
        level=Level.NOTE,
        job=state.job,
        cluster=state.spec.cluster,
        folders=state.spec.folders,
        phase=_phase(state),
        generation=state.generation,
        since=state.now,
        cursor=state.cursor,
        known_fact_ids=known_facts(state),
        slots={},
        tried=(*state.ledger.bad_sizes, *state.ledger.prefetched),
        began=state.phase_started_at or state.now,
        time_scale=state.spec.time_scale,
    )


def _phase(state: JobState) -> PhaseSpec:
    """The phase for its next run, without those parts of the policy that only decisions read."""
    policy = state.phase.policy
    hang = tuple(row for row in policy.ladders if not row.classes or FaultClass.HANG in row.classes)
    phase = replace(
        state.phase,
        policy=replace(
            policy,
            ladders=hang,  # the agents' watch depends on it
            exclusions=(),
            budgets=(),
            series=(),
            repeats=(),
            durations=(),
            relations=(),
            job_durations=(),
            saves_before_stop=(),
        ),
    )
    # A value of the document's own has no effect, and may be no number.
    env = {name: value for name, value in phase.env.items() if name != CHECKS_NUMBERS}
    check = policy.number_check
    if check is not None and state.ledger.checking.is_on:
        env[CHECKS_NUMBERS] = str(check.steps)
    return replace(phase, env=env)


def known_facts(state: JobState) -> tuple[str, ...]:
    """The newest that the job answered, and those that it has yet to answer."""
    return (*state.seen_ids[-ANSWERED_KEPT:], *(fact.id for fact in state.pending_facts))


def _own_key(state: JobState, what: str) -> str:
    """The key under which the backend allocates a generation for this plan.

    Each launch or pause has another generation before it. If one is begun again because its outcome was lost,
    the number of the try makes the key new: the lost Recovery may still hold the generation of the old key.
    """
    again = f"-{state.repeats}" if state.repeats else ""
    return f"{state.phase.name}/{what}-{state.generation}{again}"


def recovery_plan(state: JobState, decision: Decision, n: int) -> Plan:
    """What the Recovery `n` is given."""
    wanted_slots = tuple(range(state.phase.nodes))
    slots = tuple(sorted({*(state.active or wanted_slots), *decision.remedy.recreate}))
    steps = decision.remedy.steps
    if state.running_since is None:  # a pod stands by while the job runs, or not at all
        steps = tuple(step for step in steps if step is not Step.STANDBY)
    key = names.recovery_key(
        phase=state.phase.name,
        n=n,
        level=decision.level,
        cls=decision.fault.cls,
        node=decision.fault.node,
    )
    return replace(
        _bare(state, key, f"restart {n} · {decision.level} · {decision.fault.label}"),
        level=decision.level,
        remedy=replace(
            decision.remedy,
            steps=steps,
            isolate=(*state.deferred, *decision.remedy.isolate),
            # Isolated nodes are kept clear of by the cluster itself, until somebody releases them.
            avoid=tuple(dict.fromkeys((*state.avoid, *decision.remedy.avoid))),
            last_choice=state.last_choice,
            in_maintenance=in_maintenance(state, decision),
        ),
        since=decision.at,
        slots=_counts(state, slots, decision.remedy.recreate),
        left_nodes=_left_nodes(state, decision.remedy.recreate),
        keep=_ranks_to_keep(state, decision, slots),
        hold_s=survivors.hold_s(state.learned.longest_gap_s),
        places=_places(state, decision, len(slots)),
        avoid_devices=state.avoid_devices,
        saved_as=None if state.saved is None else state.saved.path,
        restores=snapshots.may_be_sound(state, decision.fault.cls),
        snapshot=state.snapshot,
        reissued=decision.remedy.places_pods,
        priority=state.spec.priority,
        n=n,
        restarts=state.ledger.restarts,
    )


def _ranks_to_keep(state: JobState, decision: Decision, slots: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks to keep: not those of pods that are left, nor those on a device that has to heal."""
    healing = (
        {ref.node for ref in decision.remedy.heal} if decision.level is Level.PROCESS else set()
    )
    ended = {
        *decision.remedy.recreate,
        *(n for n in slots if state.slots.get(n, NEW_SLOT).node in healing),
    }
    return survivors.ranks_to_keep(decision.level, slots, ended, state.phase.processes_per_node)


def _left_nodes(state: JobState, leaving: tuple[int, ...]) -> tuple[str, ...]:
    """The nodes without a pod afterwards; none if no slot stays."""
    if not leaving:
        return ()
    nodes_by_slot = {slot: state.slots[slot].node for slot in state.active}
    staying_nodes = {nodes_by_slot[slot] for slot in nodes_by_slot.keys() - set(leaving)}
    return tuple(sorted({*nodes_by_slot.values()} - staying_nodes)) if staying_nodes else ()


def _counts(
    state: JobState, slots: tuple[int, ...], recreate: tuple[int, ...]
) -> dict[int, Counts]:
    new = {
        slot: Counts(schedule=state.slots.get(slot, NEW_SLOT).schedule_count + 1, process_start=1)
        for slot in recreate
    }
    return {**_kept_counts(state, slots), **new}


def _kept_counts(state: JobState, slots: tuple[int, ...]) -> dict[int, Counts]:
    """The next counts of slots whose pods stay. Nearly all are equal, and share one object."""
    slots_before = {n: state.slots.get(n, NEW_SLOT) for n in slots}
    old = {n: (one.schedule_count, one.process_start_count) for n, one in slots_before.items()}
    new = {(n, runs): Counts(schedule=n, process_start=runs + 1) for n, runs in set(old.values())}
    return {slot: new[counts] for slot, counts in old.items()}


def _places(state: JobState, decision: Decision, active: int) -> PlaceRules | None:
    """How each level waits: `pod` for a spare only, `elastic` hardly, `job` as long as it may."""
    limits = state.phase.limits
    spare = PlaceRules(wanted=active, least=active, spare_s=limits.spare_s, wait_s=limits.spare_s)
    # `elastic` goes on with fewer slots at once, as the level before has waited. A slot that comes back gets
    # a moment to be placed.
    grow_s = growth.PLACE_S / state.spec.time_scale if decision.fault.kind == SCALE_OUT else 0.0
    resized = _sized(state, active, spare_s=grow_s, wait_s=grow_s)
    by_level: Mapping[Level, PlaceRules] = {
        Level.PROCESS: spare,
        Level.POD: spare,
        Level.ROLLBACK: replace(spare, wait_s=limits.requeue_s),
        Level.ELASTIC: resized,
        Level.JOB: _place_rules(state, wait_s=limits.requeue_s),
    }
    return by_level.get(decision.level)


def _place_rules(state: JobState, *, wait_s: float | None) -> PlaceRules:
    """All nodes, or fewer after a while. To begin with, a job may need more than it goes on with."""
    rules = _sized(state, state.phase.nodes, spare_s=state.phase.limits.spare_s, wait_s=wait_s)
    first_min = state.phase.first_nodes_min
    has_begun = state.runs > 0 or state.phase_index != state.spec.first_phase
    if first_min is None or has_begun:
        return rules
    return replace(rules, least=min(first_min, rules.wanted))


def _sized(state: JobState, most: int, *, spare_s: float, wait_s: float | None) -> PlaceRules:
    """Rules for places: `most` or fewer, at least the document's minimum, no number known not to work."""
    least, bad = state.phase.nodes_min, state.ledger.bad_sizes
    target = max(usable(least, most, bad=bad), default=most)
    return PlaceRules(wanted=target, least=least, spare_s=spare_s, wait_s=wait_s, bad=bad)


def prefetch_order(plan: Plan, nodes: int) -> PrefetchOrder | None:
    """The next two smaller numbers of nodes that were not prefetched yet."""
    what, least = plan.phase.prefetch, plan.phase.nodes_min
    if what is None:
        return None
    near = range(nodes - 1, max(nodes - 3, least - 1), -1)
    unknown = tuple(n for n in near if n not in plan.tried)
    return PrefetchOrder(what=what, nodes=unknown, began=plan.began)
