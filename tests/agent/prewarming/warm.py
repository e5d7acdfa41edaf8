"""A pod whose ranks are forked from a prewarm helper."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from everstep.agent.processes import proc
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod

MODULES = ["decimal", "multiprocessing.process"]


class Warm:
    """A pod whose runs all have the same command and request prewarm."""

    def __init__(self, pod: Pod, *command: str, modules: Sequence[str] = MODULES) -> None:
        self.pod = pod
        self.command = [sys.executable, *(command or ("train.py",))]
        self.modules = list(modules)
        self.generation = 0
        self.write(FOREVER)

    def write(self, text: str, name: str = "train.py") -> None:
        (self.pod.home / name).write_text(textwrap.dedent(text))

    def start(self, **more: Any) -> wire.AgentState:
        """The next generation, started."""
        self.generation += 1
        options: dict[str, Any] = {"prewarm": self.modules, "generation": self.generation, **more}
        self.pod.run(self.command, **options)
        return self.pod.until(lambda s: started(s) == self.generation)

    def ready(self) -> wire.HelperSeen:
        helper = self.pod.until(lambda s: s["helper"] and s["helper"]["ready"])["helper"]
        assert helper is not None
        return helper

    def standing_by(self, count: int = 1) -> list[int]:
        """The pids of forks that wait for the next start, once there are so many."""

        def are_there(state: wire.AgentState) -> bool:
            return state["helper"] is not None and state["helper"]["standing_by"] == count

        self.pod.until(are_there)
        return self.idle()[1:]

    def idle(self) -> list[int]:
        """The helper, and what stands by."""
        helper = self.ready()["pid"]
        running = {rank["pid"] for rank in ranks(self.pod.state())}
        return [helper, *(pid for pid in self.pod.marked() if pid not in {helper, *running})]

    def forked(self, text: str = FOREVER, **more: Any) -> list[int]:
        """The pids of ranks that run this script as forks."""
        if not self.generation:
            self.start()
        self.ready()
        self.write(text)
        state = self.start(**more)
        assert is_prewarmed(state), state["notes"]
        assert state["run"] is not None
        return [rank["pid"] for rank in state["run"]["ranks"]]

    def ended(self) -> wire.AgentState:
        return self.pod.until(lambda s: s["run"] and all(r["exited_at"] for r in s["run"]["ranks"]))

    def log(self) -> str:
        return self.pod.log(generation=self.generation)


def started(state: wire.AgentState) -> int | None:
    run = state["run"]
    return run["generation"] if run is not None and run["started_at"] else None


def ranks(state: wire.AgentState) -> list[wire.RankSeen]:
    return state["run"]["ranks"] if state["run"] is not None else []


def is_prewarmed(state: wire.AgentState) -> bool | None:
    return state["run"]["prewarmed"] if state["run"] is not None else None


def is_stopped(pid: int) -> bool:
    process = proc.find(pid)
    return process is not None and process.is_stopped
