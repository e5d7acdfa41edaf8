"""When silence of a running rank means that it hangs. Pure: samples and the pace learned, in; a time, out.

Where steps are seen they rule; where none ever was, any movement of I/O, CPU or device is life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import PodView

GAPS = 5.0
"""A step may take this many times the longest gap seen."""
FLOOR_UNPROVEN_S = 300.0
FLOOR_S = 60.0
CEILING_S = 1800.0
PROVEN_AFTER_S = 1800.0

AT_ONCE_S = 2.0
"""Slots that stopped within this time stopped at once: clocks differ, and signs of life are sampled."""


class Suspects(NamedTuple):
    """Slots, and the time at which they will have been still for too long. Sorted as they stand here."""

    due: float
    still_since: float
    slots: tuple[int, ...]
    limit_s: float


def step_limit_s(limits: Limits, learned: Learned, *, now: float, time_scale: float) -> float:
    """How long a step may take: the document's word, or what was learned, between floor and ceiling."""
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
    """What these samples add to what is known of the job's pace."""
    pods = tuple(pods)
    every_s = [pod.save_every_s for pod in pods if pod.save_every_s is not None]
    stepping = [pod for pod in pods if pod.step is not None and pod.step_at is not None]
    first_at = stepping[0].step_at if stepping else None
    return replace(
        learned,
        save_every_s=every_s[-1] if every_s else learned.save_every_s,
        steps_seen=learned.steps_seen or bool(stepping),
        longest_gap_s=max([learned.longest_gap_s, *(pod.longest_gap_s for pod in stepping)]),
        first_step_at=learned.first_step_at or first_at,
        checkpoint_seen=learned.checkpoint_seen or checkpoint_seen,
    )


_AFTER_UID, _FIRST, _LAST = map(PodView._fields.index, ("state", "started_at", "busy_at"))
_ALL = itemgetter(slice(_AFTER_UID, None))
_SIGNS = itemgetter(slice(_FIRST, _LAST + 1))
"""What tells how long a slot lived."""


class Pods(NamedTuple):
    """Pods that are judged. `kinds`: the first of all neighbours that show the same, but for who they are.

    Most questions are asked of those alone: a thousand mostly do.
    """

    all: tuple[PodView, ...]
    kinds: tuple[PodView, ...]


def by_kind(pods: tuple[PodView, ...]) -> Pods:
    return Pods(pods, tuple([next(alike) for _, alike in groupby(pods, key=_ALL)]))


def suspects(
    pods: Iterable[PodView], limits: Limits, learned: Learned, *, now: float, time_scale: float
) -> tuple[Suspects, ...]:
    """All running slots with the time at which they count as hung, the earliest first."""
    pods = tuple(pods)
    released = after_first_exit(pods, limits)
    step_s = step_limit_s(limits, learned, now=now, time_scale=time_scale)
    start_s = start_limit_s(limits, learned, time_scale=time_scale)
    alike: dict[tuple[object, ...], list[PodView]] = {}
    for signs, same in groupby(pods, key=_SIGNS):  # neighbours mostly show the same
        alike.setdefault(signs, []).extend(same)
    found = []
    for group in alike.values():
        pod = group[0]
        if pod.started_at is None or len(pod.exits) >= pod.ranks:
            continue
        limit_s = start_s if pod.step_at is None and learned.steps_seen else step_s
        still_since = max(_last_move(pod, learned), released)
        slots = tuple([one.slot for one in group])
        found.append(Suspects(still_since + limit_s, still_since, slots, limit_s))
    return tuple(sorted(found))


def _last_move(pod: PodView, learned: Learned) -> float:
    """Steps where they are seen; any movement where none ever was."""
    if pod.step_at is not None:
        return pod.step_at
    started_at = pod.started_at or 0.0
    return started_at if learned.steps_seen else max(started_at, pod.moved_at or 0.0)


def last_sign(pod: PodView) -> float:
    """When anything at all was last seen of the slot; 0 before it started."""
    signs = (pod.started_at, pod.step_at, pod.moved_at, pod.io_at, pod.busy_at)
    return max([0.0, *filter(None, signs), *[exit.at for exit in pod.exits]])


def after_first_exit(pods: tuple[PodView, ...], limits: Limits) -> float:
    """After the first rank finished the others get some time before the hang rules apply again."""
    ends = [exit.at for pod in pods for exit in pod.exits if exit.code == 0]
    return min(ends) + 4 * limits.grace_s if ends else 0.0
