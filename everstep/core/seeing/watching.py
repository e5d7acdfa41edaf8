"""What a watcher makes of what it sees: wait on, or report. Pure; the monitor activity drives it.

It names nothing and answers nothing: it groups facts that belong together, waits for silent slots as
long as the rules say, and turns stillness into facts of its own (`hang.`, `unreachable.`, `node.silent`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from everstep.core.facts import (
    ALL_ENDED,
    PROCESS_FAMILIES,
    Fact,
    distinct,
    is_late,
)
from everstep.core.seeing import hang, suspension
from everstep.core.seeing.hang import Pods, by_kind
from everstep.core.seeing.job_warnings import JobWarning, WarningSigns, judged
from everstep.core.seeing.progress import Reached, first_step_at, lived_s, step_of
from everstep.core.seeing.watch_report import (
    LOOK_AGAIN_S,
    News,
    WatchOrder,
    WatchReport,
    examples,
    pod_seen,
)
from everstep.core.state import Learned
from everstep.core.world import Observation, PodState, PodView, common


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """Nothing to report before something changes, or before this time."""

    until: float | None


@dataclass(frozen=True, slots=True)
class AskAll:
    """Have every agent answer afresh, then look again: facts are not reported before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a watcher remembers between two looks. Made anew by the next one if it dies."""

    learned: Learned
    facts: tuple[Fact, ...] = ()
    has_asked: bool = False  # every agent, since the first of these facts


def look(
    order: WatchOrder, watch: Watch, seen: Observation
) -> tuple[Watch, WaitFor | AskAll | WatchReport]:
    """One look at the world: what is remembered of it, and whether to report, ask or wait."""
    seen = of_the_living(order, seen)
    pods = of_this_generation(order, seen.pods)
    learned = hang.learn(watch.learned, pods.kinds, checkpoint_seen=seen.checkpoint is not None)
    fresh = (f for f in seen.facts if not _is_old_news(order, f))
    watch = replace(watch, learned=learned, facts=distinct((*watch.facts, *fresh)))
    verdict = _judge(order, watch, seen, pods)
    if isinstance(verdict, WatchReport) and verdict.news == "facts" and not watch.has_asked:
        verdict = AskAll()  # signs of life are sampled and told late: who is suspected tells now
    asked = isinstance(verdict, AskAll) or (watch.has_asked and bool(watch.facts))
    return replace(watch, has_asked=asked), verdict


def _is_old_news(order: WatchOrder, fact: Fact) -> bool:
    return fact.id in order.seen_ids or is_late(fact, generation=order.generation)


def of_the_living(order: WatchOrder, seen: Observation) -> Observation:
    living = frozenset(order.living)
    return replace(seen, pods=tuple([pod for pod in seen.pods if pod.slot in living]))


def of_this_generation(order: WatchOrder, pods: Iterable[PodView]) -> Pods:
    return by_kind(tuple([pod for pod in pods if pod.generation == order.generation]))


def _judge(
    order: WatchOrder, watch: Watch, seen: Observation, pods: Pods
) -> WaitFor | AskAll | WatchReport:
    if order.is_paused:
        return WaitFor(until=None)
    if seen.generation > order.generation:
        return report(order, watch, seen, "moved")
    if watch.facts:
        return _settle(order, watch, seen)
    if removed := _removed(order, seen):
        return report(order, watch, seen, "facts", extra=removed)
    is_whole = len(pods.all) == len(order.living)
    if pods.all and is_whole and all(pod.is_done for pod in pods.kinds):
        return report(order, watch, seen, "done")
    if is_whole and all(len(pod.exits) >= pod.ranks for pod in pods.kinds):
        ended = _all_ended(order, pods.all[0], seen.now)
        return report(order, watch, seen, "facts", extra=(ended,))
    return _quiet(order, watch, seen, pods)


def _removed(order: WatchOrder, seen: Observation) -> tuple[Fact, ...]:
    """Pods that are not there any more though nobody told of their end: somebody removed them."""
    there = {pod.slot for pod in seen.pods}
    missing = [slot for slot in order.living if slot not in there]
    return tuple(
        Fact(
            id=f"watch/pod.gone/{slot}/{order.generation}",
            kind="pod.gone",
            at=seen.now,
            generation=order.generation,
            slot=slot,
            message=f"the pod of slot {slot} was removed",
        )
        for slot in missing
    )


def _all_ended(order: WatchOrder, pod: PodView, now: float) -> Fact:
    """Nothing runs, some rank failed, and its own fact was only noted: the job would wait for ever."""
    return _about(order, pod, ALL_ENDED, now, "no rank is running any more")


def _settle(order: WatchOrder, watch: Watch, seen: Observation) -> WaitFor | AskAll | WatchReport:
    """A group is complete once every agent has answered afresh, or after `settle_s`; a crash while a
    slot is silent, when the fate of that is known.
    """
    if not watch.has_asked:
        return AskAll()
    first_at = min(fact.at for fact in watch.facts)
    settled_at = first_at + order.limits.settle_s
    silent = _silent(seen)
    if silent and seen.now < settled_at:
        return WaitFor(until=settled_at)
    doomed = {fact.node for fact in watch.facts if fact.family == "node"}
    silent = tuple(p for p in silent if p.node not in doomed and _is_broken(watch))
    patience_ends = first_at + order.limits.unreachable_s
    if silent and seen.now < patience_ends:
        return WaitFor(until=patience_ends)
    verdicts = tuple(_silent_node(order, pod, seen.now) for pod in silent)
    return report(order, watch, seen, "facts", extra=verdicts)


def _is_broken(watch: Watch) -> bool:
    """Whether training itself has ended somewhere; only then a silent slot may be to blame."""
    return any(fact.family in PROCESS_FAMILIES for fact in watch.facts)


def _quiet(order: WatchOrder, watch: Watch, seen: Observation, pods: Pods) -> WaitFor | WatchReport:
    """No facts. Silence, stillness, limits of the document: each says when it speaks up."""
    silent = _silent(seen)
    if order.unreachable and not silent and not _is_unheard(order, seen):
        return report(order, watch, seen, "back")
    still = None if silent else _hang(order, watch, seen, pods)
    if order.suspected_at is not None and still is not None:
        if still.facts[0].at > order.suspected_at:
            return report(order, watch, seen, "stirred")
        still = _Alarm(at=_look_again_at(order, seen), facts=())
    possible = (_silence(order, watch, seen, silent, pods), still, _limit(order))
    alarms = [alarm for alarm in possible if alarm is not None and not _is_known(order, alarm)]
    due = [alarm for alarm in alarms if alarm.at <= seen.now]
    if due:
        return report(order, watch, seen, "facts", extra=due[0].facts)
    warnings, warned_at = (order.warnings, None) if silent else _warnings(order, watch, seen, pods)
    if warnings != order.warnings:
        return report(order, watch, seen, "warned", warnings=warnings)
    wake = [alarm.at for alarm in alarms] + ([] if warned_at is None else [warned_at])
    wake.append(order.since + order.refresh_s)
    if any(t <= seen.now for t in wake) or _has_progressed(order, seen, pods):
        return report(order, watch, seen, "refresh")
    if order.awaits is not None:
        wake.append(_look_again_at(order, seen))
    return WaitFor(until=min(wake))


def _is_unheard(order: WatchOrder, seen: Observation) -> bool:
    """Whether a slot known to be unreachable has not answered this worker yet, nor let it wait."""
    return any(p.slot in order.unreachable and p.state is PodState.PENDING for p in seen.pods)


def _look_again_at(order: WatchOrder, seen: Observation) -> float:
    return seen.now + max(LOOK_AGAIN_S / order.time_scale, 1.0)


def _has_progressed(order: WatchOrder, seen: Observation, pods: Pods) -> bool:
    """Whether the progress that is waited for has come."""
    if order.awaits is None:
        return False
    reached = Reached(
        generation=seen.generation,
        saved=seen.checkpoint,
        step=step_of(pods.kinds),
        lived_s=lived_s(_running_since(order, pods), _alive_until(order, seen, pods)),
    )
    return order.awaits.furthest(reached) != order.awaits.mark


def _warnings(
    order: WatchOrder, watch: Watch, seen: Observation, pods: Pods
) -> tuple[tuple[JobWarning, ...], float | None]:
    learned = watch.learned
    running = [p for p in pods.kinds if p.started_at is not None and len(p.exits) < p.ranks]
    return judged(
        order.warnings,
        WarningSigns(
            world=seen,
            pods=tuple(running),
            save_every_s=learned.save_every_s,
            steps_seen=learned.steps_seen,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alarm:
    """Facts that become true at a time, unless something moves before."""

    at: float
    facts: tuple[Fact, ...]


def _is_known(order: WatchOrder, alarm: _Alarm) -> bool:
    """Whether all of it was told before and only noted: told again it would only be noted again."""
    return bool(alarm.facts) and all(fact.id in order.seen_ids for fact in alarm.facts)


def _silent(seen: Observation) -> tuple[PodView, ...]:
    return tuple([pod for pod in seen.pods if pod.silent_since is not None])


def _silence(
    order: WatchOrder,
    watch: Watch,
    seen: Observation,
    silent: tuple[PodView, ...],
    pods: Pods,
) -> _Alarm | None:
    """Silent slots: unreachable while more than half are, or while the others go on; else lost."""
    if not silent:
        return None
    since = max(pod.silent_since or 0.0 for pod in silent)
    quiet_at = since + order.limits.unreachable_s
    is_most = 2 * len(silent) > len(order.living)
    answering = tuple(p for p in pods.kinds if p.silent_since is None)
    lost_at = max(quiet_at, _still_at(order, watch, answering))
    if not is_most and answering and lost_at <= seen.now:
        return _Alarm(at=lost_at, facts=tuple(_silent_node(order, p, seen.now) for p in silent))
    if {p.slot for p in silent} <= set(order.unreachable):
        return _Alarm(at=lost_at, facts=()) if lost_at > seen.now and not is_most else None
    return _Alarm(at=quiet_at, facts=tuple(_unreachable(order, p, seen.now) for p in silent))


def _still_at(order: WatchOrder, watch: Watch, answering: tuple[PodView, ...]) -> float:
    """When the answering slots will have been still for long enough to believe in a lost node."""
    patience = max(order.limits.unreachable_s, 3 * watch.learned.longest_gap_s)
    moves = [p.step_at for p in answering if p.step_at is not None]
    if moves or watch.learned.steps_seen:
        return max([*moves, *(p.started_at or 0.0 for p in answering)], default=0.0) + patience
    signs = [p.moved_at or 0.0 for p in answering if len(p.exits) < p.ranks]
    return max(signs, default=0.0) + order.limits.unreachable_s


def _hang(order: WatchOrder, watch: Watch, seen: Observation, pods: Pods) -> _Alarm | None:
    if order.limits.still_s is not None:
        return _suspension(order, seen, pods.all)
    found = hang.suspects(
        pods.all,
        order.limits,
        watch.learned,
        now=seen.now,
        time_scale=order.time_scale,
        ends_job=order.ends_at_hang,
    )
    if not found:
        return None
    first = found[0]
    pod = next(p for p in pods.all if p.slot == first.slots[0])
    kind = "hang.steps" if pod.step_at is not None else "hang.still"
    # Ranks that wait for one that hangs stop with it: who did cannot be told.
    until = first.still_since + hang.at_once_s(watch.learned)
    at_once = [one.slots for one in found if one.still_since <= until]
    together = sum(map(len, at_once))
    who = _who(pod.slot, together, sum(len(one.slots) for one in found))
    fact = _about(order, pod, kind, first.still_since, f"{who} {first.how}")
    fact = fact if together == 1 else replace(fact, slot=None, node=None)
    return _Alarm(at=first.due, facts=(fact,))


def _suspension(order: WatchOrder, seen: Observation, pods: tuple[PodView, ...]) -> _Alarm | None:
    found = suspension.suspect(
        pods, order.limits, slots=len(order.living), checkpoint=seen.checkpoint, now=seen.now
    )
    if found is None:
        return None
    pod = next(p for p in pods if p.slot == found.slots[0])
    is_alone = len(found.slots) == 1
    fact = Fact(
        id=f"watch/hang/{order.generation}/{found.still_since:.3f}",
        kind=found.rule,
        at=found.still_since,
        generation=order.generation,
        node=pod.node if is_alone else None,
        slot=pod.slot if is_alone else None,
        message=found.message,
    )
    return _Alarm(at=found.due, facts=(fact,))


def _who(slot: int, together: int, running: int) -> str:
    if together == 1:
        return f"slot {slot} has"
    return f"{'all' if together == running else f'{together} of'} {running} running slots have"


def _limit(order: WatchOrder) -> _Alarm | None:
    if order.ends_at is None:
        return None
    fact = Fact(
        id=f"watch/limit.run/{order.generation}",
        kind="limit.run",
        at=order.ends_at,
        message=f"the phase ran as long as {order.ended_by} allows",
    )
    return _Alarm(at=order.ends_at, facts=(fact,))


def _silent_node(order: WatchOrder, pod: PodView, now: float) -> Fact:
    since = pod.silent_since or now
    message = f"{pod.node} has been silent for {now - since:g} s and no other slot went on"
    return _about(order, pod, "node.silent", since, message)


def _unreachable(order: WatchOrder, pod: PodView, now: float) -> Fact:
    since = pod.silent_since or now
    message = f"the agent on {pod.node} does not answer"
    return _about(order, pod, "unreachable.agent", since, message)


def _about(order: WatchOrder, pod: PodView, kind: str, at: float, message: str) -> Fact:
    return Fact(
        # Silence begins anew each time, so its start is part of what it is.
        id=f"watch/{kind}/{pod.uid}/{order.generation}/{pod.silent_since or pod.step_at or 0:.3f}",
        kind=kind,
        at=at,
        generation=order.generation,
        node=pod.node,
        slot=pod.slot,
        message=message,
    )


def report(
    order: WatchOrder,
    watch: Watch,
    seen: Observation,
    news: News,
    extra: tuple[Fact, ...] = (),
    *,
    warnings: tuple[JobWarning, ...] | None = None,
) -> WatchReport:
    """The report of this look: facts as examples, and what is known of the training."""
    facts = distinct((*watch.facts, *extra))
    seen = of_the_living(order, seen)
    now_running = of_this_generation(order, seen.pods)
    present = {pod.slot for pod in seen.pods if pod.state not in _GONE}
    return WatchReport(
        news=news,
        now=seen.now,
        cursor=seen.cursor,
        facts=examples(facts),
        unreachable=tuple(p.slot for p in _silent(seen)),
        learned=watch.learned,
        step=step_of(now_running.kinds),
        checkpoint=seen.checkpoint,
        running_since=_running_since(order, now_running),
        alive_until=_alive_until(order, seen, now_running),
        first_step_at=first_step_at(now_running.kinds),
        generation=seen.generation,
        pods=tuple([pod_seen(p) for p in seen.pods if p.state != order.known.get(p.slot)]),
        gone=tuple([slot for slot in order.living if slot not in present]),
        can=common(pod.can for pod in now_running.kinds),
        older=dict(o for p in seen.pods if p.generation == seen.generation for o in p.older),
        warnings=order.warnings if warnings is None else warnings,
    )


def _running_since(order: WatchOrder, pods: Pods) -> float | None:
    started = [pod.started_at for pod in pods.kinds if pod.started_at is not None]
    is_whole = len(pods.all) == len(order.living) and len(started) == len(pods.kinds)
    return max(started, default=None) if is_whole else None


def _alive_until(order: WatchOrder, seen: Observation, pods: Pods) -> float | None:
    return suspension.alive_until(
        pods,
        order.limits,
        slots=len(order.living),
        checkpoint=seen.checkpoint,
        now=seen.now,
    )


_GONE = frozenset({"lost", "absent", "pending"})
