"""Apply the outcome of a plan to the state: slots, starts, records, refunds.

A function named by a participle (`launched`, `recovered`) returns the state after that, one that begins with
`_with` the state with that change. If a Recovery left no outcome, `lost` is applied, then what the cluster
shows: `adopted`, and `found_done` if that is what the Recovery was to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.core import names
from everstep.core.deciding import budgets
from everstep.core.deciding.decision import Counts, Decision, Outcome, Plan, Waited
from everstep.core.facts import SCALE_OUT, STANDBY_NONE, Fact, is_fenced_since
from everstep.core.levels import Step
from everstep.core.loop.bookkeeping import apply_facts
from everstep.core.loop.job_events import (
    BillReturned,
    JobEnding,
    LaunchEnded,
    NodeIsolated,
    Prechecked,
    RestartEnded,
    Started,
)
from everstep.core.recovering import avoiding, survivors
from everstep.core.recovering.placement import node_ranks, usable
from everstep.core.recovering.plans import NEW_SLOT
from everstep.core.seeing.progress import found_further, starting_mark
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.slots import Slots
from everstep.core.state import (
    JobState,
    Learned,
    Ledger,
    Mode,
    Slot,
    absent,
    happened,
    with_ledger,
)
from everstep.core.world import Checkpoint, NewerCheckpoints, PodState


def carried_out(plan: Plan, outcome: Outcome, step: Step) -> bool:
    """Whether the plan had this step and carried it out to its end."""
    steps = plan.remedy.steps
    done = steps if outcome.step is None else steps[: steps.index(outcome.step)]
    return step in done


def mended(plan: Plan, outcome: Outcome, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Those about a storage that the plan has since written to: nothing is left to answer.

    It waited for the storage, or was a restart for another reason: `resume` puts a fence into each folder.
    """
    if not carried_out(plan, outcome, Step.RESUME):
        return ()
    return tuple(fact for fact in facts if is_fenced_since(fact, generation=outcome.generation))


def launched(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state after a launch: its slots, and the checkpoint that training resumes from."""
    after = _with_new_generation(_with_old_facts(state, outcome), plan, outcome)
    return _with_new_processes(state, after, outcome)


def launch_ended(outcome: Outcome) -> LaunchEnded:
    return LaunchEnded(
        at=outcome.now,
        generation=outcome.generation,
        result=outcome.result,
        nodes=len(outcome.active),
        stages_s=outcome.stages_s,
        works=outcome.works,
    )


def recovered(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state after a Recovery that returned its outcome."""
    if outcome.step is Step.STANDBY:
        return _ended_in_standby(state, plan, outcome)
    # In this order: the facts of the old ranks, the new generation, what its checkpoint proves, the refunds,
    # the record, the facts of the new ranks.
    before, mark = state, state.ledger.mark
    state = _with_new_generation(_with_old_facts(state, outcome), plan, outcome)
    state = found_further(state, mark)
    if outcome.result == "failed":
        state = _with_failure(_with_refunds(_without_rollback(state, plan, outcome)))
    state = happened(state, _restart_ended(plan, outcome, before, state))
    state = _with_new_processes(before, state, outcome)
    if outcome.result != "success":
        return _with_answers(state, plan, outcome)
    return replace(_with_growth(before, state), incident=None)


def _with_answers(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state whose incident has the isolations that the quarantine answered, whatever the answer was."""
    if state.incident is None or not carried_out(plan, outcome, Step.ISOLATE):
        return state
    answered = (one for one in plan.remedy.isolate if one not in outcome.deferred)
    all_answered = tuple(dict.fromkeys((*state.incident.answered, *answered)))
    incident = replace(state.incident, answered=all_answered)
    return replace(state, incident=incident)


def _with_growth(before: JobState, state: JobState) -> JobState:
    """Count a restart for more nodes that got none: the next one has to wait. Any that got some ends that."""
    incident, tries = before.incident, state.ledger.grown_in_vain
    if len(state.active) > len(before.active):
        return with_ledger(state, grown_in_vain=0, grown_in_vain_at=None)
    if incident is None or incident.decision.fault.kind != SCALE_OUT:
        return state
    return with_ledger(state, grown_in_vain=tries + 1, grown_in_vain_at=state.now)


def _ended_in_standby(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state after a Recovery that ended before it stopped anything: its bill is refunded."""
    state = replace(
        state,
        now=max(state.now, outcome.now),
        cursor=outcome.cursor,
        plan=None,
        waiting=None,
    )
    before = state
    if outcome.result == "failed":
        state = _with_failure(_with_refunds(state, refund_all=True))
        is_none = outcome.cause is not None and outcome.cause.kind == STANDBY_NONE
        state = with_ledger(state, no_standby=state.ledger.no_standby or is_none)
    return happened(state, _restart_ended(plan, outcome, before, state))


def _restart_ended(plan: Plan, outcome: Outcome, before: JobState, after: JobState) -> RestartEnded:
    old, new = _changed_nodes(before.slots, after.slots)
    return RestartEnded(
        at=outcome.now,
        n=plan.n,
        result=names.RECORD_RESULT[outcome.result],
        generation=outcome.generation if outcome.was_started else None,
        isolated=bool(outcome.isolated),
        before=old,
        after=new,
        resume_step=starting_step(after, run=after.runs + 1) if outcome.was_started else None,
        resume=after.resume if outcome.was_started else None,
        snapshot=after.snapshot if outcome.was_started else None,
        kept_ranks=outcome.kept_ranks if outcome.was_started else (),
        newer_saved=outcome.newer_saved,
        evidence=outcome.evidence,
        stages_s=outcome.stages_s,
        notes=outcome.notes,
        waited=outcome.waited,
        works=outcome.works,
        stood_up_s=outcome.stood_up_s,
    )


def _with_old_facts(state: JobState, outcome: Outcome) -> JobState:
    """The state with the facts of a plan, except those of the ranks that it started."""
    before = (fact for fact in _facts_of(outcome) if fact.generation != outcome.generation)
    if outcome.prechecked is None:
        return apply_facts(state, before)
    began, at = outcome.prechecked
    event = Prechecked(
        at=at,
        began=began,
        slots=outcome.active,
        failed=tuple(f for f in _facts_of(outcome) if f.family == "precheck"),
        passed=outcome.step is not Step.PRECHECK,
    )
    return apply_facts(happened(state, event), before)


def _facts_of(outcome: Outcome) -> tuple[Fact, ...]:
    cause = () if outcome.cause is None else (outcome.cause,)
    return tuple({fact.id: fact for fact in (*cause, *outcome.facts)}.values())


def _with_new_processes(before: JobState, state: JobState, outcome: Outcome) -> JobState:
    """The state with the start of the plan's ranks, then the facts of those ranks."""
    is_new = before.generation != state.generation or before.running_since is None
    if is_new and state.running_since is not None:
        state = started(
            state,
            state.running_since,
            waited=outcome.waited,
            newer_saved=outcome.newer_saved,
            no_snapshot=outcome.no_snapshot,
        )
    return apply_facts(state, (f for f in _facts_of(outcome) if f.generation == outcome.generation))


def started(
    state: JobState,
    at: float,
    *,
    waited: tuple[Waited, ...] = (),
    newer_saved: NewerCheckpoints | None = None,
    no_snapshot: str = "",
) -> JobState:
    """The state after a start of all processes: one more run."""
    state = replace(state, runs=state.runs + 1)
    start = Started(
        at=at,
        run=state.runs,
        generation=state.generation,
        slots=state.active,
        nodes=tuple(sorted({slot.node for slot in state.slots.values() if slot.node})),
        starting_step=starting_step(state, run=state.runs),
        resume=state.resume,
        snapshot=state.snapshot,
        newer_saved=newer_saved,
        no_snapshot=no_snapshot,
        checks_numbers=state.ledger.checking.is_on,
        waited=waited,
    )
    return happened(state, start)


def starting_step(state: JobState, *, run: int) -> int | None:
    """The step at which a run begins; None if unknown: a later run may find files of its own script."""
    if state.snapshot is not None:
        return state.snapshot.step
    if state.resume is not None:
        return state.resume.step
    # Generations of a job ID begin at 1. If the first one is higher, an earlier job of this ID ran here, or a
    # launch without outcome.
    was_run_before = state.phase_index == state.spec.first_phase and state.first_generation > 1
    return 0 if run <= 1 and not was_run_before else None


def isolated_later(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state after deferred isolations reached the quarantine; what failed again stays deferred."""
    reasons = {i.node: i.reason for i in plan.remedy.isolate if i.node in outcome.isolated}
    return replace(
        _with_isolation_events(state, reasons),
        isolated={**state.isolated, **reasons},
        avoided=tuple(each for each in state.avoided if each.node not in reasons),
        deferred=outcome.deferred,
        plan=None,
    )


def _with_isolation_events(state: JobState, reasons: Mapping[str, str]) -> JobState:
    """The state with the events of newly isolated nodes; the caller stores the nodes themselves."""
    new = ((node, why) for node, why in reasons.items() if node not in state.isolated)
    return happened(state, *(NodeIsolated(at=state.now, node=n, reason=why) for n, why in new))


def defer_open_isolations(state: JobState) -> JobState:
    """The state with the isolations of its open incident deferred, to be handed over at its end.

    Whether they reached the quarantine is unknown; a request that is repeated changes nothing there.
    """
    if state.incident is None:
        return state
    return deferring(state, state.incident.decision)


def deferring(state: JobState, decision: Decision) -> JobState:
    """The state with the isolations of the decision deferred, without those that the quarantine answered."""
    answered = () if state.incident is None else state.incident.answered
    unanswered = [
        isolation
        for isolation in decision.remedy.isolate
        if isolation.node not in state.isolated
        and not any(map(isolation.adds_nothing_to, (*answered, *state.deferred)))
    ]
    return replace(state, deferred=(*state.deferred, *unanswered))


def lost(state: JobState, plan: Plan) -> JobState:
    """The state after a Recovery without outcome: terminated, reset or timed out. Its bill stays."""
    ended = RestartEnded(at=state.now, n=plan.n, result="terminated", isolated=False)
    return happened(replace(state, plan=None), ended)


def may_be_all(state: JobState, plan: Plan | None, started_slots: Slots) -> bool:
    """Whether the job can run with just these slots. A plan that places pods may change their number.

    `plan`: the one whose outcome was lost; None if another run of this job moved its processes.
    """
    phase, count = state.phase, len(started_slots)
    if plan is not None and plan.places is not None:
        rules = plan.places
        return count in usable(rules.least, rules.wanted, bad=rules.bad)
    if plan is not None or started_slots == state.active:
        return bool(started_slots) and started_slots == state.active
    return count in usable(phase.nodes_min, phase.nodes, bad=state.ledger.bad_sizes)


def adopted(state: JobState, report: WatchReport, *, active: Slots) -> JobState:
    """The job as the cluster has it: generation, slots, their pods and counters."""
    slots = {n: slot if n in active else absent(slot) for n, slot in state.slots.items()}
    for pod in report.pods:
        if pod.slot in active:
            slots[pod.slot] = Slot(
                node=pod.node,
                uid=pod.uid,
                state=PodState(pod.state),
                schedule_count=pod.schedule_count,
                process_start_count=pod.process_start_count,
            )
    generation = report.generation
    resume = state.resume if generation == state.generation else None  # its choice is unknown
    moved = replace(
        state,
        generation=generation,
        resume=resume,
        snapshot=state.snapshot if generation == state.generation else None,
        slots=slots,
        first_step_at=None,
        lost_containers=tuple(slot for slot in state.lost_containers if slot in active),
    )
    return _without_pace_if_resized(moved, before=state)


def found_done(state: JobState, plan: Plan, before: Mapping[int, Slot]) -> JobState:
    """The state once the cluster shows that a lost Recovery had done its work; adopt its slots before."""
    old, new = _changed_nodes(before, state.slots)
    ended = RestartEnded(
        at=state.now,
        n=plan.n,
        result="success",
        generation=state.generation,
        before=old,
        after=new,
    )
    isolated = tuple(isolation.node for isolation in plan.remedy.isolate)
    return replace(
        happened(state, ended),
        # The quarantine's answer is lost: the request is repeated, which changes nothing there. A plan's
        # isolations include what was deferred before it.
        deferred=plan.remedy.isolate,
        avoided=avoiding.with_nodes(state, plan, (*plan.remedy.avoid, *isolated)),
        incident=None,
    )


def ending(state: JobState, how: str, why: str, *, mode: Mode = Mode.CLOSING) -> JobState:
    """The state of a job that is to end: how and why."""
    state = replace(state, mode=mode, ending=how, ending_reason=why)
    step, saved = state.generation_step, state.saved
    ending = JobEnding(at=state.now, ending=how, reason=why, step=step, saved=saved)
    return happened(state, ending)


def _changed_nodes(
    before: Mapping[int, Slot], after: Mapping[int, Slot]
) -> tuple[dict[int, str], dict[int, str]]:
    """Where the slots that moved were, and where they are."""
    changed = sorted([n for n, slot in after.items() if before.get(n, NEW_SLOT).node != slot.node])
    old = {n: before[n].node for n in changed if n in before}
    return old, {n: after[n].node for n in changed}


def _with_refunds(state: JobState, *, refund_all: bool = False) -> JobState:
    """Refund, after a failure, the budgets that count successes; with `refund_all` every one.

    The ledger has the bills of the newest restart only, one for each try of it.
    """
    used, bills = state.ledger.used, dict(state.ledger.bills)
    for n, bill in state.ledger.bills.items():
        refunds = budgets.refunds(state.phase.policy.budgets, bill, succeeded=False)
        refunds = dict(bill) if refund_all else refunds
        used = budgets.refund(used, refunds)
        bills[n] = {name: units for name, units in bill.items() if name not in refunds}
        if refunds:
            state = happened(state, BillReturned(at=state.now, n=n, budgets=tuple(refunds)))
    return with_ledger(state, used=used, bills=bills)


def _without_rollback(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """Uncount a rollback that failed before it chose a checkpoint."""
    incident, rollbacks = state.incident, state.ledger.rollbacks
    is_counted = incident is not None and incident.decision.counts_as_rollback
    if not is_counted or carried_out(plan, outcome, Step.RESUME):
        return state
    return with_ledger(state, rollbacks=rollbacks._replace(times=rollbacks.times - 1))


def _with_failure(state: JobState) -> JobState:
    state = with_ledger(state, failed=state.ledger.failed + 1)
    incident = state.incident
    if incident is None:
        return state
    return replace(state, incident=replace(incident, failures=incident.failures + 1))


def _with_new_generation(state: JobState, plan: Plan, outcome: Outcome) -> JobState:
    """The state in the generation of the outcome: its slots, ledger, checkpoint and isolated nodes."""
    slots, recreate = _slots_after(state, plan, outcome), frozenset(plan.remedy.recreate)
    isolated = {i.node: i.reason for i in plan.remedy.isolate if i.node in outcome.isolated}
    moved = replace(
        _with_isolation_events(replace(state, now=max(state.now, outcome.now)), isolated),
        cursor=outcome.cursor,
        generation=outcome.generation,
        first_generation=state.first_generation or outcome.generation,
        slots=slots,
        older_ranks=_older_ranks(state, outcome),
        resume=outcome.resume if carried_out(plan, outcome, Step.RESUME) else state.resume,
        snapshot=outcome.snapshot if carried_out(plan, outcome, Step.RESUME) else state.snapshot,
        ledger=_ledger_after(state, plan, outcome),
        saved=_newest_checkpoint(state, plan, outcome),
        isolated={**_still_isolated(state, outcome), **isolated},
        # The plan's isolations include what was deferred before it: what is left of that is in the outcome.
        deferred=outcome.deferred if carried_out(plan, outcome, Step.ISOLATE) else state.deferred,
        avoided=avoiding.with_nodes(state, plan, _nodes_to_avoid(outcome)),
        avoid_devices=outcome.avoid_devices,
        running_since=outcome.now if _is_running(plan, outcome) else None,
        alive_until=None,
        first_step_at=None,
        unreachable=(),
        waiting=None,
        suspected=None,
        lost_containers=tuple(n for n in state.lost_containers if n not in recreate),
        plan=None,
    )
    return _without_pace_if_resized(moved, before=state)


def _newest_checkpoint(state: JobState, plan: Plan, outcome: Outcome) -> Checkpoint | None:
    """The newest checkpoint after a plan: none if it began without one, as the only one was bad."""
    is_chosen = carried_out(plan, outcome, Step.RESUME) and not plan.keep
    begins_without = is_chosen and outcome.resume is None
    return None if begins_without else outcome.resume or state.saved


def _without_pace_if_resized(state: JobState, *, before: JobState) -> JobState:
    """Forget the learned pace if the number of nodes changed."""
    is_resized = len(state.active) != len(before.active)
    fresh = Learned(steps_from=state.learned.steps_from)
    return replace(state, learned=fresh) if is_resized else state


def _ledger_after(state: JobState, plan: Plan, outcome: Outcome) -> Ledger:
    """The ledger after a plan. The checkpoint that a run begins with is not progress of that run.

    A rollback records where it resumed, so that the next one goes further back. If newer checkpoints could
    not be set aside (`newer_remain`), later restarts too have to resume `below` its limit.
    """
    ledger, resume = state.ledger, outcome.resume
    rollbacks, older_than_step = ledger.rollbacks, plan.remedy.older_than_step
    if older_than_step is not None and carried_out(plan, outcome, Step.RESUME):
        rollbacks = rollbacks._replace(below=older_than_step if outcome.newer_remain else None)
        if rollbacks.times:
            resumed_at = None if resume is None else resume.order_number
            rollbacks = rollbacks._replace(resumed_at=resumed_at)
    return replace(ledger, mark=starting_mark(resume, ledger.mark), rollbacks=rollbacks)


def _is_running(plan: Plan, outcome: Outcome) -> bool:
    """Whether the plan's slots run now."""
    return outcome.result == "success" and plan.starts_ranks


def _older_ranks(state: JobState, outcome: Outcome) -> Mapping[int, int]:
    """The ranks that went on, each with the generation in which its process was started."""
    if outcome.generation == state.generation:
        return state.older_ranks
    return {rank: state.older_ranks.get(rank, state.generation) for rank in outcome.kept_ranks}


LIVE_STATES = frozenset(
    {
        PodState.PENDING,
        PodState.STARTING,
        PodState.RUNNING,
        PodState.UNREACHABLE,
        PodState.LEAVING,
    }
)


def cleared(state: JobState, isolated: tuple[str, ...]) -> JobState:
    """The state once nothing of the job runs any more: slots last seen alive are stopped.

    `isolated`: the deferred nodes that the quarantine isolated since. The last phase has them too.
    """
    slots = {
        n: slot._replace(state=PodState.STOPPED) if slot.state in LIVE_STATES else slot
        for n, slot in state.slots.items()
    }
    reasons = {i.node: i.reason for i in state.deferred if i.node in isolated}
    nodes = {**state.isolated, **reasons}
    finished = tuple(
        replace(result, isolated_nodes=tuple(nodes)) if result.name == state.phase.name else result
        for result in state.finished
    )
    state = _with_isolation_events(state, reasons)
    return replace(state, slots=slots, isolated=nodes, finished=finished)


def _still_isolated(state: JobState, outcome: Outcome) -> dict[str, str]:
    """Isolated nodes, without those that got new pods: these were released, and may be isolated again."""
    if not outcome.pods:
        return dict(state.isolated)
    uids = {slot.uid for slot in state.slots.values()}
    new_nodes = {pod.node for pod in outcome.pods.values() if pod.uid not in uids}
    return {node: why for node, why in state.isolated.items() if node not in new_nodes}


def _nodes_to_avoid(outcome: Outcome) -> tuple[str, ...]:
    """The nodes to avoid from now on, without those that are isolated."""
    return tuple(node for node in outcome.avoid if node not in outcome.isolated)


def _slots_after(state: JobState, plan: Plan, outcome: Outcome) -> dict[int, Slot]:
    """All slots after a plan. Most restarted in the pod that they had."""
    slots = {**dict.fromkeys(plan.slots, NEW_SLOT), **state.slots}
    counts_by_slot = survivors.counts(plan, node_ranks(outcome.active), outcome.kept_ranks)
    active, to_place = frozenset(outcome.active), {*plan.remedy.recreate, *outcome.pods}
    end = PodState.RUNNING if _is_running(plan, outcome) else PodState.STOPPED
    for n, slot in slots.items():
        counts = counts_by_slot.get(n)
        if counts is not None and n in active:
            after = _slot_in_new_pod(n, slot, plan, outcome) if n in to_place else slot
            if not outcome.was_started:
                counts = Counts(
                    schedule=after.schedule_count, process_start=after.process_start_count
                )
            slots[n] = after._replace(  # once: there may be thousands
                state=end,
                schedule_count=counts.schedule,
                process_start_count=counts.process_start,
            )
        elif plan.places:
            slots[n] = absent(slot)
    return slots


def _with_counts(slot: Slot, counts: Counts) -> Slot:
    return slot._replace(schedule_count=counts.schedule, process_start_count=counts.process_start)


def _slot_in_new_pod(n: int, slot: Slot, plan: Plan, outcome: Outcome) -> Slot:
    """The slot after an order for a new pod, whether the pod was created or not."""
    pod = outcome.pods.get(n)
    if pod is None:
        # The old pod was removed, the new one never came.
        return slot._replace(uid="") if outcome.step is Step.PLACE else slot
    if pod.uid == slot.uid:
        return slot._replace(node=pod.node)
    new_counts = Counts(schedule=plan.slots[n].schedule, process_start=0)
    return _with_counts(slot._replace(node=pod.node, uid=pod.uid), new_counts)
