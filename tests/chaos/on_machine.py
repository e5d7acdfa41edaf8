"""Chaos on this machine: a real server, worker, agents and ranks, and what can be done to each of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent.processes import proc
from everstep.agent.processes.members import WARDEN
from everstep.core import names
from tests.chaos.evidence import BUDGET_NAME, Injection
from tests.chaos.plan import JOBS, Event
from tests.support.machine import EXAMPLES
from tests.support.rehearsal import Pod, Rehearsal

RANKS = 2
NODES = 8
STEP_S = 0.1
EVERY = 10
HANG_S = 8.0
LOOK_S = 0.05
BUDGET = {
    "limit": 100_000,
    "levels": ["in_place", "suspension", "pod", "job", "rollback"],
    "owners": ["infra", "user", "operator", "unknown"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What an action met: in words, the jobs that it may cost a restart, and whether it must."""

    text: str
    jobs: tuple[str, ...] = ()
    must_restart: bool = False


Undo = Callable[[], Awaitable[object]]


@dataclass(slots=True, kw_only=True)
class Folder:
    """The files of one job."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "out" / "ckpt"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def finish(self) -> Path:
        return self.path / "finish"

    def text(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    def note_spoiled(self, step: int) -> None:
        """Into the journal of the ranks, so that it has its place in their order."""
        line = json.dumps({"what": "spoiled", "at": time.time(), "step": step}) + "\n"
        with self.journal.open("a") as journal:
            journal.write(line)


def document(name: str, folder: Folder) -> dict[str, Any]:
    """A job of two nodes that trains until its file `finish` says where to end."""
    for script in (EXAMPLES / "synthetic" / "train.py", Path(__file__).with_name("trainer.py")):
        folder.path.mkdir(exist_ok=True)
        shutil.copy(script, folder.path)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "command": [sys.executable, "trainer.py"],
            "workdir": str(folder.path),
            "nodes": RANKS,
            "model_dir": str(folder.path / "out"),
            "checkpoints": {"path": str(folder.checkpoints)},
            "progress": {"log_pattern": r"^step (?P<step>\d+) loss"},
            "limits": {"hang_s": HANG_S},
            "recovery": {"no_progress_restarts": None, "budgets": {BUDGET_NAME: BUDGET}},
            "env": {
                "CHECKPOINTS": str(folder.checkpoints),
                "CHECKPOINT_EVERY": str(EVERY),
                "STEP_S": str(STEP_S),
                "JOURNAL": str(folder.journal),
                "FINISH": str(folder.finish),
            },
        },
    }


@dataclass(slots=True)
class OnMachine:
    """Two jobs under way, and what is being done to them."""

    r: Rehearsal
    folders: Mapping[str, Folder]
    injections: dict[str, list[Injection]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 1))
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    # -- what comes back -----------------------------------------------------------------------------

    def for_a_while(self, what: str, seconds: float, undo: Undo) -> None:
        """Let what is away come back then, or as soon as all of it is over."""
        self.in_background(self._come_back(seconds, undo), what)

    async def _come_back(self, seconds: float, undo: Undo) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_over.wait(), seconds)
        await undo()

    def in_background(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do it beside the events to come; `what` is busy until it is done."""
        self._tasks.append(asyncio.create_task(work, name=what))

    def is_busy(self, what: str) -> bool:
        return any(task.get_name() == what and not task.done() for task in self._tasks)

    def raise_failures(self) -> None:
        """Raise what went wrong in the background: a mistake of the chaos itself."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def put_back(self) -> None:
        """End the chaos: everything that is away comes back, and commands under way arrive."""
        self.is_over.set()
        while not all(task.done() for task in self._tasks):
            await asyncio.gather(*self._tasks)
        self.raise_failures()
        for node in self.r.books().nodes.values():
            if node.is_down:
                await self.r.fault(f"node-up {node.name}")
        await self.release_all()

    # -- the parts of it -----------------------------------------------------------------------------

    def handle(self, job: str) -> WorkflowHandle[Any, dict[str, Any]]:
        return self.r.client.get_workflow_handle(job)

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

    async def command(self, job: str, name: str, args: Mapping[str, object], *, id: str) -> object:  # noqa: A002  # its name in the API
        """Send an update until it is answered; a server or a worker may be away meanwhile."""
        while True:
            try:
                return await self.handle(job).execute_update(name, {**args, "id": id}, id=id)
            except RPCError as error:
                # A job that was stopped takes it once it runs again.
                if self.is_over.is_set() and error.status is RPCStatusCode.NOT_FOUND:
                    return None
                await asyncio.sleep(LOOK_S)

    async def release_all(self) -> None:
        quarantine = self.r.client.get_workflow_handle(names.quarantine_id("local"))
        for node in self.r.books().isolated:
            with suppress(RPCError, WorkflowUpdateFailedError):
                await quarantine.execute_update("release", {"node": node})

    async def start_again(self, job: str) -> None:
        await self.r.client.start_workflow(
            names.TRAINING_JOB,
            document(job, self.folders[job]),
            id=job,
            task_queue=names.TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )


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


def send(pids: Sequence[int], number: signal.Signals) -> list[int]:
    """Those that were there to get it."""
    hit = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            hit.append(pid)
    return hit


def new_id(event: Event) -> str:
    return f"{event.number}-{uuid.uuid4().hex[:6]}"


def spoilable(folder: Folder) -> Iterator[Path]:
    """Checkpoints, the newest first, without the oldest: a job needs one that is whole."""
    paths = sorted(folder.checkpoints.glob("step-*.json"), key=step_of, reverse=True)
    return iter(paths[:-1])


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
