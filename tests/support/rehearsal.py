"""One machine in rehearsal: server and worker as processes of their own, killed and started at will.

State of a job is read from files and from the books, so that it is visible without a worker too. Faults are
done to real processes.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from everstep.backends.local.faults import rehearse
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.liveness import agent_of
from everstep.client.documents.documents import job_here
from everstep.protocol import wire
from tests.support import books
from tests.support.at_work import submit
from tests.support.books import BooksContent
from tests.support.devserver import DevServer
from tests.support.machine import STEPS, Machine, synthetic
from tests.support.marks import marked
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT, WorkerProcess

POLL_S = 0.01
AGENT = b"agent.pyz"

_STEP = re.compile(rb"^step (\d+) loss", re.MULTILINE)

Handle = WorkflowHandle[Any, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of the books, and what its agent wrote down last."""

    uid: str
    slot: int
    node: str
    folder: AgentFolder

    def state(self) -> Mapping[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.folder.path / "state.json").read_text())
        except (OSError, ValueError):
            return {"generation": 0, "stopped_below": 0, "run": None}
        return state

    def ranks(self) -> list[int]:
        """Processes that carry the pod's mark."""
        return marked(self.uid)

    def agent(self) -> int | None:
        agent = agent_of(self.folder.path)
        return None if agent is None else agent.pid


class Rehearsal:
    """Server, worker and a client of both; the books and the agents are in `home`."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 5,
        devices: int = 8,
        stock: bool = False,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,  # other settings of its workers
        settings: Mapping[str, str] | None = None,  # more of its server's
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cwd = cwd
        self._settings = settings or {}
        self.stock = stock  # a server with its own settings, not with ours
        self.folder = folder
        self.home = folder / "home"
        self.machine = Machine.at(self.home)
        self._env = {
            "EVERSTEP_NODES": str(nodes),
            "EVERSTEP_DEVICES": str(devices),
            **(env or {}),
        }

    async def __aenter__(self) -> Self:
        log = self.folder / "temporal.log"
        self.server = await DevServer.start(
            db_file=self.folder / "temporal.db",
            log=log,
            stock=self.stock,
            settings=self._settings,
        )
        self.worker = WorkerProcess(
            address=self.server.address,
            namespace="default",
            home=self.home,
            backend="local",
            env=self._env,
            cwd=self._cwd,
        )
        try:
            await self.worker.start()
            self.machine.env["TEMPORAL_ADDRESS"] = self.server.address
            self.client = await self.server.connect()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is None:
            assert self.worker.stuck_tasks() == []

    def _end(self) -> None:
        """Nothing of it runs any more, whatever the test did."""
        self.worker.kill9()
        self.server.stop()
        self.machine.end()

    # -- jobs ------------------------------------------------------------------------------------

    async def submit(
        self, document: Path | Mapping[str, Any], *, job_id: str | None = None
    ) -> Handle:
        """The job in this file, as `everstep submit` starts it."""
        body = job_here(str(document)).document if isinstance(document, Path) else document
        return await submit(self.client, body, job_id=job_id)

    async def report(self, job: Handle, *, within_s: float = HUNG_S) -> dict[str, Any]:
        """The job's report once it has ended, well or not; the server may be away meanwhile."""
        try:
            async with asyncio.timeout(within_s):
                return await self._report(job)
        except TimeoutError:
            where = {g: self.step(generation=g, job=job.id) for g in range(1, 5)}
            raise AssertionError(f"{job.id} did not end: steps {where}; {self.summary()}") from None

    async def _report(self, job: Handle) -> dict[str, Any]:
        while True:
            try:
                return await job.result()
            except WorkflowFailureError as error:
                return report_of(error)
            except RPCError:
                await asyncio.sleep(POLL_S)

    async def fault(self, line: str) -> None:
        await rehearse(self.home, line)

    # -- looking ---------------------------------------------------------------------------------

    async def until(
        self, holds: Callable[[], object], what: str, *, within_s: float = HUNG_S
    ) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come true; {self.summary()}"
            await asyncio.sleep(POLL_S)

    def summary(self) -> str:
        """What may help to understand a failure."""
        return f"{self.books()}; the worker printed: {self.worker.output()[-3000:]}"

    def books(self) -> BooksContent:
        return books.read(self.home)

    def newest(self, job: str) -> int:
        """The newest generation that was given out."""
        return self.books().job(job).newest

    def pods(self, job: str) -> list[Pod]:
        """Those that count as the job's."""
        return [
            Pod(
                uid=pod.uid,
                slot=pod.slot,
                node=pod.node,
                folder=AgentFolder(path=self.home / "agents" / pod.uid),
            )
            for pod in self.books().pods
            if pod.job == job and not pod.is_leaving
        ]

    def logs(self, *, generation: int, job: str = "") -> Iterator[Path]:
        """The logs of this generation's ranks; of one job, where there are several."""
        return self.home.glob(f"agents/{job}*/{wire.LOGS}/g{generation}-r*.log")

    def step(self, *, generation: int, job: str = "") -> int:
        """The newest step that any rank of this generation printed."""
        steps = [
            _STEP.findall(path.read_bytes()) for path in self.logs(generation=generation, job=job)
        ]
        return max((int(each[-1]) for each in steps if each), default=0)

    # -- what must not be left -------------------------------------------------------------------

    def agents(self) -> list[int]:
        """Agents and wardens that live."""
        pids = []
        for pid in self.machine.processes():
            with suppress(OSError):
                if AGENT in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pids.append(pid)
        return pids

    def left_behind(self, *folders: Path) -> list[str]:
        """Reservations, sockets and unfinished files, here and in the folders of the jobs."""
        content = self.books()
        devices = [device for node in content.nodes.values() for device in node.devices]
        healing = [device for device in devices if device.heals_at is not None]
        reserved = [str(entry) for entry in (*content.pods, *content.queue, *healing)]
        patterns = ("*.tmp", "*.part", "*.new", "token*", wire.SOCKET)
        files = [
            str(path)
            for folder in (self.home, *folders)
            for pattern in patterns
            for path in folder.rglob(pattern)
        ]
        return reserved + files

    async def is_clean(self, *folders: Path) -> list[str]:
        """Nothing, if all of it is gone; the wardens may take a moment."""
        with suppress(AssertionError):
            await self.until(lambda: not self.agents(), "the end of the agents")
        return [f"process {pid}" for pid in self.agents()] + self.left_behind(*folders)


def report_of(error: WorkflowFailureError) -> dict[str, Any]:
    """What a job that failed carries with it."""
    details = getattr(error.cause, "details", ())
    assert details, f"it ended without a report: {error.cause}"
    return dict(details[0])


def small(
    folder: Path,
    name: str,
    *,
    nodes: int | Mapping[str, int] = 2,
    steps: int = STEPS,
    step_s: float = 0.1,
    **spec: Any,
) -> dict[str, Any]:
    """The synthetic example as a document: so large, under this name, with more of the spec."""
    document = job_here(str(synthetic(folder))).document
    env = {**document["spec"]["env"], "STEPS": str(steps), "STEP_S": str(step_s)}
    merged_spec = {
        **document["spec"],
        "nodes": nodes,
        **spec,
        "env": {**env, **spec.pop("env", {})},
    }
    return {**document, "metadata": {"name": name}, "spec": merged_spec}


def records(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The restarts of all phases, oldest first."""
    return [record for phase in report["phases"] for record in phase["restarts"]]


def gist(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Class, level and result of every restart."""
    return [(r["fault"]["class"], r["level"], r["recover_result"]) for r in records(report)]


def numbers_repeat(report: Mapping[str, Any]) -> bool:
    """Whether two records of a phase have the same number."""
    keys: Sequence[tuple[str, int]] = [(r["phase"], r["n"]) for r in records(report)]
    return len(set(keys)) < len(keys)
