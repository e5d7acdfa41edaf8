"""The lines that ranks of benchmarks/peers/train.py write, and what follows from them about a fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

WORLD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of the file."""

    at: float
    rank: int
    pid: int
    event: str  # begun or step
    step: int = 0
    world: int = 0


class Events:
    """The file, of which each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._known: list[Event] = []

    def all(self) -> Sequence[Event]:
        """All so far, in the order of their lines."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_to += len(whole) + len(newline)
            self._known += [Event(**json.loads(line)) for line in whole.splitlines()]
        return self._known


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The way back of a job of two ranks after a fault; seconds from the fault on."""

    took_s: float  # to the first step that a new process made with the other rank
    begun_s: float  # to the first line of that process: what its launcher needed
    paused_s: float  # the longest time without a step of any rank, also of one alone
    lost_steps: int  # made before the fault and made again after it
    wasted_starts: int  # processes begun since that never made a step


def recovery(events: Sequence[Event], *, fault_at: float) -> Recovery | None:
    """The way back of the job from the fault at this time; None: it has not come back."""
    since = [event for event in events if event.at > fault_at]
    begun = {event.pid: event.at for event in since if event.event == "begun"}
    steps = [event for event in since if event.event == "step"]
    back = next((one for one in steps if one.pid in begun and one.world == WORLD), None)
    if back is None:
        return None
    made = [e.step for e in events if e.event == "step" and e.at <= fault_at]
    fruitful = {event.pid for event in steps}
    return Recovery(
        took_s=back.at - fault_at,
        begun_s=begun[back.pid] - fault_at,
        paused_s=pause(events, fault_at=fault_at, until=back.at),
        lost_steps=max(0, max(made, default=0) - (back.step - 1)),
        wasted_starts=len(begun.keys() - fruitful),
    )


def pause(events: Sequence[Event], *, fault_at: float, until: float) -> float:
    """The longest time without a step of any rank, from the last one before the fault on."""
    steps = sorted(event.at for event in events if event.event == "step" and event.at <= until)
    before = [at for at in steps if at <= fault_at][-1:]
    moments = [*(before or [fault_at]), *(at for at in steps if at > fault_at), until]
    return max(later - earlier for earlier, later in pairwise(moments))


def newest_pid(events: Sequence[Event], rank: int) -> int:
    """The process that made the newest step of this rank."""
    return [event.pid for event in events if (event.event, event.rank) == ("step", rank)][-1]
