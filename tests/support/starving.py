"""What processes of ours may suddenly be without: descriptors, room on the disk, a directory, a processor."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def without_room(*pids: int) -> Iterator[None]:
    """Inside, these write to no file, as on a full disk. What they start meanwhile keeps to that."""
    before: dict[int, tuple[int, int]] = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            before[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[pid][1]))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Inside, the process can open nothing more; what it has open stays open."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def away(folder: Path) -> Iterator[Path]:
    """Inside, the folder is here. Fails if another process made a folder in its place."""
    elsewhere = folder.with_name(f"{folder.name}-away")
    folder.rename(elsewhere)
    try:
        yield elsewhere
    finally:
        elsewhere.rename(folder)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Inside, these stand still."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


RUN_S, STAND_S = 0.02, 0.18
"""Turns of what runs slowly: a tenth of the time it runs."""


async def run_slowly(pids: Callable[[], Sequence[int]]) -> None:
    """Let these stand still nine tenths of the time, until cancelled. Then they run."""
    while True:
        with stopped(*pids()):
            await asyncio.sleep(STAND_S)
        await asyncio.sleep(RUN_S)
