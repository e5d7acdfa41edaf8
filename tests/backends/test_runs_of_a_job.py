"""Two runs of one job: the newest caller owns it. A reset leaves the earlier run's Recovery at work."""

from __future__ import annotations

import pytest

from everstep.core.errors import StaleGeneration
from tests.backends.lab import Run, left_on


async def overtaken(job: Run) -> tuple[Run, Run]:
    """An earlier run that requested a generation after the later one."""
    later = Run(job.lab, run="run-2", slots=job.slots)
    await job.new_generation("launch")
    await later.launch()
    await job.new_generation("recovery-1")
    return job, later


async def test_a_run_that_was_overtaken_owns_the_job_again_with_a_new_key(job: Run) -> None:
    earlier, later = await overtaken(job)
    with pytest.raises(StaleGeneration):
        await later.backend.ensure_placed(later.place_order())
    assert await later.new_generation("again") > earlier.generation
    await later.backend.ensure_placed(later.place_order())
    with pytest.raises(StaleGeneration):
        await earlier.backend.ensure_placed(earlier.place_order())


async def test_a_run_that_was_overtaken_may_end_the_job_only_as_its_owner(job: Run) -> None:
    _, later = await overtaken(job)
    with pytest.raises(StaleGeneration):
        await later.backend.ensure_gone(later.ref)
    assert (await later.observe_now()).pods, "nothing was ended"
    await later.new_generation("clear")
    await later.gone()
    assert await later.backend.leftovers() == ()


async def test_leftovers_are_ended_in_the_name_of_the_run_that_asked_last(job: Run) -> None:
    earlier, _ = await overtaken(job)
    assert await left_on(job.lab) == [earlier.ref]
    await earlier.gone()
    assert await earlier.backend.leftovers() == ()
