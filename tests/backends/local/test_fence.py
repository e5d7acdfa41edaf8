"""The fence of the local cluster, where a pod was not there yet when its predecessors were stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from everstep.agent.storage import fence
from everstep.backends.agents import fence_proof
from everstep.backends.agents.commands import storage as agent_storage
from everstep.backends.local.database import books, identity
from everstep.backends.local.reconciling import slow_storage
from everstep.core.errors import FolderTaken, StaleGeneration
from everstep.core.waits import WaitKind
from everstep.protocol import wire
from tests.agent.pod import until
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.marks import marked
from tests.support.patience import HUNG_S

LONG = {"STEPS": "1000000"}


@pytest.fixture
async def fenced_late(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """Who is not proven dead is waited for longer than any test."""
    lab = await LocalLab.open(tmp_path, fence_s=HUNG_S)
    yield lab
    await lab.end()


async def test_a_pod_that_was_not_ready_to_be_stopped_is_proven_once_it_is(
    fenced_late: LocalLab,
) -> None:
    job = Run(fenced_late, slots=(0,))
    first = await job.new_generation("launch")
    cluster = await fenced_late.backend.store.run(identity.identity)
    folder = fenced_late.backend.settings.folder(f"demo-0-g{first}-{cluster}").path
    folder.mkdir(parents=True, mode=0o700)
    lock = os.open(folder / wire.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # so long no agent begins there
    assert not (await job.backend.ensure_placed(job.place_order())).placed
    await job.new_generation("something else broke meanwhile")
    await job.stop()
    os.close(lock)
    await job.place(recreate=())
    began = time.monotonic()
    await job.fence()
    assert time.monotonic() - began < fenced_late.fence_s, "it was waited for, not proven"


async def test_a_file_in_the_place_of_a_folder_is_named(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    job = Run(local_lab, slots=(0,))
    (tmp_path / "file").touch()
    await job.new_generation("launch")
    await job.place()
    folder = str(tmp_path / "file" / "out")
    state = await job.backend.ensure_fenced(job.fence_order(model_dir=folder))
    assert (state.done, state.no_folder) == (False, True)
    assert state.unwritable == f"{tmp_path}/file is no folder"
    (tmp_path / "file").unlink()
    await job.fence(model_dir=folder)


async def test_a_proof_that_is_noted_late_says_nothing_of_a_newer_fence(
    local_lab: LocalLab,
) -> None:
    job = Run(local_lab, slots=(0,))
    await job.launch()
    late = job.fence_order()
    await job.new_generation("restart")
    store = local_lab.backend.store
    record = await store.run(lambda db: books.job(db, "demo"))
    newer = replace(record, fenced=2, fence_holds=False)
    await store.run(lambda db: books.store(db, newer))
    for order, holds in ((late, False), (job.fence_order(), True)):
        note = partial(fence_proof._note_held, generation=order.generation, proven_by_time=[])
        await local_lab.backend.agent_cluster.books.change("demo", note)
        assert (await store.run(lambda db: books.job(db, "demo"))).fence_holds is holds


@pytest.mark.parametrize(
    ("module", "function", "is_stopped"),
    [
        pytest.param(agent_storage, "write_fence", True, id="behind the agent's answer"),
        pytest.param(fence_proof, "_write", False, id="behind the note of the fence"),
        pytest.param(fence_proof, "_unproven", False, id="before the note of the proof"),
    ],
)
async def test_an_order_that_is_overtaken_says_nothing_of_the_newer_fence(
    local_lab: LocalLab,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    function: str,
    is_stopped: bool,
) -> None:
    """Its worker stands still, and another one brings the job to a newer generation."""
    job = Run(local_lab, slots=(0,))
    await job.launch()
    await job.new_generation("restart")
    if is_stopped:
        await job.stop()
    late = job.fence_order()
    original = getattr(module, function)

    async def overtaken(*args: Any, **options: Any) -> Any:
        result = await original(*args, **options)
        if options.get("sends_stop") is False:  # the look before the fence is written
            return result
        monkeypatch.undo()
        await job.new_generation("restart again")
        await job.stop()
        await job.fence()
        return [] if function == "_unproven" else result

    monkeypatch.setattr(module, function, overtaken)
    with pytest.raises(StaleGeneration):
        await job.backend.ensure_fenced(late)
    record = await local_lab.backend.store.run(lambda db: books.job(db, "demo"))
    assert (record.fenced, record.fence_holds) == (job.generation, True)


# -- One owner of a folder ------------------------------------------------------------------------


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """Another state directory on the same machine."""
    (tmp_path / "elsewhere").mkdir()
    lab = await LocalLab.open(tmp_path / "elsewhere")
    yield lab
    await lab.end()


async def test_a_folder_of_a_job_of_another_state_directory_is_not_given_away(
    local_lab: LocalLab, elsewhere: LocalLab
) -> None:
    """Both call their job by the same name, as two people would who train the same thing."""
    first, second = Run(local_lab, slots=(0,)), Run(elsewhere, slots=(0,))
    await first.launch()
    (pod,) = (await first.step(2)).pods
    await second.new_generation("launch")
    await second.place()
    order = second.fence_order(model_dir=first.model_dir, checkpoints_path=None)
    for _ in range(2):
        with pytest.raises(FolderTaken, match=r"job demo of another cluster .*not ended"):
            await elsewhere.backend.ensure_fenced(order)
    await first.step((pod.run.step or 0) + 2)
    await first.again("restart")
    await first.gone()
    assert (await elsewhere.backend.ensure_fenced(order)).newer == first.generation
    assert await second.new_generation("launch again") == first.generation + 1
    await second.fence(model_dir=first.model_dir, checkpoints_path=None)


@pytest.mark.parametrize("way", ["link", pytest.param("mount", marks=pytest.mark.long)])
async def test_a_folder_of_another_state_directory_is_known_by_another_name_too(
    local_lab: LocalLab, elsewhere: LocalLab, tmp_path: Path, way: str
) -> None:
    first, second = Run(local_lab, slots=(0,), env=LONG), Run(elsewhere, slots=(0,))
    await first.launch()
    (pod,) = (await first.step(2)).pods
    with _also_as(first.model_dir, tmp_path / "also", way) as also:
        await second.new_generation("launch")
        await second.place()
        with pytest.raises(FolderTaken, match="job demo of another cluster"):
            await second.fence(model_dir=also, checkpoints_path=None)
        observation = await first.step((pod.run.step or 0) + 2)
    assert [pod.exits for pod in observation.pods] == [()]


@contextlib.contextmanager
def _also_as(folder: str, name: Path, way: str) -> Iterator[str]:
    """The folder under another name as well."""
    if way == "link":
        name.symlink_to(folder)
        yield str(name)
        return
    name.mkdir()
    mounted = subprocess.run(
        ["mount", "--bind", folder, str(name)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("not everybody may mount")
    try:
        yield str(name)
    finally:
        subprocess.run(["umount", "--lazy", str(name)], check=True)


@pytest.mark.long
async def test_of_two_jobs_that_come_at_once_the_second_to_write_is_refused(
    local_lab: LocalLab, elsewhere: LocalLab
) -> None:
    """Only this one has two pods before the first fence is written."""
    first, second = Run(local_lab, slots=(0,)), Run(elsewhere, slots=(0,))
    await second.new_generation("launch")
    await second.place()
    await first.launch()
    with pytest.raises(FolderTaken, match="model_dir: job demo of another cluster"):
        await second.fence(model_dir=first.model_dir)
    observation = await first.step(2)
    assert [pod.exits for pod in observation.pods] == [()]


async def test_a_folder_is_known_by_whatever_name_it_is_reached(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    one, other = (Run(local_lab, id=name, slots=(0,)) for name in ("one", "other"))
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for job in (one, other):
        await job.new_generation("launch")
        await job.place()
    await one.fence(model_dir=str(tmp_path / "one"), checkpoints_path=None)
    with pytest.raises(FolderTaken, match=r"job one, which has not ended, writes to .*two"):
        await other.fence(model_dir=str(tmp_path / "two"), checkpoints_path=None)


async def test_a_folder_that_the_job_left_is_closed_to_its_older_generations(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    job = Run(local_lab, slots=(0,))
    before, now = str(tmp_path / "before"), str(tmp_path / "now")
    await job.new_generation("launch")
    await job.place()
    await job.fence(model_dir=before, checkpoints_path=None)
    await job.gone()
    job.run = "run-2"
    await job.new_generation("launch")
    await job.place()
    await job.fence(model_dir=now, checkpoints_path=None)
    owner = ("demo", local_lab.backend.books_id)
    fences = {folder: fence.read(folder)[owner] for folder in (before, now)}
    assert {folder: one.generation for folder, one in fences.items()} == {before: 2, now: 2}
    assert {folder: one.released for folder, one in fences.items()} == {before: True, now: False}


@pytest.mark.short_fence
async def test_ranks_that_nobody_could_end_stop_writing_where_their_job_has_left(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    """It was begun again with other folders while a node was out of reach."""
    job = Run(local_lab, slots=(0,), env=LONG)
    await job.launch()
    (pod,) = (await job.step(2)).pods
    old = marked(pod.uid)
    assert old
    await local_lab.fault(f"node-down {pod.node} partition")
    job.run = "run-2"
    await job.new_generation("launch")
    await job.place()
    await job.fence(model_dir=str(tmp_path / "now"), checkpoints_path=None)
    until(lambda: not marked(pod.uid), what="the end of the ranks that are out of reach")


async def test_checkpoints_that_a_link_leads_out_of_the_model_s_folder_have_a_fence(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    job = Run(local_lab, slots=(0,))
    saved, linked = tmp_path / "saved", Path(job.checkpoints_path)
    saved.mkdir()
    linked.parent.mkdir(parents=True)
    linked.symlink_to(saved)
    await job.launch()
    owner = ("demo", local_lab.backend.books_id)
    assert fence.read(str(saved))[owner].generation == job.generation


async def test_a_folder_that_hangs_is_one_that_cannot_be_read(
    local_lab: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end of a job, and no other job's work, waits for its storage."""
    job, other = Run(local_lab, id="hangs", slots=(0,)), Run(local_lab, slots=(0,))
    goes_on = threading.Event()
    at_once = fence.release

    def hanging(folder: str, owner: fence.FenceOwner, *, up_to: int) -> None:
        if folder == job.model_dir:
            goes_on.wait()
        at_once(folder, owner, up_to=up_to)

    folders = {job.model_dir: "model_dir"}
    job.generation = await job.backend.ensure_generation(job.ref, "launch", folders=folders)
    await job.place()
    await job.fence(checkpoints_path=None)
    monkeypatch.setattr(slow_storage, "READ_S", 0.1)
    monkeypatch.setattr(fence, "release", hanging)
    try:
        await other.launch()
        await job.gone()
    finally:
        goes_on.set()


async def test_what_another_left_half_way_is_no_generation_of_the_job(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0,))
    await job.launch()
    stray = fence.Fence("demo", "r", "elsewhere", fence.GENERATION_MOST)
    fence.path_in(job.model_dir).with_name(stray.name).write_text(json.dumps(stray._asdict()))
    before = job.generation
    await job.again("restart")
    assert job.generation == before + 1


@pytest.mark.short_fence
async def test_a_fence_that_says_more_of_the_job_than_the_books_is_waited_out(
    local_lab: LocalLab,
) -> None:
    """The books are an older copy: there may be unknown pods of generation 7."""
    job = Run(local_lab, slots=(0,))
    await job.launch()
    fence.write(job.model_dir, fence.Fence("demo", job.run, local_lab.backend.books_id, 7))
    await job.new_generation("restart")
    await job.stop()
    for _ in range(2):
        assert (await job.backend.ensure_fenced(job.fence_order())).newer == 7
    assert await job.new_generation("restart again") == 8
    await job.stop()
    state = await job.backend.ensure_fenced(job.fence_order())
    assert (state.done, state.wait) == (False, WaitKind.UNKNOWN_PODS.of())
    await job.fence()


async def test_a_spoiled_fence_is_told_until_it_is_mended(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0,))
    await job.launch()
    spoiled = fence.path_in(job.model_dir)
    text = spoiled.read_text()
    spoiled.write_text(json.dumps({"generation": float("inf")}))
    await job.new_generation("restart")
    await job.stop()
    state = await job.backend.ensure_fenced(job.fence_order())
    assert state.unwritable is not None
    assert f"{job.model_dir}: its fence is damaged" in state.unwritable
    spoiled.write_text(text)
    await job.fence()
    await job.start()
