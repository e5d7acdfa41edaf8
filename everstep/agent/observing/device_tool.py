"""Runs the vendor's tool for its devices now and then, and never waits for it.

There is one process at a time, in a thread of its own. A tool that takes too long is killed. One that cannot
be killed (its driver may be stuck) is not started a second time; the use of its devices is unknown meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection, Mapping

from everstep.agent.agent import Agent
from everstep.agent.observing import tool_output
from everstep.agent.observing.hardware import KINDS, find
from everstep.agent.processes.tool import ask

ANSWER_S = 5.0

NVIDIA = (
    "--query-gpu=index,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)


def of(agent: Agent, accelerator: str) -> Tool | None:
    """The tool for these devices; None for those that have none."""
    return Tool(agent, accelerator) if accelerator in KINDS else None


class Tool:
    """The tool of one kind of devices."""

    def __init__(self, agent: Agent, accelerator: str) -> None:
        self._spared = agent.population.spared
        self._accelerator = accelerator
        # By device, as the newest run of the tool printed them.
        self.percents: Mapping[int, float] = {}
        self.memory: Mapping[int, tool_output.Memory] = {}
        self.runs = 0  # number of runs of the tool that have ended, failed ones included
        self._requested_at = self._began = self._answered = -math.inf
        self._is_busy = False

    def sample(self, indices: Collection[int], *, every_s: float) -> None:
        """Run the tool again if it is due."""
        now = time.monotonic()
        if self._is_busy:
            if now - self._began > ANSWER_S and now - self._answered >= every_s:
                self._store({}, {})  # it does not even end when it is killed
        elif now - self._requested_at >= every_s:
            self._requested_at = self._began = now
            self._is_busy = True
            threading.Thread(target=self._work, args=(frozenset(indices),), daemon=True).start()

    def _work(self, indices: frozenset[int]) -> None:
        percents: dict[int, float] = {}
        memory: dict[int, tool_output.Memory] = {}
        # Values that were read before an error count.
        with contextlib.suppress(OSError):
            if self._accelerator == "nvidia":
                text = self._printed(*NVIDIA)
                percents.update(tool_output.nvidia(text))
                memory.update(tool_output.nvidia_memory(text))
            else:
                text = self._printed("info")
                percents.update(tool_output.npu_table(text))
                memory.update(tool_output.npu_memory(text))
                for index in sorted(indices - percents.keys()):  # those that the table lacks
                    text = self._printed("info", "-t", "usages", "-i", str(index))
                    percents.update(tool_output.npu_usages(text, index))
        self._store(percents, memory)
        self._is_busy = False

    def _store(
        self, percents: Mapping[int, float], memory: Mapping[int, tool_output.Memory]
    ) -> None:
        self.percents, self.memory = percents, memory
        self._answered = time.monotonic()
        self.runs += 1

    def _printed(self, *words: str) -> str:
        """Run the tool and return its output. Raises OSError."""
        program = find(KINDS[self._accelerator].tool)
        if program is None:
            raise FileNotFoundError
        self._began = time.monotonic()
        # No process of the run: its I/O is no sign of life, and a stop does not wait for its end.
        return ask((program, *words), within_s=ANSWER_S, running=self._spared).stdout
