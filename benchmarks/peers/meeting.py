"""A turn: a launcher is started, struck by its faults, and each time its way back is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers import pods, setups
from benchmarks.peers.events import pause, recovery
from benchmarks.peers.plan import Fault, Turn
from benchmarks.peers.ranks import Running, kill_rank, until
from benchmarks.peers.results import Measurement, NotRun, Results

SETTLED_S = 2.0
GIVEN_UP_S = 60.0
PODS_GIVEN_UP_S = 100.0
OVER_S = 60.0
"""The time that the last turn may take beyond that of the run."""
NOTED_S = 0.5
"""The time in which all ranks write down a step that one of them has."""


@dataclass(kw_only=True)
class Run:
    """A comparison as it goes on."""

    results: Results
    began: float
    seconds: float

    def left_s(self) -> float:
        """The time until the turn that is being taken has to end."""
        return max(1.0, self.seconds + OVER_S - self.elapsed())

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def add(self, one: Measurement) -> None:
        self.results.measured.append(one)
        took = "never" if one.took_s is None else f"{one.took_s:.3f} s"
        lost = "" if one.lost_steps is None else f", {one.lost_steps} steps lost"
        print(f"  {one.row:16}{one.launcher:12}{took:>10}{lost}, load {one.load:.1f}", flush=True)

    def leave_out(
        self, faults: Sequence[tuple[str, Fault]], launchers: Sequence[str], reason: str
    ) -> None:
        for row in dict.fromkeys(row for row, _ in faults):
            for launcher in launchers:
                self.results.not_run.append(NotRun(row=row, launcher=launcher, reason=reason))
        print(f"  not run: {reason}", flush=True)


@dataclass(kw_only=True)
class Taking:
    """A turn that is being taken."""

    run: Run
    round: int
    turn: Turn
    left: list[tuple[str, Fault]]

    def measurement(self, launcher: str, began: Began, took_s: float | None) -> Measurement:
        """The measurement, in pods, of the first fault of those that are left."""
        return Measurement(
            row=self.left[0][0],
            launcher=launcher,
            round=self.round,
            at_s=round(began.at_s, 1),
            load=round(began.load, 2),
            given_up_s=PODS_GIVEN_UP_S,
            took_s=None if took_s is None else round(took_s, 4),
        )


class Began:
    """When a fault happens, and beside what."""

    def __init__(self, run: Run) -> None:
        self.load, self.at_s, self.fault_at = os.getloadavg()[0], run.elapsed(), time.time()


async def take(run: Run, number: int, turn: Turn) -> None:
    """One turn. What cannot be started is written down, and the others go on."""
    if reason := setups.missing(turn.launcher):
        run.leave_out(turn.faults, turn.columns, reason)
        return
    taking = Taking(run=run, round=number, turn=turn, left=list(turn.faults))
    try:
        async with asyncio.timeout(run.left_s()), _own_folder() as folder:
            await (_meet_in_pods if turn.setup == "kubernetes" else _meet)(taking, folder)
    except Exception as error:  # noqa: BLE001  # whatever one launcher does, the others are measured
        first = str(error).partition("\n")[0] or type(error).__name__
        run.leave_out(taking.left, turn.columns, f"a turn failed: {first}")


@asynccontextmanager
async def _own_folder() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everstep-peers-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _meet(taking: Taking, folder: Path) -> None:
    """All faults of a turn. After one that is not recovered from, the launcher starts anew."""
    start = setups.setups()[taking.turn.launcher, taking.turn.setup]
    while taking.left:
        own = folder / str(len(taking.left))
        own.mkdir()
        async with start(own) as running:
            while taking.left:
                one = await _one_fault(taking, running)
                taking.run.add(one)
                taking.left.pop(0)
                if one.took_s is None:
                    break


async def _one_fault(taking: Taking, running: Running) -> Measurement:
    row, fault = taking.left[0]
    await asyncio.sleep(SETTLED_S)
    await running.is_ready()
    began = Began(taking.run)
    began.fault_at = await _strike(fault, running)
    left_s = GIVEN_UP_S - (time.time() - began.fault_at)
    with contextlib.suppress(TimeoutError):
        await until(lambda: _is_back(running, began.fault_at), "a step", within_s=left_s)
        await asyncio.sleep(NOTED_S)
    return measured(taking, row, running, began)


async def _is_back(running: Running, fault_at: float) -> bool:
    return recovery(running.events.all(), fault_at=fault_at) is not None


def measured(taking: Taking, row: str, running: Running, began: Began) -> Measurement:
    events = running.events.all()
    found = recovery(events, fault_at=began.fault_at)
    own = Measurement(
        row=row,
        launcher=taking.turn.launcher,
        round=taking.round,
        at_s=round(began.at_s, 1),
        load=round(began.load, 2),
        given_up_s=GIVEN_UP_S,
        took_s=None,
        paused_s=round(pause(events, fault_at=began.fault_at, until=time.time()), 4),
    )
    if found is None:
        return own
    return replace(
        own,
        took_s=round(found.took_s, 4),
        begun_s=round(found.begun_s, 4),
        paused_s=round(found.paused_s, 4),
        lost_steps=found.lost_steps,
        wasted_starts=found.wasted_starts,
    )


async def _strike(fault: Fault, running: Running) -> float:
    """Let the fault happen; return when it did."""
    match fault:
        case Fault.CRASH:
            return kill_rank(running.events)
        case Fault.HANG:
            return kill_rank(running.events, signal.SIGSTOP)
        case Fault.CONTROLLER:
            return await running.kill_with_controller()
        case Fault.NODE:
            return await running.lose_node()
        case Fault.CONTAINER:
            raise AssertionError("a container is one of Kubernetes")


async def _meet_in_pods(taking: Taking, folder: Path) -> None:
    """Each fault for both, in an order by chance."""
    run, reason = taking.run, setups.missing("JobSet")
    chance = random.Random(f"{run.results.seed} {taking.round}")
    async with pods.ground(folder, with_jobset=reason is None) as ground:
        while taking.left:
            row, fault = taking.left[0]
            for name in chance.sample(taking.turn.columns, len(taking.turn.columns)):
                if name not in ground.contenders:
                    run.results.not_run.append(NotRun(row=row, launcher=name, reason=reason or ""))
                    continue
                began, took = Began(run), None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PODS_GIVEN_UP_S):
                        took = await ground.strike(fault, name)
                run.add(taking.measurement(name, began, took))
            taking.left.pop(0)
