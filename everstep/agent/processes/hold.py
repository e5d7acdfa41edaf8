"""Ranks that hold: they were ordered to give up their group, and report where they are.

A rank that is stuck cannot report. A stopped process is stuck at once, another one after the limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from everstep.agent.loop import Loop
from everstep.agent.processes import proc
from everstep.agent.processes.rank import Rank
from everstep.protocol import wire


class Hold:
    """A hold in progress, or the last one. `done` is called once, when no rank is awaited any more."""

    def __init__(self, loop: Loop, generation: int, done: Callable[[Hold], None]) -> None:
        self.generation = generation
        self._loop, self._done = loop, done
        self._positions: dict[int, wire.RankPosition] = {}
        self._awaited: set[int] = set()
        self.is_over = False

    def begin(self, ranks: Iterable[Rank], within_s: float) -> None:
        """Order these ranks to hold."""
        order = {"do": "hold", "generation": self.generation}
        self._awaited = {rank.number for rank in ranks if not _is_stuck(rank) and rank.order(order)}
        self._loop.later(within_s, self._finish)
        self._finish_if_complete()

    def report(self, position: wire.RankPosition) -> None:
        """A rank holds there."""
        rank = position["rank"]
        if not self.is_over and rank in self._awaited:
            self._positions[rank] = position
            self.drop(rank)

    def drop(self, rank: int) -> None:
        """Await this rank no longer."""
        self._awaited.discard(rank)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self._awaited:
            self._finish()

    def _finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._done(self)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that have reported."""
        return tuple(sorted(self._positions))

    def state(self) -> list[wire.RankPosition]:
        return [self._positions[rank] for rank in self.ranks]


def _is_stuck(rank: Rank) -> bool:
    with contextlib.suppress(OSError):
        process = proc.find(rank.pid)
        return process is None or process.is_stopped
    return False
