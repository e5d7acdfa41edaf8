"""What `run` leaves of a job that has ended, for commands that find no server afterwards."""

from __future__ import annotations

import asyncio
import logging

from temporalio.client import Client
from temporalio.service import RPCError

from everstep.client.exit_codes import Failed
from everstep.client.jobs import ended_jobs
from everstep.client.jobs.ended_jobs import EndedJob
from everstep.client.jobs.explaining import RestartChoice, explained_of_lives
from everstep.client.jobs.found_job import find
from everstep.client.jobs.lives import lives_known
from everstep.client.jobs.records import all_events, all_restarts, rows_of_all_lives
from everstep.client.jobs.report_sources import report_of, sources_of_lives
from everstep.client.jobs.status import status_with_submissions

LOG = logging.getLogger(__name__)

UNWRITTEN = "without a server `everstep why {id}` has nothing to read: {why}"


async def write_ended_job(server: Client, job_id: str) -> None:
    """Write the file of this job, which has ended. Where that fails a note says so: the job is done."""
    try:
        ended_jobs.write(await _ended_job(server, job_id))
    except (Failed, RPCError, OSError) as error:
        LOG.warning(UNWRITTEN.format(id=job_id, why=error))


async def _ended_job(server: Client, job_id: str) -> EndedJob:
    job = await find(server, job_id)
    lives, status, restarts, events, explanation, report = await asyncio.gather(
        lives_known(job),
        status_with_submissions(job),
        rows_of_all_lives(job, all_restarts),
        rows_of_all_lives(job, all_events),
        explained_of_lives(job, RestartChoice(), None),
        report_of(job),
    )
    sources = await sources_of_lives(lives)
    return EndedJob(
        id=job_id,
        lives=len(lives),
        status=status,
        restarts=list(restarts),
        events=list(events),
        explanation=explanation,
        report=report,
        sources=[
            {"status": source.status, "report": source.report, "records": source.records}
            for source in sources
        ],
    )
