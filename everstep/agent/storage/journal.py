"""A job's journal as files in `<model_dir>/<time>_restartable`: run.log, summary.json and others beside them.

A writer holds a lock and adds only what is missing, so after a crash the next writer completes the same.
Lines are compared by their text, which has the time in it: numbers come again, with other lines, when a job
is reset. The lines are written last, so a late writer whose lines are all there has nothing to add.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everstep.agent.storage import files, permissions
from everstep.protocol import wire

LOG, SUMMARY, LOCK = "run.log", "summary.json", ".lock"
MODE = 0o666
"""Mode of a user's file; the umask applies."""
TAIL = 256 * 1024
"""Bytes at the end of run.log that are searched for lines that are there already."""


def write(command: wire.JournalCommand) -> None:
    """Write all of it to the files. Raises OSError."""
    model_dir = Path(command["model_dir"])
    with folder_of(model_dir, command["began"], command["owner"], command["workdir"]) as folder:
        summary = _read(folder / SUMMARY)
        new = _missing(folder / LOG, [f"{line}\n" for line in command["lines"]])
        if summary and not new:
            return
        for name in command["folders"]:
            permissions.users_folder(_inside(folder, name))
        for name, text in command["files"].items():
            _replace(_inside(folder, name), text)
        _replace(folder / SUMMARY, _summary(command, summary.get("runs", [])))
        _append(folder / LOG, new)


def _inside(folder: Path, name: str) -> Path:
    if name in {"", ".", ".."} or "/" in name:
        raise OSError(f"{name} is no name in {folder}")
    return folder / name


@contextmanager
def folder_of(
    model_dir: Path, began: float, owner: dict[str, str], workdir: str | None
) -> Iterator[Path]:
    """The phase's own folder, held: the first from its second on that no other phase has.

    Raises OSError, also where the folder would be inside a workdir that does not exist.
    """
    if workdir and model_dir.is_relative_to(workdir) and not Path(workdir).is_dir():
        raise OSError(f"the workdir {workdir} is no folder")
    # Takes some milliseconds, and one agent of a job writes its journal.
    from datetime import datetime, timedelta, timezone

    at = datetime.fromtimestamp(began, tz=timezone.utc).replace(microsecond=0)
    while True:
        folder = model_dir / f"{at:%Y%m%d_%H%M%S}_restartable"
        permissions.users_folder(folder)
        handle = files.handle(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644, within=model_dir)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _belongs_to(handle, owner, folder):
                for torn in folder.glob("*.tmp"):
                    torn.unlink()  # its writer was killed
                yield folder
                return
        finally:
            os.close(handle)
        at += timedelta(seconds=1)


def _belongs_to(lock: int, owner: dict[str, str], folder: Path) -> bool:
    """Claim the folder in its lock file; return whether it is the owner's."""
    claim = json.dumps(owner, sort_keys=True).encode()
    content = os.pread(lock, len(claim) + 1, 0)
    if content != claim and claim.startswith(content):  # unclaimed, or the writer was killed
        if any(entry.name != LOCK for entry in folder.iterdir()):
            return False  # another program's
        os.pwrite(lock, claim, 0)
        return True
    return content == claim


def _missing(log: Path, lines: Sequence[str]) -> list[str]:
    """Which of the lines are not in the log yet."""
    lines_there = set(_tail(log).splitlines(keepends=True))
    return [line for line in lines if line not in lines_there]


def _tail(log: Path) -> str:
    try:
        with files.opened(log, within=log.parents[1]) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _append(log: Path, lines: Sequence[str]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with os.fdopen(files.handle(log, flags, MODE, within=log.parents[1]), "a+b") as file:
        if not file.seek(0, os.SEEK_END):
            permissions.open_as_users(file.fileno(), MODE)
        tail = _tail(log)
        torn = "\n" if tail and not tail.endswith("\n") else ""  # a writer was killed in a line
        file.write((torn + "".join(lines)).encode())


def _summary(command: wire.JournalCommand, runs_before: list[dict[str, Any]]) -> str:
    runs = list(runs_before)
    for number, about in sorted((int(number), about) for number, about in command["runs"].items()):
        runs += [{}] * (number - len(runs))  # runs in between that could not be written
        runs[number - 1] = about
    return json.dumps({**command["summary"], "runs": runs}, indent=2) + "\n"


def _read(path: Path) -> dict[str, Any]:
    """The content of the file; empty if there is none or it is another program's."""
    try:
        content = files.read_json(path, within=path.parents[1])
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _replace(path: Path, text: str) -> None:
    files.replace(path, text, within=path.parents[1], mode=MODE)
