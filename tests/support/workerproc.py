"""A worker in a process of its own, so that a test can kill it like a lost machine would."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import workerforks
from tests.support.child import Child
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[2]
READY = "everstep worker ready"

COMMAND = (sys.executable, "-m", "worker")

AGENTS_PYTHON = workerforks.AGENTS_PYTHON
BEGIN = f"""
import os, runpy, sys
sys.executable = os.environ["{AGENTS_PYTHON}"]
runpy.run_module("worker", run_name="__main__", alter_sys=True)
"""
"""As `-m worker`, with another Python for agents."""

WEDGING = ("invalid argument", "ondeterminis")
"""The log line of a workflow task that fails at every attempt."""


class WorkerProcess:
    """`python -m worker` against a server and a fake cluster, both of which outlive it.

    `home` is its state directory; its log is `home/worker.log`, over all restarts.
    """

    def __init__(
        self,
        *,
        address: str,
        namespace: str,
        home: Path,
        fake_address: str | None = None,
        cluster: str = "local",
        backend: str = "fake",
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        self.cwd = cwd  # where the next process stands
        self.root = ROOT  # whose files it runs; of another version it stands there
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.command: Sequence[str] = COMMAND
        self._backend = backend
        self.log = home / "worker.log"
        self._env = {
            **_inherited(),
            "TEMPORAL_ADDRESS": address,
            "TEMPORAL_NAMESPACE": namespace,
            "EVERSTEP_BACKEND": backend,
            "EVERSTEP_CLUSTER": cluster,
            "EVERSTEP_HOME": str(home),
            **({"EVERSTEP_FAKE_ADDRESS": fake_address} if fake_address else {}),
            **(env or {}),
        }
        self.settings = {
            name: value
            for name, value in self._env.items()
            if name.startswith(("EVERSTEP_", "TEMPORAL_", "PYTHONUNBUFFERED"))
        }
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return None if self._child is None else self._child.returncode

    def output(self) -> str:
        """What the newest process has printed."""
        return "" if self._child is None else self._child.output()

    def stuck_tasks(self) -> list[str]:
        """The lines about workflow tasks that can never succeed: their job would stand still for ever."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if any(word in line for word in WEDGING)]

    async def start(self) -> Self:
        """Start it and return when it has reported that it is ready."""
        assert self.returncode is not None or self._child is None, "it runs already"
        # PYTHONPATH has the root, so that `-m worker` is found from any directory.
        env = {**self._env, "PYTHONPATH": str(self.root)}
        cwd = self.cwd if self.root == ROOT else self.root
        if self.command == COMMAND and cwd == ROOT and "LD_PRELOAD" not in env:
            self._child = await workerforks.forked(self._backend, log=self.log, env=env)
        else:
            words = [*self.command[:1], "-c", BEGIN] if AGENTS_PYTHON in env else self.command
            self._child = Child(words, name="worker", log=self.log, env=env, cwd=cwd)
        try:
            await self._child.until(self._is_ready, within_s=HUNG_S)
        except BaseException:
            self.kill9()
            raise
        return self

    def kill9(self) -> None:
        """SIGKILL: no goodbye to the server. Safe to repeat."""
        if self._child is not None:
            self._child.kill()

    async def terminate(self, *, within_s: float = HUNG_S) -> int:
        """SIGTERM, and its exit code once it has shut down in order."""
        assert self._child is not None
        self._child.send(signal.SIGTERM)
        return await self._child.ended(within_s=within_s)

    async def restart(self) -> Self:
        """A new process with the same settings; the old one is killed if it still lives."""
        self.kill9()
        return await self.start()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        self.kill9()

    async def _is_ready(self) -> bool:
        return READY in self.output().splitlines()


def _inherited() -> dict[str, str]:
    """Our environment without settings that would point the worker somewhere else."""
    foreign = ("TEMPORAL_", "EVERSTEP_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**variables, "PYTHONUNBUFFERED": "1", "TEMPORAL_CONFIG_FILE": os.devnull}
