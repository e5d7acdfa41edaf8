"""Release the fences of a job that has ended.

After the last pod of a job no agent of it is left: this machine writes them itself.
"""

from __future__ import annotations

import logging
from functools import partial

from everstep.agent.storage import fence
from everstep.backends.agents.job_end import JobEnd
from everstep.backends.local.reconciling.reading import READ_S, read
from everstep.core.errors import BackendUnavailable

LOG = logging.getLogger(__name__)


async def release(end: JobEnd) -> None:
    """The job has ended: others may have its folders. One that cannot be reached stays its own."""
    for folder in end.folders:
        try:
            await read(folder, partial(_release, folder, end), within_s=READ_S)
        except (OSError, BackendUnavailable) as error:
            LOG.warning("%s stays the folder of job %s: %s", folder, end.job, error)


def _release(folder: str, end: JobEnd) -> None:
    fence.release(folder, (end.job, end.books), up_to=end.generation)
    fence.outdate_earlier(folder, end.job, end.earlier)
