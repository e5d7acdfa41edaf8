"""The keys of payloads: a folder with a file for each key, and one that names the key that writes.

    2026-11     32 random bytes in base64; the name of the file is the name of the key
    2026-12
    current     the name of the key that writes, where there are several

The folder is read again while the process runs, so that a key that is added or chosen needs no restart. A
folder that cannot be read any more changes nothing in a process that has read it.
"""

from __future__ import annotations

import base64
import logging
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.core.errors import KeysUnusable

LOG = logging.getLogger(__name__)

VARIABLE = "EVERSTEP_PAYLOAD_KEYS"
CURRENT = "current"
KEY_BYTES = 32
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE_MOST = 1_024
LOOK_AGAIN_S = 5.0
"""Seconds that a process writes with a key after another one was chosen."""
LOOK_FOR_S = 0.5
"""Seconds between two looks for a key that it lacks."""

HOW_TO_MAKE = "`openssl rand -base64 32` makes one"


@dataclass(frozen=True, slots=True)
class Keys:
    """What a folder holds."""

    by_name: Mapping[str, bytes]
    current: str


def read(folder: Path) -> Keys:
    """The keys of a folder. Raises `KeysUnusable` with one sentence if it is not as it has to be."""
    try:
        return _read(folder)
    except OSError as error:
        why = f"{error.filename or folder}: {error.strerror}"
        raise KeysUnusable(f"{VARIABLE}: {why}") from None
    except KeysUnusable as error:
        raise KeysUnusable(f"{VARIABLE}: {error}") from None


def _read(folder: Path) -> Keys:
    _check_access(folder)
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    texts = {path.name: _text(path) for path in files}
    chosen = texts.pop(CURRENT, "")
    by_name = {name: _key(folder / name, text) for name, text in texts.items()}
    return Keys(by_name=by_name, current=_current(folder, by_name, chosen))


def read_secret(path: Path) -> str:
    """The text of a file that only its owner may read. Raises `KeysUnusable`."""
    try:
        _check_access(path)
        return _text(path)
    except OSError as error:
        raise KeysUnusable(f"{path}: {error.strerror}") from None


def _check_access(path: Path) -> None:
    """Raise `KeysUnusable` if every user of the machine may change the folder, or read or change the file.

    A mounted Secret is a folder with the sticky bit: all may write there, to files of their own alone.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        is_refused = bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    else:
        is_refused = bool(mode & (stat.S_IROTH | stat.S_IWOTH))
    if is_refused:
        what = "change" if mode & stat.S_IWOTH else "read"
        hint = f"`chmod o= {path}` closes it"
        raise KeysUnusable(f"every user of this machine may {what} {path}; {hint}")


def _text(path: Path) -> str:
    if not path.is_file():
        raise KeysUnusable(f"{path} is no file; the folder holds keys alone")
    if path.name != CURRENT:
        _check_access(path)
    with path.open("rb") as file:
        return file.read(FILE_MOST).decode("ascii", errors="replace").strip()


def _key(path: Path, text: str) -> bytes:
    """The key of a file. No message shows what the file holds."""
    if not KEY_NAME.fullmatch(path.name):
        problem = "name a key with letters, digits, `.`, `_` and `-`"
        raise KeysUnusable(f"{str(path)!a}: {problem}")
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        problem = f"a key is {KEY_BYTES} bytes in base64; {HOW_TO_MAKE}"
        raise KeysUnusable(f"{path}: {problem}")
    return key


def _current(folder: Path, by_name: Mapping[str, bytes], chosen: str) -> str:
    if not by_name:
        raise KeysUnusable(f"{folder} holds no key; {HOW_TO_MAKE}")
    if not chosen and len(by_name) == 1:
        return next(iter(by_name))
    if not chosen:
        problem = f"{folder} holds {len(by_name)} keys: write the name of the one that writes into"
        raise KeysUnusable(f"{problem} {folder / CURRENT}")
    if chosen not in by_name:
        problem = f"{folder / CURRENT} holds no name of a key in that folder"  # nor is it shown
        raise KeysUnusable(problem)
    return chosen


class KeyFolder:
    """The keys of a folder as it is now."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises `KeysUnusable`."""
        self._folder = folder
        self._clock = clock
        self._keys = read(folder)
        self._read_at = clock()
        self._problem = ""

    def current(self) -> tuple[str, bytes]:
        """The key that writes, with its name."""
        self._look_again(LOOK_AGAIN_S)
        return self._keys.current, self._keys.by_name[self._keys.current]

    def key(self, name: str) -> bytes | None:
        """The key of this name, None if there is none."""
        self._look_again(LOOK_AGAIN_S if name in self._keys.by_name else LOOK_FOR_S)
        return self._keys.by_name.get(name)

    def _look_again(self, after_s: float) -> None:
        if self._clock() - self._read_at < after_s:
            return
        self._read_at = self._clock()
        try:
            self._keys, problem = read(self._folder), ""
        except KeysUnusable as error:
            problem = f"{error}; the keys that were read before are used"
        if problem and problem != self._problem:
            LOG.warning(problem)
        self._problem = problem
