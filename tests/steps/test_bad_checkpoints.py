"""What a start makes of bad checkpoints: back to a good one, an end that names them, or nothing lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.levels import Step
from everstep.core.loop import lifecycle
from everstep.core.loop.lifecycle import Begun, RunPlan
from everstep.core.recovering import recovery
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.simulation import QuarantineInMemory
from everstep.steps import StepContext, perform
from tests.support.builders import job_spec

FOLDER = "ckpt"

Saved = tuple[tuple[int, bool], ...]
"""Steps, and whether each is good."""


def backend(saved: Saved) -> FakeBackend:
    fake = FakeBackend()
    fake.build(FakeSettings(nodes=6, devices=8))
    storage = fake.cluster.state.storage
    for step, is_good in saved:
        storage.save(FOLDER, [(step, 0.0)])
        if not is_good:
            storage.spoil(FOLDER, step, hidden=False)
    return fake


async def outcome(saved: Saved, *, has_saved: bool, fake: FakeBackend | None = None) -> Outcome:
    fake = fake or backend(saved)
    return await carried_out(fake, replace(await first_plan(fake), has_saved=has_saved))


async def carried_out(fake: FakeBackend, plan: Plan) -> Outcome:
    context = StepContext(backend=fake, quarantine=QuarantineInMemory())
    progress = recovery.begin(plan)
    while not isinstance(order := recovery.next_step(progress), Outcome):
        after = recovery.after(progress, await perform(context, order))
        if isinstance(after, Outcome):
            return after
        progress = after
    return order


async def first_plan(fake: FakeBackend) -> Plan:
    spec = job_spec()
    phases = tuple(replace(one, checkpoints_path=FOLDER) for one in spec.phases)
    spec = replace(spec, phases=phases)
    given = JobState(job=JobRef(id="job", run="run"), spec=spec, now=await fake.clock())
    _, action, _ = lifecycle.advance(given, Begun())
    assert isinstance(action, RunPlan)
    return replace(action.plan, phase=spec.phases[0])


@pytest.mark.parametrize(
    ("saved", "has_saved", "step"),
    [
        (((10, True), (20, False)), True, 10),
        (((10, True), (20, False), (30, False)), False, 10),
        ((), True, None),  # somebody removed them
        (((10, False),), False, None),  # the first one, which never became whole
    ],
)
async def test_a_bad_checkpoint_costs_no_more_than_a_step_back(
    saved: Saved, has_saved: bool, step: int | None
) -> None:
    ended = await outcome(saved, has_saved=has_saved)
    assert ended.result == "success"
    assert (None if ended.resume is None else ended.resume.step) == step


async def test_newer_ones_than_the_chosen_are_set_aside_and_the_record_says_where() -> None:
    saved = ((10, True), (20, False), (30, False))
    fake = backend(saved)
    ended = await outcome(saved, has_saved=True, fake=fake)
    assert sorted(ended.notes) == [
        f"checkpoint set aside: {FOLDER}/.everstep/set_aside/step-{step}" for step in (20, 30)
    ]
    left = fake.cluster.state.storage.newest_first(FOLDER)
    assert [one.step for one in left] == [10]


async def test_where_the_start_fails_all_stay_where_they_are() -> None:
    saved = ((10, False), (20, False))
    fake = backend(saved)
    await outcome(saved, has_saved=True, fake=fake)
    left = fake.cluster.state.storage.newest_first(FOLDER)
    assert [one.step for one in left] == [20, 10]


async def test_what_went_away_with_its_storage_is_waited_for_and_nobody_begins_anew() -> None:
    fake = backend(())
    plan = await first_plan(fake)
    plan = replace(plan, has_saved=True, steps=(Step.WRITABLE, *plan.steps))
    began = await fake.clock()
    ended = await carried_out(fake, plan)
    assert ended.result == "failed"
    assert ended.cause is not None
    assert ended.cause.kind == "storage.given_up"
    assert await fake.clock() - began >= (plan.phase.limits.requeue_s or 0.0)
    fake.cluster.state.storage.save(FOLDER, [(10, 0.0)])
    ended = await carried_out(fake, replace(plan, key="again"))
    assert (ended.result, ended.resume and ended.resume.step) == ("success", 10)


@pytest.mark.parametrize(
    ("saved", "has_saved", "named"),
    [
        (((10, False), (20, False)), False, "there are: 20 is bad, 10 is bad"),
        (((10, False),), True, "there are: 10 is bad"),
    ],
)
async def test_where_work_was_saved_and_is_all_bad_the_start_fails_and_names_it(
    saved: Saved, has_saved: bool, named: str
) -> None:
    ended = await outcome(saved, has_saved=has_saved)
    assert ended.result == "failed"
    assert ended.cause is not None
    assert ended.cause.kind == "checkpoint.none_left"
    assert named in ended.cause.message
