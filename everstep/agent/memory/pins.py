"""Has the ranks of this pod pin a step of which all pods have copies: see `agreement`.

In the agent's loop. The copier sends the messages, and sends the next step to pin before any newer one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from everstep.agent.memory.agreement import NONE, Agreement, Progress, combined
from everstep.protocol import wire
from everstep.protocol.rank_memory import Pins, SnapshotHeader

if TYPE_CHECKING:
    from everstep.agent.agent import Agent
    from everstep.agent.memory.held_memory import HeldMemory
    from everstep.agent.processes.rank import Rank
    from everstep.agent.processes.run import Run

LEAST_S, REPEATED_S = 0.05, 5.0
"""Times between two messages: with news, and without. An answer may have some."""


class PinKeeper:
    """Follows the newest run."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run: int | None = None  # generation
        self._agreement = Agreement(0, leads=False)
        self._written: dict[int, Pins] = {}  # by rank: the pins that it can read
        self._copied: dict[int, SnapshotHeader] = {}  # by rank: the next one, once it is copied
        self._sent: tuple[wire.PinReport | None, float] = (None, 0.0)

    def look(self, run: Run) -> None:
        """Write the newest pins for the ranks, and read how far they are."""
        if self._run != run.generation:
            self._run, self._written, self._copied = run.generation, {}, {}
            self._agreement = Agreement(run.command["pods"], leads=run.command["leads"])
        pins = self._agreement.pins
        for rank in run.ranks:
            if self._written.get(rank.number) != pins and rank.write_pins(run.generation, pins):
                self._written[rank.number] = pins
        parts = [self._progress(rank) for rank in run.ranks]
        total = combined(parts)
        is_done = bool(parts) and total.done == len(parts)
        self._agreement.set_progress(total._replace(done=int(is_done)))

    def _progress(self, rank: Rank) -> Progress:
        newest = self._header(self._agent.snapshots.newest(rank.number))
        if newest is None:
            return NONE
        step = self.next_step(rank)
        if step is None:
            return Progress(newest=newest.step)
        header = self._header(self._agent.snapshots.at(rank.number, step))
        if header is None or header.generation != self._run:
            return Progress(is_missed=newest.step > step, newest=newest.step)
        is_copied = self._copied.get(rank.number) == header._replace(checksum=None)
        return Progress(done=int(is_copied), step=step, newest=newest.step)

    def next_step(self, rank: Rank) -> int | None:
        """The step that the rank has pinned to be the next one; None: it is still to come."""
        pinned, current = rank.pinned, (self._run, self._agreement.pins.number)
        return pinned.step if pinned is not None and pinned[:2] == current else None

    @staticmethod
    def _header(memory: HeldMemory | None) -> SnapshotHeader | None:
        return None if memory is None else memory.snapshot

    def steps(self, rank: Rank) -> list[int]:
        """The steps of this rank whose copies the neighbour keeps."""
        return [
            step for step in (self._agreement.pins.step, self.next_step(rank)) if step is not None
        ]

    def copied(self, snapshot: SnapshotHeader) -> None:
        """The neighbour has a whole copy of this snapshot."""
        rank = next((r for r in self._ranks() if r.number == snapshot.rank), None)
        if rank is not None and self.next_step(rank) == snapshot.step:
            self._copied[snapshot.rank] = snapshot._replace(checksum=None)

    def _ranks(self) -> list[Rank]:
        return [] if self._agent.run is None else list(self._agent.run.ranks)

    # -- Messages ---------------------------------------------------------------------------------

    def message(self, to: wire.Neighbour) -> wire.PinReport | None:
        """The report that the neighbour lacks; None: it has the newest."""
        if self._run is None:
            return None
        pins, progress = self._agreement.pins, self._agreement.report()
        report: wire.PinReport = {
            "to": to["uid"],
            "run": self._run,
            "slot": self._agent.slot,
            **_written(pins),
            "done": progress.done,
            "has": progress.step,
            "is_missed": progress.is_missed,
            "newest": progress.newest,
        }
        before, at = self._sent
        since = time.monotonic() - at
        if since < (REPEATED_S if before == report else LEAST_S):
            return None
        self._sent = report, time.monotonic()
        return report

    def take_report(self, report: wire.PinReport) -> wire.PinsSeen:
        """Take the report of another agent, and answer with the newest pins."""
        run = self._agent.run
        if run is None or run.generation != report["run"]:
            return _written(Pins())  # its ranks have started a moment before those of this pod
        self.look(run)
        progress = Progress(report["done"], report["has"], report["is_missed"], report["newest"])
        self._agreement.take_report(report["slot"], _read(report), progress)
        self.look(run)
        return _written(self._agreement.pins)

    def adopt(self, run: int, pins: wire.PinsSeen) -> None:
        """Take the answer of the neighbour."""
        if self._run == run:
            self._agreement.adopt(_read(pins))


def _written(pins: Pins) -> wire.PinsSeen:
    return {"number": pins.number, "step": pins.step, "next_from": pins.next_from}


def _read(pins: wire.PinsSeen) -> Pins:
    return Pins(pins["number"], pins["step"], pins["next_from"])
