"""What shows that a slot moves. Held against every backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everstep.core.world import Observation
from tests.backends.lab import Run
from tests.backends.verbs import NEVER_ENDS

STILL_S = 2.0


@pytest.mark.long
async def test_what_a_device_shows_is_movement_while_everything_else_is_still(job: Run) -> None:
    """Only samples of all the slots of a job, for a while, show which of them moves."""
    job.env = NEVER_ENDS
    await job.launch()
    await job.step(3)
    for rank in job.slots:
        await job.lab.fault(f"hang demo {rank}")

    async def until(claim: Callable[[Observation], bool]) -> Observation:
        while not claim(observation := await job.observe(until=await job.backend.clock() + 0.5)):
            pass
        return observation

    def moved_at(observation: Observation, slot: int) -> float:
        return next(pod.run.moved_at or 0.0 for pod in observation.pods if pod.slot == slot)

    def is_still(observation: Observation, slot: int) -> bool:
        return observation.now - moved_at(observation, slot) >= STILL_S

    began = (
        await until(lambda observation: is_still(observation, 0) and is_still(observation, 1))
    ).now
    await job.lab.fault("metric n1 0 vary")
    await until(lambda observation: moved_at(observation, 1) >= began + STILL_S)
    await job.lab.fault("metric n1 0 37")
    assert moved_at(await until(lambda observation: is_still(observation, 1)), 0) < began


async def is_steady(job: Run, slot: int, sign: str) -> bool:
    """Whether this sign of life of the slot is known, and does not come again for a while."""
    before = getattr((await job.pod(slot)).run, sign)
    ends = await job.backend.clock() + STILL_S / 2
    while (await job.observe(until=ends)).now < ends:
        pass  # something changed meanwhile
    return before is not None and getattr((await job.pod(slot)).run, sign) == before


@pytest.mark.long
async def test_io_and_the_use_of_devices_are_told_of_each_slot_by_itself(job: Run) -> None:
    """Only samples of all the slots of a job, for a while, show what is whose."""
    job.env, job.still_s = NEVER_ENDS, STILL_S
    await job.launch()
    await job.step(3)
    await job.lab.fault("hang demo 1")
    for sign in ("io_at", "busy_at"):
        while not await is_steady(job, 1, sign):
            pass  # the newest look may still see what came before
    while await is_steady(job, 0, "busy_at"):
        pass
    # A rank that waits for the others of its step writes nothing.
    while await is_steady(job, 0, "io_at") is not job.lab.steps_together:
        pass
    await job.lab.fault("metric n1 0 vary")
    while await is_steady(job, 1, "busy_at"):
        pass
    assert await is_steady(job, 1, "io_at")
    await job.lab.fault("metric n1 0 37")
    while not await is_steady(job, 1, "busy_at"):
        pass
    before = (await job.pod(1)).run.busy_at
    await job.lab.fault("metric n1 0 38")  # tools round
    assert await is_steady(job, 1, "busy_at")
    assert (await job.pod(1)).run.busy_at == before
    await job.lab.fault("metric n1 0 60")
    while (await job.pod(1)).run.busy_at == before:
        await is_steady(job, 1, "busy_at")


async def test_without_devices_no_use_of_them_is_known(job: Run) -> None:
    job.env, job.still_s, job.devices = NEVER_ENDS, STILL_S, 0
    await job.launch()
    while (await job.pod(0)).run.io_at is None:
        await job.observe(until=await job.backend.clock() + 0.2)
    assert {pod.run.busy_at for pod in (await job.observe_now()).pods} == {None}
