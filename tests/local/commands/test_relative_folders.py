"""Relative folders of a job are the same for all its workers, phases and runs, wherever those stand.

`everstep submit` makes them absolute; who starts a job with the `temporal` command does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.common import WorkflowIDReusePolicy

from everstep.agent.storage import fence
from everstep.core import names
from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, small

FAILS = [{"match": {"exit_code": [3]}, "action": "fail", "why": "for this test"}]
PHASES = [
    {"name": "warmup", "env": {"STEPS": "20"}},
    {"name": "main", "env": {"STEPS": "60"}},
]


def relative(stands: Path) -> dict[str, Any]:
    document = small(
        stands / "job",
        "moved",
        env={"CRASH_AT_STEP": "1:24:3"},
        phases=PHASES,
        recovery={"rules": FAILS},
        workdir="job",
    )
    del document["spec"]["env"]["STEPS"]
    return document


async def moved(r: Rehearsal, where: Path) -> None:
    """The worker is killed, and another one stands somewhere else."""
    where.mkdir()
    r.worker.kill9()
    r.worker.cwd = where
    await r.worker.start()


@pytest.mark.long
async def test_every_worker_phase_and_run_finds_the_same_folders(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    stands, second, third = (tmp_path / name for name in ("stands", "second", "third"))
    document = relative(stands)
    async with Rehearsal(tmp_path / "r", nodes=2, cwd=stands) as r:
        job = await r.submit(document)
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        await moved(r, second)
        assert (await r.report(job))["status"] == "Failed"
        await moved(r, third)
        again = await r.client.start_workflow(
            names.TRAINING_JOB,
            document,
            id="moved",
            task_queue=names.TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        )
        report = await r.report(again)
        assert report["status"] == "Completed"
        assert final(stands / "job") == expected
        fences = fence.read(str(stands / "job" / "out"))
        assert [one.job for one in fences.values()] == ["moved"]
        assert len(list((stands / "job" / "out").glob("*_restartable"))) >= 3, "one a phase and run"
        assert [*second.iterdir(), *third.iterdir()] == []
        assert await r.is_clean(stands) == []
