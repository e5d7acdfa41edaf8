"""Wall clocks that step and storage that fails with EIO, for single living processes; `world.c` does it.

A process sees the world that is in the file of its variable WORLD. Needs a C compiler.
"""

from __future__ import annotations

import errno
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "world.so"
HAS_COMPILER = shutil.which("cc") is not None

_AHEAD, _ERROR, _FOLDER = struct.Struct("=d"), struct.Struct("=i"), struct.Struct("=1024s")
"""One after the other, as in `struct world`."""


def built(folder: Path) -> Path:
    """The library, in this folder."""
    library = folder / LIBRARY
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True, slots=True)
class World:
    """The file of one world, as it is for everything else until it is changed."""

    path: Path

    @classmethod
    def new(cls, path: Path) -> Self:
        path.write_bytes(bytes(_AHEAD.size + _ERROR.size + _FOLDER.size))
        return cls(path)

    def variables(self, library: Path) -> Mapping[str, str]:
        """What a process that is to see it begins with."""
        return {"LD_PRELOAD": str(library), "WORLD": str(self.path)}

    @contextmanager
    def ahead(self, seconds: float) -> Iterator[None]:
        """Inside, wall clocks are so far ahead; behind with a negative number."""
        self._write(0, _AHEAD.pack(seconds))
        try:
            yield
        finally:
            self._write(0, _AHEAD.pack(0.0))

    @contextmanager
    def without_storage(self, folder: Path) -> Iterator[None]:
        """Inside, each write and sync of a file below this folder fails with EIO."""
        self._write(_AHEAD.size + _ERROR.size, _FOLDER.pack(str(folder).encode()))
        self._write(_AHEAD.size, _ERROR.pack(errno.EIO))
        try:
            yield
        finally:
            self._write(_AHEAD.size, _ERROR.pack(0))

    def _write(self, at: int, content: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """Several of them by name, in one folder."""

    folder: Path
    library: Path

    @classmethod
    def new(cls, folder: Path, names: Iterable[str]) -> Self:
        folder.mkdir()
        for name in names:
            World.new(folder / name)
        return cls(folder=folder, library=built(folder))

    def __getitem__(self, name: str) -> World:
        return World(self.folder / name)

    def variables(self, name: str) -> Mapping[str, str]:
        return self[name].variables(self.library)

    def python(self) -> str:
        """A Python that starts an agent in the world that has the name of its node."""
        path = self.folder / "python"
        path.write_text(
            f"""#!/bin/sh
for word; do
    [ "$before" = --node ] && export LD_PRELOAD='{self.library}' WORLD='{self.folder}'/"$word"
    before=$word
done
exec '{sys.executable}' "$@"
"""
        )
        path.chmod(0o755)
        return str(path)
