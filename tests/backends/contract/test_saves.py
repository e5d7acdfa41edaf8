"""Checkpoints on request. Held against every backend."""

from __future__ import annotations

from tests.backends.lab import Run
from tests.backends.verbs import NEVER_ENDS


async def test_ranks_save_on_request_once_and_go_on(job: Run) -> None:
    job.env = {**NEVER_ENDS, "CHECKPOINT_EVERY": "100000"}
    await job.launch()
    await job.step(3)
    order = job.save_order()
    while (state := await job.backend.ensure_save_requested(order)).saved is None:
        await job.observe(wait_s=0.1)
    assert state.signalled == (0, 1)
    assert (state.saved.step or 0) >= 3
    assert [saved.step for saved in await job.backend.checkpoints(job.ref)] == [state.saved.step]
    assert await job.backend.ensure_save_requested(order) == state
    await job.step((state.saved.step or 0) + 3)
    assert [saved.step for saved in await job.backend.checkpoints(job.ref)] == [state.saved.step]
    assert not job.facts


async def test_a_script_without_a_handler_is_left_alone(job: Run) -> None:
    job.env = {**NEVER_ENDS, "SAVES_ON_SIGNAL": "0"}
    await job.launch()
    await job.step(3)
    state = await job.backend.ensure_save_requested(job.save_order())
    assert (state.signalled, state.deaf, state.saved) == ((), (0, 1), None)
    observation = await job.observe_now()
    assert [pod.exits for pod in observation.pods] == [(), ()]
