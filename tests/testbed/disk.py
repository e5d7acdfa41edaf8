"""A disk of its own for a test: a file system in a file that hangs, is full or read-only as real ones are.

A process that writes to a disk that hangs waits in the kernel, and not even SIGKILL ends it before the disk
answers. All of it is of the file system, and so the same in every mount namespace.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROBE = "probe"
"""Cannot be written while a disk is read-only or full."""
_MB = 64
_ZEROS = bytes(4096)
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
    def read_only(self) -> Iterator[None]:
        """Let nothing be written (EROFS). Raises Busy while a file is open for that."""
        try:
            # Of the file system alone: a mount namespace that begins meanwhile keeps the flag of a mount.
            _run("mount", "-o", "remount,ro=fs", str(self.folder))
        except subprocess.CalledProcessError as error:
            raise Busy(error.stderr.decode()) from None
        try:
            self._refuses(errno.EROFS)
            yield
        finally:
            _run("mount", "-o", "remount,rw", str(self.folder))

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let there be no room for anything (ENOSPC): a file of its own takes all that is left."""
        filler, probe = self.folder / "filler", self.folder / PROBE
        try:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(_ZEROS):
                    pass
            self._refuses(errno.ENOSPC)
            yield
        finally:
            filler.unlink()
            probe.unlink(missing_ok=True)

    def _refuses(self, code: int) -> None:
        """Fail unless a write ends with this error."""
        probe = subprocess.run(
            ["dd", "if=/dev/zero", f"of={self.folder / PROBE}", "bs=4096", "count=1"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert os.strerror(code) in probe.stderr, probe.stderr


class Busy(Exception):
    """The disk cannot be made read-only now."""


@contextmanager
def mounted(folder: Path, name: str = "disk") -> Iterator[Disk]:
    """A new disk below this folder. Processes that are to write to it begin after this."""
    image, mount = folder / f"{name}.img", folder / name
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
