"""The fence of the local cluster, where a pod was not there yet when its predecessors were stopped."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everstep.agent import wire
from everstep.backends.local import books
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S


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
    cluster = await fenced_late.backend.store.run(books.cluster)
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


async def test_a_folder_that_cannot_be_made_is_named_with_what_the_machine_says(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    job = Run(local_lab, slots=(0,))
    (tmp_path / "file").touch()
    await job.new_generation("launch")
    await job.place()
    folder = str(tmp_path / "file" / "out")
    state = await job.backend.ensure_fenced(job.fence_order(model_dir=folder))
    assert (state.done, state.unwritable) == (False, f"{folder}: Not a directory")
    (tmp_path / "file").unlink()
    await job.fence(model_dir=folder)
