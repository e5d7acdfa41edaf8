"""What the ranks of a job printed, over all its restarts: files that outlive pods and workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.agent import wire

ABOUT = "pod.json"
"""Which job's pod a folder is; the folder's name need not say it."""

_NAME = re.compile(r"g(\d+)-r(\d+)\.log")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Log:
    """The output of one rank in one generation."""

    generation: int
    rank: int
    path: Path


def label(folder: Path, *, job: str, slot: int) -> None:
    """Say whose folder this is; saying it again changes nothing."""
    about = folder / ABOUT
    if not about.exists():
        fresh = about.with_suffix(".new")
        fresh.write_text(json.dumps({"job": job, "slot": slot}))
        fresh.replace(about)


def of_job(agents: Path, job: str) -> list[Log]:
    """All logs of the job, oldest generation first."""
    return sorted(log for folder in _folders(agents, job) for log in _logs(folder))


def _folders(agents: Path, job: str) -> Iterator[Path]:
    for about in agents.glob(f"*/{ABOUT}"):
        try:
            said = json.loads(about.read_text())
        except (OSError, ValueError):
            continue
        if said.get("job") == job:
            yield about.parent


def _logs(folder: Path) -> Iterator[Log]:
    for path in (folder / wire.LOGS).glob("*.log"):
        if found := _NAME.fullmatch(path.name):
            yield Log(generation=int(found[1]), rank=int(found[2]), path=path)
