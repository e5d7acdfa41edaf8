"""Looks at a job, one after the other, until it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from everstep.client.connection import rpc_errors_as_failed
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs import ended_jobs
from everstep.client.jobs.found_job import CLOSED, find
from everstep.client.jobs.records import newest_restarts
from everstep.client.jobs.status import status_of

POLL_S = 0.25
ENDED = frozenset(CLOSED.values())

Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What one look has shown."""

    at: float
    status: Value
    restarts: tuple[Value, ...] = ()
    silence: str | None = None  # why it did not answer, if so

    @property
    def has_ended(self) -> bool:
        return self.status.get("state") in ENDED

    def _repr_html_(self) -> str:
        """The glance as a notebook shows it."""
        from everstep.report import render  # loads the templates

        return render.status_html({**self.status, "silence": self.silence}, self.restarts)


async def glances(client: Client, job_id: str, *, every_s: float = POLL_S) -> AsyncIterator[Glance]:
    """Look at the job again and again; the last look shows its end.

    The server may have ended with the `run` that the job was run by: then the file of the job shows the end.
    """
    began = time.time()
    while True:
        glance = await look(client, job_id)
        if glance.silence and (ended := ended_jobs.written_since(job_id, began)):
            glance = Glance(at=glance.at, status=ended.status, restarts=tuple(ended.restarts))
        yield glance
        if glance.has_ended:
            return
        await asyncio.sleep(every_s)


async def look(client: Client, job_id: str) -> Glance:
    """The state of the job. If no worker answers, the next look tries again."""
    at = time.monotonic()
    try:
        with rpc_errors_as_failed(client):
            job = await find(client, job_id)
            status, records = await status_of(job), await newest_restarts(job)
    except Failed as error:
        if error.code is not Exit.UNREACHABLE:
            raise
        return Glance(at=at, status={}, silence=str(error))
    return Glance(at=at, status=status, restarts=tuple(records))
