"""The facts that a watch itself makes when time passes: a loss, silence, stillness, a limit of the document.

In: the order, an observation with its pods, and the learned pace of the job. Out: an `Alarm` with its time,
None where there is no reason for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from everstep.core.facts import Fact, gone_id
from everstep.core.seeing import hang, suspension
from everstep.core.seeing.hang import Pods
from everstep.core.seeing.pace import SlowRank
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.state import Learned
from everstep.core.world import Observation, PodState, PodView
from everstep.protocol.wire import PACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Facts that become true at a time, unless something moves before; without facts it only ends a wait."""

    at: float
    facts: tuple[Fact, ...]


def poll_again(at: float) -> Alarm:
    """An alarm without facts: judge again at this time."""
    return Alarm(at=at, facts=())


def silent_pods(observation: Observation) -> tuple[PodView, ...]:
    """The pods whose agents do not answer at present."""
    return tuple([pod for pod in observation.pods if pod.silent_since is not None])


def can_be_lost(order: WatchOrder, silent: Sequence[PodView]) -> bool:
    """Whether these silent slots may be lost. If most are silent, the way to them may be broken."""
    return 2 * len(silent) <= len(order.active)


def silence_alarm(
    order: WatchOrder, learned: Learned, observation: Observation, pods: Pods
) -> Alarm | None:
    """The alarm of silent slots: lost once the answering ones stand still too, until then unreachable."""
    silent = silent_pods(observation)
    if not silent:
        return None
    now = observation.now
    answering = tuple(p for p in pods.representatives if p.silent_since is None)
    unreachable_at = max(pod.silent_since or 0.0 for pod in silent) + order.limits.unreachable_s
    lost_at = max(unreachable_at, _still_at(order, learned, answering))
    may_be_lost = can_be_lost(order, silent)
    is_reported = {pod.slot for pod in silent} <= set(order.unreachable)
    if may_be_lost and answering and lost_at <= now:
        return Alarm(at=lost_at, facts=tuple(silent_node_fact(order, p, now) for p in silent))
    if not is_reported:
        return Alarm(
            at=unreachable_at, facts=tuple(_unreachable_fact(order, p, now) for p in silent)
        )
    return poll_again(lost_at) if may_be_lost and lost_at > now else None


def _still_at(order: WatchOrder, learned: Learned, answering: tuple[PodView, ...]) -> float:
    """When the answering slots will have been still for long enough to believe in a lost node.

    A step waits for the ranks of a lost node and stands still. A slow step stands still too: therefore three
    times the longest gap between two steps has to pass.
    """
    patience_s = max(order.limits.unreachable_s, 3 * learned.longest_gap_s)
    step_times = [p.run.step_at for p in answering if p.run.step_at is not None]
    if step_times or learned.steps_seen:
        starts = [p.run.started_at or 0.0 for p in answering]
        return max([*step_times, *starts], default=0.0) + patience_s
    signs = [p.run.moved_at or 0.0 for p in answering if len(p.exits) < p.ranks]
    return max(signs, default=0.0) + order.limits.unreachable_s


def loss_alarm(
    order: WatchOrder, lost_since: Mapping[str, float], observation: Observation
) -> Alarm | None:
    """The alarm of pods that are lost although no fact says so: the report of their end did not arrive.

    `lost_since`: when each was first observed as lost, by its uid.
    """
    unreported = [
        (lost_since[pod.uid] + order.limits.unreachable_s, pod)
        for pod in observation.pods
        if pod.state is PodState.LOST and gone_id(pod.uid) not in order.seen_ids
    ]
    if not unreported:
        return None
    first_at = min(at for at, _ in unreported)
    due = (pod for at, pod in unreported if at <= max(first_at, observation.now))
    return Alarm(at=first_at, facts=tuple(_loss(order, pod, first_at) for pod in due))


def _loss(order: WatchOrder, pod: PodView, at: float) -> Fact:
    message = (
        f"the container of slot {pod.slot} on {pod.node} is gone, and its end was not reported"
    )
    return replace(pod_fact(order, pod, "agent.gone", at, message), id=gone_id(pod.uid))


def hang_alarm(
    order: WatchOrder, learned: Learned, observation: Observation, pods: Pods
) -> Alarm | None:
    """The alarm of the slots that count as hung first.

    With `still_s` in the document the rules of `suspension` judge, else those of `hang`.
    """
    if order.limits.still_s is not None:
        return _suspension_alarm(order, observation, pods.all)
    groups = hang.suspects(  # sorted by the time at which their slots count as hung
        pods.all,
        order.limits,
        learned,
        now=observation.now,
        time_scale=order.time_scale,
        ends_job=order.ends_at_hang,
    )
    if not groups:
        return None
    first = groups[0]
    pod = next(p for p in pods.all if p.slot == first.slots[0])
    kind = "hang.steps" if pod.run.step_at is not None else "hang.still"
    # Ranks that wait for one that hangs stop with it: then the fact names no slot.
    until = first.still_since + hang.at_once_s(learned)
    together = [slot for group in groups if group.still_since <= until for slot in group.slots]
    subject = _subject(pod.slot, len(together), sum(len(group.slots) for group in groups))
    fact = pod_fact(order, pod, kind, first.still_since, f"{subject} {first.how}")
    if len(together) > 1:
        is_due = first.due <= observation.now
        fact = _with_idle_one(fact, pods, together if is_due else ())
    return Alarm(at=first.due, facts=(fact,))


def _with_idle_one(fact: Fact, pods: Pods, together: Collection[int]) -> Fact:
    """The fact of slots that stopped at once: it names the one whose devices alone are idle, else none."""
    stopped = frozenset(together)
    pod = hang.idle_one(pod for pod in pods.all if pod.slot in stopped)
    if pod is None:
        return replace(fact, slot=None, node=None)
    why = f"the devices of slot {pod.slot} do nothing, those of the others work"
    return replace(fact, slot=pod.slot, node=pod.node, message=f"{fact.message}; {why}")


def _suspension_alarm(
    order: WatchOrder, observation: Observation, pods: tuple[PodView, ...]
) -> Alarm | None:
    suspect = suspension.suspect(
        pods,
        order.limits,
        slots=len(order.active),
        checkpoint=observation.checkpoint,
        now=observation.now,
    )
    if suspect is None:
        return None
    pod = next(p for p in pods if p.slot == suspect.slots[0])
    is_alone = len(suspect.slots) == 1
    fact = Fact(
        id=f"watch/hang/{order.generation}/{suspect.still_since:.3f}",
        kind=suspect.rule,
        at=suspect.still_since,
        generation=order.generation,
        node=pod.node if is_alone else None,
        slot=pod.slot if is_alone else None,
        message=suspect.message,
    )
    return Alarm(at=suspect.due, facts=(fact,))


def _subject(slot: int, together: int, running: int) -> str:
    """`slot 3 has`, `2 of 8 running slots have` or `all 8 running slots have`."""
    if together == 1:
        return f"slot {slot} has"
    return f"{'all' if together == running else f'{together} of'} {running} running slots have"


def slow_alarm(
    order: WatchOrder, observation: Observation, slow: Sequence[SlowRank]
) -> Alarm | None:
    """The alarm of ranks that fall behind their peers, once for each rank of a generation."""
    facts = [_slow_fact(order, each, observation.now) for each in slow]
    news = tuple(fact for fact in facts if fact.id not in order.seen_ids)
    return Alarm(at=observation.now, facts=news) if news else None


def _slow_fact(order: WatchOrder, slow: SlowRank, now: float) -> Fact:
    return Fact(
        id=f"watch/slow.rank/{order.generation}/{slow.rank}",
        kind="slow.rank",
        at=now,
        generation=order.generation,
        node=slow.node,
        slot=slow.slot,
        rank=slow.rank,
        message=slow.text(PACE_S / order.time_scale),
    )


def limit_alarm(order: WatchOrder) -> Alarm | None:
    """The alarm of a phase with a longest time."""
    if order.ends_at is None:
        return None
    fact = Fact(
        id=f"watch/limit.run/{order.generation}",
        kind="limit.run",
        at=order.ends_at,
        message=f"the phase ran as long as {order.ended_by} allows",
    )
    return Alarm(at=order.ends_at, facts=(fact,))


def silent_node_fact(order: WatchOrder, pod: PodView, now: float) -> Fact:
    since = pod.silent_since or now
    message = f"{pod.node} has been silent for {now - since:g} s and no other slot went on"
    return pod_fact(order, pod, "node.silent", since, message)


def _unreachable_fact(order: WatchOrder, pod: PodView, now: float) -> Fact:
    since = pod.silent_since or now
    message = f"the agent on {pod.node} does not answer"
    return pod_fact(order, pod, "unreachable.agent", since, message)


def pod_fact(order: WatchOrder, pod: PodView, kind: str, at: float, message: str) -> Fact:
    """A fact about a pod, from the watch instead of an agent or the cluster."""
    return Fact(
        # Each silence and each hang is a new one, so its start is part of its identity.
        id=f"watch/{kind}/{pod.uid}/{order.generation}/{at:.3f}",
        kind=kind,
        at=at,
        generation=order.generation,
        node=pod.node,
        slot=pod.slot,
        message=message,
    )
