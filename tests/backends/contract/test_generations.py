"""Generations, and which job owns a folder. Run against every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.errors import FolderTaken, StaleGeneration
from tests.backends.lab import Lab, Run, effects, left_on, uids_of
from tests.backends.verbs import ORDERS


async def test_the_same_key_gets_the_same_generation_and_a_new_one_the_next(job: Run) -> None:
    first = await job.new_generation("a")
    assert await job.new_generation("a") == first
    assert await job.new_generation("b") == first + 1
    assert await job.new_generation("a") == first


async def test_generations_of_an_id_grow_over_its_runs(lab: Lab) -> None:
    first = await Run(lab, run="run-1").new_generation("launch")
    second = await Run(lab, run="run-2").new_generation("launch")
    assert second == first + 1


async def test_generations_stay_known_after_the_job_is_gone(job: Run) -> None:
    await job.launch()
    before = job.generation
    await job.gone()
    later = Run(job.lab, run="run-2", slots=job.slots)
    await later.launch()
    assert later.generation == before + 1


async def test_generations_of_two_jobs_have_nothing_to_do_with_each_other(lab: Lab) -> None:
    await Run(lab, id="one").new_generation("a")
    assert await Run(lab, id="two").new_generation("a") == 1


async def test_an_order_of_an_older_generation_is_refused_and_changes_nothing(
    job: Run, subtests: pytest.Subtests
) -> None:
    await job.launch()
    late = Run(job.lab, slots=job.slots, generation=job.generation)
    await job.again("restart")
    before, done = await job.observe_now(), await effects(job.lab)
    for verb, call in ORDERS.items():
        over = pytest.raises(StaleGeneration, match="generation 1 of demo is over")
        with subtests.test(verb), over:
            await call(late)
    after = await job.observe_now()
    assert (uids_of(after), await effects(job.lab)) == (uids_of(before), done)
    assert [pod.generation for pod in after.pods] == [pod.generation for pod in before.pods]


async def test_observe_tells_the_newest_generation(job: Run) -> None:
    await job.new_generation("a")
    newest = await job.new_generation("b")
    assert (await job.observe_now()).generation == newest


async def test_a_folder_belongs_to_one_living_job(lab: Lab) -> None:
    first, second = Run(lab, id="first"), Run(lab, id="second")
    shared = {f"{lab.storage}/shared": "model_dir"}
    await lab.backend.ensure_generation(first.ref, "launch", folders=shared)
    await lab.backend.ensure_generation(first.ref, "again", folders=shared)
    with pytest.raises(FolderTaken, match=r"model_dir: job first.*writes to .*shared"):
        await lab.backend.ensure_generation(
            second.ref, "launch", folders={f"{lab.storage}/own": "checkpoints.path", **shared}
        )
    assert await left_on(lab) == [first.ref], "nothing is the second job's"
    await first.until_done(lambda: lab.backend.ensure_gone(first.ref))
    assert await lab.backend.ensure_generation(second.ref, "launch", folders=shared) > 0


async def test_a_folder_in_or_around_one_of_a_living_job_is_refused(lab: Lab) -> None:
    """A job named `out/a/ckpt`, which lay in the `model_dir` of another one: both trained there."""
    first = Run(lab, id="first")
    a, b = f"{lab.storage}/out/a", f"{lab.storage}/out/b"
    await lab.backend.ensure_generation(first.ref, "launch", folders={a: "model_dir"})
    for folder, how in ((f"{a}/ckpt", "lies in"), (f"{lab.storage}/out", "contains")):
        second = Run(lab, id=f"second-{how[0]}")
        with pytest.raises(FolderTaken, match=rf"checkpoints.path: .*{how}.* job first, which has"):
            await lab.backend.ensure_generation(
                second.ref, "launch", folders={folder: "checkpoints.path"}
            )
    third = Run(lab, id="third")
    await lab.backend.ensure_generation(third.ref, "launch", folders={b: "model_dir"})


async def test_a_new_job_begins_above_the_fence_it_finds_in_its_folders(lab: Lab) -> None:
    old = Run(lab, id="old", slots=(0,))
    for number in range(4):
        await old.new_generation(f"restart-{number}")
    await old.place()
    await old.fence()
    await old.until_done(lambda: lab.backend.ensure_gone(old.ref))
    new = Run(lab, id="new", slots=(0,))
    order = new.fence_order(model_dir=old.model_dir, checkpoints_path=None)
    await new.new_generation("launch")
    await new.place()
    for _ in range(2):  # whoever was killed in between asks again
        state = await lab.backend.ensure_fenced(replace(order, generation=new.generation))
        assert (state.done, state.newer) == (False, old.generation)
    await new.new_generation("launch again")
    assert new.generation == old.generation + 1
    await new.stop()
    await new.fence(model_dir=old.model_dir, checkpoints_path=None)
    await new.start()
