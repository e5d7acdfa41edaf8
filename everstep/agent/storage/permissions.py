"""What is ours alone in a state directory: opened by no other user of the machine.

A folder that is ours alone keeps everybody out of what is in it; each file is closed all the same, for the
day on which somebody opens the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077

_users: list[int] = []


def opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is ours alone."""
    return os.open(path, flags, FILE)


def folder(path: Path) -> Path:
    """It is there, and ours alone if it was not."""
    path.mkdir(mode=FOLDER, parents=True, exist_ok=True)
    return path


def below(home: Path, folder: Path) -> Path:
    """This folder of our home is there. The home is never made: it may be away, and comes back."""
    made = home
    for name in folder.relative_to(home).parts:
        made /= name
        made.mkdir(mode=FOLDER, exist_ok=True)
    return folder


def make_nothing_for_others() -> None:
    """Whatever this process makes from now on is ours alone."""
    _users.append(os.umask(OTHERS))


def users_umask() -> int:
    """What the user's own processes are to go by."""
    if _users:
        return _users[0]
    status = Path("/proc/self/status").read_text()  # to set it is the other way to see it
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def open_as_users(handle: int, mode: int) -> None:
    """A file or folder that we made is open to whom the user's umask lets in, however closed ours are."""
    # Not where it is another user's, or its storage knows no modes.
    with contextlib.suppress(PermissionError):
        ours = stat.S_IMODE(os.fstat(handle).st_mode) & ~stat.S_ISVTX
        os.fchmod(handle, ours | (mode & ~users_umask()))


UNOPENED = stat.S_ISVTX | FOLDER
"""The mode of a folder that we made and did not open yet. The sticky bit, of no use where nobody else may
write, tells it from one that its owner closed: whoever is killed in between, the next one opens it."""


def users_folder(path: Path) -> None:
    """It is there; what of the way to it had to be made goes by the user's umask. Raises OSError."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            if folder.is_symlink():
                why = f"{folder} is a link to {folder.readlink()}, which is not there"
                raise FileNotFoundError(errno.ENOENT, why)
            folder.mkdir(UNOPENED, exist_ok=True)
        if _is_unopened(folder.stat()):
            _open_folder_as_users(folder)


def _is_unopened(seen: os.stat_result) -> bool:
    return seen.st_mode & (UNOPENED | OTHERS) == UNOPENED


def _open_folder_as_users(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _is_unopened(os.fstat(handle)):  # still: somebody may have put a link there
            open_as_users(handle, 0o777)
    finally:
        os.close(handle)


def open_to_others(top: Path) -> Iterator[Path]:
    """Of a file, or of a folder and all that is in it, what others may enter, read or write."""
    try:
        mode = top.lstat().st_mode
        entries = sorted(top.iterdir()) if stat.S_ISDIR(mode) else []
    except OSError:
        return  # it is gone, or not ours to look at
    if mode & OTHERS and not stat.S_ISLNK(mode):
        yield top
    for entry in entries:
        yield from open_to_others(entry)


def close(path: Path) -> None:
    """No other user gets at it any more. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:  # nobody can put a link in its place meanwhile
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(os.fstat(handle).st_mode) & ~OTHERS)  # noqa: PTH101
    finally:
        os.close(handle)
