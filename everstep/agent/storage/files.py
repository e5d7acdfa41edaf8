"""Files in folders that others may write to: opened without following links and without waiting.

The folder that a document or a user named may be a link, and be reached through links; nothing below it may
be one. Only plain files are opened, reads have a limit, and a write replaces the file as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from everstep.agent.storage import permissions

JSON_MOST = 16 * 1024 * 1024

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY  # not even the opening of a pipe has to wait


class NotPlain(OSError):
    """The path is no regular file: a link, a folder, or something that waits for another process."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is no plain file")


class TooLarge(OSError):
    """The file is larger than any of its kind."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(f"{path} is larger than {most} bytes")


def handle(
    path: Path, flags: int = os.O_RDONLY, mode: int = 0o600, *, within: Path | None = None
) -> int:
    """Open the file. `within` is the folder that was named, by default the one that the file is in."""
    with _folder(path, within) as folder:
        try:
            file = os.open(path.name, flags | _FILE, mode, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise NotPlain(path) from None
            raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotPlain(path)
    return file


def opened(path: Path, *, within: Path | None = None) -> BinaryIO:
    """Open the file for reading."""
    return os.fdopen(handle(path, within=within), "rb")


def read(path: Path, most: int, *, within: Path | None = None) -> bytes:
    """Read the whole file. Raises OSError."""
    with opened(path, within=within) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise TooLarge(path, most)
    return text


def read_json(path: Path, most: int = JSON_MOST, *, within: Path | None = None) -> Any:
    """Read a JSON file. Raises OSError, and ValueError if it is no JSON."""
    try:
        return json.loads(read(path, most, within=within))
    except RecursionError:
        raise ValueError(f"{path} is nested too deep") from None


def replace(
    path: Path,
    content: str | bytes,
    *,
    within: Path | None = None,
    mode: int = 0o600,
    is_synced: bool = False,
    has_one_writer: bool = False,
) -> None:
    """Replace the file as a whole, also if this process is killed meanwhile. Raises OSError.

    `has_one_writer`: what a killed writer leaves has a fixed name, and the next one removes it.
    """
    name = f"{path.name}.tmp" if has_one_writer else None
    with _fresh(path, content, within, mode, is_synced=is_synced, name=name) as (folder, fresh):
        os.rename(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def create(path: Path, content: str, *, mode: int = 0o600) -> None:
    """Create the file as a whole, unless there is one. Raises OSError."""
    with _fresh(path, content, None, mode, is_synced=True) as (folder, fresh):
        try:
            os.link(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            pass
        except OSError:  # storage without hard links
            os.rename(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _fresh(
    path: Path,
    content: str | bytes,
    within: Path | None,
    mode: int,
    *,
    is_synced: bool,
    name: str | None = None,
) -> Iterator[tuple[int, str]]:
    """Beside this path a file of this content, under a name that it does not keep: this or a new one."""
    with _folder(path, within) as folder:
        if name is None:
            name = f"{path.name}.{os.urandom(8).hex()}.tmp"
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as out:
                permissions.open_as_users(file, mode)
                out.write(content.encode() if isinstance(content, str) else content)
                if is_synced:
                    out.flush()
                    os.fsync(out.fileno())
            yield folder, name
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _folder(path: Path, within: Path | None) -> Iterator[int]:
    """Open the folder of the file, going down from the folder that was named."""
    top = path.parent if within is None else within
    handle = os.open(top, _FOLDER)
    try:
        for name in path.parent.relative_to(top).parts:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)
