"""Chaos on this machine: real agents and ranks, and what can be done to each of them and to their nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from everstep.agent.processes import proc
from everstep.agent.processes.members import WARDEN
from everstep.agent.storage import fence
from everstep.core import names
from tests.chaos.ground import Folder, Ground, document
from tests.chaos.plan import JOBS, Event
from tests.support import books
from tests.support.rehearsal import Pod, Rehearsal
from tests.support.wire import Wire
from tests.support.workerproc import AGENTS_PYTHON, WorkerProcess
from tests.support.world import HAS_COMPILER, Worlds
from tests.testbed.disk import Disk, mounted

NODES = 8
OTHER_WORKER = "other-worker"
HAS_DISKS = os.geteuid() == 0
"""Whether each job has a disk of its own for what it saves: root alone may mount one."""


@dataclass(slots=True, kw_only=True)
class OnMachine(Ground):
    """Two jobs on the local backend, with a state directory of their own."""

    r: Rehearsal
    disks: Mapping[str, Disk]  # none without root
    worlds: Worlds | None  # of nodes, jobs and the other worker; None without a compiler

    def document(self, job: str) -> dict[str, Any]:
        folder = self.folders[job]
        made = document(job, folder, inside=str(folder.path), python=sys.executable)
        if self.worlds is not None:
            made["spec"]["env"] |= self.worlds.variables(job)
        return made

    async def heal(self) -> None:
        for node in self.r.books().nodes.values():
            if node.is_down:
                await self.r.fault(f"node-up {node.name}")
        await self.release()

    async def release(self) -> None:
        quarantine = self.client.get_workflow_handle(names.quarantine_id("local"))
        for node in self.r.books().isolated:
            with suppress(RPCError, WorkflowUpdateFailedError):
                await quarantine.execute_update("release", {"node": node})

    async def left(self) -> list[str]:
        """Processes, files, sockets, reservations, claims and fences."""
        folders = [folder.path for folder in self.folders.values()]
        claims = [f"the claim of {job} on {path}" for job, path in books.claims(self.r.home)]
        fences = held_fences(self.folders.values())
        return [*await self.r.is_clean(*folders), *processes_of(folders), *claims, *fences]

    # -- pods ----------------------------------------------------------------------------------------

    def pods(self, event: Event) -> list[Pod]:
        """The pods of the event's job, beginning with its victim."""
        pods = sorted(self.r.pods(event.job), key=lambda pod: pod.slot)
        first = int(event.share * len(pods))
        return [*pods[first:], *pods[:first]]

    def jobs_on(self, node: str) -> tuple[str, ...]:
        return tuple(j for j in self.folders if any(pod.node == node for pod in self.r.pods(j)))

    def first_pids(
        self, event: Event, of: Callable[[Pod], Sequence[int]]
    ) -> tuple[Pod, list[int]] | None:
        """The first of the job's pods that has such processes, and these."""
        with_pids = ((pod, list(of(pod))) for pod in self.pods(event))
        return next(((pod, pids) for pod, pids in with_pids if pids), None)


@asynccontextmanager
async def begun(folder: Path) -> AsyncIterator[OnMachine]:
    """Two jobs that have saved for the first time. Nothing of it runs any more when it is left."""
    with ExitStack() as stack:
        disks = {job: stack.enter_context(disk_of(folder / job)) for job in JOBS if HAS_DISKS}
        async with on_disks(folder, disks) as ground:
            yield ground


@contextmanager
def disk_of(folder: Path) -> Iterator[Disk]:
    """The folder `out` of a job as a disk of its own."""
    folder.mkdir()
    with mounted(folder, "out") as disk:
        yield disk


@asynccontextmanager
async def on_disks(folder: Path, disks: Mapping[str, Disk]) -> AsyncIterator[OnMachine]:
    names_of_worlds = (*(f"n{number}" for number in range(NODES)), *JOBS, OTHER_WORKER)
    worlds = Worlds.new(folder / "worlds", names_of_worlds) if HAS_COMPILER else None
    env = {} if worlds is None else {AGENTS_PYTHON: worlds.python()}
    async with Rehearsal(folder / "r", nodes=NODES, env=env) as r, Wire(r.server.port) as wire:
        other_worker = WorkerProcess(
            address=f"127.0.0.1:{wire.port}",
            namespace="default",
            home=r.home,
            backend="local",
            env={
                "EVERSTEP_NODES": str(NODES),
                **env,
                **({} if worlds is None else worlds.variables(OTHER_WORKER)),
            },
        )
        other_worker.log = folder / "other-worker.log"
        async with other_worker:
            ground = OnMachine(
                server=r.server,
                client=r.client,
                folders={job: Folder(path=folder / job) for job in JOBS},
                workers=(r.worker, other_worker),
                wire=wire,
                r=r,
                disks=disks,
                worlds=worlds,
            )
            await ground.begin()
            yield ground
        assert other_worker.stuck_tasks() == []


def held_fences(folders: Iterable[Folder]) -> list[str]:
    return [
        f"the fence {name} of {folder.path}"
        for folder in folders
        for name, word in fence.read(str(folder.path / "out")).items()
        if word.is_held
    ]


def processes_of(folders: Sequence[Path]) -> list[str]:
    """Processes that name one of these folders in their environment, as every rank does."""
    marks = [str(folder).encode() for folder in folders]
    pids = [
        int(entry.name) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid()
    ]
    environments = ((pid, proc.environment(pid) or b"") for pid in pids)
    return [f"process {pid}" for pid, text in environments if any(mark in text for mark in marks)]


# -- Signals ----------------------------------------------------------------------------------------


def ranks(pod: Pod) -> list[int]:
    return pod.ranks()


def agents(pod: Pod) -> list[int]:
    agent = pod.agent()
    return [] if agent is None else [agent]


def wardens(pod: Pod) -> list[int]:
    return [pid for pid in whole_pod(pod) if WARDEN in proc.command_line(pid)]


def whole_pod(pod: Pod) -> list[int]:
    agent = pod.agent()
    return [] if agent is None else [agent, *proc.below(agent, proc.all_processes())]
