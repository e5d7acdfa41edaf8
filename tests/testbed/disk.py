"""A disk of its own for a test: a file system in a file, whose writes hang as those of broken storage do.

A process that writes to it then waits in the kernel, and not even SIGKILL ends it before the disk answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_MB = 64
_FREEZE = 'fsfreeze --freeze "$1" && echo frozen && cat; fsfreeze --unfreeze "$1"'
"""Until its input closes: the disk answers again however the test run ends."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Where it is mounted."""

    folder: Path

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let everything that writes to the disk wait. What reads goes on."""
        words = ["sh", "-c", _FREEZE, "sh", str(self.folder)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True) as freezing:
            assert freezing.stdin is not None
            assert freezing.stdout is not None
            assert freezing.stdout.readline() == b"frozen\n"
            yield


@contextmanager
def mounted(folder: Path) -> Iterator[Disk]:
    """A new disk below this folder. Processes that are to write to it begin after this."""
    image, mount = folder / "disk.img", folder / "disk"
    with image.open("wb") as file:
        file.truncate(_MB * 1024 * 1024)
    mount.mkdir()
    _run("mkfs.ext4", "-q", str(image))
    _run("mount", "-o", "loop", str(image), str(mount))
    try:
        yield Disk(mount)
    finally:
        _run("umount", "--lazy", str(mount))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
