"""Permissions of a state directory: no other user of the machine may read it.

A private folder protects all that is in it. Each file is private all the same, in case the folder is opened
later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHER_USERS = 0o077

_umask_of_users: list[int] = []


def opener(path: str, flags: int) -> int:
    """Opener for `open` that creates private files."""
    return os.open(path, flags, FILE)


def folder(path: Path) -> Path:
    """Make the folder, private, unless it is there."""
    path.mkdir(mode=FOLDER, parents=True, exist_ok=True)
    return path


def ensure_below(home: Path, folder: Path) -> Path:
    """Make this folder below the home. The home is never made: its storage may be unmounted."""
    path = home
    for name in folder.relative_to(home).parts:
        path /= name
        path.mkdir(mode=FOLDER, exist_ok=True)
    return folder


def make_nothing_for_others() -> None:
    """Have this process create private files from now on."""
    _umask_of_users.append(os.umask(OTHER_USERS))


def users_umask() -> int:
    """The umask for the user's own processes."""
    if _umask_of_users:
        return _umask_of_users[0]
    status = Path("/proc/self/status").read_text()  # to set it is the other way to see it
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def open_as_users(handle: int, mode: int) -> None:
    """Open a file or folder that this process made as far as the user's umask allows."""
    # Not if it is another user's, or its storage has no modes.
    with contextlib.suppress(PermissionError):
        private_mode = stat.S_IMODE(os.fstat(handle).st_mode) & ~stat.S_ISVTX
        os.fchmod(handle, private_mode | (mode & ~users_umask()))


UNOPENED = stat.S_ISVTX | FOLDER
"""The mode of a folder that was made and not opened yet. The sticky bit, without effect in a private
folder, distinguishes it from one that its owner closed. So if a process is killed in between, the next one
opens it."""


def users_folder(path: Path) -> None:
    """Make the folder and its missing parents, with the modes of the user's umask. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            if folder.is_symlink():
                why = f"{folder} is a link to {folder.readlink()}, which is not there"
                raise FileNotFoundError(errno.ENOENT, why)
            folder.mkdir(UNOPENED, exist_ok=True)
        if _is_unopened(folder.stat()):
            _open_folder_as_users(folder)


def _is_unopened(status: os.stat_result) -> bool:
    return status.st_mode & (UNOPENED | OTHER_USERS) == UNOPENED


def _open_folder_as_users(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _is_unopened(os.fstat(handle)):  # still: another process may have put a link there
            open_as_users(handle, 0o777)
    finally:
        os.close(handle)


def open_to_others(top: Path) -> Iterator[Path]:
    """Paths at or below this one that other users may enter, read or write."""
    try:
        mode = top.lstat().st_mode
        entries = sorted(top.iterdir()) if stat.S_ISDIR(mode) else []
    except OSError:
        return  # it is gone, or not ours to look at
    if mode & OTHER_USERS and not stat.S_ISLNK(mode):
        yield top
    for entry in entries:
        yield from open_to_others(entry)


def close(path: Path) -> None:
    """Make the path private. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:  # by its handle: a link may be put in its place meanwhile
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode) & ~OTHER_USERS)  # noqa: PTH101
    finally:
        os.close(handle)
