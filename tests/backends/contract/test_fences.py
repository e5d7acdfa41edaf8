"""When the fence of a generation holds. Held against every backend."""

from __future__ import annotations

from functools import partial

import pytest

from tests.backends.lab import Run, effects, nodes_of
from tests.backends.verbs import NEVER_ENDS
from tests.support.patience import HUNG_S


async def test_the_fence_holds_at_once_when_everything_older_is_stopped(job: Run) -> None:
    job.env = NEVER_ENDS
    await job.launch()
    await job.new_generation("next")
    await job.stop()
    began = await job.backend.clock()
    await job.fence()
    done = await effects(job.lab)
    await job.fence()
    assert await job.backend.clock() - began < 30.0
    assert await effects(job.lab) == done


@pytest.mark.short_fence
async def test_without_proof_the_fence_holds_when_its_time_has_passed(job: Run) -> None:
    await replace_a_cut_off_pod(job)
    began = await job.backend.clock()
    await job.fence()
    assert job.lab.fence_s <= await job.backend.clock() - began < job.lab.fence_s + HUNG_S


async def test_a_proof_ends_the_wait_for_the_fence(job: Run) -> None:
    """With no place for the fence no time ends it either."""
    await replace_a_cut_off_pod(job)
    order = job.fence_order(model_dir=None, checkpoints_path=None)
    assert not (await job.backend.ensure_fenced(order)).done
    await job.lab.fault("node-down n1")
    await job.until_done(lambda: job.backend.ensure_fenced(order))


@pytest.mark.short_fence
async def test_without_a_place_for_the_fence_only_proof_counts(job: Run) -> None:
    await replace_a_cut_off_pod(job)
    order = job.fence_order(model_dir=None, checkpoints_path=None)
    ends = await job.backend.clock() + 2 * job.lab.fence_s
    while (await job.observe(until=ends, wait_s=0.2)).now < ends:
        assert not (await job.backend.ensure_fenced(order)).done
    assert (await job.backend.ensure_fenced(order)).waiting_for
    await job.lab.fault("node-up n1")
    await job.until_done(lambda: job.backend.ensure_fenced(order))


async def test_a_later_submission_learns_that_an_earlier_one_saved_in_its_folder(job: Run) -> None:
    """Where nothing is left of that, a start without it would lose all of the training."""
    job.env = NEVER_ENDS
    await job.launch()
    await job.see(lambda observation: observation.checkpoint is not None)
    assert not (await job.backend.ensure_fenced(job.fence_order())).has_saved_before
    await job.gone()
    later = Run(job.lab, run="run-2", slots=job.slots)
    await later.new_generation("launch")
    await later.place()
    state = await later.until_done(partial(later.backend.ensure_fenced, later.fence_order()))
    assert state.has_saved_before
    await later.start()
    assert (await later.backend.ensure_fenced(later.fence_order())).has_saved_before


async def test_a_storage_that_takes_no_fence_says_what_is_wrong_with_it(job: Run) -> None:
    await job.new_generation("launch")
    await job.stop()
    await job.place()
    await job.lab.fault("storage demo unwritable")
    state = await job.backend.ensure_fenced(job.fence_order())
    assert not state.done
    assert state.unwritable
    assert state.waiting_for == f"the storage: {state.unwritable}"
    await job.lab.fault("storage demo writable")
    await job.fence()


async def test_what_keeps_checkpoints_from_being_written_is_named_while_it_lasts(job: Run) -> None:
    await job.launch()
    assert await job.backend.check_storage(job.ref) == ""
    await job.lab.fault("storage demo unwritable")
    assert await job.backend.check_storage(job.ref)
    await job.lab.fault("storage demo writable")
    assert await job.backend.check_storage(job.ref) == ""


async def replace_a_cut_off_pod(job: Run) -> None:
    """Slot 1 is given another node while its old processes live on, out of reach."""
    job.env = NEVER_ENDS
    await job.launch()
    await job.lab.fault("node-down n1 partition")
    await job.fact("node.not_ready")
    await job.new_generation("pod")
    await job.stop(slots=(0,))
    assert "n1" not in nodes_of(await job.place(recreate=(1,)))
