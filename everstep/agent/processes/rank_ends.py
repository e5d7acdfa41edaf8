"""When ranks ended whose agent did not see it: it was suspended, or it ended before they were waited for.

Two witnesses narrow the time down. The agent marks once a second that its ranks are alive. The warden goes on
without its agent: it looks at the ranks once a second and writes down between which two looks each ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from everstep.agent import clock
from everstep.agent.processes import proc
from everstep.agent.storage import files, reading
from everstep.protocol import wire

FILE = "ends.json"
LATE_S = 2.0
"""A span at most this long counts as one moment: which checkpoints an end may have cut off is not judged more
finely."""
RECORD_S = 1.0
"""Longest wait for the storage of the record, which must not hold up the warden."""


class Span(NamedTuple):
    """A time in which a rank ended, by the agent's clock."""

    began: float
    ended: float

    @property
    def is_wide(self) -> bool:
        return self.ended - self.began > LATE_S


class EndRecord:
    """The warden's record of when ranks ended. Times in the file are the machine's."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._generation = 0
        self._living: dict[int, tuple[int, int]] = {}  # identity by rank
        self._ends: dict[int, tuple[float, float]] = {}
        self._polled_at = time.time()

    def follow(self, order: Mapping[str, Any]) -> None:
        """Watch the ranks of this order from now on."""
        if order["generation"] != self._generation:
            self._generation, self._ends = order["generation"], {}
        self._living = {
            number: (pid, started)
            for number, pid, started in order.get("ranks", ())
            if number not in self._ends
        }

    def poll(self, *, ends_all: bool = False) -> None:
        """Record which ranks ended since the last look: all of them if their agent is gone."""
        began, before = time.time(), self._polled_at
        ended = [
            rank for rank, identity in self._living.items() if ends_all or not _is_alive(identity)
        ]
        self._polled_at = began
        for rank in ended:
            del self._living[rank]
            self._ends[rank] = before, time.time()
        if ended:
            self._write()

    def _write(self) -> None:
        record = json.dumps({"generation": self._generation, "ends": self._ends})
        with contextlib.suppress(OSError):  # the time is less exact then
            write = partial(files.replace, self._home / FILE, record)
            reading.read(str(self._home), write, within_s=RECORD_S)


def _is_alive(identity: tuple[int, int]) -> bool:
    try:
        process = proc.find(identity[0])
    except OSError:  # unknown: the next look decides
        return True
    return process is not None and process.identity == identity and process.is_alive


def narrowed(home: Path, generation: int, rank: int, span: Span) -> Span:
    """The time in which the rank ended, which is in this span, as exactly as the warden recorded it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        record = files.read_json(home / FILE)
        if record["generation"] == generation:
            began, ended = (_by_agent(float(at)) for at in record["ends"][str(rank)])
            if began <= span.ended and span.began <= ended:
                return Span(max(began, span.began), min(ended, span.ended))
    return span


def mark_alive(home: Path) -> None:
    """Mark that the ranks are alive now, for the next agent in this folder."""
    with contextlib.suppress(OSError):
        now = time.time()  # a server of files would take its own
        os.utime(home / wire.LOCK, (now, now), follow_symlinks=False)


def marked_alive_at(home: Path) -> float:
    """When the earlier agent of this folder last marked its ranks as alive; minus infinity: unknown."""
    with contextlib.suppress(OSError):
        return _by_agent((home / wire.LOCK).lstat().st_mtime)
    return float("-inf")


def _by_agent(at: float) -> float:
    return clock.now() - (time.time() - at)
