"""Before pods are given up, what their memory alone holds is saved into the checkpoint folder.

Only a real agent, whose ranks have ended, shows that a script's own function can do it without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.local.commands.test_neighbours import RANKS, TRAIN, document, ended, made, steps_after
from tests.support.rehearsal import Handle, Rehearsal, records

SAVES = TRAIN.replace("step % 20 == 0", "False").replace(
    "    train()", "    run.save_with(save_snapshot)\n    train()"
)
"""It saves nothing itself."""


@pytest.mark.long
async def test_a_job_whose_pods_are_all_given_up_loses_a_step(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        written = document(folder)
        (folder / "train.py").write_text(SAVES)
        job = await r.submit(written)
        await steps_after(r, folder, 10)
        await job.execute_update("restart", {"level": "job", "reason": "for this test"})
        await steps_after(r, folder, 10)
        report = await ended(r, job, folder)
    (record,) = records(report)
    assert (record["level"], record["resume_from"]) == ("job", "checkpoint")
    assert record["lost_steps"] <= 1
    assert f"step {record['resume_step']} saved from memory" in record["notes"]


async def stopped(r: Rehearsal, job: Handle) -> str:
    await job.execute_update("stop", {"reason": "for this test"})
    return "Terminated"


async def failed(r: Rehearsal, job: Handle) -> str:
    await r.fault("kill copies 1")
    return "Failed"


@pytest.mark.long
@pytest.mark.parametrize("end", [stopped, failed])
async def test_a_job_that_ends_leaves_its_last_step_as_a_checkpoint(
    tmp_path: Path, end: Callable[[Rehearsal, Handle], Awaitable[str]]
) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        written = document(folder)
        written["spec"]["recovery"] = {"ladders": {"crash": ["fail"]}}
        (folder / "train.py").write_text(SAVES)
        job = await r.submit(written)
        await steps_after(r, folder, 10)
        status = await end(r, job)
        assert (await r.report(job))["status"] == status
    (saved,) = (folder / "ckpt").glob("step_*.pkl")
    newest = min(max(made(folder, rank)) for rank in range(RANKS))
    assert newest - 1 <= int(saved.stem.removeprefix("step_")) <= newest + 1
