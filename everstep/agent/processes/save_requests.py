"""Have the ranks of a run save now: the document's signal, once for each request, and what came of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from everstep.agent import clock
from everstep.agent.agent import Agent, Stale
from everstep.agent.processes import proc
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.run import Run
from everstep.protocol import wire

JOIN_S = 60.0
"""A request joins an earlier one that is not older and has no checkpoint yet: two signals are two saves."""
REQUESTS_KEPT = 100


class SaveRequest:
    """A signal that was sent to the ranks of a run, and what was saved before."""

    def __init__(self, run: Run, signal_name: str) -> None:
        self.at = clock.now()
        self.sent_at = time.monotonic()
        self.signalled: list[int] = []
        self.deaf: list[int] = []
        self.run = run
        self._before = run.checkpoint
        number = signal.Signals[signal_name]
        table = proc.all_processes()
        for rank in run.going_on:
            targets = _handling(rank, number, table)
            (self.signalled if targets else self.deaf).append(rank.number)
            for process in targets:
                proc.send(process, number)

    @property
    def saved(self) -> wire.SavedState | None:
        """The newest checkpoint, if it came after the signal."""
        newest, before = self.run.checkpoint, self._before
        return None if newest is None or newest == before else newest

    @property
    def is_open(self) -> bool:
        return self.saved is None and time.monotonic() - self.sent_at < JOIN_S

    def answer(self) -> wire.SaveAnswer:
        return {"at": self.at, "signalled": self.signalled, "deaf": self.deaf, "saved": self.saved}


class SaveRequests:
    """The requests to an agent, by their ID. A repeated one sends no second signal."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._by_id: dict[str, SaveRequest] = {}

    def ask(self, command: wire.SaveCommand) -> wire.SaveAnswer:
        """Send the signal unless this request, or one that is open, did. Raises Stale for another run."""
        run = self._agent.run
        if run is None or run.generation != command["generation"] or run.started_at is None:
            raise Stale(f"generation {command['generation']} does not run here")
        request = self._by_id.get(command["request"])
        if request is None or request.run is not run:
            request = self._open_request(run) or SaveRequest(run, command["signal"])
            if request.signalled:  # else a later try may find ranks that have a handler by then
                newest = list(self._by_id.items())[-REQUESTS_KEPT:]
                self._by_id = {**dict(newest), command["request"]: request}
        return request.answer()

    def _open_request(self, run: Run) -> SaveRequest | None:
        requests = (r for r in self._by_id.values() if r.run is run and r.is_open)
        return next(requests, None)


def _handling(rank: Rank, number: int, table: dict[int, proc.Process]) -> list[proc.Process]:
    """The processes that save for this rank: it, or those below it that are the first to have a handler.

    A rank may be a shell or a launcher. Processes that a trainer has forked have its handler too, and are
    left alone. Without a handler the signal would end a process.
    """
    handling, level = [], [rank.pid]
    while level:
        savers = [pid for pid in level if pid in table and proc.has_handler(pid, number)]
        handling += [table[pid] for pid in savers]
        level = _children(set(level).difference(savers), table.values())
    return handling


def _children(parents: set[int], processes: Iterable[proc.Process]) -> list[int]:
    return [process.pid for process in processes if process.parent in parents]
