"""Plays a case with real processes: the `temporal` command line, a real worker, agents and ranks.

A deed is done once every script of its start has reported that it runs. With `kills_worker` the worker is
killed in the middle of the case and another one is started. Subclasses decide where the ranks run.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from everstep.core.seeing.hang import FLOOR_S
from everstep.core.spec import CHECKS_NUMBERS
from everstep.dialects import job_memo
from tests.cases.case import Case, Deed
from tests.cases.on_fake import JOB, names
from tests.cases.results import CaseResult, Start, directories
from tests.support.devserver import START, DevServer, temporal
from tests.support.patience import HUNG_S
from tests.support.scene import NO_ANSWER_YET
from tests.support.workerproc import WorkerProcess

POLL_S = 0.02
DAY_S = 86_400.0
HALF_AN_HOUR_S = 1_800.0
WITNESS = Path(__file__).with_name("witness.py")


async def _holds(claim: Callable[[], Awaitable[bool]]) -> bool:
    """Whether the claim is true; False where the job does not answer yet."""
    try:
        return await claim()
    except RPCError as error:
        if error.status not in NO_ANSWER_YET:
            raise
        return False


class OnProcesses(ABC):
    """One case, one folder for its script and its checkpoints, one namespace, one worker at a time."""

    worker: WorkerProcess

    def __init__(self, server: DevServer, client: Client, home: Path, case: Case) -> None:
        self.server, self.client, self.home, self.case = server, client, home, case
        self.control = home / "control"
        self.checkpoints = home / "ckpt"
        self.prechecked = False
        self.kills_at = ""  # a step of the restart; empty: before any agent of its new pods begins

    # -- where the ranks run ---------------------------------------------------------------------

    @abstractmethod
    async def _prepare(self) -> None:
        """What is there before the job."""

    @abstractmethod
    def _document(self) -> dict[str, Any]:
        """The case's document for this cluster."""

    @abstractmethod
    async def _fault(self, line: str) -> None:
        """Let something happen to a node, a device or a rank."""

    @abstractmethod
    async def _has_checked(self) -> bool:
        """Whether the answer of a check before a start is stored."""

    @abstractmethod
    async def _newest(self) -> int:
        """The newest generation of the job."""

    @abstractmethod
    async def _isolated(self) -> tuple[str, ...]:
        """The nodes that get no new pods, in the words of the case."""

    @abstractmethod
    def _no_agent_begins(self, generation: int) -> AsyncIterator[None]:
        """While this yields, no agent begins in a pod of this generation or a later one."""

    def _status(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """The job's status in the words of the case."""
        return status

    # -- playing ---------------------------------------------------------------------------------

    async def play(self, *, kills_worker: bool) -> CaseResult:
        self.control.mkdir(parents=True)
        async with self.worker:
            return await asyncio.wait_for(self._play(kills_worker), HUNG_S * 2)

    async def _play(self, kills_worker: bool) -> CaseResult:
        case = self.case
        await self._prepare()
        if case.stale is not None:
            self._leave(case.stale)
        await self._submit()
        job = self.client.get_workflow_handle(JOB)
        fatal = self._fatal() if kills_worker else None
        for number, deed in enumerate(case.deeds):
            await self._comes(job, number, deed)
            if number == fatal:
                await self._do_and_kill(number, deed)
            else:
                await self._do(deed)
        with suppress(WorkflowFailureError):  # a failed job; its report is in the memo
            await asyncio.wait_for(job.result(), HUNG_S)
        return await self._result(job)

    def _leave(self, step: int) -> None:
        """A checkpoint of another job."""
        self.checkpoints.mkdir(exist_ok=True)
        (self.checkpoints / f"step-{step}.json").write_text(json.dumps({"step": step}))

    async def _submit(self) -> None:
        """As README says it: the document in a file, one command."""
        file = self.home / "job.json"
        file.write_text(json.dumps(self._document()))
        place = ("--address", self.server.address, "--namespace", self.client.namespace)
        code, output = await temporal(
            *START, "--workflow-id", JOB, "--input-file", str(file), *place
        )
        assert code == 0, output

    # -- waiting ---------------------------------------------------------------------------------

    async def _until(self, claim: Callable[[], Awaitable[bool]], what: object) -> None:
        deadline = time.monotonic() + HUNG_S
        while not await _holds(claim):
            assert time.monotonic() < deadline, f"{what} never came; {self._log_text()}"
            await asyncio.sleep(POLL_S)

    def _log_text(self) -> str:
        return f"starts {self._starts()}; {self.worker.output()[-2000:]}"

    async def _comes(self, job: WorkflowHandle[Any, Any], number: int, deed: Deed) -> None:
        notes_before = sum(earlier.notes for earlier in self.case.deeds[:number])
        await self._until(lambda: self._is_noted(notes_before), f"note {notes_before}")
        if deed.records:
            await self._until(lambda: self._has_records(job, deed.records), deed)
        else:
            await self._until(lambda: self._runs(job, deed.start), deed)
        self.prechecked |= await self._has_checked()

    async def _is_noted(self, count: int) -> bool:
        return sum(" noted: " in line for line in self._log()) >= count

    def _log(self) -> list[str]:
        logs = sorted(self.home.glob("**/*_restartable/run.log"))
        return [line for log in logs for line in log.read_text().splitlines()]

    async def _has_records(self, job: WorkflowHandle[Any, Any], count: int) -> bool:
        records = await job.query("restarts")
        return len(records) >= count and records[-1]["recover_result"] == "recovering"

    async def _runs(self, job: WorkflowHandle[Any, Any], start: int) -> bool:
        """Whether every living slot is in this start; the first slot is in all of them."""
        starts = self._starts()
        if len(starts.get(0, ())) < start:
            return False
        status: Mapping[str, Any] = await job.query("status")
        living = [pod["slot"] for pod in status["pods"] if pod["state"] != "absent"]
        newest = {starts[slot][-1].generation if starts.get(slot) else 0 for slot in living}
        return bool(status["state"] == "running" and newest == {status["generation"]})

    def _starts(self) -> dict[int, tuple[Start, ...]]:
        starts: dict[int, tuple[Start, ...]] = {}
        for path in sorted(self.control.glob("starts-*.jsonl")):
            lines = path.read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            starts[int(path.stem.partition("-")[2])] = tuple(map(_start, whole))
        return starts

    # -- doing -----------------------------------------------------------------------------------

    async def _do(self, deed: Deed) -> None:
        match deed.what.split():
            case ["exit", rank, *how]:
                generation = self._starts()[int(rank)][-1].generation
                self._tell(f"exit-{rank}-{generation}", " ".join(how))
            case ["still"]:
                self._tell(f"still-{self._starts()[0][-1].generation}", "")
            case ["validate"]:
                self._tell(f"validate-{self._starts()[0][-1].generation}", "")
                ends_at = time.monotonic() + 2.5 * FLOOR_S / self.case.time_scale
                await self._until(lambda: _is_over(ends_at), "the end of the validation")
            case ["log", exception]:
                self._tell(f"log-{self._starts()[0][-1].generation}", exception)
                await self._until(self._is_logged, deed)
            case ["end"]:
                self._tell(f"end-{self._generation()}", "")
            case ["save" | "saved" as how, step]:
                self._tell("save", step)
                await self._until(lambda: self._is_saved(step), deed)
                if how == "saved":
                    await self._until(lambda: self._is_known(int(step)), deed)
            case ["window"]:
                await self._until(self._is_a_day_later, "the end of the day")
            case ["long"]:
                ends_at = time.monotonic() + 2 * HALF_AN_HOUR_S / self.case.time_scale
                await self._until(lambda: _is_over(ends_at), "the end of a long time")
            case _:
                await self._fault(deed.what.replace("JOB", JOB))

    def _tell(self, name: str, text: str) -> None:
        fresh = self.control / f"{name}.tmp"
        fresh.write_text(text)
        fresh.replace(self.control / name)

    async def _is_logged(self) -> bool:
        return (self.control / "logged").exists()

    async def _is_saved(self, step: str) -> bool:
        return (self.checkpoints / f"step-{step}.json").exists()

    async def _is_known(self, step: int) -> bool:
        status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
        return bool(status["checkpoint_step"] == step)

    async def _is_a_day_later(self) -> bool:
        records = await self.client.get_workflow_handle(JOB).query("restarts")
        newest = datetime.fromisoformat(records[-1]["at"]).timestamp()
        return time.time() > newest + DAY_S / self.case.time_scale

    def _fatal(self) -> int:
        """The last deed that a restart follows; where none does, the last but one."""
        return max(leading_to_restarts(self.case), default=max(0, len(self.case.deeds) - 2))

    async def _do_and_kill(self, number: int, deed: Deed) -> None:
        """The worker dies in the middle of the restart that follows, if one does.

        The agent of a pod that is made for it begins only afterwards: the restart cannot be over before.
        """
        if self.kills_at:
            await self._do(deed)
            await self._until(self._has_begun_that_step, self.kills_at)
            await self.worker.restart()
            return
        following = self.case.deeds[number + 1 : number + 2]
        newest = self._generation()

        async def is_beyond() -> bool:
            return await self._newest() > newest

        async with asynccontextmanager(self._no_agent_begins)(newest + 1):
            await self._do(deed)
            if following and _leads_to(deed, following[0]):
                await self._until(is_beyond, "the next generation")
            self.worker.kill9()
            is_second = self.case.trainer is not None
            assert not is_second or self._generation() == newest, "nothing was left to be recovered"
        await self.worker.start()

    async def _has_begun_that_step(self) -> bool:
        async for row in self.client.list_workflows("WorkflowType = 'Recovery'"):
            history = await self.client.get_workflow_handle(row.id).fetch_history()
            begun = (e.activity_task_scheduled_event_attributes for e in history.events)
            if self.kills_at in {one.activity_type.name for one in begun}:
                return True
        return False

    def _generation(self) -> int:
        """The newest that some script was started in."""
        return max(each[-1].generation for each in self._starts().values())

    # -- afterwards ------------------------------------------------------------------------------

    async def _result(self, job: WorkflowHandle[Any, Any]) -> CaseResult:
        memo = await (await job.describe()).memo()
        self.prechecked |= await self._has_checked()
        return CaseResult(
            report=memo["report"],
            status=self._status(job_memo.read("status", memo["status"], memo["report"])),
            records=tuple(job_memo.restarts_of(memo["report"])),
            starts=self._starts(),
            isolated=await self._isolated(),
            prechecked=self.prechecked,
            modelarts_view=job_memo.read("modelarts", memo["modelarts"], memo["report"]),
            events=names(memo["report"]["events"]),
            log=tuple(self._log()),
            directories=directories(self.checkpoints),
        )


def leading_to_restarts(case: Case) -> list[int]:
    """Numbers of the deeds that a restart follows."""
    return [n for n, after in enumerate(case.deeds[1:]) if _leads_to(case.deeds[n], after)]


def has_several_restarts(case: Case) -> bool:
    return len(leading_to_restarts(case)) > 1


def _leads_to(deed: Deed, after: Deed) -> bool:
    """Whether a restart lies between them."""
    return after.start > deed.start and deed.what != "end"


async def _is_over(ends_at: float) -> bool:
    return time.monotonic() >= ends_at


def _start(line: Mapping[str, Any]) -> Start:
    env = line["env"]
    return Start(
        generation=line["generation"],
        schedule=int(env["MA_SCHEDULE_CNT"]),
        process=int(env["MA_PROC_START_CNT"]),
        pod=env["EVERSTEP_POD"],
        nodes=int(env["NNODES"]),
        resumed=int(env["EVERSTEP_RESUME_STEP"]) if "EVERSTEP_RESUME_STEP" in env else None,
        checks=env.get(CHECKS_NUMBERS),
        params=line["params"],
    )
