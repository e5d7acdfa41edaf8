"""Runs programs of others for their output, with limits on the time and on the output."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everstep.agent.processes import proc

if TYPE_CHECKING:
    import subprocess

ANSWER_BYTES = 1024 * 1024
"""Most output of a tool. One that prints without end would fill the memory."""
READ = 64 * 1024


def ask(
    words: Sequence[str], *, within_s: float, running: set[int]
) -> subprocess.CompletedProcess[str]:
    """Run the tool and return its output and exit code. Meanwhile its process number is in `running`.

    Raises OSError if it is missing, prints too much or takes too long. It is killed in these cases.
    """
    import subprocess  # takes some milliseconds, and few agents have a tool to run

    ends = time.monotonic() + within_s
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdout is not None
    running.add(child.pid)
    process = proc.find(child.pid)
    try:
        text = _read(child.stdout.fileno(), ends)
        # The agent's loop may wait for this child first; that loses its exit code and nothing else.
        code = child.wait(max(0.0, ends - time.monotonic()))
    except BaseException as error:
        proc.kill(() if process is None else (process,))
        child.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError("the tool does not end in time") from None
        raise
    finally:
        child.stdout.close()
        running.discard(child.pid)
    return subprocess.CompletedProcess(words, code, text)


def _read(pipe: int, ends: float) -> str:
    ready, output = select.poll(), bytearray()
    ready.register(pipe)
    while ready.poll(max(0.0, ends - time.monotonic()) * 1000):
        piece = os.read(pipe, READ)
        output += piece
        if not piece:
            return output.decode(errors="replace")
        if len(output) > ANSWER_BYTES:
            raise OSError(f"the tool prints more than {ANSWER_BYTES} bytes")
    raise TimeoutError("the tool does not answer in time")
