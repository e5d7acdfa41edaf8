"""Every level that needs no help of the script, by real processes and real faults.

Only real ranks have weights to compare.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Handle, Rehearsal, gist, records, small

AT_A_TIME = 3
STEPS = 100
FAULT_AT = 24
"""Step at which something happens: checkpoints of the steps 10 and 20 are there."""

Deed = Callable[[Rehearsal, "Row", Path], Awaitable[None]]


async def nothing(_r: Rehearsal, _row: Row, _folder: Path) -> None:
    """The script does it by itself."""


async def kill_rank(r: Rehearsal, row: Row, _folder: Path) -> None:
    await r.fault(f"kill {row.name} 1")


async def hang(r: Rehearsal, row: Row, _folder: Path) -> None:
    await r.fault(f"hang {row.name} 1")


def device(how: str) -> Deed:
    async def breaks(r: Rehearsal, row: Row, _folder: Path) -> None:
        pod = r.pods(row.name)[1]
        ((index,),) = (entry.devices for entry in r.books().pods if entry.uid == pod.uid)
        await r.fault(f"device {pod.node} {index} 80E01801 {how}")

    return breaks


async def kill_and_spoil(r: Rehearsal, row: Row, folder: Path) -> None:
    """The newest checkpoint looks whole and is not what was saved; no process acts meanwhile."""
    pods = r.pods(row.name)
    os.kill(r.worker.pid, signal.SIGSTOP)
    try:
        for pod in pods:
            for pid in pod.ranks():
                with contextlib.suppress(ProcessLookupError):  # its agent ends the others
                    os.kill(pid, signal.SIGKILL)
        await r.until(lambda: not any(pod.ranks() for pod in pods), "the end of the ranks")
        spoil(folder / "out" / "ckpt")
    finally:
        os.kill(r.worker.pid, signal.SIGCONT)


def spoil(folder: Path) -> None:
    newest = max(folder.glob("step-*.json"), key=lambda path: int(path.stem[5:]))
    state = json.loads(newest.read_text())
    newest.write_text(json.dumps({**state, "sha256": "0" * 64}))


def newest(steps: list[int]) -> bool:
    """What was there is gone on from; how far it had come by then is the machine's affair."""
    return all(step >= 20 and step % 10 == 0 for step in steps)


def older(steps: list[int]) -> bool:
    """A rollback goes to the checkpoint before the newest one."""
    return newest(steps[:1]) and steps[1] == steps[0] - 10


def rule(match: dict[str, Any], action: Any) -> dict[str, Any]:
    return {"recovery": {"rules": [{"match": match, "action": action, "why": "for this test"}]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job, what happens to it, and what has to become of it."""

    name: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    deed: Deed = nothing
    restarts: list[tuple[str, str, str]]
    resumed: Callable[[list[int]], bool] = newest
    isolated: list[bool]
    status: str = "Completed"


ONE_DEVICE = {"accelerators_per_node": 1, "accelerator": "simulated"}

ROWS = (
    Row(
        name="hang",
        spec={"limits": {"hang_s": 5}},
        deed=hang,
        restarts=[("hang", "suspension", "success")],
        isolated=[False],
    ),
    Row(
        name="job",
        spec={"recovery": {"ladders": {"crash": ["job"]}}},
        deed=kill_rank,
        restarts=[("crash", "job", "success")],
        isolated=[False],
    ),
    Row(
        name="numeric",
        spec={
            **rule({"exit_code": [7]}, {"class": "numeric"}),
            "env": {"CRASH_AT_STEP": f"1:{FAULT_AT}:7"},
        },
        restarts=[("numeric", "rollback", "success")],
        resumed=lambda steps: steps == [10],
        isolated=[False],
    ),
    Row(
        name="checkpoint",
        spec=rule({"log": "checksum does not match"}, {"class": "checkpoint"}),
        deed=kill_and_spoil,
        restarts=[("crash", "in_place", "success"), ("checkpoint", "rollback", "success")],
        resumed=older,
        isolated=[False, False],
    ),
    Row(
        name="fail",
        spec={**rule({"exit_code": [3]}, "fail"), "env": {"CRASH_AT_STEP": f"1:{FAULT_AT}:3"}},
        restarts=[],
        isolated=[],
        status="Failed",
    ),
    Row(
        name="heals",
        spec=ONE_DEVICE,
        deed=device("heals"),
        restarts=[("device", "in_place", "success")],
        isolated=[False],
    ),
    Row(
        name="broken",
        spec=ONE_DEVICE,
        deed=device("critical"),
        restarts=[("device_fatal", "pod", "success")],
        isolated=[True],
    ),
)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_each_level_does_what_it_says_and_costs_no_bit(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    async with Rehearsal(tmp_path / "r", nodes=6) as r:
        turn = asyncio.Semaphore(AT_A_TIME)
        async with asyncio.TaskGroup() as group:
            tasks = {
                row.name: group.create_task(become(r, row, tmp_path / row.name, turn))
                for row in ROWS
            }
        left = await r.is_clean(*(tmp_path / row.name for row in ROWS))
    for row in ROWS:
        report = tasks[row.name].result()
        sys.stdout.write(f"{row.name}: {gist(report)}\n")
        assert report["status"] == row.status, row.name
        assert gist(report) == row.restarts, row.name
        steps = [record["resume_step"] for record in records(report)]
        assert row.resumed(steps), f"{row.name}: {steps}"
        assert [record["isolated"] for record in records(report)] == row.isolated, row.name
        if row.status == "Completed":
            assert final(tmp_path / row.name) == expected, row.name
    assert left == []


async def become(r: Rehearsal, row: Row, folder: Path, turn: asyncio.Semaphore) -> dict[str, Any]:
    async with turn:
        job: Handle = await r.submit(small(folder, row.name, steps=STEPS, **row.spec))
        if row.deed is not nothing:
            far = f"step {FAULT_AT} of {row.name}"
            await r.until(lambda: r.step(generation=1, job=row.name) >= FAULT_AT, far)
            await row.deed(r, row, folder)
        return await r.report(job)
