"""Plays a case on this machine: its nodes, its books and the faults of `everstep fault`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from temporalio.client import Client

from everstep.backends.local.database import placing
from everstep.backends.local.faults import rehearse
from everstep.backends.local.settings import LocalSettings
from tests.cases.case import Case
from tests.cases.on_fake import JOB, document
from tests.cases.on_processes import WITNESS, OnProcesses
from tests.cases.results import CaseResult
from tests.support import books
from tests.support.devserver import DevServer
from tests.support.machine import Machine
from tests.support.playing.doors import held
from tests.support.workerproc import WorkerProcess

HEAL_S = 0.1


class OnMachine(OnProcesses):
    """One state directory."""

    def __init__(self, server: DevServer, client: Client, home: Path, case: Case) -> None:
        super().__init__(server, client, home, case)
        self.machine = Machine.at(home)
        self.worker = WorkerProcess(
            address=server.address,
            namespace=client.namespace,
            home=home,
            backend="local",
            env={
                "EVERSTEP_NODES": str(case.nodes),
                "EVERSTEP_TIME_SCALE": str(case.time_scale),
                "EVERSTEP_JANITOR": "false",
            },
        )

    async def play(self, *, kills_worker: bool) -> CaseResult:
        try:
            return await super().play(kills_worker=kills_worker)
        finally:
            self.machine.end()

    async def _prepare(self) -> None:
        for line in (*self._heals(), *self.case.before):
            await rehearse(self.home, line)

    def _heals(self) -> list[str]:
        broken = {tuple(d.what.split()[1:3]) for d in self.case.deeds if d.what[:7] == "device "}
        return [f"heal-takes {node} {index} {HEAL_S}s" for node, index in sorted(broken)]

    def _document(self) -> dict[str, Any]:
        return document(
            self.case,
            command=shlex.join([sys.executable, "-I", "-S", str(WITNESS)]),
            variables={"CONTROL": str(self.control), "CHECKPOINTS": str(self.checkpoints)},
            folder=str(self.checkpoints),
        )

    async def _fault(self, line: str) -> None:
        await rehearse(self.home, line)

    async def _has_checked(self) -> bool:
        return any(job.checks for job in books.read(self.home).jobs.values())

    async def _newest(self) -> int:
        return books.read(self.home).job(JOB).newest

    async def _isolated(self) -> tuple[str, ...]:
        return books.read(self.home).isolated

    async def _no_agent_begins(self, generation: int) -> AsyncIterator[None]:
        """The first pod's does not: the restart is not over without it."""
        name = f"{placing.pod_name(JOB, 0, generation)}-{books.read(self.home).cluster}"
        door = held(LocalSettings(home=self.home).folder(name).path)
        try:
            yield
        finally:
            os.close(door)
