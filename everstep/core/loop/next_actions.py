"""What may happen to a job, and what it does next, in each mode. Pure: the state in, an action out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from everstep.core.counting.lasting import facts_to_come
from everstep.core.deciding.decision import Decision, Outcome, Plan
from everstep.core.deciding.decision_input import DecisionInput, decision_input
from everstep.core.deciding.naming import ends_at_hang
from everstep.core.recovering import growth
from everstep.core.recovering.avoiding import in_maintenance
from everstep.core.recovering.placement import Need, usable
from everstep.core.recovering.plans import launch_plan
from everstep.core.recovering.spares import spares_order
from everstep.core.seeing.progress import is_awaited, is_last_run, yardstick
from everstep.core.seeing.watch_report import (
    DEFERRED_RETRY_S,
    REFRESH_S,
    WatchOrder,
    WatchReport,
)
from everstep.core.state import JobState, Mode
from everstep.core.world import Checkpoint, JobRef

# -- What may happen ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The workflow starts, or goes on in a new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEnded:
    """A plan came to its outcome; `outcome` None: it was removed before it could report."""

    outcome: Outcome | None
    interrupted: bool = False  # by a command of ours
    refused: str = ""  # why the cluster does not take this job at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The watcher, or one look at the world, reported."""

    report: WatchReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision was made."""

    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Nothing was decided: the fault counts of the cluster are missing, or our rules failed.

    A command that waits and needs no decision is obeyed instead.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Nothing of the job is left on the cluster, and the quarantine has what was deferred."""

    isolated: tuple[str, ...] = ()  # deferred nodes that it isolated, as far as it answered
    saved: Checkpoint | None = None  # the newest, once its ranks had their grace to save


Event = Begun | PlanEnded | Watched | Decided | Undecided | Cleared

# -- What may be done next ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Carry out this plan; as a Recovery of its own if it has a number."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAction:
    """Keep watching."""

    order: WatchOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Observe at the world once."""

    order: WatchOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Have a decision made about these facts."""

    inputs: DecisionInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """Remove everything of the job from the cluster."""

    job: JobRef
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPhase:
    """Go on as a new run with the next phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Close the workflow with this status."""

    status: str
    reason: str


Action = RunPlan | WatchAction | Observe | Decide | Clear | NextPhase | End

# -- What is done next in each mode ----------------------------------------------------------------


def next_action(state: JobState) -> Action:
    """What a job in this state does next."""
    return NEXT[state.mode](state)


def _decide(state: JobState) -> Decide:
    facts, outcome = state.pending_facts, state.outcome
    return Decide(inputs=decision_input(state, now=state.now, facts=facts, outcome=outcome))


def watch_order(state: JobState) -> WatchOrder:
    """The order to the watcher."""
    limits, active = state.phase.limits, state.active
    grows_by = _grows_by(state, active)
    ends_at = None
    if limits.run_s is not None and state.phase_started_at is not None:
        ends_at = state.phase_started_at + limits.run_s
    return WatchOrder(
        job=state.job,
        cluster=state.spec.cluster,
        generation=state.generation,
        cursor=state.cursor,
        since=state.now,
        limits=limits,
        active=active,
        slot_states={slot: str(state.slots[slot].state) for slot in active},
        learned=state.learned,
        unreachable=state.unreachable,
        suspected_at=state.suspected.at if state.suspected else None,
        warnings=state.warnings,
        seen_ids=frozenset(state.seen_ids),
        is_paused=state.mode is Mode.PAUSED,
        ends_at=ends_at,
        ended_by=state.phase.run_limit,
        ends_at_hang=ends_at_hang(state.phase.policy),
        refresh_s=DEFERRED_RETRY_S if state.deferred else REFRESH_S,
        room_for=_room_for(state) if grows_by else None,
        grows_by=grows_by,
        grows_most=max(grows_by, state.phase.nodes - len(active)),
        grows_after=state.resume,
        grows_from=_grows_from(state),
        awaits=yardstick(state) if is_awaited(state.ledger) else None,
        awaits_first_step=state.first_step_at is None,
        is_last_run=is_last_run(state),
        to_come=facts_to_come(
            state.lasting, state.phase.policy.job_durations, time_scale=state.spec.time_scale
        ),
        time_scale=state.spec.time_scale,
        in_maintenance=in_maintenance(state),
        spares=spares_order(state),
    )


def _grows_by(state: JobState, active: tuple[int, ...]) -> int:
    """The fewest nodes to add that are of use, or 0. Numbers of nodes that do not work are passed over."""
    now = len(active)
    larger = usable(now + 1, state.phase.nodes, bad=state.ledger.bad_sizes) if now else ()
    return min(larger, default=now) - now


def _grows_from(state: JobState) -> float | None:
    """When it is time to try to grow once more, after tries that were in vain."""
    wait_s = growth.wait_s(state.ledger.grown_in_vain) / state.spec.time_scale
    since = state.ledger.grown_in_vain_at or state.running_since
    return since + wait_s if wait_s and since is not None else None


def _room_for(state: JobState) -> Need:
    return Need(
        accelerators=state.phase.accelerators_per_node,
        avoid=frozenset(state.avoid),
        avoid_devices=frozenset(state.avoid_devices),
    )


def run_plan(state: JobState) -> RunPlan:
    return RunPlan(plan=state.plan or launch_plan(state))


def _clear(state: JobState) -> Clear:
    by_request = state.ending in ("Terminated", "Canceled")
    grace_s = state.phase.limits.grace_s if by_request else 0.0
    return Clear(
        job=state.job, grace_s=grace_s if state.stop_grace_s is None else state.stop_grace_s
    )


def _observe(state: JobState) -> Observe:
    """Observe every slot, and report every pod: the job's state may be wrong, even its number of pods."""
    slots = tuple(sorted({*range(state.phase.nodes), *state.active}))
    # slot_states={}: every pod is news.
    return Observe(order=replace(watch_order(state), slot_states={}, active=slots, spares=None))


NEXT: Mapping[Mode, Callable[[JobState], Action]] = {
    Mode.PENDING: lambda _state: NextPhase(),
    Mode.LAUNCHING: run_plan,
    Mode.RECOVERING: run_plan,
    Mode.PAUSING: run_plan,
    Mode.REPORTING: run_plan,
    Mode.WATCHING: lambda state: WatchAction(order=watch_order(state)),
    Mode.PAUSED: lambda state: WatchAction(order=watch_order(state)),
    Mode.READING: _observe,
    Mode.DECIDING: _decide,
    Mode.CLOSING: _clear,
    Mode.ENDED: lambda s: End(status=s.ending or "Failed", reason=s.ending_reason),
}
