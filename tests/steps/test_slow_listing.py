"""A folder with many checkpoints: listing them may take a minute, in which the step is not stuck."""

from __future__ import annotations

import asyncio

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.deciding.decision import Outcome
from everstep.core.levels import Step
from everstep.core.recovering import recovery
from everstep.core.world import Checkpoint, JobRef
from everstep.simulation import QuarantineInMemory
from everstep.steps import resuming
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.steps.test_bad_checkpoints import backend, first_plan
from tests.support.patience import HUNG_S

BEATS = 3


class Slow(FakeBackend):
    """Lists the checkpoints once the step gave so many signs of life meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_listing = False
        self.beats = 0
        self.is_beaten = asyncio.Event()

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        self.is_listing = True
        await asyncio.wait_for(self.is_beaten.wait(), HUNG_S)
        self.is_listing = False
        return await super().checkpoints(job)

    def beat(self, *_: object) -> None:
        self.beats += self.is_listing
        if self.beats == BEATS:
            self.is_beaten.set()


async def test_a_step_shows_that_it_is_not_stuck_while_checkpoints_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its activity would be given up after half a minute, and begin again, for ever."""
    monkeypatch.setattr(resuming, "LISTING_BEAT_S", 0.01)
    slow = Slow()
    plan = await first_plan(backend(((10, True),), slow))
    context = StepContext(backend=slow, quarantine=QuarantineInMemory(), beat=slow.beat)
    progress: recovery.PlanProgress | Outcome = recovery.begin(plan)
    while isinstance(progress, recovery.PlanProgress):
        order = recovery.next_step(progress)
        assert not isinstance(order, Outcome)
        result = await perform(context, order)
        if order.step is Step.RESUME:
            assert result.end == "done"
            assert result.resume is not None
            assert result.resume.step == 10
            break
        progress = recovery.after(progress, result)
    assert slow.beats == BEATS
