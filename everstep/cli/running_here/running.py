"""The command `run`: start one job, watch it to its end, and run what it needs meanwhile.

`_run` finds the server, or starts one with its worker as `dev` does. `_try_on` ensures that this machine's
cluster has a worker, starting one where none answers. `_run_to_end` starts the job, or finds it where it runs
already, and watches it; after Ctrl-C it prompts for what to do.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy

from everstep import processes
from everstep.agent.observing import hardware
from everstep.cli import connection
from everstep.cli.authoring import from_command
from everstep.cli.authoring.documents import (
    CommandOption,
    JobDocument,
    LogPattern,
    MaybeFile,
    job_here,
)
from everstep.cli.cluster.other_users import AllowOtherUsers
from everstep.cli.connection import UnlessAbsent, client, is_named, rpc_errors_as_failed
from everstep.cli.exits import Exit, Failed
from everstep.cli.jobs import answers, ended_jobs, watching
from everstep.cli.jobs.answers import NoResponse
from everstep.cli.jobs.job import FoundJob, find, look_up
from everstep.cli.jobs.watching import Glance, JobScreen
from everstep.cli.machine import is_here
from everstep.cli.output import shown
from everstep.cli.running_here import choosing, holding, job_ids, pollers, shell_variables
from everstep.cli.running_here.choosing import Choice
from everstep.cli.running_here.rank_output import with_rank_output
from everstep.cli.running_here.serving import DeviceCount, DeviceKind, served
from everstep.cli.running_here.starting import (
    IdTaken,
    checked,
    start,
)
from everstep.cli.running_here.terminal import LOST_OUTPUT, LastingScreen, Terminal
from everstep.cli.running_here.working import (
    Machine,
    Worker,
    children_ended,
    kept_alive,
    machine_for,
)
from everstep.cli.state import home, made_home
from everstep.dialects.dialect import has_pods_by_name
from everstep.dialects.registry import Overrides
from everstep.documents.text import to_yaml

LOOK_FOR_WORKER_S = 1.0
"""Seconds between two checks that a shared server has a worker."""
DOCUMENT_S = 1.0
"""Seconds in which a running job has to return its document; else the one that it was started with counts."""

STARTED = "{id} is started; `everstep logs {id}` shows again what it printed"
OTHER_DOCUMENT = "{id} runs with another document than this one; `everstep show {id}` prints it"
UNSERVED = "no worker serves queue {queues}: the job waits for one"
LEFT = "{id} goes on; `everstep watch {id}` shows it again"
FULL = "the server at {address} does not answer; {full}, then the same `everstep run` goes on with {id}"
LEFT_ALONE = "{id} goes on without a worker until the same `everstep run`, or `everstep dev`, serves it again"


NodesOption = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        envvar="EVERSTEP_NODES",
        help="Virtual nodes; else as many as the job wants, or `dev` serves. A command runs on each.",
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="As a new job: under an unused ID, with a new folder.")
]
OutputOption = Annotated[
    bool,
    typer.Option("--logs/--no-logs", help="Show what the processes print, or only the events."),
]


def run(
    ctx: typer.Context,
    file: MaybeFile = None,
    *,
    job_id: Annotated[
        str | None, typer.Option("--id", help="The job's ID; else the document's or script's name.")
    ] = None,
    nodes: NodesOption = None,
    devices: DeviceCount = None,
    accelerator: DeviceKind = "auto",
    processes: from_command.ProcessesOption = None,
    checkpoints: from_command.CheckpointsOption = None,
    checkpoint_pattern: from_command.CheckpointPattern = None,
    save_signal: from_command.SaveSignal = None,
    prewarm: from_command.PrewarmOption = None,
    env: from_command.Env = None,
    log_pattern: LogPattern = None,
    hang_s: from_command.HangOption = None,
    command: CommandOption = None,
    is_fresh: FreshOption = False,
    has_output: OutputOption = True,
    prints: from_command.Prints = False,
    allow_other_users: AllowOtherUsers = False,
) -> int:
    """Run a job, a document or a command, and watch it to its end.

    The exit code is 0 if the job completed and 1 if it failed or was stopped, whatever code its script ended
    with: that is in the reason.

    `everstep run --processes 4 -- python train.py` starts what `torchrun --nproc-per-node 4 train.py`
    would. The command runs in this folder, as the program that this shell finds, with RANK, WORLD_SIZE,
    MASTER_ADDR and so on. A server and a worker start where none answers. Other variables are those of
    the worker: where it was started in another terminal, --env NAME passes yours. Ctrl-C ends with 130.

    The same line again resumes a failed or stopped job from its last checkpoint, and watches one that
    runs. A script of that name in another folder is another job, train-2. To run a completed job from the
    beginning, say --fresh.
    """
    options = {
        "processes": processes,
        "nodes": nodes if ctx.args and _is_typed(ctx, "nodes") else None,
        "checkpoints": checkpoints,
        "checkpoint_pattern": checkpoint_pattern,
        "save_signal": save_signal,
        "prewarm": prewarm,
        "env": from_command.variables(env or ()),
        "log_pattern": log_pattern,
        "hang_s": hang_s,
    }
    job = _job(file, ctx.args, {name: value for name, value in options.items() if value}, command)
    chosen = checked(job.spec.name if job_id is None else job_id)
    _print_notes(from_command.notes_of(job) if ctx.args else ())
    if prints:
        return _print_document(job, chosen)
    here = hardware.devices(accelerator, devices)
    machine = asyncio.run(machine_for(job.spec, nodes=nodes, devices=here))
    machine = replace(machine, allows_others=allow_other_users)
    job = replace(job, is_fresh=is_fresh, has_output=has_output)
    job = replace(job, has_chosen_id=job_id is not None, fresh_line=_fresh_line(ctx))
    return asyncio.run(_run(job, chosen, machine))


def _print_document(job: JobDocument, job_id: str) -> int:
    print(to_yaml(_with_name(job, job_id)), end="")
    return Exit.DONE


def _fresh_line(ctx: typer.Context) -> str:
    """The command line that runs the same job as a new one."""
    return shlex.join(("everstep", "run", "--fresh", *ctx.meta[from_command.WORDS]))


def _with_name(job: JobDocument, job_id: str) -> dict[str, Any]:
    """The document with this ID as its name, where it has a place for one."""
    metadata = job.document.get("metadata")
    if job_id == job.spec.name or not isinstance(metadata, dict):
        return job.document
    return {**job.document, "metadata": {**metadata, "name": job_id}}


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note   {shown(note)}", file=sys.stderr)


def _is_typed(ctx: typer.Context, name: str) -> bool:
    """Whether the option is on the command line. A variable of the machine does not describe the job."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _job(
    file: str | None,
    command: Sequence[str],
    options: Mapping[str, Any],
    overlaid_command: str | None,
) -> JobDocument:
    """The job: a document or a command."""
    if file and command:
        raise Failed(Exit.USAGE, f"run {file}, or the command behind `--`, not both")
    if overlaid_command is not None and file is None:
        raise Failed(Exit.USAGE, "--command is laid over a document: name its FILE too")
    if command:
        return from_command.job_of(command, options)
    if file is None:
        hint = "Give a FILE, or a command: everstep run -- python train.py"
        raise Failed(Exit.USAGE, f"run what? {hint}")
    for name in options:
        key = ".".join(("spec", *from_command.KEYS[name]))
        problem = f"{from_command.option(name)} is for a command; in a document it is {key}"
        raise Failed(Exit.USAGE, problem)
    # The worker of `run` serves this machine, whatever a worker is told elsewhere.
    return job_here(file, overrides=Overrides(command=overlaid_command), has_pods=has_pods_by_name)


async def _run(job: JobDocument, job_id: str, machine: Machine) -> int:
    """Run the job to its end: on the server that is found, else on one of this machine with its worker."""
    terminal = Terminal(job_id)
    interrupts = Interrupts(processes.end_on(signal.SIGINT, signal.SIGTERM), terminal)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, terminal.leave)
    async with AsyncExitStack() as stack:
        found_server = await _find_server()
        server = found_server or await _start_server(stack, machine)
        stack.enter_context(rpc_errors_as_failed(server))
        worker_machine = machine if found_server is not None else None
        return await _run_on(server, job, job_id, worker_machine, interrupts)


async def _run_on(
    server: Client, job: JobDocument, job_id: str, machine: Machine | None, interrupts: Interrupts
) -> int:
    """Run the job on this server, with a worker of `machine` where none answers."""
    while True:
        try:
            return await _try_on(server, job, job_id, machine, interrupts)
        except IdTaken:  # by another `run`, after this one looked for a job of the ID
            continue


async def _try_on(
    server: Client, job: JobDocument, job_id: str, machine: Machine | None, interrupts: Interrupts
) -> int:
    """Do what `_run_on` does, once. Raises `IdTaken` where another job of the ID starts first."""
    job, job_id = await job_ids.job_and_id(server, job, job_id)
    interrupts.terminal.job_id = job_id
    async with AsyncExitStack() as stack:
        if machine is not None:
            ensuring = _worker_ensured(server, job, job_id, machine)
            worker = await stack.enter_async_context(ensuring)
            interrupts = replace(interrupts, has_other_worker=lambda: not worker.is_begun)
        return await _run_to_end(server, job, job_id, interrupts)


async def _start_server(stack: AsyncExitStack, machine: Machine) -> Client:
    """Start the server and the worker of this machine, until the stack is left."""
    process = await stack.enter_async_context(served(machine, shares=True))
    os.environ["EVERSTEP_UI"] = process.ui
    print(f"server {process.address}, its UI {process.ui}", flush=True)
    return await client(process.address)


async def _find_server() -> Client | None:
    """The server that is configured, or at the usual address, if it answers.

    The server of this machine is not looked for here: `served` shares it.
    """
    if not is_named() and holding.is_held(home()):
        return None
    try:
        return await client()
    except Failed as error:
        if error.code is not Exit.UNREACHABLE:
            raise
        return None


@asynccontextmanager
async def _worker_ensured(
    server: Client, job: JobDocument, job_id: str, machine: Machine
) -> AsyncIterator[Worker]:
    """Ensure inside the block that this machine's cluster has a worker. Start one where none answers.

    A job of another cluster needs no worker on this machine.
    """
    cluster = job.spec.cluster
    worker = Worker(machine, _temporal_variables, is_alone=False, is_of_run=True)
    unserved = await pollers.unserved(server, cluster)
    if not is_here(cluster):
        if unserved:
            _print_notes([UNSERVED.format(queues=", ".join(queue.name for queue in unserved))])
        yield worker
        return

    async def ensure_worker() -> None:
        """The other worker may die while the job runs. The server still counts one that just died."""
        if worker.is_begun:
            await worker.ensure_alive()
        elif not await _has_worker(server, job_id, cluster):
            await _start_worker(worker, "no worker answers")

    with children_ended(), worker.log_kept_if_failed():
        if unserved:
            await _start_worker(worker, f"no worker serves queue {unserved[0].name}")
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


async def _start_worker(worker: Worker, why: str) -> None:
    made_home()
    print(f"{why}; `run` starts one until the job has ended", flush=True)
    await worker.ensure_alive()


def _temporal_variables() -> dict[str, str]:
    """The variables by which this process found the server.

    The name of the configuration file is empty where this process has none: otherwise
    `processes.environment` points it to /dev/null, and the worker is to read the usual file.
    """
    variables = {name: text for name, text in os.environ.items() if name.startswith("TEMPORAL_")}
    return {"TEMPORAL_CONFIG_FILE": "", **variables}


@dataclass(frozen=True, slots=True)
class Interrupts:
    """The signals received so far, the terminal, and whether another process serves the job."""

    signals: Sequence[signal.Signals]
    terminal: Terminal = field(default_factory=Terminal)
    has_other_worker: Callable[[], bool] = lambda: False

    @property
    def farewell(self) -> str:
        return LEFT if self.has_other_worker() else LEFT_ALONE

    @property
    def usual(self) -> Choice:
        """Enter stops a job only where no other process serves it."""
        return Choice.LEAVE if self.has_other_worker() else Choice.STOP


async def _run_to_end(server: Client, job: JobDocument, job_id: str, interrupts: Interrupts) -> int:
    """Start the job unless it runs, and watch it. After Ctrl-C, prompt for what to do with it."""
    _print_notes(await shell_variables.notes(server, job.spec, is_from_command=job.is_from_command))
    screen = LastingScreen(await _screen(job, job_id), interrupts.terminal)
    await _start_or_find(server, job, job_id)
    while True:
        try:
            return await _follow(server, job_id, screen)
        except asyncio.CancelledError:
            _uncancel()
        match await _choice(interrupts.usual, interrupts.terminal):
            case Choice.STOP:
                reason = choosing.reason(interrupts.signals[-1])
                return await _stop(server, job_id, screen, reason)
            case Choice.LEAVE:
                print(interrupts.farewell.format(id=job_id))
                return Exit.INTERRUPTED
            case Choice.GO_ON:
                continue


async def _follow(server: Client, job_id: str, screen: JobScreen) -> int:
    """Watch the job until it has ended. Raises `Failed` once this machine's server is silent on a full disk.

    The server does not get over that by itself, and it ends with this process.
    """
    address = server.service_client.config.target_host

    def check(glance: Glance) -> None:
        full = connection.full_disk(address) if glance.silence else ""
        if full:
            raise Failed(Exit.UNREACHABLE, FULL.format(id=job_id, address=address, full=full))

    code = await watching.follow(server, job_id, screen, check)
    from everstep.cli.running_here.ending import write_ended_job  # loads the rules

    await write_ended_job(server, job_id)
    return code


async def _screen(job: JobDocument, job_id: str) -> JobScreen:
    """The screen of the job, with the output of its ranks where they run on this machine."""
    screen = watching.screen(as_json=False)
    if not job.has_output or not is_here(job.spec.cluster):
        return screen
    return await with_rank_output(screen, job_id, job.spec)


async def _choice(usual: Choice, terminal: Terminal) -> Choice:
    """The user's choice; Ctrl-C at the prompt leaves the job. If the terminal is lost there, go on."""
    try:
        choice = await choosing.choice(usual)
    except asyncio.CancelledError:
        _uncancel()
        print()
        return Choice.LEAVE
    except OSError as error:  # the rest of the prompt
        if error.errno not in LOST_OUTPUT:
            raise
        terminal.leave()
        return Choice.GO_ON
    # A terminal that is gone ends the input, as Ctrl-D does.
    return Choice.GO_ON if choice is Choice.LEAVE and terminal.is_lost() else choice


async def _stop(server: Client, job_id: str, screen: JobScreen, reason: str) -> int:
    """Stop the job and watch it until it has ended, or until another Ctrl-C."""
    print(f"stops {job_id}; Ctrl-C again leaves it alone", flush=True)
    try:
        await _request_stop(server, job_id, reason)
        ended = await _follow(server, job_id, screen)
    except asyncio.CancelledError:
        _uncancel()
        left = f"left {job_id} before it had ended: it may go on, and `everstep run` finds it again"
        raise Failed(Exit.INTERRUPTED, left) from None
    return Exit.DONE if ended == Exit.DONE else Exit.INTERRUPTED


async def _request_stop(server: Client, job_id: str, reason: str) -> None:
    """Send the command `stop`, unless the job has ended or is stopping."""
    try:
        with UnlessAbsent():
            await (await find(server, job_id)).update("stop", {"reason": reason})
    except Failed as error:
        if error.code is not Exit.USAGE:
            raise Failed(Exit.INTERRUPTED, str(error)) from None


async def _start_or_find(server: Client, job: JobDocument, job_id: str) -> None:
    if job.is_fresh:
        await _start(server, job, job_id, WorkflowIDReusePolicy.REJECT_DUPLICATE)
        print(STARTED.format(id=job_id), flush=True)
        return
    earlier = await look_up(server, job_id)
    if earlier is not None and earlier.is_open:
        running = await _document_in_force(earlier)
        if job.is_from_command:
            from_command.refuse_other(job_id, job.document, running)
        if running != job.document:
            _print_notes([OTHER_DOCUMENT.format(id=job_id)])
        print(f"{job_id} is running already", flush=True)
        return
    if earlier is not None:
        await job_ids.refuse_completed(earlier, job)
    await _start(server, job, job_id, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    if job.is_from_command:
        print(STARTED.format(id=job_id), flush=True)


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


def _uncancel() -> None:
    """Forget that Ctrl-C cancelled this task: it goes on."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
