"""All pods of a run agree on a step that every rank keeps, and every neighbour keeps copies of. Pure.

A copy may lag behind by more than the newest two snapshots. If its pod is lost then, the other ranks no
longer have that step. So one step is pinned: each rank keeps its snapshot of it, and each neighbour the
copies, until all pods have the next one and its copies. That no step is given up before is the whole rule:

- One agent leads. It names a step that is still to come: the first snapshot from there on is the next one.
- A pod is done when its ranks have pinned that snapshot, and its neighbour has whole copies of it.
- When all pods are done the leader makes it the pinned one and names the next. A pod gives up what was pinned
  before when it reads that, and not earlier: every other pod has the new one by then.
- Ranks that were past the step when they read of it pin a later one than others. Then the leader names
  another one, further ahead; what was pinned stays.

The agents have connections to their neighbours alone. What a pod and those before it have done goes along
them to the leader, and comes back from there with every message and every answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everstep.protocol.rank_memory import Pins

AHEAD_MOST = 2**20


class Progress(NamedTuple):
    """How far some pods are with the next step."""

    done: int = 0  # pods that have it, and copies of it
    step: int | None = None  # that these have pinned
    is_missed: bool = False  # some have none, or another one than others
    newest: int | None = None  # the newest step that some rank has a snapshot of


NONE = Progress()


def combined(parts: Iterable[Progress]) -> Progress:
    """The progress of them all. Where two have pinned different steps one of them has missed it."""
    parts = list(parts)
    steps = {one.step for one in parts if one.step is not None}
    newest = [one.newest for one in parts if one.newest is not None]
    return Progress(
        done=sum(one.done for one in parts),
        step=max(steps, default=None),
        is_missed=len(steps) > 1 or any(one.is_missed for one in parts),
        newest=max(newest, default=None),
    )


class Agreement:
    """One agent's view of it, for one run."""

    def __init__(self, pods: int, *, leads: bool) -> None:
        self._pods, self._leads = pods, leads
        self.pins = Pins()
        self._of_this_pod = 0, NONE  # each with the number of the pins that it is about
        self._reports: dict[int, tuple[int, Progress]] = {}  # by slot
        # Of the leader: how far ahead it names the next step, and what was the newest one then.
        self._ahead, self._newest_then = 1, -1

    def adopt(self, pins: Pins) -> None:
        """Adopt pins that are newer than those it has."""
        if pins.number > self.pins.number and not self._leads:
            self.pins = pins

    def take_report(self, slot: int, pins: Pins, progress: Progress) -> None:
        """Take the report of a pod that this one is the neighbour of."""
        self.adopt(pins)
        self._reports[slot] = pins.number, progress
        self._decide()

    def set_progress(self, progress: Progress) -> None:
        """Take the progress of this pod, by the newest pins."""
        self._of_this_pod = self.pins.number, progress

    def report(self) -> Progress:
        """The report to the neighbour. The first is that of the leader, and the last one comes back to it."""
        of_this_pod = self._by_these_pins(*self._of_this_pod)
        return of_this_pod if self._leads else combined([of_this_pod, *self._progress_of_senders()])

    def _progress_of_senders(self) -> list[Progress]:
        return [self._by_these_pins(*one) for one in self._reports.values()]

    def _by_these_pins(self, number: int, progress: Progress) -> Progress:
        """The progress; of one by other pins the newest step alone counts."""
        return progress if number == self.pins.number else Progress(newest=progress.newest)

    def _decide(self) -> None:
        """Pin the next step where all pods have it; name another one where a pod has missed it."""
        total = combined(self._progress_of_senders())
        if not self._leads or total.newest is None:
            return
        if self.pins.next_from is None or total.newest < self._newest_then:
            self._name_next(None, total.newest)  # the first one, or the script has gone back
        elif total.is_missed:
            self._ahead = min(2 * self._ahead, AHEAD_MOST)
            self._name_next(self.pins.step, total.newest)
        elif total.done >= self._pods:
            self._ahead = max(1, self._ahead * 3 // 4)
            self._name_next(total.step, total.newest)

    def _name_next(self, step: int | None, newest: int) -> None:
        self._newest_then = newest
        self.pins = Pins(self.pins.number + 1, step, newest + self._ahead)
