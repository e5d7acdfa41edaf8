"""When a run is suspended, judged by I/O and device use alone. Pure: samples in, a time out.

Two rules run side by side. One slot: none of its processes did any I/O and the use of its devices did not
change. All slots: the use of no device changed, whatever the I/O. Unknown values do not count as still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from everstep.core.seeing.hang import AT_ONCE_S, Pods, after_first_exit, last_sign
from everstep.core.spec import Limits
from everstep.core.world import Checkpoint, PodView

SuspensionRule = Literal["hang.instance", "hang.all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StillSlots:
    """Slots, and when they will have been still for too long. If it is one slot, that one is to blame."""

    rule: SuspensionRule
    slots: tuple[int, ...]
    limit_s: float
    still_since: float

    @property
    def due(self) -> float:
        return self.still_since + self.limit_s

    @property
    def message(self) -> str:
        who = f"slot {self.slots[0]} has"
        if len(self.slots) > 1:
            who = f"all {len(self.slots)} running slots have"
        what, name = _SENTENCES[self.rule]
        return f"{who} {what} for {self.limit_s:g} s ({name} rule)"


_SENTENCES: dict[SuspensionRule, tuple[str, str]] = {
    "hang.instance": ("done no I/O and shown a steady use of devices", "single-instance"),
    "hang.all": ("shown a steady use of devices", "all-instance"),
}


def suspect(
    pods: Iterable[PodView],
    limits: Limits,
    *,
    slots: int,
    checkpoint: Checkpoint | None,
    now: float,
) -> StillSlots | None:
    """The slots that are suspended first; `slots` is the least number of them."""
    pods = tuple(pods)
    if limits.still_s is None:
        return None
    running = tuple(pod for pod in pods if len(pod.exits) < pod.ranks)
    paused_until = max(after_first_exit(pods, limits), _saved_at(checkpoint, now))
    ones = [
        _suspect("hang.instance", (pod,), limits.still_s, paused_until)
        for pod in running
        if pod.run.io_at is not None and _shows_use(pod)
    ]
    first = min(ones, key=lambda one: (one.due, one.slots), default=None)
    if not running or len(pods) < slots or not all(_shows_use(pod) for pod in running):
        return first
    all_slots = _suspect("hang.all", running, limits.still_s, paused_until)
    return _earlier_of(first, all_slots)


def alive_until(
    pods: Pods,
    limits: Limits,
    *,
    slots: int,
    checkpoint: Checkpoint | None,
    now: float,
) -> float | None:
    """Until when every slot lived, also in the eyes of the rules above where they judge the run."""
    lasting = [pod for pod in pods.representatives if not pod.is_done]
    if len(pods.all) < slots or not lasting:
        return None
    signs = [last_sign(pod) for pod in lasting]
    still = suspect(pods.all, limits, slots=slots, checkpoint=checkpoint, now=now)
    return min(signs if still is None else [*signs, still.still_since])


def _shows_use(pod: PodView) -> bool:
    return pod.run.started_at is not None and pod.run.busy_at is not None


def _saved_at(checkpoint: Checkpoint | None, now: float) -> float:
    """A job that completes a checkpoint is not suspended. One dated later is by another clock."""
    return checkpoint.at if checkpoint is not None and checkpoint.at <= now else 0.0


def _suspect(
    rule: SuspensionRule, pods: tuple[PodView, ...], limit_s: float, paused_until: float
) -> StillSlots:
    signs = [pod.run.busy_at for pod in pods] + [pod.run.started_at for pod in pods]
    if rule == "hang.instance":
        signs += [pod.run.io_at for pod in pods]
    return StillSlots(
        rule=rule,
        slots=tuple(sorted(pod.slot for pod in pods)),
        limit_s=limit_s,
        still_since=max(paused_until, *(sign or 0.0 for sign in signs)),
    )


def _earlier_of(one: StillSlots | None, all_slots: StillSlots) -> StillSlots:
    """The earlier of the two. At once: of several slots none is blamed alone; an only one is."""
    if one is None:
        return all_slots
    if abs(one.due - all_slots.due) > AT_ONCE_S:
        return min(one, all_slots, key=lambda suspect: suspect.due)
    return one if len(all_slots.slots) == 1 else all_slots
