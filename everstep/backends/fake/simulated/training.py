"""What a job's processes do all day: step together, save now and then, end. Computed, not played.

The environment of the start order drives it (`READERS`). Only moments at which something changes
become timers (`processes.py` sets them); the step and the checkpoints of any other moment follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from everstep.backends.fake.simulated.timeline import Timer
from everstep.core.levels import CAPABILITIES

SAVES_LOOKED_AT = 50
EPSILON_S = 2e-6  # times are rounded to microseconds
STEP_S_LEAST = 1e-3  # below it, rounded times no longer tell the steps apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The rank ends with this code whenever it reaches the step, which then is not completed."""

    rank: int
    step: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The planned course of the processes of one start."""

    steps: int = 100
    step_s: float = 1.0
    checkpoint_every: int = 10
    exit_code: int = 0
    crashes: tuple[Crash, ...] = ()
    exception: str | None = None  # said by every rank that ends with a code above 0
    log: str | None = None
    start_s: float = 2.0  # from the order until the agent reports the ranks started
    warmup_s: float = 1.0  # from the last rank's start until the first step
    restore_s: float | None = None  # the same where ranks begin from snapshots; None: as long
    rebuild_s: float | None = None  # the same where ranks outlive the fault; None: as long
    snapshot_every: int = 0  # steps between snapshots in memory; 0: none are kept
    stop_s: float = 1.0  # an end with grace, checkpoint included
    cannot_start: str | None = None  # what the agent says instead
    shows_steps: bool = True
    can: tuple[str, ...] = ()  # what every rank says it can do
    saves_on_signal: bool = True  # at once
    prefetch_s: float = 1.0  # for each smaller number of nodes that is tried beside it
    prefetch_fails: tuple[int, ...] = ()  # those that do not work


def _count(text: str) -> int:
    return int(float(text))


def _pace(text: str) -> float:
    return max(STEP_S_LEAST, float(text))


def _crashes(text: str) -> tuple[Crash, ...]:
    """`0:25:1` or several, with commas between them: rank, step, code."""
    triples = [[int(part) for part in row.split(":")] for row in text.split(",") if row]
    return tuple(Crash(rank=rank, step=step, code=code) for rank, step, code in triples)


def _switch(text: str) -> bool:
    return text not in ("", "0")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _capabilities(text: str) -> tuple[str, ...]:
    """All with 1, or those that are named, with commas between them."""
    if text in ("0", "1"):
        return CAPABILITIES if text == "1" else ()
    return tuple(sorted(filter(None, text.split(","))))


READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "STEPS": ("steps", _count),
    "STEP_S": ("step_s", _pace),
    "CHECKPOINT_EVERY": ("checkpoint_every", _count),
    "EXIT_CODE": ("exit_code", _count),
    "CRASH_AT_STEP": ("crashes", _crashes),
    "CRASH_EXCEPTION": ("exception", str),
    "CRASH_LOG": ("log", str),
    "START_S": ("start_s", float),
    "WARMUP_S": ("warmup_s", float),
    "RESTORE_S": ("restore_s", float),
    "REBUILD_S": ("rebuild_s", float),
    "SNAPSHOT_EVERY": ("snapshot_every", _count),
    "STOP_S": ("stop_s", float),
    "CANNOT_START": ("cannot_start", str),
    "SHOW_STEPS": ("shows_steps", _switch),
    "LIBRARY": ("can", _capabilities),
    "SAVES_ON_SIGNAL": ("saves_on_signal", _switch),
    "PREFETCH_S": ("prefetch_s", float),
    "PREFETCH_FAILS": ("prefetch_fails", _numbers),
}


def script_of(env: Mapping[str, str]) -> Script:
    """The script that the environment describes. An unreadable value has its default."""
    fields: dict[str, Any] = {}
    for name in READERS.keys() & env.keys():
        key, read = READERS[name]
        try:
            fields[key] = read(env[name])
        except (ValueError, OverflowError):  # of the latter: an integer from "inf"
            continue
    return Script(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """Since when the processes of a slot do nothing; `io_at` None: they go on writing and reading."""

    at: float
    io_at: float | None = None
    is_idle: bool = False  # its devices do nothing, and those of the others work


class InMemory(NamedTuple):
    """A step of which every rank has a snapshot, and its neighbour a copy."""

    step: int
    generation: int  # that wrote it
    at: float


SNAPSHOTS_KEPT = 2
"""While one is written, the other one stays whole."""


@dataclass(slots=True, eq=False, kw_only=True)
class Training:
    """One start of all ranks: they gain steps together, or none of them does."""

    generation: int
    script: Script
    resume: int
    slots: frozenset[int]  # all of them have to run before the first step
    warmup_s: float  # from the last rank's start until the first step
    node_ranks: Mapping[int, int]  # by slot; each has copies of the one before it
    ranks_per_slot: int = 1
    is_loaded: bool = True  # from a checkpoint, if there is one
    restored: InMemory | None = None  # the snapshots from which all ranks begin
    path: str | None  # of the checkpoints
    phase: str = ""
    prefetch: tuple[int, ...] = ()  # numbers of nodes that are tried beside it
    first_at: float | None = None  # when the first step is completed
    halted_at: float | None = None
    halted_step: int = 0
    starts_at: set[float] = field(default_factory=set)  # when slots will have started
    starts: int = 0  # of slots so far, those that ended since included
    saved_to: int = 0  # checkpoints up to this step are on the storage, or will never be
    saves_at_end: bool = False  # an end with grace was asked for while it gained steps
    hangs: dict[int, Stillness] = field(default_factory=dict)  # by slot
    requested: set[str] = field(default_factory=set)  # requests to save that were obeyed
    timers: list[Timer] = field(default_factory=list)

    def time_of(self, step: int) -> float:
        assert self.first_at is not None
        return round(self.first_at + (step - self.resume - 1) * self.script.step_s, 6)

    def step_at(self, now: float) -> int:
        """The newest completed step; the one resumed from before there is any."""
        if self.halted_at is not None:
            return self.halted_step
        if self.first_at is None or now < self.first_at:
            return self.resume
        further = int((now - self.first_at + EPSILON_S) / self.script.step_s)
        return max(self.resume, min(self.script.steps, self.resume + 1 + further))

    def shown_at(self, now: float) -> int | None:
        """The newest step in its output."""
        return self.step_at(now) if self.script.shows_steps and self.gained(now) > 0 else None

    def in_memory(self, now: float) -> tuple[InMemory, ...]:
        """The newest snapshots of all ranks, oldest first. Each is whole when its step is completed."""
        every, newest = self.script.snapshot_every, self.step_at(now)
        if every <= 0:
            return ()
        due = range((self.resume // every + 1) * every, newest + 1, every)[-SNAPSHOTS_KEPT:]
        written = [InMemory(step, self.generation, self.time_of(step)) for step in due]
        restored = () if self.restored is None else (self.restored,)
        return (*restored, *written)[-SNAPSHOTS_KEPT:]

    def gained(self, now: float) -> int:
        """Steps completed by this start."""
        return self.step_at(now) - self.resume

    def hang(self, slot: int, now: float, *, does_io: bool, is_idle: bool) -> None:
        """The slot stands still from now on; its I/O too, unless it goes on by itself."""
        since = self.hangs.get(slot, Stillness(at=now))
        io_at = None if does_io else since.io_at or now
        self.hangs[slot] = replace(since, io_at=io_at, is_idle=is_idle)

    def still_since(self, slot: int, now: float) -> Stillness | None:
        """None while the slot trains. One that waits for another has busy devices, and no I/O."""
        if self.halted_at is None:
            return None
        if self.hangs and slot not in self.hangs:
            return Stillness(at=now, io_at=self.halted_at)
        return self.hangs.get(slot, Stillness(at=self.halted_at, io_at=self.halted_at))

    @property
    def is_stepping(self) -> bool:
        return self.first_at is not None and self.halted_at is None

    def halt(self, now: float, *, step: int | None = None) -> None:
        """From now on no step is gained, and none of the timers comes true."""
        self.halted_step = self.step_at(now) if step is None else step
        self.halted_at = now
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def take_saves(self, now: float) -> Iterator[tuple[int, float]]:
        """`(step, time)` of the checkpoints completed since the last call."""
        step, every = self.step_at(now), self.script.checkpoint_every
        due = range(0)
        if self.path is not None and every > 0:
            due = range((self.saved_to // every + 1) * every, step + 1, every)
        self.saved_to = max(self.saved_to, step)
        return ((saved, self.time_of(saved)) for saved in due[-SAVES_LOOKED_AT:])
