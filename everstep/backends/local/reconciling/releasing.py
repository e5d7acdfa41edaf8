"""Release the fences of a job that has ended, in a process of its own.

After the last pod of a job no agent of it is left. Storage that hangs would keep a thread of the worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from everstep.agent import build, wire
from everstep.agent.storage.reading import WITHIN_S

LOG = logging.getLogger(__name__)

_START_S = 20.0


async def release(agent: Path, command: wire.ReleaseCommand) -> None:
    """Other jobs may have the folders. One that cannot be reached stays the job's."""
    words = [sys.executable, "-I", "-S", str(build.ensure(agent)), "release", json.dumps(command)]
    process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE)
    within_s = _START_S + WITHIN_S * len(command["folders"])
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    except TimeoutError:
        output = f"nothing was answered within {within_s:g} s".encode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        job = command["job"]
        LOG.warning("folders stay those of job %s: %s", job, output.decode(), extra={"job": job})
