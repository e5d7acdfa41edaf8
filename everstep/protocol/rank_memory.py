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
