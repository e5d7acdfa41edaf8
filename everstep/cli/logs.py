"""The command `logs`: what the ranks of a job on this machine printed, over its restarts."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import IO, Annotated, Any

import typer

from everstep.cli.exits import Exit, Failed
from everstep.cli.job import JobId
from everstep.cli.state import home

LOCAL = "everstep.backends.local.logs"
LOOK_S = 0.2


def logs(
    job_id: JobId,
    rank: Annotated[int, typer.Option(min=0, help="Of this rank.")] = 0,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Of this generation; else of all of them.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what it prints from now on.")
    ] = False,
) -> None:
    """Print what a rank printed. Every start of the job has a generation, a heading says which."""
    found = _found(job_id, rank, generation)
    if not found:
        which = f" of generation {generation}" if generation is not None else ""
        problem = f"rank {rank} of {job_id} left no log{which} in {home()}"
        raise Failed(Exit.NOT_FOUND, problem)
    several = generation is None
    for log in found[:-1]:
        _print(log, several)
    if not follow:
        _print(found[-1], several)
        return
    _follow(job_id, rank, generation, found[-1])


def _found(job_id: str, rank: int, generation: int | None) -> list[Any]:
    local: Any = import_module(LOCAL)
    return [
        log
        for log in local.of_job(home() / "agents", job_id)
        if log.rank == rank and generation in (None, log.generation)
    ]


def _print(log: Any, several: bool) -> None:
    if several:
        print(f"== generation {log.generation}, rank {log.rank}")
    with log.path.open("rb") as lines:
        _copy(lines)


def _copy(lines: IO[bytes]) -> bool:
    """What there is to read; whether there was anything."""
    anything = False
    while part := lines.read(1 << 16):
        sys.stdout.write(part.decode(errors="replace"))
        anything = True
    sys.stdout.flush()
    return anything


def _follow(job_id: str, rank: int, generation: int | None, newest: Any) -> None:
    """The newest log as it grows, and the next generation's once there is one. Until Ctrl-C."""
    while True:
        if generation is None:
            print(f"== generation {newest.generation}, rank {newest.rank}", flush=True)
        with newest.path.open("rb") as lines:
            while True:
                grew = _copy(lines)
                later = [n for n in _found(job_id, rank, generation) if n > newest]
                if later and not grew:
                    break
                time.sleep(LOOK_S)
        newest = later[0]
