"""When slots that make no step count as hung. Pure: pods and the learned pace in, `suspects` with times out.

Where steps are seen they decide. Output or I/O without steps is an excuse: it is accepted for a limited time.
Where no step was ever seen, any movement of I/O, CPU or device is a sign of life. A hang that would end the
job needs everything to stand still.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple

from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import PodView
from everstep.protocol.wire import RunProgress

GAPS = 5.0
"""A step may take this many times the longest gap seen."""
FLOOR_UNPROVEN_S = 300.0
FLOOR_S = 60.0
CEILING_S = 1800.0
PROVEN_AFTER_S = 1800.0
"""A limit that was learned lies between FLOOR_S and CEILING_S. FLOOR_UNPROVEN_S takes the place of FLOOR_S
for a start, and until a checkpoint was seen or PROVEN_AFTER_S have passed since the first step."""

EXCUSED_TIMES = 10.0
"""The factor of the limit of steps while output or I/O goes on: a validation, a long save."""

AT_ONCE_S = 2.0
"""Slots that stopped within this time stopped at once: clocks differ, and signs of life are sampled."""

IDLE_MOST, BUSY_LEAST = 5.0, 50.0
"""Percent. A rank that waits in a collective operation keeps its device busy; one that never comes to it does
not."""


class Suspects(NamedTuple):
    """Slots that stand still alike. In the order of these fields: the first to count as hung comes first."""

    due: float  # when they count as hung
    still_since: float
    slots: tuple[int, ...]
    limit_s: float
    despite_excuse: bool = False  # at `due` only steps stand still; output, I/O or CPU goes on
    ends_job: bool = False

    @property
    def how(self) -> str:
        """What the slots have done, or not, as the end of a sentence: `slot 3 has ...`."""
        if not self.despite_excuse:
            return f"been still for {self.limit_s:g} s"
        if self.ends_job:
            return f"used nothing but the processor for {self.limit_s:g} s"
        return f"made no step for {self.limit_s:g} s, though output or I/O goes on"


def step_limit_s(limits: Limits, learned: Learned, *, now: float, time_scale: float) -> float:
    """How long a step may take: `hang_s` of the document, or what was learned, between floor and ceiling."""
    if limits.hang_s is not None:
        return limits.hang_s
    first = learned.first_step_at
    proven_after_s = PROVEN_AFTER_S / time_scale
    proven = learned.checkpoint_seen or (first is not None and now - first >= proven_after_s)
    floor = (FLOOR_S if proven else FLOOR_UNPROVEN_S) / time_scale
    return min(max(GAPS * learned.longest_gap_s, floor), CEILING_S / time_scale)


def start_limit_s(limits: Limits, learned: Learned, *, time_scale: float) -> float:
    """How long the first step may take, once some start was seen to lead to one."""
    floor = FLOOR_UNPROVEN_S / time_scale
    longest = max(GAPS * learned.longest_start_s, floor, limits.hang_s or 0.0)
    return max(min(longest, CEILING_S / time_scale), limits.hang_s or 0.0)


def learn(learned: Learned, pods: Iterable[PodView], *, checkpoint_seen: bool) -> Learned:
    """Add these samples to what was learned of the job's pace.

    How long starts take is not in them: that is learned from reports, in `bookkeeping`.
    """
    pods = tuple(pods)
    every_s = [pod.run.save_every_s for pod in pods if pod.run.save_every_s is not None]
    stepping = [pod for pod in pods if pod.run.step is not None and pod.run.step_at is not None]
    first_steps = [pod.run.first_step_at or pod.run.step_at for pod in stepping]
    return replace(
        learned,
        save_every_s=every_s[-1] if every_s else learned.save_every_s,
        steps_seen=learned.steps_seen or bool(stepping),
        longest_gap_s=max([learned.longest_gap_s, *(pod.run.longest_gap_s for pod in stepping)]),
        first_step_at=learned.first_step_at or min(filter(None, first_steps), default=None),
        checkpoint_seen=learned.checkpoint_seen or checkpoint_seen,
        steps_from=_steps_from(learned, pods),
    )


def _steps_from(learned: Learned, pods: Iterable[PodView]) -> str:
    """What steps are taken from; as before if that differs in its numbers only."""
    before = learned.steps_from
    newest = next(filter(None, (pod.run.steps_from for pod in pods)), before)
    return before if _without_numbers(newest) == _without_numbers(before) else newest


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)


_STATE = itemgetter(slice(PodView._fields.index("uid") + 1, None))
"""A pod's fields without those that identify it, which come first."""

_JUDGED = "started_at step_at moved_at output_at io_at busy_at watched_since"
_SIGNS_OF_RUN = itemgetter(*map(RunProgress._fields.index, _JUDGED.split()))


def _signs(pod: PodView) -> tuple[object, ...]:
    """Everything of a pod by which `suspects` judges it."""
    return _is_running(pod), *_SIGNS_OF_RUN(pod.run)


class Pods(NamedTuple):
    """Pods, and a representative of each group of neighbours that differ in their identity only.

    Most checks need only the latter, as most of a thousand pods show the same.
    """

    all: tuple[PodView, ...]
    representatives: tuple[PodView, ...]


def with_representatives(pods: tuple[PodView, ...]) -> Pods:
    return Pods(pods, tuple([next(group) for _, group in groupby(pods, key=_STATE)]))


class _Running(NamedTuple):
    """Slots that show the same, and one of their pods."""

    pod: PodView
    slots: tuple[int, ...]
    last_step_or_move: float  # the newest sign of life
    last_excuse: float  # the newest movement that is only an excuse
    limit_s: float


def suspects(
    pods: Iterable[PodView],
    limits: Limits,
    learned: Learned,
    *,
    now: float,
    time_scale: float,
    ends_job: bool = False,
) -> tuple[Suspects, ...]:
    """All running slots with the time at which they count as hung, the earliest first.

    `ends_job`: a hang is answered with the end of the job. First pods with the same signs become one group;
    then each group gets the excuses of the groups that it may wait for; then its time.
    """
    pods = tuple(pods)
    step_s = step_limit_s(limits, learned, now=now, time_scale=time_scale)
    start_s = start_limit_s(limits, learned, time_scale=time_scale)
    # A limit that the document sets holds whatever else goes on: nothing extends it.
    most_excused_s = CEILING_S / time_scale if limits.hang_s is None else 0.0
    by_signs: dict[tuple[object, ...], list[PodView]] = {}
    for signs, neighbours in groupby(pods, key=_signs):  # they mostly show the same
        by_signs.setdefault(signs, []).extend(neighbours)
    groups = [group for group in by_signs.values() if _is_running(group[0])]
    has_stepped = any(group[0].run.step_at is not None for group in groups)
    not_before = after_first_exit(pods, limits)
    running = [
        _Running(
            pod=group[0],
            slots=tuple([pod.slot for pod in group]),
            last_step_or_move=max(
                _last_move(group[0], learned, has_stepped=has_stepped), not_before
            ),
            last_excuse=max(group[0].run.output_at or 0.0, group[0].run.io_at or 0.0),
            limit_s=start_s if learned.steps_seen and not has_stepped else step_s,
        )
        for group in groups
    ]
    running = _judged_as_one(running) if ends_job else _with_excuses_of_others(running, learned)
    suspects = (_suspects(one, most_excused_s) for one in running)
    return tuple(sorted(one._replace(ends_job=ends_job) for one in suspects))


def _suspects(one: _Running, most_excused_s: float) -> Suspects:
    """When these slots count as hung.

    `due`: the limit after the last step or move, or after a newer excuse. `excused_due`: ten limits after the
    last step or move, whatever excuses there are.
    """
    excused_s = max(one.limit_s, min(EXCUSED_TIMES * one.limit_s, most_excused_s))
    due = max(one.last_step_or_move, one.last_excuse) + one.limit_s
    excused_due = one.last_step_or_move + excused_s
    # Under a strict limit (`excused_s` is the limit) an excuse extends nothing: it only changes the sentence.
    # It has to be newer than the last step by half a limit: the line that reports a step is output too.
    goes_on = excused_s > one.limit_s or due - excused_due > one.limit_s / 2
    despite_excuse = excused_due < due and goes_on
    return Suspects(
        due=min(due, excused_due),
        still_since=one.last_step_or_move,
        slots=one.slots,
        limit_s=excused_s if despite_excuse else one.limit_s,
        despite_excuse=despite_excuse,
    )


def at_once_s(learned: Learned) -> float:
    """Ranks that wait for another one stop a step later at most."""
    return max(AT_ONCE_S, learned.longest_gap_s)


def _with_excuses_of_others(running: Sequence[_Running], learned: Learned) -> list[_Running]:
    """Excuse each slot for as long as one that stopped at once with it, or before it, is excused.

    A slot that waits while another one validates or saves shows nothing of that itself. A slot that goes on
    stepping excuses no other.
    """
    by_stop = sorted(running, key=lambda one: one.last_step_or_move)
    stops = [one.last_step_or_move for one in by_stop]
    newest_excuses = list(accumulate((one.last_excuse for one in by_stop), max))
    within_s = at_once_s(learned)
    # The newest excuse of all slots that stopped no later than this one, plus `within_s`.
    return [
        one._replace(
            last_excuse=newest_excuses[bisect_right(stops, one.last_step_or_move + within_s) - 1]
        )
        for one in running
    ]


def _judged_as_one(running: Sequence[_Running]) -> list[_Running]:
    """Give every slot the newest sign of any: output, I/O and devices count as life here.

    Use of the processor alone is the only excuse; `moved_at` has that too.
    """
    signs = [
        max(
            one.last_step_or_move,
            one.last_excuse,
            one.pod.run.step_at or 0.0,
            one.pod.run.busy_at or 0.0,
        )
        for one in running
    ]
    newest_sign = max(signs, default=0.0)
    newest_excuse = max([one.pod.run.moved_at or 0.0 for one in running], default=0.0)
    return [
        one._replace(last_step_or_move=newest_sign, last_excuse=newest_excuse) for one in running
    ]


def _is_running(pod: PodView) -> bool:
    return pod.run.started_at is not None and len(pod.exits) < pod.ranks


def _last_move(pod: PodView, learned: Learned, *, has_stepped: bool) -> float:
    """When the pod made its last step; where it shows none, when anything of it moved last.

    Nothing counts but the start while no slot has stepped in this generation and older ones did: a first
    step may take its own limit. A time that nothing watched, as where the machine slept, counts as movement.
    """
    watched_since = pod.run.watched_since or 0.0
    if pod.run.step_at is not None:
        return max(pod.run.step_at, watched_since)
    started_at = max(pod.run.started_at or 0.0, watched_since)
    if learned.steps_seen and not has_stepped:
        return started_at
    return max(started_at, pod.run.moved_at or 0.0)


def last_sign(pod: PodView) -> float:
    """When anything at all was last seen of the slot; 0 before it started."""
    run = pod.run
    signs = (run.started_at, run.step_at, run.moved_at, run.io_at, run.busy_at)
    return max([0.0, *filter(None, signs), *[one.at for one in pod.exits]])


def idle_one(pods: Iterable[PodView]) -> PodView | None:
    """The only pod with a device that does nothing, where all devices of all other pods work.

    Nothing follows from fewer than three pods, nor where the use of a device is unknown.
    """
    uses = [(least_use(pod), pod) for pod in pods]
    idle = [pod for use, pod in uses if use is not None and use <= IDLE_MOST]
    busy = [pod for use, pod in uses if use is not None and use >= BUSY_LEAST]
    return idle[0] if len(idle) == 1 and 2 <= len(busy) == len(uses) - 1 else None


def least_use(pod: PodView) -> float | None:
    """The least use of its devices in percent; None: that of one is unknown."""
    percents = [use.percent for use in pod.device_use if use.percent is not None]
    return min(percents, default=None) if len(percents) == len(pod.device_use) else None


def after_first_exit(pods: tuple[PodView, ...], limits: Limits) -> float:
    """Until when the hang rules do not apply: the other ranks get some time after the first one finished."""
    ends = [one.at for pod in pods for one in pod.exits if one.exit.is_good]
    return min(ends) + 4 * limits.grace_s if ends else 0.0
