"""What real ranks save right before they end well is complete: nobody writes there any more."""

from __future__ import annotations

from pathlib import Path

from everstep.core.world import Observation
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab

SAVES = "mkdir -p {folder}; test $RANK = 0 && echo weights > {folder}/step-7.opaque; exit {code}"


def has_ended(seen: Observation) -> bool:
    return bool(seen.pods) and all(len(pod.exits) == pod.ranks for pod in seen.pods)


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
    says = SAVES.format(folder=job.checkpoints_path, code=code)
    lab.command = ("/bin/sh", "-c", says)
    await job.launch()
    await job.see(has_ended)
    found = await job.backend.checkpoints(job.ref)
    return [(saved.step, saved.good, saved.is_sure) for saved in found]


async def test_what_was_saved_right_before_the_end_is_complete(local_lab: LocalLab) -> None:
    assert await saved_before_an_end(local_lab, code=0) == [(7, True, True)]


async def test_what_a_rank_that_failed_had_just_written_may_be_cut_off(
    local_lab: LocalLab,
) -> None:
    assert await saved_before_an_end(local_lab, code=3) == [(7, False, False)]
