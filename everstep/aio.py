"""What `everstep` has, for code with an event loop: `run`, `submit`, `job`.

job = await everstep.aio.submit("job.yaml")
async for event in job.events():
    print(event["text"])
"""

from __future__ import annotations

from everstep.client.job import AsyncJob, Result
from everstep.client.starts import run, submit

__all__ = ["AsyncJob", "Result", "job", "run", "submit"]


def job(job_id: str) -> AsyncJob:
    """The job of this ID. No server is reached before one of its methods is called."""
    return AsyncJob(job_id)
