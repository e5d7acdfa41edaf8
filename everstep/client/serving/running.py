"""Running one job on this machine: the server, the worker and the start that it needs.

Neither terminal nor signals are known here: the command `run` has them, and calls what is here.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from everstep.client import connection
from everstep.client.connection import client, is_named, rpc_errors_as_failed
from everstep.client.documents import command_document
from everstep.client.documents.documents import JobDocument
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home, made_home
from everstep.client.jobs import answers, ended_jobs
from everstep.client.jobs.answers import NoResponse
from everstep.client.jobs.found_job import FoundJob, look_up
from everstep.client.jobs.glances import Glance, glances
from everstep.client.machine import is_here
from everstep.client.serving import holding, job_ids, pollers
from everstep.client.serving.job_ids import Confirms, Say
from everstep.client.serving.served import served
from everstep.client.serving.sharing import SharedServer
from everstep.client.serving.working import Machine, Worker, children_ended, kept_alive
from everstep.client.submitting import IdTaken, start

T = TypeVar("T")

LOG = logging.getLogger(__name__)

LOOK_FOR_WORKER_S = 1.0
"""Seconds between two checks that a shared server has a worker."""
DOCUMENT_S = 1.0
"""Seconds in which a running job has to return its document; else the one that it was started with counts."""

STARTED = "{id} is started; `everstep logs {id}` shows again what it printed"
OTHER_DOCUMENT = "{id} runs with another document than this one; `everstep show {id}` prints it"
UNSERVED = "no worker serves queue {queues}: the job waits for one"
FULL = "the server at {address} does not answer; {full}, then the same `everstep run` goes on with {id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """A job on this machine, from before its start to its end, with its server and its worker."""

    server: Client
    job: JobDocument
    id: str
    say: Say
    worker: Worker | None = None
    """The worker that this run starts where no other one answers; None: the server came with one."""
    shared: SharedServer | None = None
    """The server of this machine with a worker of this run, and of the process that holds it."""

    @property
    def has_other_worker(self) -> bool:
        """Whether another process serves the job, and goes on when this one has ended."""
        if self.shared is not None:
            return self.shared.has_permanent_holder
        return self.worker is not None and not self.worker.is_begun

    async def start(self) -> None:
        """Start the job, or find it where it runs already. Raises `IdTaken` if another one comes first."""
        await _start_or_find(self.server, self.job, self.id, self.say)

    async def glances(self) -> AsyncIterator[Glance]:
        """Looks at the job until it has ended.

        Raises `Failed` once this machine's server is silent on a full disk: it does not get over that by
        itself, and it ends with this process.
        """
        address = self.server.service_client.config.target_host
        async for glance in glances(self.server, self.id):
            full = connection.full_disk(address) if glance.silence else ""
            if full:
                problem = FULL.format(id=self.id, address=address, full=full)
                raise Failed(Exit.UNREACHABLE, problem)
            yield glance
        from everstep.client.serving.ending import write_ended_job  # loads the rules

        await write_ended_job(self.server, self.id)


async def run_job(
    job: JobDocument,
    job_id: str,
    machine: Machine,
    follow: Callable[[JobRun], Awaitable[T]],
    *,
    say: Say = LOG.info,
    confirms: Confirms | None = None,
) -> T:
    """Return what `follow` returns, which starts the job and looks at it.

    Meanwhile there is a server, the one that is found or one of this machine, and a worker. Where another
    run takes the ID first, `follow` begins again.
    """
    async with AsyncExitStack() as stack:
        server, shared = await _find_server(), None
        if server is None:
            shared = await _start_server(stack, machine, say)
            server = await client(shared.place.address)
        stack.enter_context(rpc_errors_as_failed(server))
        worker_machine = machine if shared is None else None

        async def follow_here(run: JobRun) -> T:
            return await follow(replace(run, shared=shared))

        return await run_on(
            server, job, job_id, worker_machine, follow_here, say=say, confirms=confirms
        )


async def run_on(
    server: Client,
    job: JobDocument,
    job_id: str,
    machine: Machine | None,
    follow: Callable[[JobRun], Awaitable[T]],
    *,
    say: Say = LOG.info,
    confirms: Confirms | None = None,
) -> T:
    """The same on this server, with a worker of `machine` where none answers."""
    while True:
        chosen = await job_ids.job_and_id(server, job, job_id, say=say, confirms=confirms)
        run = JobRun(server=server, job=chosen[0], id=chosen[1], say=say)
        try:
            if machine is None:
                return await follow(run)
            async with _worker_ensured(run, machine) as worker:
                return await follow(replace(run, worker=worker))
        except IdTaken:  # by another run, after this one looked for a job of the ID
            continue


async def _start_server(stack: AsyncExitStack, machine: Machine, say: Say) -> SharedServer:
    """Start the server and the worker of this machine, until the stack is left."""
    if machine.port is None:
        machine = replace(machine, port=_named_port())
    shared = await stack.enter_async_context(served(machine, shares=True))
    os.environ["EVERSTEP_UI"] = shared.place.ui
    say(f"server {shared.place.address}, its UI {shared.place.ui}")
    return shared


async def _find_server() -> Client | None:
    """The server that is configured, or at the usual address, if it answers.

    The server of this machine is not looked for here: `served` shares it. In place of one that is named and
    does not answer it may begin only where that would be: other commands of the shell look for the job there.
    """
    if _is_shared():
        return None
    try:
        return await client()
    except Failed as error:
        if error.code is not Exit.UNREACHABLE:
            raise
        if is_named() and _named_port() is None:
            hint = "without TEMPORAL_ADDRESS `run` brings its own"
            raise Failed(error.code, f"{error}; {hint}") from None
        return None


def _is_shared() -> bool:
    """Whether the server that commands of this shell find is the one of this state directory."""
    if not holding.is_held(home()):
        return False
    place = holding.current(home())
    return not is_named() or (place is not None and place.port == _named_port())


def _named_port() -> int | None:
    """The port of the server that is named, if it is one of this machine."""
    host, _, port = connection.address().rpartition(":")
    is_local = host.strip("[]") in ("127.0.0.1", "localhost", "::1") and port.isdigit()
    return int(port) if is_named() and is_local else None


@asynccontextmanager
async def _worker_ensured(run: JobRun, machine: Machine) -> AsyncIterator[Worker]:
    """Ensure inside the block that this machine's cluster has a worker. Start one where none answers.

    A job of another cluster needs no worker on this machine.
    """
    server, cluster = run.server, run.job.spec.cluster
    worker = Worker(machine, _temporal_variables, is_alone=False, is_of_run=True)
    unserved = await pollers.unserved(server, cluster)
    if not is_here(cluster):
        if unserved:
            LOG.warning(UNSERVED.format(queues=", ".join(queue.name for queue in unserved)))
        yield worker
        return

    async def ensure_worker() -> None:
        """The other worker may die while the job runs. The server still counts one that just died."""
        if worker.is_begun:
            await worker.ensure_alive()
        elif not await _has_worker(server, run.id, cluster):
            await _start_worker(worker, "no worker answers", run.say)

    with children_ended(), worker.log_kept_if_failed():
        if unserved:
            await _start_worker(worker, f"no worker serves queue {unserved[0].name}", run.say)
        async with kept_alive(ensure_worker, every_s=LOOK_FOR_WORKER_S):
            yield worker


async def _has_worker(server: Client, job_id: str, cluster: str) -> bool:
    """Whether a worker serves the job. On a busy machine a living worker may miss one query, so try two.

    A second worker beside a living one may do harm: with another state directory it does not find the pods
    of the job.
    """
    for _ in range(2):
        if await _worker_answers(server, job_id, cluster):
            return True
    return False


async def _worker_answers(server: Client, job_id: str, cluster: str) -> bool:
    """Query the job itself: the server shows the last poll of a worker up to a minute after its death."""
    if await pollers.unserved(server, cluster):
        return False
    try:
        await answers.send_query(server, job_id, "status")
    except Failed as error:
        return not isinstance(error, NoResponse)  # any other failure is a worker's answer
    return True


async def _start_worker(worker: Worker, why: str, say: Say) -> None:
    made_home()
    say(f"{why}; `run` starts one until the job has ended")
    await worker.ensure_alive()


def _temporal_variables() -> dict[str, str]:
    """The variables by which this process found the server.

    The name of the configuration file is empty where this process has none: otherwise
    `processes.environment` points it to /dev/null, and the worker is to read the usual file.
    """
    variables = {name: text for name, text in os.environ.items() if name.startswith("TEMPORAL_")}
    return {"TEMPORAL_CONFIG_FILE": "", **variables}


async def _start_or_find(server: Client, job: JobDocument, job_id: str, say: Say) -> None:
    if job.is_fresh:
        await _start(server, job, job_id, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        say(STARTED.format(id=job_id))
        return
    earlier = await look_up(server, job_id)
    if earlier is not None and earlier.is_open:
        running = await _document_in_force(earlier)
        if job.is_from_command:
            command_document.refuse_other(job_id, job.document, running)
        if running != job.document:
            LOG.warning(OTHER_DOCUMENT.format(id=job_id))
        say(f"{job_id} is running already")
        return
    if earlier is not None:
        await job_ids.refuse_completed(earlier, job)
    await _start(server, job, job_id, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    if job.is_from_command:
        say(STARTED.format(id=job_id))


async def _start(
    server: Client, job: JobDocument, job_id: str, reuse: WorkflowIDReusePolicy
) -> None:
    """Start the job. What was written when an earlier one of the ID ended does not hold any more."""
    await start(server, job, job_id, reuse)
    ended_jobs.remove(job_id)


async def _document_in_force(job: FoundJob) -> Any:
    """The document that an open job follows. Without a prompt answer the one that its run began with."""
    try:
        async with asyncio.timeout(DOCUMENT_S):
            return (await job.query("document"))["document"]
    except (Failed, TimeoutError):
        return await job.document()
