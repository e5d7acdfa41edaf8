"""Where this machine's own cluster and server keep their things: `EVERSTEP_HOME`, closed to other users."""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from everstep.agent.storage import permissions
from everstep.client.exit_codes import Exit, Failed

LOG = logging.getLogger(__name__)

DEFAULT = "~/.everstep"

OWN_NAMES = (
    "local.db*",
    "temporal.*",
    "server.*",
    "worker*.log",
    "workers",
    "run-*.log",
    "agents",
    "agent.pyz*",
    "sim",
    "pruned",
    "ended",
)
"""Names of private entries of a state directory. Not `jobs`: its content is the user's."""

WORKERS = "workers"
"""The folder of what the workers of this machine have under way."""
JOBS = "jobs"
ENDED = "ended"
"""The folder of files about jobs that have ended."""


def home() -> Path:
    """The state directory, as an absolute path; it need not be there yet."""
    return Path(os.environ.get("EVERSTEP_HOME") or DEFAULT).expanduser().absolute()


def made_home() -> Path:
    """The same, and it is there and ours alone; where that cannot be, a sentence says so."""
    directory = home()
    try:
        permissions.folder(directory)
    except OSError as error:
        problem = f"EVERSTEP_HOME is {directory} and cannot be made: {error.strerror}"
        raise Failed(Exit.USAGE, f"{problem}; set it to a folder") from None
    for path in open_to_others(directory):
        if why := _closed(path, directory):
            LOG.warning("%s is open to other users: %s", path, why)
    return directory


def open_to_others(directory: Path) -> Iterator[Path]:
    """The state directory and what of it is ours, as far as other users may enter, read or write it."""
    if _is_open(directory):
        yield directory
    for entry in _entries(directory):
        if entry.name == JOBS and _is_open(entry):
            yield entry
        elif _has_own_name(entry):
            yield from permissions.open_to_others(entry)


def _closed(path: Path, directory: Path) -> str | None:
    """Close the path; return why it is still open, as a directory with other files is not closed."""
    if path == directory and (stranger := _stranger(directory)):
        return f"{stranger} in it does not belong to Everstep; set EVERSTEP_HOME to a folder of its own"
    try:
        permissions.close(path)
    except OSError as error:
        return error.strerror
    return None


def _stranger(directory: Path) -> str | None:
    strangers = (
        entry for entry in _entries(directory) if entry.name != JOBS and not _has_own_name(entry)
    )
    return next((entry.name for entry in strangers), None)


def _has_own_name(entry: Path) -> bool:
    return any(fnmatch(entry.name, name) for name in OWN_NAMES)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _is_open(path: Path) -> bool:
    try:
        return bool(path.lstat().st_mode & permissions.OTHER_USERS)
    except OSError:
        return False


def user() -> str:
    """The user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return str(os.getuid())
