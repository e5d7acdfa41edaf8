"""A job's journal as files: `<model_dir>/<time>_restartable/run.log` and `summary.json`.

Written under a lock, and only what is missing: whoever is killed in between is followed by somebody who
writes the same entries again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

from everstep.agent.storage import files
from everstep.chronicle.chronicle import Entry
from everstep.chronicle.views import moment

LOG, SUMMARY, LOCK = "run.log", "summary.json", ".lock"
MODE = 0o666
"""As for any file of the user's: the rest is up to the umask."""
TAIL = 256 * 1024
"""So much of run.log is looked through for what is there already."""
TIMES = frozenset({"start_time", "end_time"})


def write(
    job: str, entries: Iterable[Entry], model_dir: Callable[[str | None], str | None]
) -> None:
    """All entries are in their files when this returns. Raises OSError.

    `model_dir` makes a folder of the name that the job's document has for it.
    """
    by_phase = groupby(entries, key=lambda e: (e.model_dir, e.phase, e.began))
    for (named, phase, began), found in by_phase:
        place = model_dir(named)
        if place is None:
            continue
        with _folder(Path(place), job, phase, began) as folder:
            mine = list(found)
            _append(folder / LOG, [_line(entry) for entry in mine])
            _tell(folder / SUMMARY, mine)


@contextmanager
def _folder(model_dir: Path, job: str, phase: str, began: float) -> Iterator[Path]:
    """The phase's own folder, held: the first from its second on that no other phase has."""
    at = datetime.fromtimestamp(began, tz=UTC).replace(microsecond=0)
    owner = {"workflow_id": job, "phase": phase, "began": moment(began)}
    while True:
        folder = model_dir / f"{at:%Y%m%d_%H%M%S}_restartable"
        folder.mkdir(parents=True, exist_ok=True)
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


def _line(entry: Entry) -> str:
    who = f"run_{entry.run}" if entry.run else "main"
    text = "".join(c if c.isprintable() else " " for c in entry.text)
    return f"[{who}] {moment(entry.at)} {text}\n"


def _append(log: Path, lines: list[str]) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    with os.fdopen(files.handle(log, flags, MODE, within=log.parents[1]), "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        tail = file.read().decode(errors="replace")
        known = set(tail.splitlines(keepends=True))
        torn = "\n" if tail and not tail.endswith("\n") else ""  # somebody was killed in a line
        new = [line for line in lines if line not in known]
        if new:
            file.write((torn + "".join(new)).encode())


def _tell(path: Path, entries: list[Entry]) -> None:
    summary = _read(path)
    runs = {run["run"]: run for run in summary.get("runs", [])}
    for entry in entries:
        number = entry.about or entry.run
        if number and entry.told:
            runs[number] = {**runs.get(number, {"run": number}), **_said(entry)}
    _replace(path, {**summary, "runs": [runs[number] for number in sorted(runs)]})


def _said(entry: Entry) -> dict[str, Any]:
    return {
        key: moment(value) if key in TIMES and isinstance(value, int | float) else value
        for key, value in entry.told.items()
    }


def _read(path: Path) -> dict[str, Any]:
    """What is there; nothing if there is none or it is not ours."""
    try:
        found = files.read_json(path, within=path.parents[1])
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace(path: Path, value: dict[str, Any]) -> None:
    files.replace(path, json.dumps(value, indent=2) + "\n", within=path.parents[1], mode=MODE)
