"""The command `doctor`: what of this machine, its server and its workers is as a job needs it.

Each check answers with a line: ok, note or problem, what was found, and what to try next. It looks and
changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from everstep import devserver
from everstep.agent.observing import checks as places
from everstep.agent.observing import hardware
from everstep.agent.storage import space
from everstep.backends.tools import Examined, SilentAgent
from everstep.cli.cluster.living_jobs import avoidances, living_jobs
from everstep.cli.output import AsJson, Page, not_empty, show
from everstep.cli.tables import Column, table
from everstep.client import machine
from everstep.client.connection import (
    USUAL,
    UnlessAbsent,
    client,
    is_absent,
    is_named,
    rpc_errors_as_failed,
)
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home, open_to_others
from everstep.client.jobs import answers
from everstep.client.serving import holding, pollers
from everstep.core import names
from everstep.core.errors import BackendUnavailable, InvalidSpec, PayloadClosed
from everstep.core.levels import KEEPING
from everstep.core.state import JobState
from everstep.processes import ProcessFailed
from everstep.protocol import wire
from everstep.version import __version__

METADATA = "__temporal_workflow_metadata"
"""A query that every workflow answers, as soon as it has a worker."""
JOBS_NAMED = 3
PYTHON_LEAST = (3, 11)

CheckState = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line."""

    name: str
    what: str
    hint: str = ""  # what to try next
    state: CheckState = "ok"
    code: int = Exit.JOB_FAILED  # of the command, if this is a problem

    def as_json(self) -> dict[str, Any]:
        plain = {key: getattr(self, key) for key in ("name", "state", "what")}
        return {**plain, "hint": self.hint or None}


note = partial(CheckLine, state="note")
problem = partial(CheckLine, state="problem")


def doctor(
    cluster: Annotated[
        str, typer.Option(callback=not_empty, help="The cluster whose worker is looked for.")
    ] = "local",
    as_json: AsJson = False,
) -> int:
    """Check that this machine, its server and its workers are as a job needs them.

    Of a cluster that makes pods: its API server, the rights of its workers, nodes, gangs, storage and clock.

    Ends with 0 if there is no problem, with 4 if other commands would not get through to the server
    either, else with 1.
    """
    checks = asyncio.run(_server(cluster))
    has_pods = machine.has_pods(cluster)
    checks += [_python(), *_of_cluster(cluster)] if has_pods else _of_machine(home())
    problems = [check for check in checks if check.state == "problem"]
    value = {"ok": not problems, "checks": [check.as_json() for check in checks]}
    show(value, _page, as_json=as_json)
    return max((check.code for check in problems), default=Exit.DONE)


COLUMNS = (
    Column("STATE", "state", is_pinned=True),
    Column("CHECK", "name", is_pinned=True),
    Column(
        "FOUND", lambda check: "; ".join(filter(None, (check["what"], check["hint"]))), wraps=True
    ),
)


def _page(value: dict[str, Any]) -> Page:
    yield table(value["checks"], COLUMNS)


# -- The server ---------------------------------------------------------------------------------


async def _server(cluster: str) -> list[CheckLine]:
    try:
        server = await client()
    except Failed as error:
        return [_no_server(error), _binary(is_needed=True)]
    address = server.service_client.config.target_host
    checks = [CheckLine("server", f"{address} answers"), _binary(is_needed=False)]
    try:
        with rpc_errors_as_failed(server):
            checks.append(await _namespace(server))
            workers = await _workers(server, cluster)
            checks += [*workers, *await _jobs(server), *await _avoided(server, cluster)]
            if not any(check.state == "problem" for check in workers):
                checks += await job_levels(server, cluster)
            return [*checks, *await _taken_ids(server, cluster)]
    except Failed as error:
        return [*checks, problem("namespace", str(error), code=error.code)]


def _no_server(error: Failed) -> CheckLine:
    if error.code is Exit.UNREACHABLE and not is_named() and not holding.is_held(home()):
        what = f"no Temporal server is named, and none answers at {USUAL}"
        hint = "`everstep run` and `everstep dev` bring their own"
        return note("server", what, hint)
    return problem("server", str(error), code=error.code)


def _binary(*, is_needed: bool) -> CheckLine:
    try:
        return CheckLine("temporal", devserver.temporal_binary())
    except ProcessFailed as error:
        state: CheckState = "problem" if is_needed else "note"
        return CheckLine("temporal", str(error), state=state)


async def _namespace(server: Client) -> CheckLine:
    missing = await devserver.missing_attributes(server)
    if not missing:
        return CheckLine("namespace", f"{server.namespace} has every search attribute")
    types = devserver.search_attributes()
    words = " ".join(f"--name {name} --type {types[name]}" for name in missing)
    command = f"temporal operator search-attribute create --namespace {server.namespace} {words}"
    what = f"{server.namespace} lacks the search attributes {', '.join(missing)}"
    return problem("namespace", what, f"create them: `{command}`")


async def _workers(server: Client, cluster: str) -> list[CheckLine]:
    workflow_queue, cluster_queue = pollers.needed(cluster)
    setting = f"EVERSTEP_CLUSTER={cluster} "
    checks = [
        await _worker(server, workflow_queue, ""),
        await _worker(server, cluster_queue, setting),
    ]
    if any(check.state == "problem" for check in checks):
        return checks
    return [*checks, *await _answer(server, cluster)]


async def _worker(server: Client, queue: pollers.Queue, setting: str) -> CheckLine:
    recent = await pollers.recent(server, queue)
    answering = [poller.polled_s_ago for poller in recent if poller.may_answer]
    if answering:
        what = f"a worker polled queue {queue.name} {min(answering):.0f} s ago"
        return CheckLine("worker", what)
    what = f"no worker serves queue {queue.name}"
    if stopped := [str(poller.pid) for poller in recent if poller.is_stopped]:
        pids = " ".join(stopped)
        what = f"{what}: process {pids} of this machine is stopped"
        return problem("worker", what, f"`kill -CONT {pids}`")
    hint = f"start one: `everstep dev` on this machine, or `{setting}python -m worker`"
    return problem("worker", what, hint)


async def _answer(server: Client, cluster: str) -> list[CheckLine]:
    """Whether a worker answers a query, as for any command; empty without a workflow to query."""
    async for workflow_id in _askable(server, cluster):
        try:
            await answers.send_query(server, workflow_id, METADATA)
        except RPCError as error:
            if not is_absent(error):
                raise
            continue
        except answers.NoResponse:
            within = f"within {answers.patience_s():g} s"
            what = f"workers polled lately, and none answers for {workflow_id} {within}"
            hint = "look at the worker's log, or start another: `python -m worker`"
            return [problem("worker", what, hint)]
        except (Failed, PayloadClosed) as error:
            return [problem("worker", str(error))]
        return [CheckLine("worker", f"one answered for {workflow_id}")]
    return []


async def _askable(server: Client, cluster: str) -> AsyncIterator[str]:
    """Our own workflows, and if there are none yet the newest of any kind."""
    yield names.janitor_id(cluster)
    yield names.quarantine_id(cluster)
    async for newest in server.list_workflows(f"TaskQueue = '{names.TASK_QUEUE}'", limit=1):
        yield newest.id


async def _jobs(server: Client) -> list[CheckLine]:
    """Jobs on a task queue that no worker serves."""
    open_ones = f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
    query = f"{open_ones} AND TaskQueue != '{names.TASK_QUEUE}'"
    return [
        problem(
            "job",
            f"{job.id} waits on task queue {job.task_queue}; {answers.QUEUE}",
            answers.REQUEUE.format(id=job.id),
        )
        async for job in server.list_workflows(query, limit=JOBS_NAMED)
    ]


async def _avoided(server: Client, cluster: str) -> list[CheckLine]:
    """Nodes that jobs avoid, and what ends that."""
    try:
        rows = await avoidances(server, cluster)
    except PayloadClosed as error:
        return [problem("job", str(error))]
    return [
        note(
            "job",
            f"{row['job']} avoids {row['node']} since {row['since']}: {row['why']}",
            f"that ends with {row['until']}",
        )
        for row in rows[:JOBS_NAMED]
    ]


async def job_levels(server: Client, cluster: str) -> list[CheckLine]:
    """With which levels faults of jobs are answered, and what is missing for those that keep processes."""
    from everstep.cli.authoring.explain import explained_now  # all rules

    checks: list[CheckLine] = []
    async for job in living_jobs(server, cluster):
        with suppress(Failed), UnlessAbsent():
            state = await answers.send_query(server, job.id, "state", result_type=JobState)
            levels = explained_now(state)
            missing = [line for line in levels["levels_missing"] if line.split(":")[0] in KEEPING]
            what = f"{job.id} can have {', '.join(levels['levels'])}"
            checks.append(CheckLine("levels", what, "; ".join(f"not {line}" for line in missing)))
        if len(checks) == JOBS_NAMED:
            break
    return checks


async def _taken_ids(server: Client, cluster: str) -> list[CheckLine]:
    """IDs of the cluster's own workflows that workflows of another type have."""
    kinds = {
        names.janitor_id(cluster): names.JANITOR,
        names.quarantine_id(cluster): names.NODE_QUARANTINE,
    }
    checks = []
    for workflow_id, kind in kinds.items():
        with UnlessAbsent():
            description = await server.get_workflow_handle(workflow_id).describe()
            if (
                description.workflow_type != kind
                and description.status is WorkflowExecutionStatus.RUNNING
            ):
                what = f"{workflow_id} is a {description.workflow_type}; the {kind} of {cluster} cannot begin"
                hint = f"`temporal workflow terminate --workflow-id {workflow_id}`"
                checks.append(problem("workflow", what, hint))
    return checks


# -- A cluster that makes pods -----------------------------------------------------------------


def _of_cluster(cluster: str) -> list[CheckLine]:
    try:
        checks = asyncio.run(machine.tools(cluster).check_cluster())
    except InvalidSpec as error:
        return [problem("cluster", f"a setting makes no sense: {error}")]
    except BackendUnavailable as error:
        hint = "EVERSTEP_KUBECONFIG, else KUBECONFIG, names a kubeconfig"
        return [note("cluster", f"it cannot be looked at from here: {error}", hint)]
    return [CheckLine(each.name, each.what, each.hint, each.state) for each in checks]


# -- The machine --------------------------------------------------------------------------------


def _of_machine(directory: Path) -> Iterator[CheckLine]:
    yield _python()
    yield from _place(directory)
    yield from _accelerators()
    yield from _local_cluster(directory)


def _python() -> CheckLine:
    what = f"Everstep {__version__}, Python {platform.python_version()} on {platform.system()}"
    if sys.version_info[:2] < PYTHON_LEAST:
        least = ".".join(map(str, PYTHON_LEAST))
        return problem("python", what, f"take {least} or newer")
    if sys.platform != "linux":
        hint = "the local cluster needs Linux; jobs can be submitted from here"
        return note("python", what, hint)
    return CheckLine("python", what)


FREE_BYTES_LEAST = 256 * 2**20
HOSTS = ("localhost",)

HINTS = {
    "dns": "add the missing names to /etc/hosts, or see to the name server",
    "disk-size-root": "make room; a large job writes more than that",
    "disk-size-shm": "data loaders need it; in containers see --shm-size",
    "disk-size-cache": "make room, or set EVERSTEP_PRECHECK__CACHE to another folder",
    "ulimit": "raise them for the worker: `ulimit -n`, `-l`, `-s`, `-u`; large networks need them",
}
PROBLEMS = frozenset({"dns"})
"""Of the checks before a start those that make a job fail; a job can do without the others."""


class PrecheckSettings(BaseSettings):
    """The limits of the checks that a worker of this machine would make."""

    model_config = SettingsConfigDict(env_prefix="EVERSTEP_", env_nested_delimiter="__")
    precheck: wire.Thresholds = wire.THRESHOLDS


def _place(directory: Path) -> Iterator[CheckLine]:
    """Whether the state directory can be used, and what agents look at before a job runs."""
    if directory.exists() and not directory.is_dir():
        hint = "set EVERSTEP_HOME to a folder"
        yield problem("storage", f"{directory} is no folder", hint)
        return
    yield _storage(directory)
    yield from _doors(directory)
    yield from _prechecks()


def _storage(directory: Path) -> CheckLine:
    hint = "make room, or set EVERSTEP_HOME to another folder"
    nearest = space.nearest(directory)
    try:
        free = space.free_bytes(nearest)
    except OSError as error:
        what = f"{directory} cannot be looked at: {error.strerror}"
        return problem("storage", what, hint)
    room = f"{free / places.GB:.1f} GB free"
    if not os.access(nearest, os.W_OK):
        return problem("storage", f"{directory} cannot be written", hint)
    if free < FREE_BYTES_LEAST:
        return problem("storage", f"{directory} has {room}", hint)
    return CheckLine("storage", f"{directory} can be written, {room}")


def _doors(directory: Path) -> Iterator[CheckLine]:
    """Whether other users of the machine get at what is kept there."""
    open_paths = [str(path) for path in open_to_others(directory)]
    if open_paths:
        more = f", and {len(open_paths) - 1} more" if len(open_paths) > 1 else ""
        hint = f"the next `everstep dev` or worker closes them; until then `chmod go= {directory}`"
        yield problem("storage", f"{open_paths[0]} is open to other users{more}", hint)


def _prechecks() -> Iterator[CheckLine]:
    try:
        limits = PrecheckSettings().precheck
    except ValidationError as error:
        yield problem("precheck", f"EVERSTEP_PRECHECK__...: {error.errors()[0]['msg']}")
        return
    command: wire.CheckCommand = {
        "generation": 0,
        "hosts": list(HOSTS),
        "accelerator": "none",  # how many there should be, a job says
        "devices": 0,
        "thresholds": {**limits._asdict(), "ulimits": True},
    }
    running_checks = places.RunningChecks(0, places.checks_of(command), within_s=limits.within_s)
    for check in running_checks.state(limits.within_s)["checks"]:
        name = check["name"]
        if check["ok"]:
            yield CheckLine(name, check["measured"])
            continue
        state: CheckState = "problem" if name in PROBLEMS else "note"
        what = f"{check['measured']}; wanted: {check['needed']}"
        yield CheckLine(name, what, HINTS[name], state)


def _accelerators() -> Iterator[CheckLine]:
    kinds = hardware.KINDS.values()
    lines = [_tool(path, kind) for kind in kinds if (path := hardware.find(kind.tool)) is not None]
    none = "neither nvidia-smi nor npu-smi is here: jobs use CPUs and simulated devices"
    yield from lines or [CheckLine("accelerators", none)]


def _tool(path: str, kind: hardware.DeviceKind) -> CheckLine:
    tool, hint = kind.tool, f"`{kind.tool} {' '.join(kind.words)}` shows why"
    try:
        count = hardware.listed(path, kind)
    except OSError as error:
        what = f"{tool} is here and does not answer: {error}"
        return problem("accelerators", what, hint)
    if not count:
        return note("accelerators", f"{tool} is here and lists no device", hint)
    return CheckLine("accelerators", f"{tool} lists {count}")


def _local_cluster(directory: Path) -> Iterator[CheckLine]:
    examined = asyncio.run(machine.tools().examine())
    if examined.problem:
        hint = f"end what uses it and move {examined.books} away: `everstep dev` creates a new one"
        yield problem("database", f"{examined.books} cannot be read: {examined.problem}", hint)
        return
    what = f"{examined.books} can be read" if examined.is_there else f"none yet in {directory}"
    yield CheckLine("database", what)
    yield from _agents(examined, asyncio.run(machine.tools().silent_agents()))


def _agents(examined: Examined, silent: Sequence[SilentAgent]) -> Iterator[CheckLine]:
    for agent in silent[:JOBS_NAMED]:
        what = f"{agent} on {agent.node}, process {agent.pid}"
        goes_on = f"`kill -CONT {agent.pid}` lets it go on"
        status_hint = f"`everstep status {agent.job}` shows what the job does"
        hint = goes_on if agent.is_stopped else status_hint
        yield problem("agents", what, hint)
    if len(silent) > JOBS_NAMED:
        yield problem("agents", f"{len(silent) - JOBS_NAMED} more do not answer")
    if examined.strays:
        some = ", ".join(examined.strays[:3]) + (" ..." if len(examined.strays) > 3 else "")
        what = f"{len(examined.strays)} live and are of no job in this database: {some}"
        hint = (
            "`everstep adopt JOB` takes a job over whose record is gone; the rest are ended by a worker of "
            "this state directory: `everstep dev`"
        )
        yield note("agents", what, hint)
    elif not silent:
        what = f"{len(examined.agents)} live, each of a job" if examined.agents else "none lives"
        yield CheckLine("agents", what)
