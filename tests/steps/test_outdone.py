"""A newer generation on storage is an answer: a higher one is requested, and the step is repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.levels import Step
from everstep.core.loop import lifecycle
from everstep.core.loop.next_actions import Begun, RunPlan
from everstep.core.recovering import recovery
from everstep.core.spec import JobSpec
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.simulation import QuarantineInMemory, Simulation
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import job_spec

EARLIER = 7
FOLDER = "out"


@pytest.fixture
def backend() -> FakeBackend:
    """In a folder of the job to come another one ended at this generation."""
    fake = FakeBackend()
    fake.build(FakeSettings(nodes=6, devices=8))
    fake.cluster.state.storage.fence(FOLDER, EARLIER)
    return fake


def spec() -> JobSpec:
    plain = job_spec()
    phases = tuple(replace(p, env={"STEPS": "30"}, model_dir=FOLDER) for p in plain.phases)
    return replace(plain, phases=phases)


async def test_a_job_begins_above_what_it_finds_and_that_is_no_restart(
    backend: FakeBackend,
) -> None:
    job = Simulation(backend=backend, spec=spec())
    await job.run()
    assert (job.state.ending, job.state.generation) == ("Completed", EARLIER + 1)
    assert not job.chronicle.records


async def test_each_step_on_the_way_may_be_carried_out_twice(backend: FakeBackend) -> None:
    plan = await first_plan(backend)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    progress, steps = recovery.begin(plan), list[Step]()
    while not isinstance(order := recovery.next_step(progress), Outcome):
        steps.append(order.step)
        first, second = await perform(context, order), await perform(context, order)
        assert (first.end, first.generation) == (second.end, second.generation)
        progress = recovery.after(progress, second)  # type: ignore[assignment]  # nothing fails here
    assert [*map(str, steps)] == ["stop", "place", "resume", "stop", "resume", "start"]
    assert order.generation == EARLIER + 1
    assert order.result == "success"


async def first_plan(backend: FakeBackend) -> Plan:
    state = JobState(job=JobRef(id="job", run="run"), spec=spec(), now=await backend.clock())
    _, action, _ = lifecycle.advance(state, Begun())
    assert isinstance(action, RunPlan)
    return replace(action.plan, phase=state.spec.phases[0])
