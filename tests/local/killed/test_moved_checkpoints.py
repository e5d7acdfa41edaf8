"""A folder of checkpoints that is moved away while no process ends that could say so.

Only real files are moved under a real agent, and only a killed worker forgets what it observed.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, records, small


def job_detail(r: Rehearsal, key: str) -> Any:
    """A key of the status as the command line has it, with the newest heartbeat of the monitor."""
    return json.loads(r.machine.everstep("status", "moved", "--json").stdout or "{}").get(key)


def waits(r: Rehearsal) -> bool:
    return str(job_detail(r, "waiting_for")).startswith("the checkpoints to be there again: ")


@pytest.mark.long
@pytest.mark.parametrize("kills_worker", [False, True])
async def test_a_restart_waits_for_what_was_saved_before_its_node_was_lost(
    tmp_path: Path, *, kills_worker: bool
) -> None:
    expected = undisturbed(tmp_path / "alone", steps=100)
    folder, moved = tmp_path / "job", tmp_path / "moved"
    async with Rehearsal(tmp_path / "r", nodes=3) as r:
        job = await r.submit(small(folder, "moved", nodes=1, steps=100))
        saves = folder / "out" / "ckpt"
        await r.until(lambda: [*saves.glob("step-*")], "a checkpoint")
        (pod,) = r.pods("moved")
        for pid in pod.ranks():  # or, on a busy machine, they end before the job's page is printed
            os.kill(pid, signal.SIGSTOP)
        await r.until(partial(job_detail, r, "checkpoint_step"), "a checkpoint that the job knows")
        if kills_worker:
            r.worker.kill9()
        saves.rename(moved)
        await r.fault(f"node-down {pod.node}")
        if kills_worker:
            await r.worker.start()
        await r.until(partial(waits, r), "the wait for the checkpoints")
        moved.rename(saves)
        report = await r.report(job)
        assert report["status"] == "Completed"
        (record,) = records(report)
        assert record["resume_step"]
        assert final(folder) == expected
