"""Files of EVERSTEP_HOME about jobs that have ended: what commands print of them where no server runs.

`run` writes one as its job ends, before the server that it started ends too.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent.storage import files, permissions
from everstep.client.home import ENDED, home, made_home

Value = dict[str, Any]

BYTES_MOST = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """What the commands show of a job that has ended."""

    id: str
    lives: int
    """How many the ID had."""
    status: Value
    restarts: list[Value]
    """The restarts of all lives of its ID, oldest first, each with its `life`."""
    events: list[Value]
    explanation: Value
    """Of its newest restart, or of its end."""
    report: Value
    sources: list[Value] = field(default_factory=list)
    """Of each life what a report of all jobs is made from: status, JobReport, records."""


def path_of(job_id: str) -> Path:
    return home() / ENDED / f"{job_id}.json"


def write(ended: EndedJob) -> None:
    """Write the file of this job; it is replaced as a whole."""
    permissions.folder(made_home() / ENDED)
    files.replace(path_of(ended.id), json.dumps(asdict(ended)))


def remove(job_id: str) -> None:
    """Remove the file, as a job of this ID starts again."""
    with suppress(OSError):
        path_of(job_id).unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobFile:
    """The file of a job, as `prune` lists it."""

    job: str
    size: int
    written_at: float


def prune(*, before: float, is_dry_run: bool) -> list[EndedJobFile]:
    """Remove the files that were written before this time. Returns those that were removed."""
    removed = []
    for path in sorted((home() / ENDED).glob("*.json")):
        with suppress(OSError):
            info = path.lstat()
            if info.st_mtime >= before:
                continue
            if not is_dry_run:
                path.unlink()
            file = EndedJobFile(job=path.stem, size=info.st_size, written_at=info.st_mtime)
            removed.append(file)
    return removed


def read(job_id: str) -> EndedJob | None:
    """What the file of this job has; None without a file that can be read."""
    if "/" in job_id:  # no ID of a job, and no name of a file either
        return None
    try:
        return EndedJob(**files.read_json(path_of(job_id), BYTES_MOST))
    except (OSError, ValueError, TypeError):
        return None


def written_since(job_id: str, at: float) -> EndedJob | None:
    """What the file of this job has if it was written since then: an older one is of an earlier life."""
    try:
        is_new = path_of(job_id).lstat().st_mtime >= at
    except (OSError, ValueError):  # no file, or an ID that is no name of one
        return None
    return read(job_id) if is_new else None


def read_all() -> list[EndedJob]:
    """What the files of all jobs have, by their IDs."""
    ids = sorted(path.stem for path in (home() / ENDED).glob("*.json"))
    return [ended for job_id in ids if (ended := read(job_id)) is not None]
