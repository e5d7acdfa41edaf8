"""Commands that a benchmark runs; they end before it does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] = os.environ, cwd: str = "."
) -> None:
    """Run a command whose output nothing reads. Raises CalledProcessError.

    Where the benchmark is interrupted, the command may clear away first; `subprocess.run` would kill it.
    """
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=env, cwd=cwd, stdout=quiet, stderr=quiet) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status != 0:
        raise subprocess.CalledProcessError(status, list(command))
