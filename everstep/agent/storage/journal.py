"""A job's journal as files: `<model_dir>/<time>_restartable/run.log` and `summary.json`.

Written under a lock, and only what is missing: whoever is killed in between is followed by somebody who
writes the same again. What is there is known by its text, which has its time in it: numbers come again
when a job is reset, with other lines.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from everstep.agent import wire
from everstep.agent.storage import files, permissions

LOG, SUMMARY, LOCK = "run.log", "summary.json", ".lock"
MODE = 0o666
"""As for any file of the user's: the rest is up to the umask."""
TAIL = 256 * 1024
"""So much of run.log is looked through for what is there already."""


def write(asked: wire.JournalCommand) -> None:
    """All of it is in the files when this returns. Raises OSError."""
    with _folder(Path(asked["model_dir"]), asked["began"], asked["owner"]) as folder:
        _append(folder / LOG, [f"{line}\n" for line in asked["lines"]])
        _tell(folder / SUMMARY, asked["runs"])


@contextmanager
def _folder(model_dir: Path, began: float, owner: dict[str, str]) -> Iterator[Path]:
    """The phase's own folder, held: the first from its second on that no other phase has."""
    at = datetime.fromtimestamp(began, tz=UTC).replace(microsecond=0)
    while True:
        folder = model_dir / f"{at:%Y%m%d_%H%M%S}_restartable"
        permissions.users_folder(folder)
        handle = files.handle(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644, within=model_dir)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for torn in folder.glob(f"{SUMMARY}.*.tmp"):
                torn.unlink()  # somebody was killed while writing it
            summary = _read(folder / SUMMARY)
            if not summary:
                _replace(folder / SUMMARY, {**owner, "runs": []})
            if not summary or {key: summary.get(key) for key in owner} == owner:
                yield folder
                return
        finally:
            os.close(handle)
        at += timedelta(seconds=1)


def _append(log: Path, lines: Sequence[str]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with os.fdopen(files.handle(log, flags, MODE, within=log.parents[1]), "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            permissions.open_as_users(file.fileno(), MODE)
        file.seek(max(0, size - TAIL))
        tail = file.read().decode(errors="replace")
        known = set(tail.splitlines(keepends=True))
        torn = "\n" if tail and not tail.endswith("\n") else ""  # somebody was killed in a line
        new = [line for line in lines if line not in known]
        if new:
            file.write((torn + "".join(new)).encode())


def _tell(path: Path, said: dict[str, dict[str, Any]]) -> None:
    summary = _read(path)
    runs = {run["run"]: run for run in summary.get("runs", [])}
    for number, about in ((int(number), about) for number, about in said.items()):
        runs[number] = {**runs.get(number, {"run": number}), **about}
    _replace(path, {**summary, "runs": [runs[number] for number in sorted(runs)]})


def _read(path: Path) -> dict[str, Any]:
    """What is there; nothing if there is none or it is not ours."""
    try:
        found = files.read_json(path, within=path.parents[1])
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace(path: Path, value: dict[str, Any]) -> None:
    files.replace(path, json.dumps(value, indent=2) + "\n", within=path.parents[1], mode=MODE)
