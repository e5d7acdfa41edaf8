"""Work on storage that may hang, from a worker: neither its event loop nor its thread pool waits for it.

Reads run in a thread of their own. Fences of an ended job, of which no agent is left, are released by a
process of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from everstep.agent import build, future
from everstep.agent.storage import reading
from everstep.agent.storage.reading import StorageHangs, begin
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire

LOG = logging.getLogger(__name__)

T = TypeVar("T")

WITHIN_S = 60.0
"""Time limit of a read; storage with many checkpoints may be slow."""
READ_S = 10.0
"""Time limit of reading a fence; storage that takes longer counts as unreadable."""
_START_S = 15.0
"""Time limit for the start of the process that releases fences."""


async def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """Return what the work returns. Raises BackendUnavailable if it takes too long or raises an OSError."""
    answer: Future[T] = Future()
    try:
        begin(folder, work).add_done_callback(partial(_pass_on, answer))
        async with asyncio.timeout(within_s):
            return await asyncio.wrap_future(answer)
    except (StorageHangs, TimeoutError):
        raise BackendUnavailable(str(StorageHangs(folder))) from None
    except OSError as error:
        raise BackendUnavailable(f"{folder}: {error}") from None


def _pass_on(answer: Future[T], work: future.Future[T]) -> None:
    """Set the answer to the result of the work, unless its reader has stopped waiting."""
    with suppress(InvalidStateError):
        if (error := work.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(work.result())


async def release(agent: Path, command: wire.ReleaseCommand) -> None:
    """Release the folders of an ended job. One that cannot be reached stays the job's."""
    words = [sys.executable, "-I", "-S", str(build.ensure(agent)), "release", json.dumps(command)]
    process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE)
    within_s = _START_S + reading.WITHIN_S
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    except TimeoutError:
        output = f"there was no answer within {within_s:g} s".encode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        job = command["job"]
        LOG.warning("folders stay those of job %s: %s", job, output.decode(), extra={"job": job})
