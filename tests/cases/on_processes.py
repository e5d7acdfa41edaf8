"""Plays a case on this machine: the `temporal` command line, a real worker, agents and processes.

A deed is done once every script of the start it belongs to has written down that it runs. Asked to, it
kills the worker in the middle of the case and starts another.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from everstep.backends.local.database import placing
from everstep.backends.local.faults import rehearse
from everstep.backends.local.settings import LocalSettings
from everstep.core.seeing.hang import FLOOR_S
from everstep.core.spec import CHECKS_NUMBERS
from everstep.dialects import job_memo
from tests.cases.case import Case, Deed
from tests.cases.on_fake import JOB, document, names
from tests.cases.seen import Seen, Start, directories
from tests.support import books
from tests.support.devserver import START, DevServer, temporal
from tests.support.machine import Machine
from tests.support.patience import HUNG_S
from tests.support.playing.doors import held
from tests.support.workerproc import WorkerProcess

LOOK_S = 0.02
DAY_S = 86_400.0
HALF_AN_HOUR_S = 1_800.0
WITNESS = Path(__file__).with_name("witness.py")
HEAL_S = 0.1


def _has_checked(home: Path) -> bool:
    """Whether the books hold the answer of a check before a start."""
    return any(job.checks for job in books.read(home).jobs.values())


class OnMachine:
    """One case, one state directory, one namespace, one worker at a time."""

    def __init__(self, server: DevServer, client: Client, home: Path, case: Case) -> None:
        self.server, self.client, self.home, self.case = server, client, home, case
        self.control = home / "control"
        self.machine = Machine.at(home)
        self.prechecked = False
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

    async def play(self, *, kills_worker: bool) -> Seen:
        self.control.mkdir(parents=True)
        try:
            async with self.worker:
                return await asyncio.wait_for(self._play(kills_worker), HUNG_S * 2)
        finally:
            self.machine.end()

    async def _play(self, kills_worker: bool) -> Seen:
        case = self.case
        for line in (*self._heals(), *case.before):
            await rehearse(self.home, line)
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
        return await self._seen(job)

    def _heals(self) -> list[str]:
        broken = {tuple(d.what.split()[1:3]) for d in self.case.deeds if d.what[:7] == "device "}
        return [f"heal-takes {node} {index} {HEAL_S}s" for node, index in sorted(broken)]

    def _leave(self, step: int) -> None:
        """A checkpoint of somebody else."""
        path = self.home / "ckpt" / f"step-{step}.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"step": step}))

    async def _submit(self) -> None:
        """As README says it: the document in a file, one command."""
        written = document(
            self.case,
            command=shlex.join([sys.executable, "-I", "-S", str(WITNESS)]),
            variables={"CONTROL": str(self.control), "CHECKPOINTS": str(self.home / "ckpt")},
            folder=str(self.home / "ckpt"),
        )
        file = self.home / "job.json"
        file.write_text(json.dumps(written))
        place = ("--address", self.server.address, "--namespace", self.client.namespace)
        code, said = await temporal(*START, "--workflow-id", JOB, "--input-file", str(file), *place)
        assert code == 0, said

    # -- waiting ---------------------------------------------------------------------------------

    async def _until(self, claim: Callable[[], Awaitable[bool]], what: object) -> None:
        deadline = time.monotonic() + HUNG_S
        while not await claim():
            assert time.monotonic() < deadline, f"{what} never came; {self._told()}"
            await asyncio.sleep(LOOK_S)

    def _told(self) -> str:
        return f"starts {self._starts()}; {self.worker.output()[-2000:]}"

    async def _comes(self, job: WorkflowHandle[Any, Any], number: int, deed: Deed) -> None:
        noted = sum(earlier.notes for earlier in self.case.deeds[:number])
        await self._until(lambda: self._is_noted(noted), f"note {noted}")
        if deed.records:
            await self._until(lambda: self._has_records(job, deed.records), deed)
        else:
            await self._until(lambda: self._runs(job, deed.start), deed)
        self.prechecked |= _has_checked(self.home)

    async def _is_noted(self, count: int) -> bool:
        return sum(" noted: " in line for line in self._log()) >= count

    def _log(self) -> list[str]:
        logs = sorted(self.home.glob("**/*_restartable/run.log"))
        return [line for log in logs for line in log.read_text().splitlines()]

    async def _has_records(self, job: WorkflowHandle[Any, Any], count: int) -> bool:
        records = await job.query("restarts")
        return len(records) >= count and records[-1]["recover_result"] == "recovering"

    async def _runs(self, job: WorkflowHandle[Any, Any], start: int) -> bool:
        """Whether everybody who lives is in this start; the first slot is in all of them."""
        starts = self._starts()
        if len(starts.get(0, ())) < start:
            return False
        status: Mapping[str, Any] = await job.query("status")
        living = [pod["slot"] for pod in status["pods"] if pod["state"] != "absent"]
        newest = {starts[slot][-1].generation if starts.get(slot) else 0 for slot in living}
        return bool(status["state"] == "running" and newest == {status["generation"]})

    def _starts(self) -> dict[int, tuple[Start, ...]]:
        found: dict[int, tuple[Start, ...]] = {}
        for path in sorted(self.control.glob("starts-*.jsonl")):
            lines = path.read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            found[int(path.stem.partition("-")[2])] = tuple(map(_start, whole))
        return found

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
                await rehearse(self.home, deed.what.replace("JOB", JOB))

    def _tell(self, name: str, text: str) -> None:
        fresh = self.control / f"{name}.tmp"
        fresh.write_text(text)
        fresh.replace(self.control / name)

    async def _is_logged(self) -> bool:
        return (self.control / "logged").exists()

    async def _is_saved(self, step: str) -> bool:
        return (self.home / "ckpt" / f"step-{step}.json").exists()

    async def _is_known(self, step: int) -> bool:
        status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
        return bool(status["checkpoint_step"] == step)

    async def _is_a_day_later(self) -> bool:
        records = await self.client.get_workflow_handle(JOB).query("restarts")
        newest = datetime.fromisoformat(records[-1]["at"]).timestamp()
        return time.time() > newest + DAY_S / self.case.time_scale

    def _fatal(self) -> int:
        """The last deed that a restart follows; where none does, the last but one."""
        deeds = self.case.deeds
        leading = [n for n, after in enumerate(deeds[1:]) if _leads_to(deeds[n], after)]
        return max(leading, default=max(0, len(deeds) - 2))

    async def _do_and_kill(self, number: int, deed: Deed) -> None:
        """The worker dies in the middle of the restart that follows, if one does.

        The agent of a pod that is made for it begins only afterwards: the restart cannot be over before.
        """
        following = self.case.deeds[number + 1 : number + 2]
        newest = self._generation()
        door = held(LocalSettings(home=self.home).folder(self._next_pod(newest + 1)).path)
        try:
            await self._do(deed)
            if following and _leads_to(deed, following[0]):
                await self._until(lambda: self._is_beyond(newest), "the next generation")
            self.worker.kill9()
            is_anew = self.case.trainer is not None
            assert not is_anew or self._generation() == newest, "nothing was left to be recovered"
        finally:
            os.close(door)
        await self.worker.start()

    def _generation(self) -> int:
        """The newest that some script was started in."""
        return max(each[-1].generation for each in self._starts().values())

    def _next_pod(self, generation: int) -> str:
        return f"{placing.pod_name(JOB, 0, generation)}-{books.read(self.home).cluster}"

    async def _is_beyond(self, generation: int) -> bool:
        return books.read(self.home).job(JOB).newest > generation

    # -- afterwards ------------------------------------------------------------------------------

    async def _seen(self, job: WorkflowHandle[Any, Any]) -> Seen:
        memo = await (await job.describe()).memo()
        self.prechecked |= _has_checked(self.home)
        return Seen(
            report=memo["report"],
            status=job_memo.read("status", memo["status"], memo["report"]),
            records=tuple(job_memo.restarts_of(memo["report"])),
            starts=self._starts(),
            isolated=books.read(self.home).isolated,
            prechecked=self.prechecked,
            shown=job_memo.read("modelarts", memo["modelarts"], memo["report"]),
            events=names(memo["report"]["events"]),
            log=tuple(self._log()),
            directories=directories(self.home / "ckpt"),
        )


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
