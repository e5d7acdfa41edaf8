"""Judge the observations of a watch: wait on, or report. Pure; the monitor activity drives it.

In: the order, what the watch remembers, and an observation. Out (`look`): what to remember, and a report or
until when to wait. It names no fault. While there are facts, `_settle` groups those that belong together and
waits for silent slots; without facts, `_judge_without_facts` looks for those that time alone makes (alarms).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everstep.core.facts import (
    ALL_ENDED,
    PROCESS_FAMILIES,
    Fact,
    distinct,
    is_fenced_since,
    is_late,
)
from everstep.core.seeing import suspension
from everstep.core.seeing.alarms import (
    Alarm,
    can_be_lost,
    hang_alarm,
    limit_alarm,
    loss_alarm,
    pod_fact,
    poll_again,
    silence_alarm,
    silent_node_fact,
    silent_pods,
    slow_alarm,
)
from everstep.core.seeing.hang import Pods, learn, with_representatives
from everstep.core.seeing.job_warnings import JobWarning, WarningSigns, judged
from everstep.core.seeing.pace import SlowRank, slow_ranks
from everstep.core.seeing.progress import Reached, first_step_at, lived_s, step_of
from everstep.core.seeing.watch_report import (
    POLL_AGAIN_S,
    News,
    WatchOrder,
    WatchReport,
    examples,
    pod_seen,
)
from everstep.core.state import Learned
from everstep.core.world import (
    Checkpoint,
    Observation,
    PodState,
    PodView,
    common,
    newest_whole_step,
)
from everstep.protocol.wire import PACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """Nothing to report before something changes, or before this time."""

    until: float | None


@dataclass(frozen=True, slots=True)
class PollAll:
    """Poll every agent and look again: a group of facts is not reported before each of them has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a watch remembers between two observations. A new watch starts with an empty one."""

    learned: Learned
    facts: tuple[Fact, ...] = ()  # the group that is not reported yet
    has_polled: bool = False  # every agent was polled since the first of these facts
    saved: Checkpoint | None = None  # the newest that was observed, also if it was removed since
    step: int | None = (
        None  # the newest of this generation, also if the pods that showed it are gone
    )
    # Since when pods are observed as lost, by uid.
    lost_since: Mapping[str, float] = field(default_factory=dict)


def check(
    order: WatchOrder, watch: Watch, observation: Observation
) -> tuple[Watch, WaitFor | PollAll | WatchReport]:
    """Judge an observation: what to remember, and whether to report, to have agents sample, or to wait."""
    observation = of_active_slots(order, observation)
    pods = of_this_generation(order, observation.pods)
    learned = learn(
        watch.learned, pods.representatives, checkpoint_seen=observation.checkpoint is not None
    )
    fresh = (f for f in observation.facts if not _is_old_news(order, f))
    watch = replace(
        watch,
        learned=learned,
        step=newest_step(watch, pods),
        facts=distinct((*watch.facts, *fresh)),
        saved=observation.checkpoint or watch.saved,
        lost_since={
            pod.uid: watch.lost_since.get(pod.uid, observation.now)
            for pod in observation.pods
            if pod.state is PodState.LOST
        },
    )
    verdict = _judge(order, watch, observation, pods)
    if isinstance(verdict, WatchReport) and verdict.news == "facts" and not watch.has_polled:
        verdict = PollAll()  # signs of life arrive late: the suspects may have moved
    has_polled = isinstance(verdict, PollAll) or (watch.has_polled and bool(watch.facts))
    return replace(watch, has_polled=has_polled), verdict


def newest_step(watch: Watch, pods: Pods) -> int | None:
    """The step of these pods; where none shows one, the newest that the watch observed."""
    step = step_of(pods.representatives)
    return watch.step if step is None else step


def _is_old_news(order: WatchOrder, fact: Fact) -> bool:
    is_of_earlier_run = is_late(fact, generation=order.generation) or is_fenced_since(
        fact, generation=order.generation
    )
    return fact.id in order.seen_ids or is_of_earlier_run


def of_active_slots(order: WatchOrder, observation: Observation) -> Observation:
    """The observation with the pods of those slots that the job still has."""
    active = frozenset(order.active)
    return replace(observation, pods=tuple([pod for pod in observation.pods if pod.slot in active]))


def of_this_generation(order: WatchOrder, pods: Iterable[PodView]) -> Pods:
    """The pods of the order's generation. Most rules read only their `representatives`."""
    return with_representatives(tuple([pod for pod in pods if pod.generation == order.generation]))


def _judge(
    order: WatchOrder, watch: Watch, observation: Observation, pods: Pods
) -> WaitFor | PollAll | WatchReport:
    if order.is_paused:
        return WaitFor(until=None)
    if observation.generation > order.generation:
        return report(order, watch, observation, "moved")
    if watch.facts:
        return _settle(order, watch, observation)
    if removed := _removed(order, observation):
        return report(order, watch, observation, "facts", extra=removed)
    is_whole = len(pods.all) == len(order.active)
    if pods.all and is_whole and all(pod.is_done for pod in pods.representatives):
        return report(order, watch, observation, "done")
    if is_whole and all(len(pod.exits) >= pod.ranks for pod in pods.representatives):
        ended = _all_ended(order, pods.all[0], observation.now)
        return report(order, watch, observation, "facts", extra=(ended,))
    return _judge_without_facts(order, watch, observation, pods)


def _removed(order: WatchOrder, observation: Observation) -> tuple[Fact, ...]:
    """Facts about pods that are missing although no end was reported: others removed them."""
    there = {pod.slot for pod in observation.pods}
    missing = [slot for slot in order.active if slot not in there]
    return tuple(
        Fact(
            id=f"watch/pod.gone/{slot}/{order.generation}",
            kind="pod.gone",
            at=observation.now,
            generation=order.generation,
            slot=slot,
            message=f"the pod of slot {slot} was removed",
        )
        for slot in missing
    )


def _all_ended(order: WatchOrder, pod: PodView, now: float) -> Fact:
    """The fact that nothing runs. The exit of a failed rank was only noted: the job would wait for ever."""
    fact = pod_fact(order, pod, ALL_ENDED, now, "no rank is running any more")
    return replace(fact, id=f"watch/{ALL_ENDED}/{order.generation}")


def _settle(
    order: WatchOrder, watch: Watch, observation: Observation
) -> WaitFor | PollAll | WatchReport:
    """Report the group of facts once every agent has answered a poll, or after `settle_s`.

    If a process ended, a silent slot may be the cause: then wait up to `unreachable_s` for the answer of that
    slot, or for a fact about its node.
    """
    if not watch.has_polled:
        return PollAll()
    first_at = min(fact.at for fact in watch.facts)
    settled_at = first_at + order.limits.settle_s
    silent = silent_pods(observation)
    if silent and observation.now < settled_at:
        return WaitFor(until=settled_at)
    # A fact may be much older than the silence: a worker was away, or a device was broken before.
    to_blame = [
        (max(first_at, pod.silent_since or 0.0) + order.limits.unreachable_s, pod)
        for pod in _silent_to_blame(watch, silent)
    ]
    lost = [pod for lost_at, pod in to_blame if lost_at <= observation.now]
    if to_blame and not lost:
        return WaitFor(until=min(lost_at for lost_at, _ in to_blame))
    if not can_be_lost(order, [pod for _, pod in to_blame]):
        lost = []
    lost_nodes = tuple(silent_node_fact(order, pod, observation.now) for pod in lost)
    return report(order, watch, observation, "facts", extra=lost_nodes)


def _silent_to_blame(watch: Watch, silent: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """The silent pods that may have ended the training: a fact names no node of theirs yet."""
    if not any(fact.family in PROCESS_FAMILIES for fact in watch.facts):
        return ()
    named_nodes = {fact.node for fact in watch.facts if fact.family == "node"}
    return tuple(
        pod for pod in silent if pod.node not in named_nodes and pod.state is not PodState.LEAVING
    )


def _judge_without_facts(
    order: WatchOrder, watch: Watch, observation: Observation, pods: Pods
) -> WaitFor | WatchReport:
    """What to report, or until when to wait. The first of these that applies:

    - all unreachable slots answer again (`back`);
    - something moved after the reported suspicion (`activity_resumed`);
    - an alarm is due: a loss without a fact, silence, stillness, a limit of the document, a fact whose time
      has come (`facts`);
    - the warnings changed (`warned`);
    - the report is old, or there is progress (`refresh`);
    - otherwise wait.
    """
    silent = silent_pods(observation)
    if order.unreachable and not silent and not _may_still_answer(order, observation):
        return report(order, watch, observation, "back")
    hang = None if silent else hang_alarm(order, watch.learned, observation, pods)
    if order.suspected_at is not None and hang is not None:
        if hang.facts[0].at > order.suspected_at:
            return report(order, watch, observation, "activity_resumed")
        # A suspicion that was reported already is no alarm again: only look whether it ends.
        hang = poll_again(_poll_again_at(order, observation))
    to_come = (Alarm(at=fact.at, facts=(fact,)) for fact in order.to_come)
    silence = silence_alarm(order, watch.learned, observation, pods)
    loss = loss_alarm(order, watch.lost_since, observation)
    slow = () if silent else slow_ranks(pods.all)
    slowness = slow_alarm(order, observation, slow)
    possible = (loss, silence, hang, limit_alarm(order), *to_come, slowness)
    alarms = [alarm for alarm in possible if alarm is not None and not _is_old(order, alarm)]
    due = [alarm for alarm in alarms if alarm.at <= observation.now]
    if due:
        return report(order, watch, observation, "facts", extra=due[0].facts)
    warnings, warned_at = (
        (order.warnings, None) if silent else _warnings(order, watch, observation, pods, slow)
    )
    if warnings != order.warnings:
        return report(order, watch, observation, "warned", warnings=warnings)
    next_wake = _next_wake(order, observation, alarms, warned_at)
    is_due = next_wake <= observation.now
    has_trained = order.awaits_first_step and first_step_at(pods.representatives) is not None
    if is_due or has_trained or _has_progressed(order, observation, pods):
        return report(order, watch, observation, "refresh")
    return WaitFor(until=next_wake)


def _next_wake(
    order: WatchOrder,
    observation: Observation,
    alarms: Sequence[Alarm],
    warned_at: float | None,
) -> float:
    """When to judge again if nothing changes; not later than now if a warning or the refresh is due."""
    wakes = [order.since + order.refresh_s, *(alarm.at for alarm in alarms)]
    if warned_at is not None:
        wakes.append(warned_at)
    if order.awaits is not None or order.awaits_first_step:
        wakes.append(_poll_again_at(order, observation))
    return min(wakes)


def _may_still_answer(order: WatchOrder, observation: Observation) -> bool:
    """Whether this worker has to wait before it can report `back`.

    A slot that the job has as unreachable has not answered this worker yet, and does not count as silent
    for it yet either (`PENDING`).
    """
    return any(
        p.slot in order.unreachable and p.state is PodState.PENDING for p in observation.pods
    )


def _poll_again_at(order: WatchOrder, observation: Observation) -> float:
    return observation.now + max(POLL_AGAIN_S / order.time_scale, 1.0)


def _has_progressed(order: WatchOrder, observation: Observation, pods: Pods) -> bool:
    """Whether the progress that is waited for has come."""
    if order.awaits is None:
        return False
    reached = Reached(
        generation=observation.generation,
        saved=observation.checkpoint,
        step=step_of(pods.representatives),
        lived_s=lived_s(_running_since(order, pods), _alive_until(order, observation, pods)),
    )
    return order.awaits.furthest(reached) != order.awaits.mark


def _warnings(
    order: WatchOrder,
    watch: Watch,
    observation: Observation,
    pods: Pods,
    slow: Sequence[SlowRank],
) -> tuple[tuple[JobWarning, ...], float | None]:
    """The warnings that hold now, and when the next one will if nothing changes."""
    learned = watch.learned
    running = [
        p for p in pods.representatives if p.run.started_at is not None and len(p.exits) < p.ranks
    ]
    return judged(
        order.warnings,
        WarningSigns(
            world=observation,
            pods=tuple(running),
            save_every_s=learned.save_every_s,
            steps_seen=learned.steps_seen,
            slow=tuple(each.text(PACE_S / order.time_scale) for each in slow),
        ),
    )


def _is_old(order: WatchOrder, alarm: Alarm) -> bool:
    """Whether the job has noted all facts of this alarm already, so that a new report changes nothing."""
    return bool(alarm.facts) and all(fact.id in order.seen_ids for fact in alarm.facts)


_NOT_THERE = frozenset({"leaving", "lost", "absent", "pending"})
"""`pending` is no agent that was not polled yet: a worker polls all of them before its first look."""


def report(
    order: WatchOrder,
    watch: Watch,
    observation: Observation,
    news: News,
    extra: tuple[Fact, ...] = (),
    *,
    warnings: tuple[JobWarning, ...] | None = None,
) -> WatchReport:
    """The report of this look: the weightiest facts, and the state of pods and training.

    `extra`: facts beside those of the watch. `warnings`: the new ones, if they changed.
    """
    facts = distinct((*watch.facts, *extra))
    observation = of_active_slots(order, observation)
    now_running = of_this_generation(order, observation.pods)
    present = {pod.slot for pod in observation.pods if pod.state not in _NOT_THERE}
    return WatchReport(
        news=news,
        now=observation.now,
        cursor=observation.cursor,
        facts=examples(facts),
        unreachable=tuple(p.slot for p in silent_pods(observation)),
        learned=watch.learned,
        step=newest_step(watch, now_running),
        checkpoint=watch.saved,
        running_since=_running_since(order, now_running),
        alive_until=_alive_until(order, observation, now_running),
        first_step_at=first_step_at(now_running.representatives),
        generation=observation.generation,
        pods=tuple(
            [pod_seen(p) for p in observation.pods if p.state != order.slot_states.get(p.slot)]
        ),
        lost_containers=tuple([slot for slot in order.active if slot not in present]),
        can=common(pod.can for pod in now_running.representatives),
        remembered=newest_whole_step(observation.pods),
        older_ranks={
            rank: incarnation
            for pod in observation.pods
            if pod.generation == observation.generation
            for rank, incarnation in pod.older_ranks
        },
        warnings=order.warnings if warnings is None else warnings,
    )


def _running_since(order: WatchOrder, pods: Pods) -> float | None:
    """When the last pod started; None until all of them have."""
    started = [pod.run.started_at for pod in pods.representatives if pod.run.started_at is not None]
    is_whole = len(pods.all) == len(order.active) and len(started) == len(pods.representatives)
    return max(started, default=None) if is_whole else None


def _alive_until(order: WatchOrder, observation: Observation, pods: Pods) -> float | None:
    return suspension.alive_until(
        pods,
        order.limits,
        slots=len(order.active),
        checkpoint=observation.checkpoint,
        now=observation.now,
    )
