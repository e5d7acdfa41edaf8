"""A demo as it is run by hand, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.machine import ROOT, Machine
from tests.support.patience import HUNG_S


@contextmanager
def demo(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, with its temporary files in a place of the test's own."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def whole_output(process: subprocess.Popen[str]) -> str:
    """All that the demo printed once it has ended; it hangs if it prints nothing for long.

    On a busy machine its steps are slower, so all of it takes longer.
    """
    before = None
    while True:
        try:
            return process.communicate(timeout=HUNG_S)[0]
        except subprocess.TimeoutExpired as late:
            if late.output == before:
                raise
            before = late.output


def processes_of(folder: Path) -> list[int]:
    """Those with this folder in their command line or their environment, except the test's own."""
    return [pid for pid in Machine.at(folder).processes() if pid not in {os.getpid(), os.getppid()}]


def assert_ended(printed: str, *, folder: Path) -> None:
    """A signal ended the demo in order, and everything that it had started."""
    assert "Every process is ended." in printed
    assert "Traceback" not in printed
    assert_nothing_is_left(folder)


def assert_nothing_is_left(folder: Path) -> None:
    assert not list(folder.iterdir())
    assert processes_of(folder) == []
