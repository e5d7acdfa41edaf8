"""A script killed in the middle of saving: whatever is chosen to resume from can be loaded.

Only a real SIGKILL leaves half a file.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everstep.agent.storage.checkpoints import NOTICED_S, SETTLED_S
from everstep.core.world import Checkpoint, Observation
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.scripts import saver

SEED = 50
KILLS = 13
"""For each of four ways to save: more than fifty."""

TRAIN_S = SETTLED_S + 2 * NOTICED_S + 0.2
"""What was saved before so long a time is believed, whatever its format."""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LocalLab]:
    opened = await LocalLab.open(tmp_path)
    opened.command = ("/bin/sh", "-c", f"exec {sys.executable} {saver.__file__}")
    yield opened
    await opened.end()


@pytest.mark.long
async def test_what_is_chosen_after_a_kill_while_saving_loads(lab: LocalLab) -> None:
    sys.stdout.write(f"\nseed {SEED}\n")
    async with asyncio.TaskGroup() as group:
        for number, way in enumerate(saver.WAYS):
            group.create_task(killed_again_and_again(lab, number, way))


async def killed_again_and_again(lab: LocalLab, number: int, way: str) -> None:
    chance = random.Random(f"{SEED} {way}")
    job = Run(lab=lab, id=f"saver-{number}", slots=(0,))
    job.env = {"FORMAT": way, "CHECKPOINTS": job.checkpoints_path, "TRAIN_S": str(TRAIN_S)}
    await job.new_generation("launch")
    await job.place()
    resumed = []
    for start in range(KILLS):
        await job.new_generation(f"start {start}")
        await job.stop()
        await job.fence()
        chosen = await chosen_now(job)
        job.env["KILL_AT"] = str(chance.randrange(1, 4 * saver.PIECES))
        await job.start(chosen)
        await job.see(ended)
        assert is_fine(await chosen_now(job)), way
        # The choice may also come so late that nothing seems to be at work any more.
        await asyncio.sleep(max(0.0, SETTLED_S + 0.1 + newest_file(job) - time.time()))
        later = await chosen_now(job)
        assert is_fine(later), way
        resumed.append(0 if later is None else later.step or 0)
    sys.stdout.write(f"{way}: resumed from {resumed}\n")
    assert resumed == sorted(resumed), way
    assert resumed[-1] > 1, f"{way}: nothing was ever good enough, and that is no proof"


def ended(observation: Observation) -> bool:
    return bool(observation.pods and observation.pods[0].exits)


def newest_file(job: Run) -> float:
    mtimes = [path.stat().st_mtime for path in Path(job.checkpoints_path).rglob("*.*")]
    return max(mtimes, default=0.0)


async def chosen_now(job: Run) -> Checkpoint | None:
    saved = await job.backend.checkpoints(job.ref)
    return next((checkpoint for checkpoint in saved if checkpoint.good), None)


def is_fine(chosen: Checkpoint | None) -> bool:
    return chosen is None or saver.loads(Path(chosen.path), chosen.step or 0)
