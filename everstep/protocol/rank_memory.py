"""Memory that a rank shares with its agent: the place in its training, and snapshots of its state.

A rank makes the memory (files without a name, `memfd`) and gives a handle of each to its agent over a socket,
so that the memory outlives the rank. What is written there has to be readable after a kill between any two
instructions: a position has a number that is odd while it is written, a snapshot a state that is `WHOLE` only
once everything else was written.

Standard library, Python 3.9.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Union

    Memory = Union[bytearray, memoryview, "mmap.mmap"]
    import mmap

SOCKET = "r"
"""The socket for ranks, in the folder of the agent."""
SOCKET_FOLDER = "EVERSTEP_RANK_SOCKET_FOLDER"
"""The variable in which a rank finds that folder."""
SNAPSHOT_STEP = "EVERSTEP_SNAPSHOT_STEP"
"""The variable with the step of the snapshots from which all ranks resume; absent: from none."""
TOKEN = "EVERSTEP_RANK_TOKEN"
"""The variable with what the agent accepts from this rank alone."""
RESTORE, SNAPSHOT = "restore", "snapshot"
"""Capabilities that a rank declares: it begins from a snapshot when it is ordered to, and it keeps some."""
GUARD, PAUSE, REBUILD = OUTLIVES_FAULTS = "guard", "pause", "rebuild"
"""Capabilities of a rank whose process goes on after a fault elsewhere: it catches what interrupts a step, it
holds when it is ordered to, and it forms its group again."""
SAVER = "saver.json"
"""The file in which a rank says how its own function saves a snapshot, in its folder."""
MESSAGE_MOST = 16_384
"""Bytes of the largest message between a rank and its agent."""
BUFFERS = 2
"""A rank keeps its newest two snapshots: while one is written the other one stays whole."""
BUFFERS_MOST = 4
"""The same, and two that are pinned: the newest step that all pods have copies of, and the next one to be."""

PAGE = 4096

# -- Position -------------------------------------------------------------------------------------

FORWARD, UPDATE, SAVE, WAIT = "forward", "update", "save", "wait"
PHASES = (FORWARD, UPDATE, SAVE, WAIT)
_POSITION = struct.Struct("<Qqqqd")
_NUMBER = struct.Struct("<Q")


class Position(NamedTuple):
    """Where a rank is in its training."""

    step: int | None  # the step that it makes
    completed: int | None  # the newest step that it has completed
    phase: str
    at: float  # by `time.monotonic`, when it was written


def write_position(memory: Memory, number: int, position: Position) -> int:
    """Write the position; returns the number for the next call."""
    step = -1 if position.step is None else position.step
    completed = -1 if position.completed is None else position.completed
    phase = PHASES.index(position.phase)
    _NUMBER.pack_into(memory, 0, number + 1)
    _POSITION.pack_into(memory, 0, number + 1, step, completed, phase, position.at)
    _NUMBER.pack_into(memory, 0, number + 2)
    return number + 2


def read_position(memory: Memory) -> Position | None:
    """The position; None if there is none yet, or if it is being written."""
    number, step, completed, phase, at = _POSITION.unpack_from(memory, 0)
    if number == 0 or number % 2 or not 0 <= phase < len(PHASES):
        return None
    if _NUMBER.unpack_from(memory, 0)[0] != number:
        return None
    return Position(
        None if step < 0 else step, None if completed < 0 else completed, PHASES[phase], at
    )


# -- Snapshots ------------------------------------------------------------------------------------

EMPTY, WRITING, WHOLE, SUMMED = range(4)
"""The state of a snapshot's memory. `SUMMED`: whole, and its checksum was computed."""
_MAGIC = b"EVERSNP1"
_HEADER = struct.Struct("<8sIIqqIIQQd")
_STATE = struct.Struct("<I")
_STATE_AT = 8
_SUM_AT = 12


class SnapshotHeader(NamedTuple):
    """The header of a snapshot: the first page of its memory. The content follows it."""

    step: int
    generation: int
    rank: int
    world: int  # number of ranks whose snapshots of this step belong together
    index_bytes: int  # of the content: what says how the rest is read
    content_bytes: int
    at: float  # by `time.monotonic`
    checksum: int | None = None  # of the content, CRC-32


def begin_snapshot(memory: Memory) -> None:
    """Mark what the memory holds as no snapshot any more."""
    _STATE.pack_into(memory, _STATE_AT, WRITING)


def finish_snapshot(memory: Memory, snapshot: SnapshotHeader) -> None:
    """Declare the content whole. Its state is written last."""
    fields = snapshot.step, snapshot.generation, snapshot.rank, snapshot.world
    sizes = snapshot.index_bytes, snapshot.content_bytes
    _HEADER.pack_into(memory, 0, _MAGIC, WRITING, 0, *fields, *sizes, snapshot.at)
    _STATE.pack_into(memory, _STATE_AT, WHOLE)


def add_checksum(memory: Memory, checksum: int) -> None:
    """Add the checksum of a whole snapshot."""
    _STATE.pack_into(memory, _SUM_AT, checksum)
    _STATE.pack_into(memory, _STATE_AT, SUMMED)


def drop_snapshot(memory: Memory) -> None:
    _STATE.pack_into(memory, _STATE_AT, EMPTY)


def read_snapshot(memory: Memory) -> SnapshotHeader | None:
    """The header of a whole snapshot; None if there is none."""
    if len(memory) < PAGE:
        return None
    magic, state, checksum, *fields = _HEADER.unpack_from(memory, 0)
    if magic != _MAGIC or state not in (WHOLE, SUMMED):
        return None
    snapshot = SnapshotHeader._make((*fields, checksum if state == SUMMED else None))
    is_inside = 0 <= snapshot.index_bytes <= snapshot.content_bytes
    return snapshot if is_inside and snapshot.step >= 0 else None


def overwritable(steps: Sequence[int], pinned: Collection[int]) -> list[int]:
    """The indexes of memories that the next snapshot may overwrite, that with the oldest first.

    `steps`: of the snapshot in each; -1: none that is whole. The newest one stays whole meanwhile.
    """
    newest = max(steps, default=-1)
    free = [
        (step, index)
        for index, step in enumerate(steps)
        if step < 0 or (step != newest and step not in pinned)
    ]
    return [index for _, index in sorted(free)]


# -- Pins -----------------------------------------------------------------------------------------
#
# A rank may lose any pod of its job. What it has itself then has to be of a step that others have too, and
# of which the lost pod's neighbour holds a copy. Copies may lag, so all ranks keep one such step until they
# agree on a newer one. Its agent writes the pins behind the position, and the rank what it makes of them.


class Pins(NamedTuple):
    """Which snapshots the ranks of a run do not overwrite."""

    number: int = 0  # of this agreement: a later one has a higher number
    step: int | None = None  # all pods have it, and a copy of it at their neighbours
    next_from: int | None = None  # the first snapshot of this step or a later one is the next


class Pinned(NamedTuple):
    """What a rank makes of the pins with this number."""

    run: int  # generation
    number: int
    step: (
        int | None
    )  # the next one: the rank has it, or is about to write it; None: it is still to come


_PINS_AT, _PINNED_AT = 1024, 2048
_PINS = struct.Struct("<QQqqQ")
_NO_STEP = -1
_WORD = 2**64 - 1


def _with_check(run: int, number: int, first: int, second: int) -> bytes:
    check = ~(run ^ number ^ first ^ second) & _WORD
    return _PINS.pack(run, number, first, second, check)


def _checked(memory: Memory, at: int) -> tuple[int, int, int, int] | None:
    """The words; None where there are none, or while they are written."""
    run, number, first, second, check = _PINS.unpack_from(memory, at)
    is_whole = check == ~(run ^ number ^ first ^ second) & _WORD
    return (run, number, first, second) if is_whole else None


def pins_bytes(run: int, pins: Pins) -> tuple[int, bytes]:
    """Where in the memory of the position the pins of a run belong, and their bytes."""
    step = _NO_STEP if pins.step is None else pins.step
    next_from = _NO_STEP if pins.next_from is None else pins.next_from
    return _PINS_AT, _with_check(run, pins.number, step, next_from)


def read_pins(memory: Memory) -> tuple[int, Pins] | None:
    """The generation of the run and its pins; None: there are none, or they are being written."""
    if (words := _checked(memory, _PINS_AT)) is None:
        return None
    run, number, step, next_from = words
    return run, Pins(
        number, None if step == _NO_STEP else step, None if next_from == _NO_STEP else next_from
    )


def write_pinned(memory: Memory, pinned: Pinned) -> None:
    step = _NO_STEP if pinned.step is None else pinned.step
    words = _with_check(pinned.run, pinned.number, step, 0)
    memory[_PINNED_AT : _PINNED_AT + len(words)] = words


def read_pinned(memory: Memory) -> Pinned | None:
    """What the rank made of the newest pins that it has read; None: it has read none, or writes it now."""
    if (words := _checked(memory, _PINNED_AT)) is None:
        return None
    run, number, step, _ = words
    return Pinned(run, number, None if step == _NO_STEP else step)
