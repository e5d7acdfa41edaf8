"""Commands that tell a job something: `pause`, `resume`, `stop`, `restart`. Each is one update."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from temporalio.client import Client

from everstep.cli import pages
from everstep.cli.connection import with_server
from everstep.cli.job import JobId, find
from everstep.cli.output import AsJson, show

Reason = Annotated[str | None, typer.Option(help="Why: it is kept in the job's history.")]


def pause(job_id: JobId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Stop the processes after a checkpoint request and keep the pods, until resume."""
    _tell(job_id, "pause", {"reason": reason}, as_json=as_json)


def resume(job_id: JobId, reason: Reason = None, as_json: AsJson = False) -> None:
    """Go on after a pause."""
    _tell(job_id, "resume", {"reason": reason}, as_json=as_json)


def stop(
    job_id: JobId,
    reason: Reason = None,
    grace_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds to save in; else the document's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """End a job in order: its processes may save, its pods are removed."""
    _tell(job_id, "stop", {"grace_s": grace_s, "reason": reason}, as_json=as_json)


def restart(
    job_id: JobId,
    reason: Reason = None,
    level: Annotated[str | None, typer.Option(help="in_place (the default), pod, or job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Restart a job now, as a planned restart: it spends no budget."""
    _tell(job_id, "restart", {"level": level, "reason": reason}, as_json=as_json)


def _tell(job_id: str, update: str, argument: dict[str, Any], *, as_json: bool) -> None:
    given = {key: value for key, value in argument.items() if value is not None}

    async def told(client: Client) -> dict[str, Any]:
        answer = await (await find(client, job_id)).tell(update, given)
        more = answer if isinstance(answer, dict) else {}
        return {"id": job_id, "command": update, **more}

    show(with_server(told), pages.told, as_json=as_json)
