"""Starting jobs from Python and from the command line: from a document, a script or a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from everstep.agent.observing import hardware
from everstep.client import connection, machine
from everstep.client.connection import rpc_errors_as_failed
from everstep.client.documents import command_document
from everstep.client.documents.documents import UNNAMED, JobDocument, job_here, job_of
from everstep.client.exit_codes import Exit, Failed
from everstep.client.job import AsyncJob, Result, result_of
from everstep.client.submitting import checked, submission
from everstep.client.submitting import submit as submit_job
from everstep.core.spec import JobSpec
from everstep.dialects.dialect import HasPods, has_pods_by_name
from everstep.dialects.registry import NO_OVERRIDES, Overrides

if TYPE_CHECKING:
    # Server and worker of this machine, of which `submit` needs neither.
    from everstep.client.serving.running import JobRun
    from everstep.client.serving.working import Machine

Source = str | os.PathLike[str] | Mapping[str, Any] | Sequence[str]
"""A document (a file, or what it has), a script (a file that ends in .py or .sh), or a command (a list)."""

Value = dict[str, Any]

INTERPRETERS = {".py": sys.executable, ".sh": "/bin/sh"}
"""What runs a script, by the end of its name."""


class CommandOptions(TypedDict, total=False):
    """What a script or a command cannot say itself; the options of `everstep run` of these names."""

    processes: int
    """Processes on each node (1)."""
    checkpoints: str
    """The folder in which it saves its checkpoints."""
    checkpoint_pattern: str
    """What checkpoints are called, such as `state_(?P<step>\\d+)`."""
    save_signal: str
    """The signal on which it saves and goes on, such as SIGUSR1."""
    prewarm: list[str]
    """Modules to import ahead of restarts; `["off"]`: none."""
    env: dict[str, str]
    """Variables of its environment, kept in the job's history."""
    log_pattern: str
    """What it prints: hf, lightning, tqdm, json:KEY or a regular expression with a group `step`."""
    hang_s: float
    """Seconds that a step may take; else learned from the steps."""


async def run(
    source: Source,
    *,
    job_id: str | None = None,
    fresh: bool = False,
    nodes: int | None = None,
    devices: int | None = None,
    accelerator: str = hardware.AUTO,
    allow_other_users: bool = False,
    **options: Unpack[CommandOptions],
) -> Result:
    """Run a job to its end, with a server and a worker of this machine where none answers.

    The same call again goes on with a job that failed, was stopped or still runs. Raises `Failed` if it is
    completed, unless it is to be `fresh`: then it gets an unused ID. The job itself goes on if this call is
    cancelled, as soon as a worker serves it.
    """
    from everstep.client.serving.running import run_job

    settings = {"nodes": nodes, **options} if _is_command(source) else {**options}
    job = job_from(source, settings, has_pods=has_pods_by_name)
    chosen = checked(job.spec.name if job_id is None else job_id)
    job = replace(job, is_fresh=fresh, has_chosen_id=job_id is not None, fresh_line=FRESH_CALL)
    served = await machine_of(
        job.spec,
        nodes=nodes,
        devices=devices,
        accelerator=accelerator,
        allow_other_users=allow_other_users,
    )
    return await run_job(job, chosen, served, _to_its_end)


FRESH_CALL = "everstep.run(..., fresh=True)"


async def _to_its_end(job_run: JobRun) -> Result:
    await job_run.start()
    last: Mapping[str, Any] = {}
    async for glance in job_run.glances():
        last = glance.status
    return result_of(dict(last))


async def machine_of(
    spec: JobSpec,
    *,
    nodes: int | None,
    devices: int | None,
    accelerator: str,
    allow_other_users: bool,
) -> Machine:
    """The part of this machine that a worker for the job serves."""
    from everstep.client.serving.working import machine_for

    here = hardware.devices(accelerator, devices)
    served = await machine_for(spec, nodes=nodes, devices=here)
    return replace(served, allows_others=allow_other_users)


async def submit(
    source: Source,
    *,
    job_id: str | None = None,
    again: bool = False,
    from_phase: str | None = None,
    command: str | None = None,
    log_pattern: str | None = None,
    cluster: str | None = None,
) -> AsyncJob:
    """Start a job and return it. Workers that run already serve it.

    An ID is used once. With `again` a job that failed or was stopped starts again under its ID, hence with
    its checkpoints; `from_phase` begins with this phase and implies it.
    """
    answer = await submitted(
        source,
        job_id=job_id,
        again=again,
        from_phase=from_phase,
        command=command,
        log_pattern=log_pattern,
        cluster=cluster,
    )
    return AsyncJob(answer["id"])


async def submitted(
    source: Source,
    *,
    job_id: str | None,
    again: bool,
    from_phase: str | None,
    command: str | None,
    log_pattern: str | None,
    cluster: str | None,
) -> Value:
    """The same, and what `everstep submit --json` prints of it."""
    overrides = Overrides(command=command, log_pattern=log_pattern, cluster=cluster)
    called = UNNAMED if isinstance(source, Mapping) else str(source)
    job = job_from(source, {}, overrides=overrides)
    ready = submission(job, called=called, from_phase=from_phase)
    chosen = checked(job.spec.name if job_id is None else job_id)
    client = await connection.client()
    with rpc_errors_as_failed(client):
        return await submit_job(client, ready, chosen, again=again or from_phase is not None)


def job_from(
    source: Source,
    options: Mapping[str, Any],
    *,
    overrides: Overrides = NO_OVERRIDES,
    has_pods: HasPods = machine.has_pods,
) -> JobDocument:
    """The job of a document, a script or a command. `options` are for the latter two, by name."""
    options = {name: value for name, value in options.items() if value}
    if words := _command(source):
        return command_document.job_of(words, options)
    command_document.refuse_for_documents(options)
    if isinstance(source, Mapping):
        return job_of(source, overrides=overrides, has_pods=has_pods)
    assert isinstance(source, str | os.PathLike), "else it is a command"
    return job_here(os.fspath(source), overrides=overrides, has_pods=has_pods)


def _is_command(source: Source) -> bool:
    return bool(_command(source))


def _command(source: Source) -> list[str]:
    """The words of a command or of a script; empty for a document."""
    if isinstance(source, Mapping):
        return []
    if not isinstance(source, str | os.PathLike):
        words = list(source)
        if not words or not all(isinstance(word, str) for word in words):
            raise Failed(Exit.USAGE, "a command is a list of texts: the program and its arguments")
        return words
    path = Path(source)
    interpreter = INTERPRETERS.get(path.suffix)
    return [] if interpreter is None else [interpreter, str(path)]
