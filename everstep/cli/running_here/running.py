"""The command `run`: start one job, watch it to its end, and run what it needs meanwhile.

`client.serving.running` finds or starts the server and the worker. `run_to_end` starts the job, or finds it
where it runs already, and watches it; after Ctrl-C it prompts for what to do.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import typer

from everstep import processes
from everstep.agent.observing import hardware
from everstep.cli.authoring import from_command
from everstep.cli.authoring.documents import CommandOption, LogPattern, MaybeFile
from everstep.cli.jobs import watching
from everstep.cli.jobs.watching import JobScreen
from everstep.cli.output import shown
from everstep.cli.running_here import choosing
from everstep.cli.running_here.choosing import Choice
from everstep.cli.running_here.rank_output import with_rank_output
from everstep.cli.running_here.serving import AllowOtherUsers, DeviceCount, DeviceKind
from everstep.cli.running_here.terminal import LOST_OUTPUT, LastingScreen, Terminal
from everstep.client.connection import UnlessAbsent
from everstep.client.documents import command_document
from everstep.client.documents.documents import JobDocument, job_here
from everstep.client.exit_codes import Exit, Failed
from everstep.client.job import AsyncJob
from everstep.client.machine import is_here
from everstep.client.serving import shell_variables
from everstep.client.serving.running import JobRun, run_job
from everstep.client.serving.working import Machine, machine_for
from everstep.client.submitting import checked
from everstep.dialects.dialect import has_pods_by_name
from everstep.dialects.registry import Overrides
from everstep.documents.text import to_yaml

LEFT = "{id} goes on; `everstep watch {id}` shows it again"
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
        "env": command_document.variables(env or ()),
        "log_pattern": log_pattern,
        "hang_s": hang_s,
    }
    job = _job(file, ctx.args, {name: value for name, value in options.items() if value}, command)
    chosen = checked(job.spec.name if job_id is None else job_id)
    _print_notes(command_document.notes_of(job) if ctx.args else ())
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
        return command_document.job_of(command, options)
    if file is None:
        hint = "Give a FILE, or a command: everstep run -- python train.py"
        raise Failed(Exit.USAGE, f"run what? {hint}")
    command_document.refuse_for_documents(options)
    # The worker of `run` serves this machine, whatever a worker is told elsewhere.
    return job_here(file, overrides=Overrides(command=overlaid_command), has_pods=has_pods_by_name)


async def _run(job: JobDocument, job_id: str, machine: Machine) -> int:
    """Run the job to its end, with what this command prints and what Ctrl-C does."""
    terminal = Terminal(job_id)
    interrupts = Interrupts(processes.end_on(signal.SIGINT, signal.SIGTERM), terminal)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, terminal.leave)
    confirms = choosing.confirms if choosing.can_prompt() else None
    return await run_job(
        job,
        job_id,
        machine,
        partial(run_to_end, interrupts=interrupts),
        say=print_line,
        confirms=confirms,
    )


def print_line(line: str) -> None:
    print(shown(line), flush=True)


@dataclass(frozen=True, slots=True)
class Interrupts:
    """The signals received so far, and the terminal."""

    signals: Sequence[signal.Signals]
    terminal: Terminal = field(default_factory=Terminal)


def farewell(job_run: JobRun) -> str:
    """What is printed when the job is left running."""
    return (LEFT if job_run.has_other_worker else LEFT_ALONE).format(id=job_run.id)


def _usual(job_run: JobRun) -> Choice:
    """Enter stops a job only where no other process serves it."""
    return Choice.LEAVE if job_run.has_other_worker else Choice.STOP


async def run_to_end(job_run: JobRun, interrupts: Interrupts) -> int:
    """Start the job unless it runs, and watch it. After Ctrl-C, prompt for what to do with it."""
    job, terminal = job_run.job, interrupts.terminal
    terminal.job_id = job_run.id
    is_command = job.is_from_command
    _print_notes(await shell_variables.notes(job_run.server, job.spec, is_from_command=is_command))
    screen = LastingScreen(await _screen(job, job_run.id), terminal)
    await job_run.start()
    while True:
        try:
            return await watching.follow(job_run.glances(), screen)
        except asyncio.CancelledError:
            _uncancel()
        match await _choice(_usual(job_run), terminal):
            case Choice.STOP:
                reason = choosing.reason(interrupts.signals[-1])
                return await _stop(job_run, screen, reason)
            case Choice.LEAVE:
                print(farewell(job_run))
                return Exit.INTERRUPTED
            case Choice.GO_ON:
                continue


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


async def _stop(job_run: JobRun, screen: JobScreen, reason: str) -> int:
    """Stop the job and watch it until it has ended, or until another Ctrl-C."""
    job_id = job_run.id
    print(f"stops {job_id}; Ctrl-C again leaves it alone", flush=True)
    try:
        await _request_stop(job_run, reason)
        ended = await watching.follow(job_run.glances(), screen)
    except asyncio.CancelledError:
        _uncancel()
        left = f"left {job_id} before it had ended: it may go on, and `everstep run` finds it again"
        raise Failed(Exit.INTERRUPTED, left) from None
    return Exit.DONE if ended == Exit.DONE else Exit.INTERRUPTED


async def _request_stop(job_run: JobRun, reason: str) -> None:
    """Send the command `stop`, unless the job has ended or is stopping."""
    try:
        with UnlessAbsent():
            await AsyncJob(job_run.id, client=job_run.server).stop(reason=reason)
    except Failed as error:
        if error.code is not Exit.USAGE:
            raise Failed(Exit.INTERRUPTED, str(error)) from None


def _uncancel() -> None:
    """Forget that Ctrl-C cancelled this task: it goes on."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
