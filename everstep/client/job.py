"""One job by its ID: its status and records, commands to it, and its end.

`AsyncJob` has the methods as coroutines; `everstep.client.blocking.Job` has the same ones for code without an
event loop. A job is a name: making one reaches no server. Each method finds the newest run of the ID.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowFailureError

from everstep.client import connection
from everstep.client.connection import NoServer, rpc_errors_as_failed
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import user
from everstep.client.jobs import ended_jobs, status
from everstep.client.jobs.ended_jobs import EndedJob
from everstep.client.jobs.explaining import RestartChoice, explained_from_file, explained_of_lives
from everstep.client.jobs.found_job import FoundJob, find
from everstep.client.jobs.glances import POLL_S, Glance, glances
from everstep.client.jobs.records import (
    Rows,
    all_events,
    all_restarts,
    newest_restarts,
    rows_of_all_lives,
)

T = TypeVar("T")
Value = dict[str, Any]
"""JSON with the fields that `everstep ... --json` prints."""

LOG = logging.getLogger(__name__)

FROM_FILE = "no server answers: this is from {path}, written when {id} ended"
EVENTS_S = 1.0
"""Seconds between two looks at the events, or the logs, of a job that runs."""
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a job ended."""

    id: str
    state: str
    """`completed`, `failed` or `stopped`."""
    reason: str | None
    step: int | None
    restarts: int
    status: Value
    """All that `status` returns."""

    @property
    def is_completed(self) -> bool:
        return self.state == "completed"

    def check(self) -> Result:
        """This result. Raises `Failed` if the job failed or was stopped."""
        if self.is_completed:
            return self
        why = f": {self.reason}" if self.reason else ""
        raise Failed(Exit.JOB_FAILED, f"{self.id} is {self.state}{why}")


def result_of(job_status: Value) -> Result:
    """The result in the status of a job that has ended."""
    return Result(
        id=job_status["id"],
        state=job_status["state"],
        reason=job_status.get("reason"),
        step=job_status.get("step"),
        restarts=job_status.get("restarts") or 0,
        status=job_status,
    )


class AsyncJob:
    """A job, by its ID. `client` is the way to the server; else the settings of `temporal` name it."""

    def __init__(self, job_id: str, *, client: Client | None = None) -> None:
        self.id = job_id
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    # -- what it is like ----------------------------------------------------------------------------

    async def status(self) -> Value:
        """Where the job is: state, step, pods, budgets, what it waits for.

        If no worker answers, what the server has; if no server does, what `run` left when the job ended.
        """
        return await self._of(status.status_with_submissions, lambda ended: ended.status)

    async def restarts(self, *, every: bool = False) -> Rows:
        """The restarts, oldest first: cause, level, result, cost. `every`: not the newest 50 alone."""
        records_of = all_restarts if every else newest_restarts
        return await self._of(
            lambda job: rows_of_all_lives(job, records_of),
            lambda ended: Rows(ended.restarts, lives=ended.lives),
        )

    async def past_events(self) -> Rows:
        """What happened to the job, oldest first; of each life of its ID the newest 50 things are kept."""
        _, rows = await self._open_and_events()
        return rows

    async def events(self) -> AsyncIterator[Value]:
        """What happened to the job, oldest first, and what happens until it has ended.

        An outage of the server is waited for once the first events are there.
        """
        yielded: set[tuple[Any, ...]] = set()
        while True:
            try:
                is_open, rows = await self._open_and_events()
            except NoServer:
                if not yielded:
                    raise
                await asyncio.sleep(EVENTS_S)
                continue
            by_key = {(row["life"], row["number"], row["time"]): row for row in rows}
            for key, row in by_key.items():
                if key not in yielded:
                    yield row
            yielded = set(by_key)
            if not is_open:
                return
            await asyncio.sleep(EVENTS_S)

    async def why(
        self, n: int | None = None, *, phase: str | None = None, life: int | None = None
    ) -> Value:
        """Why it restarted, the newest time without a number, or what it waits for: in words in `text`."""
        choice = RestartChoice(n=n, phase=phase)
        return await self._of(
            lambda job: explained_of_lives(job, choice, life),
            lambda ended: explained_from_file(ended, choice, life),
        )

    async def document(self) -> Value:
        """The document that the job follows, and who changed it when."""
        return await self._of(status.document_of)

    async def report(self) -> Value:
        """What happened to the job, why, and where the time went: what `everstep report` makes pages from."""
        from everstep.client.jobs.report_sources import report_of  # loads the rules

        return await self._of(report_of, lambda ended: ended.report)

    async def logs(
        self,
        *,
        ranks: Sequence[int] = (),
        generation: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Value]:
        """What its ranks printed, line by line: `generation`, `rank`, `at`, `text`, `left_out`.

        `tail`: only so many of the newest lines. `follow`: also what they print until the job has ended.
        Raises `Failed` if there are none.
        """
        from everstep.client import machine
        from everstep.client.jobs import logs  # with the tools of clusters

        chosen, rank_logs = await logs.chosen_logs(
            logs.Chosen(
                job_id=self.id,
                tools=machine.tools(),
                ranks=frozenset(ranks),
                generation=generation,
            )
        )
        try:
            by_generation = await logs.parts(chosen.tools, rank_logs, tail)
            for number, lines, _ in by_generation:
                async for line in lines:
                    yield logs.line_value(number, line)
            number, _, readers = by_generation[-1]
            new_lines = logs.NewLines(chosen, generation=number, readers=readers)
            while follow:
                # Before the lines are read: a job that has ended prints nothing more.
                follow = await self._is_open()
                async for number, line in new_lines.since_last(whole=follow):
                    yield logs.line_value(number, line)
                if follow:
                    await asyncio.sleep(EVENTS_S)
        finally:
            await chosen.tools.close()

    async def as_modelarts(self) -> Value:
        """The JSON that ModelArts has for a job."""
        return await self._of(status.as_modelarts)

    async def as_mindcluster(self, *, every: bool = False) -> Value:
        """The restarts as MindCluster's `job-reschedule-reason` has them."""
        from everstep.dialects.mindcluster.view import reschedule_reason  # for this shape alone

        records = await self._of(all_restarts if every else newest_restarts)
        return reschedule_reason(self.id, records)

    async def html(self) -> str:
        """The status and the newest restarts, as a notebook shows them."""
        from everstep.report import render  # loads the templates

        return render.status_html(await self.status(), await self.restarts())

    # -- waiting for it -----------------------------------------------------------------------------

    async def watch(self, *, every_s: float = POLL_S) -> AsyncIterator[Glance]:
        """Look at the job until it has ended; the last look shows its end."""
        async for glance in glances(await self._connected(), self.id, every_s=every_s):
            yield glance

    async def wait(self, *, timeout_s: float | None = None) -> Result:
        """How the job ended, once it has. Raises TimeoutError if that takes longer than `timeout_s`.

        A server that is away meanwhile is waited for, unless the job ended here and left a file of that.
        """
        async with asyncio.timeout(timeout_s):
            await self._of(_until_closed, lambda _ended: None)
            while True:
                try:
                    return result_of(await self.status())
                except NoServer:
                    await asyncio.sleep(RETRY_S)

    # -- commands -----------------------------------------------------------------------------------

    async def pause(self, *, reason: str | None = None) -> Value:
        """Stop the processes after a checkpoint request and keep the pods, until `resume`."""
        return await self._command("pause", reason=reason)

    async def resume(self, *, reason: str | None = None) -> Value:
        """Go on after a pause."""
        return await self._command("resume", reason=reason)

    async def stop(self, *, reason: str | None = None, grace_s: float | None = None) -> Value:
        """End the job in order: its processes may save for `grace_s` seconds, its pods are removed."""
        return await self._command("stop", reason=reason, grace_s=grace_s)

    async def restart(
        self,
        *,
        level: str | None = None,
        reason: str | None = None,
    ) -> Value:
        """Restart the job now, as a planned restart: it spends no budget.

        `level` is `in_place`, the default, `pod` or `job`.
        """
        return await self._command("restart", level=level, reason=reason)

    async def checkpoint(self, *, within_s: float | None = None) -> Value:
        """Have the ranks save now and go on. `saved` is whether a new one was seen in time, a minute."""
        from everstep.core.loop.commands import SAVE_WITHIN_S  # loads the rules

        wait_s = SAVE_WITHIN_S if within_s is None else within_s
        return await self._command("checkpoint", takes_s=wait_s, within_s=wait_s)

    async def report_fault(
        self,
        kind: str,
        *,
        node: str | None = None,
        device: int | None = None,
        code: str | None = None,
        at: str | None = None,
        message: str | None = None,
    ) -> Value:
        """Report a fault that the job cannot see itself. It is handled like any other."""
        return await self._command(
            "report_fault",
            kind=kind,
            node=node,
            device=device,
            code=code,
            at=at,
            message=message,
        )

    async def report_faults(self, faults: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Report those faults that are on the job's nodes; how many were, and how many are elsewhere.

        One fault that the job refuses, as one that is old, keeps no other from it.
        """
        return await self._of(lambda job: _report_each(job, faults))

    async def hot_update(self, patch: Mapping[str, Any], *, now: bool = False) -> Value:
        """Change the document: `patch` is a fragment of its `spec`. `now`: restart for it."""
        when = "now" if now else "next_restart"
        return await self._command("hot_update", patch=dict(patch), when=when, by=operator())

    async def set_budget(self, name: str, limit: int | None) -> Value:
        """Change a budget; None is no limit. What was spent stays spent."""
        return await self._command("set_budget", name=name, limit=limit)

    async def adopt(self, *, reason: str | None = None) -> Value:
        """Continue a job whose EVERSTEP_HOME is gone for good: all its pods are created again."""
        return await self._command("adopt", reason=reason)

    # -- the way to it ------------------------------------------------------------------------------

    async def _open_and_events(self) -> tuple[bool, Rows]:
        async def both(job: FoundJob) -> tuple[bool, Rows]:
            return job.is_open, await rows_of_all_lives(job, all_events)

        return await self._of(both, lambda ended: (False, Rows(ended.events, lives=ended.lives)))

    async def _is_open(self) -> bool:
        """Whether it may still go on. An outage of the server is no end."""

        async def is_open(job: FoundJob) -> bool:
            return job.is_open

        try:
            return await self._of(is_open, lambda _ended: False)
        except NoServer:
            return True

    async def _command(self, command: str, *, takes_s: float = 0.0, **arguments: Any) -> Value:
        from everstep.core.loop.commands import NULLABLE  # loads the rules

        sent = {k: v for k, v in arguments.items() if v is not None or k in NULLABLE}
        answer = await self._of(lambda job: job.update(command, sent, takes_s=takes_s))
        return {"id": self.id, "command": command, **(answer or {})}

    async def _of(
        self,
        work: Callable[[FoundJob], Awaitable[T]],
        otherwise: Callable[[EndedJob], T] | None = None,
    ) -> T:
        """What the work returns, given the newest run of this job.

        If no server answers, the same from the file of a job that ended here, with a warning.
        """
        try:
            client = await self._connected()
            with rpc_errors_as_failed(client):
                return await work(await find(client, self.id))
        except NoServer:
            ended = None if otherwise is None else ended_jobs.read(self.id)
            if ended is None or otherwise is None:
                raise
            LOG.warning(FROM_FILE.format(path=ended_jobs.path_of(self.id), id=self.id))
            return otherwise(ended)

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = await connection.client()
        return self._client


async def _until_closed(job: FoundJob) -> None:
    """Return once the job has closed. An outage is waited for, unless the job ended here meanwhile."""
    began = time.time()
    while True:
        try:
            with rpc_errors_as_failed(job.client):
                await job.client.get_workflow_handle(job.id).result()
            return
        except WorkflowFailureError:
            return
        except NoServer:
            if ended_jobs.written_since(job.id, began):
                return
            await asyncio.sleep(RETRY_S)


async def _report_each(job: FoundJob, reports: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many were reported, and how many are on nodes that the job does not have."""
    answer = await job.answer("status") or {}
    in_use = {pod["node"] for pod in answer.get("pods", ()) if pod["node"]}
    nodes = {*in_use, *answer.get("isolated_nodes", ())}
    concerning = [each for each in reports if not in_use or each["node"] in nodes]
    refusals: list[Failed] = []
    for fault in concerning:
        try:
            await job.update("report_fault", fault)
        except Failed as error:
            if error.code is not Exit.USAGE:
                raise
            refusals.append(error)
    reported = len(concerning) - len(refusals)
    if refusals:
        are = f"{reported} {'is' if reported == 1 else 'are'}"
        rest = f"; of the other faults {are} reported" if reported else ""
        raise Failed(Exit.USAGE, f"{refusals[0]}{rest}")
    return reported, len(reports) - len(concerning)


def operator() -> str:
    """Who changes a job, as its history names them: `user@host`."""
    return f"{user()}@{socket.gethostname()}"
