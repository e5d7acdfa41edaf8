"""What real ranks save right before they end well is complete; what they wrote as they were killed is not."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everstep.agent.storage.checkpoints import SETTLED_S
from everstep.core.world import Observation
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S

SAVES = "mkdir -p {folder}; test $RANK = 0 && echo weights > {folder}/step-7.opaque; exit {code}"


def has_ended(observation: Observation) -> bool:
    return bool(observation.pods) and all(len(pod.exits) == pod.ranks for pod in observation.pods)


async def test_names_are_read_by_the_pattern_of_the_order_already_at_its_first_fence(
    local_lab: LocalLab,
) -> None:
    """Before the first start: a job may begin with what is there."""
    job = Run(local_lab, slots=(0,))
    folder = Path(job.checkpoints_path)
    folder.mkdir(parents=True)
    for name in ("state_30.json", "step_99.json"):
        (folder / name).write_text("{}")
    await job.new_generation("first")
    await job.place()
    await job.fence(checkpoints_pattern=r"state_(?P<step>\d+)")
    saved = await job.backend.checkpoints(job.ref)
    assert [one.step for one in saved] == [30]


async def saved_before_an_end(lab: LocalLab, *, code: int) -> list[tuple[int | None, bool, bool]]:
    """Step of each checkpoint, whether it is whole, and whether that is known."""
    job = Run(lab, slots=(0, 1))
    script = SAVES.format(folder=job.checkpoints_path, code=code)
    lab.command = ("/bin/sh", "-c", script)
    await job.launch()
    await job.see(has_ended)
    checkpoints = await job.backend.checkpoints(job.ref)
    return [(saved.step, saved.good, saved.is_sure) for saved in checkpoints]


async def test_what_was_saved_right_before_the_end_is_complete(local_lab: LocalLab) -> None:
    assert await saved_before_an_end(local_lab, code=0) == [(7, True, True)]


SAVES_TWICE = """
mkdir -p {folder}; echo weights > {folder}/step-5.opaque; touch -d '1 hour ago' {folder}/step-5.opaque
echo weights > {folder}/step-7.opaque; touch -d '30 seconds' {folder}/step-7.opaque
"""
"""The newer one stays too young to have settled, however slow the machine is."""


async def test_the_next_phase_starts_from_what_was_saved_right_before_the_end(
    local_lab: LocalLab,
) -> None:
    """It has other pods, whose agents never had the ranks that saved it."""
    job = Run(local_lab, slots=(0,))
    local_lab.command = ("/bin/sh", "-c", SAVES_TWICE.format(folder=job.checkpoints_path))
    await job.launch()
    await job.see(has_ended)
    await job.new_generation("the next phase")
    await job.place()
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    assert [(one.step, one.good) for one in saved] == [(7, True), (5, True)]


async def test_what_a_later_generation_saved_is_not_complete_for_an_earlier_good_end(
    local_lab: LocalLab,
) -> None:
    job = Run(local_lab, slots=(0,))
    local_lab.command = ("/bin/sh", "-c", "exit 0")
    await job.launch()
    await job.see(has_ended)
    await job.new_generation("the next phase")
    await job.place()
    await job.fence()
    script = f"{SAVES_TWICE.format(folder=job.checkpoints_path)} exec sleep 1000"
    local_lab.command = ("/bin/sh", "-c", script)
    await job.start()
    newest = Path(job.checkpoints_path, "step-7.opaque")
    while not (newest.exists() and newest.stat().st_mtime > time.time()):
        await job.observe(wait_s=0.1)
    saved = await job.backend.checkpoints(job.ref)
    assert [(one.step, one.good) for one in saved] == [(7, False), (5, True)]


async def test_what_is_copied_there_for_a_job_submitted_again_may_be_unfinished(
    local_lab: LocalLab,
) -> None:
    """All ranks of the job that had its ID ended well, but did not write this."""
    before = Run(local_lab, slots=(0,))
    local_lab.command = ("/bin/sh", "-c", f"mkdir -p {before.checkpoints_path}")
    await before.launch()
    await before.see(has_ended)
    await before.gone()
    again = Run(local_lab, run="run-2", slots=(0,))
    copying = Path(again.checkpoints_path, "step-9.opaque")
    copying.write_text("a part of the weights")
    soon = time.time() + 30.0  # too young to have settled, however slow the machine is
    os.utime(copying, (soon, soon))
    await again.new_generation("launch")
    await again.place()
    await again.fence()
    saved = await again.backend.checkpoints(again.ref)
    assert [(one.step, one.good) for one in saved] == [(9, False)]


async def test_what_a_rank_that_failed_had_just_written_may_be_cut_off(
    local_lab: LocalLab,
) -> None:
    assert await saved_before_an_end(local_lab, code=3) == [(7, False, False)]


WRITES_ON = """
test $EVERSTEP_GENERATION.$RANK = 1.1 || exec sleep 1000
while :; do echo more >> {folder}/step-9.opaque; sleep 0.02; done
"""
"""A rank of the first generation saves for ever, in a format that does not show its end."""


@pytest.fixture
async def lab_with_time(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """Its fence waits long enough for a warden on a busy machine to read it, as it does for users."""
    lab = await LocalLab.open(tmp_path, fence_s=6.0)
    yield lab
    await lab.end()


@pytest.mark.long
async def test_what_a_rank_out_of_reach_wrote_until_it_read_the_fence_may_be_cut_off(
    lab_with_time: LocalLab,
) -> None:
    """Only this one has a rank that writes until its warden ends it."""
    job = Run(lab_with_time, slots=(0, 1))
    folder = Path(job.checkpoints_path)
    folder.mkdir(parents=True)
    whole, unfinished = folder / "step-5.opaque", folder / "step-9.opaque"
    whole.write_text("weights")
    an_hour_ago = time.time() - 3600.0
    os.utime(whole, (an_hour_ago, an_hour_ago))
    lab_with_time.command = ("/bin/sh", "-c", WRITES_ON.format(folder=folder))
    await job.launch()
    await job.lab.fault("node-down n1 partition")
    await job.fact("node.not_ready")
    await job.new_generation("elsewhere")
    await job.stop(slots=(0,))
    await job.place(recreate=(1,))
    await job.fence()
    written = unfinished.stat().st_mtime
    while time.time() - written <= SETTLED_S:
        await job.observe(wait_s=0.1)
    assert unfinished.stat().st_mtime == written, "its writer has ended"
    saved = [(one.step, one.good) for one in await job.backend.checkpoints(job.ref)]
    assert saved == [(9, False), (5, True)]


async def test_what_a_stopped_rank_saved_in_its_grace_comes_with_the_end_of_the_job(
    local_lab: LocalLab,
) -> None:
    """Nothing observes the job any more by then, and an operator who stops it looks for that."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "CHECKPOINT_EVERY": "1000"})
    await job.launch()
    await job.step(5)
    saved: list[int | None] = []

    async def is_gone() -> bool:
        state = await job.backend.ensure_gone(job.ref, grace_s=HUNG_S)
        saved.extend([state.saved.step] if state.saved else [])
        return state.done

    while not await is_gone():
        await job.backend.observe(job.ref, cursor="", until=None, wait_s=0.05)
    assert len(saved) == 1
    assert 5 <= (saved[0] or 0) < 1000
