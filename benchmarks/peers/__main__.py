"""One of two PyTorch ranks is killed or stopped: how long until the next step, beside other launchers.

The same script under each, two ranks on this machine, gloo. The time is from the signal to rank 0's next
first step, whatever happens in between; `start` is the part of it that the new rank 0 itself needs, from
its first line on, and `launcher` the rest of the same faults. `make bench-peers`; with the number of faults
for each row: `make bench-peers ARGS=20`.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.launchers import LAUNCHERS, PYTHON, Launcher
from benchmarks.run import machine

FAULTS = 10
SETTLED_S = 5.0
GIVEN_UP_S = 60.0
POLL_S = 0.01
KILLED_GOAL_S, STOPPED_GOAL_S = 0.3, 5.5


@dataclass(slots=True, kw_only=True)
class Row:
    """What became of one kind of fault under one launcher, in seconds."""

    launcher: str
    number: signal.Signals
    took: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    lost: int = 0  # not recovered
    wasted: int = 0  # further starts of rank 0 that came to nothing


class Events:
    """What the ranks told, in the order of time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self, event: str, rank: int, after: float = 0.0) -> list[tuple[float, int]]:
        if not self.path.exists():
            return []
        told = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [
            (line["at"], line["pid"])
            for line in told
            if (line["event"], line["rank"]) == (event, rank) and line["at"] > after
        ]

    def wait(self, event: str, rank: int, *, after: float, within_s: float) -> float | None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := self.all(event, rank, after):
                return found[0][0]
            time.sleep(POLL_S)
        return None


@contextmanager
def launched(launcher: Launcher, number: signal.Signals, folder: Path) -> Iterator[Events]:
    """Both ranks make steps."""
    events = Events(folder / "events")
    with launcher.run(folder, number):
        for rank in range(2):
            if events.wait("stepped", rank, after=0.0, within_s=4 * GIVEN_UP_S) is None:
                raise TimeoutError(f"{launcher.name} did not start; see {folder}")
        launcher.ready(folder)
        yield events
    for rank in range(2):
        for _, pid in events.all("begun", rank):
            if is_ours(pid):
                os.kill(pid, signal.SIGKILL)


def is_ours(pid: int) -> bool:
    """Whether it still is one of the ranks; numbers are given out again."""
    try:
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def measured(launcher: Launcher, number: signal.Signals, count: int) -> Row:
    row = Row(launcher=launcher.name, number=number)
    while len(row.took) + row.lost < count:
        with (
            tempfile.TemporaryDirectory(prefix="everstep-peers-") as name,
            launched(launcher, number, Path(name)) as events,
        ):
            while len(row.took) + row.lost < count and one_fault(row, events):
                pass
    return row


def one_fault(row: Row, events: Events) -> bool:
    """Whether it was recovered from."""
    time.sleep(SETTLED_S)
    _, victim = events.all("stepped", 1)[-1]
    at = time.time()
    os.kill(victim, row.number)
    stepped = events.wait("stepped", 0, after=at, within_s=GIVEN_UP_S)
    if stepped is None or events.wait("stepped", 1, after=at, within_s=GIVEN_UP_S) is None:
        row.lost += 1
        return False
    begun = events.all("begun", 0, after=at)
    row.took.append(stepped - at)
    row.starts.append(stepped - begun[-1][0])
    row.wasted += len(begun) - 1
    return True


def show(row: Row, best: float | None) -> None:
    if not row.took:
        print(f"  {row.launcher:26}{0:4}  never within {GIVEN_UP_S:g} s, tried {row.lost}")
        return
    middle, start = statistics.median(row.took), statistics.median(row.starts)
    launcher = statistics.median(
        took - of_it for took, of_it in zip(row.took, row.starts, strict=True)
    )
    ratio = f"{middle / best:8.1f}" if best else f"{'':8}"
    notes = [f"{row.lost} not within {GIVEN_UP_S:g} s"] if row.lost else []
    notes += [f"{row.wasted} starts wasted"] if row.wasted else []
    numbers = f"{middle:9.3f}{min(row.took):9.3f}{max(row.took):9.3f}{start:9.3f}{launcher:10.3f}"
    print(f"  {row.launcher:26}{len(row.took):4}{numbers}{ratio}  {', '.join(notes)}", flush=True)


def compared(title: str, number: signal.Signals, count: int, goal_s: float) -> None:
    print(f"\n{title}, s")
    heads = "".join(f"{head:>9}" for head in ("median", "min", "max", "start"))
    print(f"  {'':26}{'n':>4}{heads}{'launcher':>10}{'ratio':>8}", flush=True)
    ours: float | None = None
    for launcher in LAUNCHERS:
        row = measured(launcher, number, min(count, launcher.most[number]))
        if launcher is LAUNCHERS[0] and row.took:
            ours = statistics.median(row.took)
        show(row, ours)
    is_met = ours is not None and ours <= goal_s
    what = (
        f"goal: {LAUNCHERS[0].name}, median at most {goal_s:g} s, {'met' if is_met else 'missed'}"
    )
    print(f"  {what}; load at the end {os.getloadavg()[0]:.2f}", flush=True)


def main(told: list[str]) -> int:
    if not PYTHON.exists():
        print("there is no environment with the other launchers; try: make bench-peers")
        return 2
    count = int(told[0]) if told else FAULTS
    print(machine())
    compared("SIGKILL of rank 1 -> first new step", signal.SIGKILL, count, KILLED_GOAL_S)
    title = "SIGSTOP of rank 1, limit 5 s -> first new step"
    compared(title, signal.SIGSTOP, count, STOPPED_GOAL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
