"""Commands that change a job, from `pause` to `adopt`. Each sends one update."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.cli import completion, pages
from everstep.cli.jobs.job_argument import JobId
from everstep.cli.output import AsJson, show
from everstep.cli.server import with_server
from everstep.client import machine
from everstep.client.documents.documents import fragment, read
from everstep.client.exit_codes import Exit, Failed
from everstep.client.job import AsyncJob
from everstep.client.jobs.found_job import find
from everstep.core.errors import InvalidSpec
from everstep.core.loop.commands import GRACE_MOST_S, SAVE_WITHIN_MOST_S, SAVE_WITHIN_S
from everstep.documents.merge import merged

Reason = Annotated[str | None, typer.Option(help="Why: it is kept in the job's history.")]


def pause(job_id: JobId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Stop the processes after a checkpoint request and keep the pods, until resume."""
    _show(AsyncJob(job_id).pause(reason=reason), as_json=as_json)


def resume(job_id: JobId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Go on after a pause."""
    _show(AsyncJob(job_id).resume(reason=reason), as_json=as_json)


def stop(
    job_id: JobId,
    reason: Reason = None,
    grace_s: Annotated[
        float | None,
        typer.Option(
            min=0, max=GRACE_MOST_S, help="Seconds to save in, a day at most; else the document's."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """End a job in order: its processes may save, its pods are removed."""
    _show(AsyncJob(job_id).stop(reason=reason, grace_s=grace_s), as_json=as_json)


def restart(
    job_id: JobId,
    reason: Reason = None,
    level: Annotated[str | None, typer.Option(help="in_place (the default), pod, or job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Restart a job now, as a planned restart: it spends no budget."""
    _show(AsyncJob(job_id).restart(level=level, reason=reason), as_json=as_json)


def checkpoint(
    job_id: JobId,
    within_s: Annotated[
        float,
        typer.Option(min=1, max=SAVE_WITHIN_MOST_S, help="Seconds to wait for the checkpoint."),
    ] = SAVE_WITHIN_S,
    as_json: AsJson = False,
) -> int:
    """Have the ranks save now and go on, and print which step was saved.

    They get the signal that the document names in `checkpoints.save_signal`. The exit code is 1 if no new
    checkpoint was seen in time.
    """
    answer = asyncio.run(AsyncJob(job_id).checkpoint(within_s=within_s))
    show({k: v for k, v in answer.items() if k != "command"}, pages.save_result, as_json=as_json)
    return Exit.DONE if answer["saved"] else Exit.JOB_FAILED


def report_fault(
    job_id: JobId,
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="A dotted word: device.fault, node.down.")
    ] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="A public fault message of MindCluster."),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Where it is.", autocompletion=completion.node_names)
    ] = None,
    device: Annotated[int | None, typer.Option(min=0, help="The device's index there.")] = None,
    code: Annotated[str | None, typer.Option(help="The fault code, such as XID 79.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it was seen (RFC 3339); else now.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="What was seen, in words.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report a fault that the job cannot see itself. It is handled like any other.

    `everstep explain --code CODE` explains a code; docs/playbook.md lists all kinds. A FILE may hold
    many faults, of nodes of other jobs too.
    """
    if file is not None and kind is None:
        _report_file(job_id, file, as_json=as_json)
        return
    if kind is None or file is not None:
        raise Failed(Exit.USAGE, "report what? Give a KIND, such as device.fault, or --file FILE")
    if node is not None and device is not None:
        with_server(lambda client: _refuse_unknown_device(client, job_id, node, device))
    report = AsyncJob(job_id).report_fault(
        kind, node=node, device=device, code=code, at=at, message=message
    )
    _show(report, as_json=as_json)


async def _refuse_unknown_device(client: Client, job_id: str, name: str, index: int) -> None:
    """Refuse a device that the node lacks. Only for the cluster of this machine, whose books show it."""
    cluster = (await find(client, job_id)).attribute("TrainCluster")
    if cluster is None or not machine.is_here(cluster):
        return
    with machine.database_can_be_read():
        nodes = {node.name: node for node in await machine.tools().nodes()}
    node = nodes.get(name)
    if node is not None and index not in {device.index for device in node.devices}:
        raise Failed(Exit.NOT_FOUND, f"{name} has no device {index}; it has {len(node.devices)}")


def _report_file(job_id: str, file: str, *, as_json: bool) -> None:
    """Report the faults of a public fault message that are on the job's nodes, one after the other.

    A message names the nodes of many jobs, and may be old in part: one fault keeps no other from the job.
    """
    from everstep.dialects.mindcluster import public_faults  # for this option alone

    document = fragment(read(file), called=file, what="a fault message of MindCluster")
    try:
        reports = public_faults.reports(document)
    except InvalidSpec as error:
        field, message = error.problems[0]
        raise Failed(Exit.USAGE, f"{file}: {field}: {message}") from None

    reported, elsewhere = asyncio.run(AsyncJob(job_id).report_faults(reports))
    answer = {"id": job_id, "command": "report_fault", "reported": reported, "elsewhere": elsewhere}
    show(answer, pages.reported, as_json=as_json)


def hot_update(
    job_id: JobId,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A fragment of `spec`, YAML or JSON; - is stdin."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="The same for one key; may be repeated."),
    ] = None,
    now: Annotated[
        bool,
        typer.Option("--now", help="Restart for it; else it takes effect at the next restart."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change the document of a job that runs: its size, limits, environment, rules.

    The folders in which it writes cannot change, nor a `workdir` in which they begin. A change with an
    error is refused as a whole.
    """
    if file is None and not settings:
        problem = "change what? Give a FILE with a fragment of `spec`, or --set KEY=VALUE"
        raise Failed(Exit.USAGE, problem)
    patch = {} if file is None else fragment(read(file), called=file)
    for setting in settings or ():
        patch = merged(patch, _setting(setting))
    _show(AsyncJob(job_id).hot_update(patch, now=now), as_json=as_json)


def _setting(text: str) -> dict[str, Any]:
    """`limits.hang_s=60` as a fragment."""
    place, equals, value = text.partition("=")
    keys = place.split(".")
    if not equals or not all(keys):
        hint = "write KEY=VALUE, for example limits.hang_s=60"
        raise Failed(Exit.USAGE, f"--set {text}: {hint}")
    setting: Any = value
    if not (_is_variable(keys) and _is_plain(value)):
        (setting,) = fragment(f"value: {value}".encode(), called=f"--set {text}").values()
    for key in reversed(keys):
        setting = {key: setting}
    return dict(setting)


def _is_variable(keys: Sequence[str]) -> bool:
    """Whether the place is a variable of the environment, which is text: `env.LR=3e-5` is no number."""
    return len(keys) > 1 and keys[-2] == "env"


def _is_plain(value: str) -> bool:
    """Whether it has no quotes around it."""
    return value[:1] not in ("'", '"')


def set_budget(
    job_id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The budget: `status` has them.")],
    limit: Annotated[
        str, typer.Argument(metavar="LIMIT", help="So many units in all, or none for no limit.")
    ],
    as_json: AsJson = False,
) -> None:
    """Change a budget of a job that runs. What was spent stays spent."""
    if limit != "none" and not limit.isdecimal():
        raise Failed(Exit.USAGE, f"limit {limit}: give a whole number from 0 on, or none")
    units = None if limit == "none" else int(limit)
    _show(AsyncJob(job_id).set_budget(name, units), as_json=as_json)


def adopt(job_id: JobId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Continue a job whose EVERSTEP_HOME is gone, or was replaced by an older copy.

    Only where the lost one will not come back. All pods of the job are created again, after the time that
    pods of the lost one need to end by themselves.
    """
    _show(AsyncJob(job_id).adopt(reason=reason), as_json=as_json)


def _show(command: Coroutine[Any, Any, dict[str, Any]], *, as_json: bool) -> None:
    """Send the command, and print what the job answers."""
    show(asyncio.run(command), pages.command_result, as_json=as_json)
