"""Before pods are given up, what their memory alone holds is saved into the checkpoint folder.

Only a real agent, whose ranks have ended, shows that a script's own function can do it without them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.commands.test_neighbours import RANKS, TRAIN, document, ended, made, steps_after
from tests.support.rehearsal import Rehearsal, records

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


@pytest.mark.long
async def test_a_job_that_is_stopped_leaves_its_last_step_as_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        written = document(folder)
        (folder / "train.py").write_text(SAVES)
        job = await r.submit(written)
        await steps_after(r, folder, 10)
        await job.execute_update("stop", {"reason": "for this test"})
        assert (await r.report(job))["status"] == "Terminated"
    (saved,) = (folder / "ckpt").glob("step_*.pkl")
    newest = min(max(made(folder, rank)) for rank in range(RANKS))
    assert newest - 1 <= int(saved.stem.removeprefix("step_")) <= newest + 1
