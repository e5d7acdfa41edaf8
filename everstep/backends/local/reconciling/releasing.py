"""Release the fences of a job that has ended.

After the last pod of a job no agent of it is left: this machine writes them itself.
"""

from __future__ import annotations

import logging
from functools import partial

from everstep.agent.storage import fence
from everstep.backends.local.database.closing import Closed
from everstep.backends.local.reconciling.reading import READ_S, read
from everstep.core.errors import BackendUnavailable

LOG = logging.getLogger(__name__)


async def release(job: str, cluster: str, closed: Closed) -> None:
    """The job has ended: others may have its folders. One that cannot be reached stays its own."""
    for folder in closed.folders:
        try:
            await read(folder, partial(_release, folder, job, cluster, closed), within_s=READ_S)
        except (OSError, BackendUnavailable) as error:
            LOG.warning("%s stays the folder of job %s: %s", folder, job, error)


def _release(folder: str, job: str, cluster: str, closed: Closed) -> None:
    fence.release(folder, (job, cluster), up_to=closed.generation)
    fence.outdate_earlier(folder, job, closed.earlier)
