"""What chaos needs of any cluster: two jobs under way, two workers that serve them, and what comes back.

How a pod or a node is hit is another matter on each cluster: `on_machine.py`, `on_kubernetes.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent.processes import proc
from everstep.core import names
from tests.chaos.evidence import BUDGET_NAME, Injection
from tests.chaos.plan import JOBS, Event
from tests.support.at_work import submit
from tests.support.devserver import DevServer
from tests.support.machine import EXAMPLES
from tests.support.patience import HUNG_S
from tests.support.rehearsal import report_of
from tests.support.wire import Wire
from tests.support.workerproc import WorkerProcess

RANKS = 2
STEP_S = 0.1
EVERY = 10
HANG_S = 8.0
LOOK_S = 0.05
PUT_BACK_S = 120.0
"""Longest time until all is back, with workers that begin one after the other."""
LINE_BYTES = 256  # as the trainer writes them
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
    forgets: bool = False  # histories of a while are lost


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
        line = json.dumps({"what": "spoiled", "at": time.time(), "step": step})
        with self.journal.open("a") as journal:
            journal.write(line.ljust(LINE_BYTES - 1) + "\n")


def document(
    name: str, folder: Folder, *, inside: str, python: str, **spec: object
) -> dict[str, Any]:
    """A job of two pods that trains until its file `finish` says where to end.

    `inside` is its folder as its ranks see it; `spec` is what the cluster needs besides.
    """
    folder.path.mkdir(exist_ok=True)
    for script in (EXAMPLES / "synthetic" / "train.py", Path(__file__).with_name("trainer.py")):
        shutil.copy(script, folder.path)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "command": [python, f"{inside}/trainer.py"],
            "nodes": RANKS,
            "model_dir": f"{inside}/out",
            "checkpoints": {"path": f"{inside}/out/ckpt"},
            "progress": {"log_pattern": r"^step (?P<step>\d+) loss"},
            "limits": {"hang_s": HANG_S},
            "recovery": {"no_progress_restarts": None, "budgets": {BUDGET_NAME: BUDGET}},
            "env": {
                "CHECKPOINTS": f"{inside}/out/ckpt",
                "CHECKPOINT_EVERY": str(EVERY),
                "STEP_S": str(STEP_S),
                "JOURNAL": f"{inside}/journal.jsonl",
                "FINISH": f"{inside}/finish",
            },
            **spec,
        },
    }


@dataclass(slots=True, kw_only=True)
class Ground(ABC):
    """Two jobs under way, and what is being done to them."""

    server: DevServer
    client: Client
    folders: Mapping[str, Folder]
    workers: Sequence[WorkerProcess]
    wire: Wire  # between the second worker and the server
    before: Path | None = None  # the program of the version before
    injections: dict[str, list[Injection]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 1))
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @abstractmethod
    def document(self, job: str) -> dict[str, Any]:
        """The job, made ready for this cluster."""

    @abstractmethod
    async def heal(self) -> None:
        """Bring back what of the cluster itself is away or set apart."""

    @abstractmethod
    async def release(self) -> None:
        """Release every node that is isolated."""

    @abstractmethod
    async def left(self) -> list[str]:
        """What the cluster still has of its jobs, which have ended."""

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
        self.tasks.append(asyncio.create_task(work, name=what))

    def is_busy(self, what: str) -> bool:
        return any(task.get_name() == what and not task.done() for task in self.tasks)

    def raise_failures(self) -> None:
        """Raise what went wrong in the background: a mistake of the chaos itself."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def put_back(self, *, within_s: float = PUT_BACK_S) -> None:
        """End the chaos: everything that is away comes back, and commands under way arrive.

        A job that is stuck answers no command: after some time none is waited for.
        """
        self.is_over.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not all(task.done() for task in self.tasks):  # some begin others
                    await asyncio.gather(*self.tasks)
        self.raise_failures()
        await self.heal()

    # -- jobs ----------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Submit the jobs, and wait until each has saved for the first time."""
        for job in JOBS:
            await submit(self.client, self.document(job), job_id=job)
        async with asyncio.timeout(HUNG_S):
            while not all('"saved"' in folder.text() for folder in self.folders.values()):
                await asyncio.sleep(LOOK_S)

    def handle(self, job: str) -> WorkflowHandle[Any, dict[str, Any]]:
        return self.client.get_workflow_handle(job)

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
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():  # the SDK makes the same of both
                    raise

    async def start_again(self, job: str) -> None:
        await self.client.start_workflow(
            names.TRAINING_JOB,
            self.document(job),
            id=job,
            task_queue=names.TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )

    async def report(self, job: str, *, within_s: float = HUNG_S) -> dict[str, Any]:
        """The report of a job that ends; TimeoutError if it does not."""
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await self.handle(job).result()
                except WorkflowFailureError as error:
                    return report_of(error)
                except RPCError:
                    await asyncio.sleep(LOOK_S)


# -- Parts ------------------------------------------------------------------------------------------


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def send(pids: Sequence[int], number: signal.Signals) -> list[int]:
    """Those that were there to get it."""
    hit = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            hit.append(pid)
    return hit


def awake(pids: Sequence[int]) -> list[int]:
    """Those that no other event has stopped: it would continue them, or they would stay stopped."""
    processes = [proc.find(pid) for pid in pids]
    return [one.pid for one in processes if one is not None and not one.is_stopped]


def new_id(event: Event) -> str:
    return f"{event.number}-{uuid.uuid4().hex[:6]}"


def spoilable(folder: Folder) -> Iterator[Path]:
    """Checkpoints, the newest first, without the oldest: a job needs one that is whole."""
    paths = sorted(folder.checkpoints.glob("step-*.json"), key=step_of, reverse=True)
    return iter(paths[:-1])


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
