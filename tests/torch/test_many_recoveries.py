"""A hundred recoveries in a row: no process that lives through them grows.

Only so many in one life of these processes show what each one leaves behind: connections,
threads, groups, entries.
"""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

import pytest
import yaml

from everstep.agent.processes import proc
from tests.support.machine import Machine
from tests.torch.test_survivors import SCRIPT, document, processes

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(1200)]

RECOVERIES, STEPS_BETWEEN = 100, 12
SAMPLE_S = 0.25
GROWTH_MOST = {"rank": 4e6, "agent": 4e6, "run": 4e6, "worker": 20e6}
"""Bytes that a process may have more at the end than after a fifth of the recoveries, once caches are full.

A worker remembers the run of a job until that goes on as a new run.
"""


class Sampled:
    """The resident memory of each process of a machine, as long as the block runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._sizes: defaultdict[int, list[int]] = defaultdict(list)
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def growth(self) -> dict[str, list[int]]:
        """By how many bytes each process grew that was there nearly all the time, by what it is."""
        longest = max(map(len, self._sizes.values()))
        growth = defaultdict(list)
        for pid, sizes in self._sizes.items():
            if len(sizes) > 0.9 * longest:
                growth[self._names[pid]].append(_grown(sizes))
        return growth

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            for pid in self._machine.processes():
                if size := proc.rss_bytes(pid):
                    self._sizes[pid].append(size)
                    self._names.setdefault(pid, _name(pid))


def _name(pid: int) -> str:
    """What the process is, by its command line."""
    words = b" ".join(proc.command_line(pid)).decode(errors="replace")
    marks = {SCRIPT.name: "rank", "-m worker": "worker", "start-dev": "server", " run ": "run"}
    return next((name for mark, name in marks.items() if mark in words), "agent")


def _grown(sizes: list[int]) -> int:
    """From the first fifth to the last tenth, by medians: a start loads, an end unloads."""
    fifth, tenth = len(sizes) // 5, max(len(sizes) // 10, 1)
    settled = sizes[fifth : fifth + tenth]
    return int(statistics.median(sizes[-2 * tenth : -tenth]) - statistics.median(settled))


def test_what_lives_through_a_hundred_recoveries_does_not_grow(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    faults = ",".join(f"forward:1:{n * STEPS_BETWEEN}" for n in range(1, RECOVERIES + 1))
    body = document(folder, faults, processes_per_node=2)
    body["spec"]["env"] |= {"STEPS": str((RECOVERIES + 2) * STEPS_BETWEEN), "STEP_S": "0.02"}
    job = folder.with_suffix(".yaml")
    job.write_text(yaml.safe_dump(body))
    with machine.running("run", str(job)) as running, Sampled(machine) as sampled:
        output, _ = running.communicate(timeout=1000)
    assert running.returncode == 0, output
    assert processes(folder) == [1, RECOVERIES + 1]
    growth = sampled.growth()
    assert {name for name in GROWTH_MOST if not growth[name]} == set(), growth
    too_much = {name for name, most in GROWTH_MOST.items() if max(growth[name]) > most}
    assert not too_much, growth
