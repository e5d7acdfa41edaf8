"""The ranks under a launcher, whichever it is: what they are given, and how they are struck and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.events import Events, newest_pid

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "peers" / "train.py"
POLL_S = 0.01
STARTED_S = 120.0
"""The time in which a launcher has to get both ranks to make a step."""


async def nothing() -> None:
    """Where nothing has to be waited for."""


async def unheard_of() -> float:
    """Where a launcher has no such part."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job of two ranks under a launcher."""

    folder: Path
    events: Events
    is_ready: Callable[[], Awaitable[None]] = nothing
    """Returns when a fault finds it as a user's job would be: recovered, and helpers imported."""
    kill_with_controller: Callable[[], Awaitable[float]] = unheard_of
    """SIGKILL to rank 1 and, once that is noticed, to what recovers the job, which starts again at once."""
    lose_node: Callable[[], Awaitable[float]] = unheard_of
    """Ends all that runs on one of two nodes; another node is there. Both return when it happened."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of the script, under every launcher."""
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "EVENTS": str(folder / "events"),
        "CHECKPOINTS": str(folder / "ckpt"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **more,
    }


async def until(
    claim: Callable[[], Awaitable[bool]], what: str, *, within_s: float = STARTED_S
) -> None:
    deadline = time.monotonic() + within_s
    while not await claim():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s:g} s")
        await asyncio.sleep(POLL_S)


async def both_step(events: Events) -> None:
    """Return when each rank has made a step."""

    async def have_stepped() -> bool:
        return {event.rank for event in events.all() if event.event == "step"} == {0, 1}

    await until(have_stepped, "a step of both ranks")


def kill_rank(events: Events, number: signal.Signals = signal.SIGKILL) -> float:
    """Strike rank 1; return when."""
    pid = newest_pid(events.all(), 1)
    at = time.time()
    os.kill(pid, number)
    return at


def end_ranks(events: Events) -> None:
    """SIGKILL to all ranks that still run."""
    for event in events.all():
        if event.event == "begun" and is_ours(event.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(event.pid, signal.SIGKILL)


def is_ours(pid: int) -> bool:
    """Whether it still is one of the ranks; numbers are given out again."""
    try:
        return str(SCRIPT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """The living processes that this one has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found[1:]


def without_settings() -> Mapping[str, str]:
    """The environment less what steers a worker or client of ours."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("EVERSTEP_", "TEMPORAL_"))}
