"""What `run` leaves of a job that has ended, for commands that find no server afterwards."""

from __future__ import annotations

import asyncio
import sys

from temporalio.client import Client
from temporalio.service import RPCError

from everstep.cli.exits import Failed
from everstep.cli.jobs import asking, ended_jobs, reporting
from everstep.cli.jobs.asking import RestartChoice
from everstep.cli.jobs.ended_jobs import EndedJob
from everstep.cli.jobs.job import find
from everstep.cli.jobs.lives import lives_known
from everstep.cli.output import shown

UNWRITTEN = "note   without a server `everstep why {id}` has nothing to read: {why}"


async def write_ended_job(server: Client, job_id: str) -> None:
    """Write the file of this job, which has ended. Where that fails a note says so: the job is done."""
    try:
        ended_jobs.write(await _ended_job(server, job_id))
    except (Failed, RPCError, OSError) as error:
        print(shown(UNWRITTEN.format(id=job_id, why=error)), file=sys.stderr)


async def _ended_job(server: Client, job_id: str) -> EndedJob:
    job = await find(server, job_id)
    lives, status, (restarts, _), (events, _), explanation, report = await asyncio.gather(
        lives_known(job),
        asking.status_with_submissions(job),
        asking.rows_of_all_lives(job, asking.all_restarts),
        asking.rows_of_all_lives(job, asking.all_events),
        asking.explained_of_lives(job, RestartChoice(), None),
        reporting.report_of(job),
    )
    sources = await reporting.sources_of_lives(lives)
    return EndedJob(
        id=job_id,
        lives=len(lives),
        status=status,
        restarts=restarts,
        events=events,
        explanation=explanation,
        report=report,
        sources=[
            {"status": source.status, "report": source.report, "records": source.records}
            for source in sources
        ],
    )
