"""Relative folders begin where the worker stood that saw the job first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage import fence
from everstep.core.errors import CommandRejected
from everstep.core.waits import WaitKind
from tests.backends.lab import Run
from tests.backends.local_lab import SHORT_FENCE_S, LocalLab
from tests.backends.verbs import NEVER_ENDS
from tests.support.marks import marked

FOLDER_NAMES: dict[str, Any] = {"model_dir": "out", "checkpoints_path": "saved"}
FOLDERS = {"out": "model_dir", "saved": "checkpoints.path"}


@pytest.mark.parametrize("same_job", [True, False])
async def test_a_worker_that_stands_elsewhere_finds_thefolders_of_a_job(
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
    owner = (job.id, local_lab.backend.books_id)
    generations = [fence.read(str(base / name))[owner].generation for name in ("out", "saved")]
    assert generations == [job.generation] * 2
    (pod,) = (await job.observe_now()).pods
    where = {str(Path(f"/proc/{pid}/cwd").readlink()) for pid in marked(pod.uid)}
    assert where == {str(base)}
    assert os.listdir(elsewhere) == ([] if same_job else os.listdir(base))  # noqa: PTH208


async def begun(job: Run) -> None:
    job.generation = await job.backend.ensure_generation(job.ref, "launch", folders=FOLDERS)
    await job.stop()
    await job.place()
    await job.fence(**FOLDER_NAMES)
    await job.start(workdir=".", **FOLDER_NAMES)


async def test_a_job_is_adopted_only_where_its_relative_folders_are_found(
    local_lab: LocalLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the lost books held the base folder: elsewhere the job would start from step 0."""
    stands, elsewhere = tmp_path / "stands", tmp_path / "elsewhere"
    stands.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(stands)
    job = Run(local_lab, slots=(0,), env=NEVER_ENDS)
    await begun(job)
    job.books = await local_lab.backend.identity()
    other = await LocalLab.open(local_lab.folder / "other")
    try:
        monkeypatch.chdir(elsewhere)
        for _ in range(2):
            with pytest.raises(CommandRejected, match=f"no fence of job demo in {elsewhere}/out"):
                await adopted(other, job)
        assert not os.listdir(elsewhere)  # noqa: PTH208
        monkeypatch.chdir(stands)
        for _ in range(2):  # who is killed in between asks again
            assert await adopted(other, job) == await other.backend.identity()
        monkeypatch.chdir(elsewhere)
        folders = await other.backend.folders_of(job.id)
        assert folders.at("out") == str(stands / "out"), "from then on as ever"
    finally:
        await other.end()


async def test_a_job_whose_folders_are_absolute_is_adopted_wherever_a_worker_stands(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    job = Run(local_lab, books="other")
    folders = {str(tmp_path / "nothing-yet"): "model_dir"}
    assert await local_lab.backend.ensure_adopted(job.ref, generation=3, folders=folders)


async def adopted(lab: LocalLab, job: Run) -> str:
    return await lab.backend.ensure_adopted(job.ref, generation=job.generation, folders=FOLDERS)


async def test_an_adopted_job_that_names_no_folder_waits_until_what_it_had_has_ended(
    tmp_path: Path,
) -> None:
    """Its fence was in a state directory that is gone: there is none to outdate, but it takes its time."""
    lab = await LocalLab.open(tmp_path, jobs=tmp_path / "home" / "jobs", fence_s=SHORT_FENCE_S)
    try:
        job = Run(lab, slots=(0,), books="other", env=NEVER_ENDS)
        job.books = await job.backend.ensure_adopted(job.ref, generation=3)
        job.generation = await job.backend.ensure_generation(job.ref, "restart", above=3)
        await job.place()
        nowhere: dict[str, Any] = {"model_dir": None, "checkpoints_path": None}
        state = await job.backend.ensure_fenced(job.fence_order(**nowhere))
        assert (state.done, state.wait) == (False, WaitKind.UNKNOWN_PODS.of())
        began = await job.backend.clock()
        await job.fence(**nowhere)
        assert await job.backend.clock() - began >= lab.fence_s - 1.0
    finally:
        await lab.end()
