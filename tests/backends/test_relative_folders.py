"""Relative folders begin where the worker stood that saw the job first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage import fence
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.marks import marked

NAMED: dict[str, Any] = {"model_dir": "out", "checkpoints_path": "saved"}


@pytest.mark.parametrize("same_job", [True, False])
async def test_a_worker_that_stands_elsewhere_finds_the_folders_of_a_job(
    local_lab: LocalLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_job: bool
) -> None:
    stands, elsewhere = tmp_path / "stands", tmp_path / "elsewhere"
    stands.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(stands)
    await begun(Run(local_lab, slots=(0,)))
    monkeypatch.chdir(elsewhere)
    await local_lab.another_worker()
    job = Run(local_lab, id="demo" if same_job else "other", slots=(0,), run="run-2")
    await begun(job)
    base = stands if same_job else elsewhere
    owner = (job.id, local_lab.backend.cluster)
    found = [fence.read(str(base / name))[owner].generation for name in ("out", "saved")]
    assert found == [job.generation] * 2
    (pod,) = (await job.look()).pods
    where = {str(Path(f"/proc/{pid}/cwd").readlink()) for pid in marked(pod.uid)}
    assert where == {str(base)}
    assert os.listdir(elsewhere) == ([] if same_job else os.listdir(base))  # noqa: PTH208


async def begun(job: Run) -> None:
    folders = {"out": "model_dir", "saved": "checkpoints.path"}
    job.generation = await job.backend.ensure_generation(job.ref, "launch", folders=folders)
    await job.stop()
    await job.place()
    await job.fence(**NAMED)
    await job.start(workdir=".", **NAMED)
