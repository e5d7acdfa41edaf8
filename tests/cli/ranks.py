"""Logs of the ranks of a job `demo`, in folders as agents leave them."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from everstep.agent.observing import log_times
from everstep.backends.local import logs as local_logs


class Ranks:
    """What ranks of a job printed, each line a second after the one before."""

    def __init__(self, home: Path) -> None:
        self._agents = home / "agents"
        self._seconds = count(1_800_000_000)

    def print(self, generation: int, rank: int, text: str) -> None:
        folder = self._agents / f"pod-{rank}"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        local_logs.label(folder, job="demo", slot=rank)
        path = folder / "logs" / f"g{generation}-r{rank}.log"
        size = path.stat().st_size if path.exists() else 0
        marks = log_times.times_beside(path).read_bytes() if size else b""
        log_times.TimeStamps(path, clock=lambda: next(self._seconds)).add(size)
        log_times.times_beside(path).write_bytes(marks + log_times.times_beside(path).read_bytes())
        with path.open("ab") as file:
            file.write(text.encode())
