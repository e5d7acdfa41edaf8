"""What a start makes of bad checkpoints: back to a good one, an end that names them, or nothing lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.loop import lifecycle
from everstep.core.loop.next_actions import Begun, RunPlan
from everstep.core.recovering import recovery
from everstep.core.state import JobState, Wait
from everstep.core.world import Checkpoint, FenceOrder, FenceState, JobRef, SetAside, SetAsideOrder
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import job_spec

FOLDER = "ckpt"

Saved = tuple[tuple[int, bool], ...]
"""Steps, and whether each is good."""
SendWait = Callable[[Wait | None], Awaitable[None]]


def backend(saved: Saved, fake: FakeBackend | None = None) -> FakeBackend:
    fake = fake or FakeBackend()
    fake.build(FakeSettings(nodes=6, devices=8))
    storage = fake.cluster.state.storage
    for step, is_good in saved:
        storage.save(FOLDER, [(step, 0.0)])
        if not is_good:
            storage.spoil(FOLDER, step, hidden=False)
    return fake


async def outcome(
    saved: Saved,
    *,
    newest: int | None,
    fake: FakeBackend | None = None,
    older_than_step: int | None = None,
    **changes: Any,
) -> Outcome:
    """Of a start, where the checkpoint of this step was the newest whole one that was seen."""
    fake = fake or backend(saved)
    saved_as = None if newest is None else f"{FOLDER}/step-{newest}"
    plan = await first_plan(fake)
    remedy = replace(plan.remedy, older_than_step=older_than_step)
    return await carried_out(fake, replace(plan, saved_as=saved_as, remedy=remedy, **changes))


async def no_wait(_: Wait | None) -> None:
    pass


async def carried_out(
    fake: FakeBackend, plan: Plan, wait: SendWait = no_wait, *, is_repeated: bool = True
) -> Outcome:
    """Each step twice, as if a worker had been killed before it could report the outcome."""
    context = StepContext(backend=fake, quarantine=QuarantineInMemory(), send_wait=wait)
    progress = recovery.begin(plan)
    while not isinstance(order := recovery.next_step(progress), Outcome):
        if is_repeated:
            await perform(context, order)
        after = recovery.after(progress, await perform(context, order))
        if isinstance(after, Outcome):
            return after
        progress = after
    return order


async def first_plan(fake: FakeBackend) -> Plan:
    spec = job_spec()
    phases = tuple(replace(one, checkpoints_path=FOLDER) for one in spec.phases)
    spec = replace(spec, phases=phases)
    state = JobState(job=JobRef(id="job", run="run"), spec=spec, now=await fake.clock())
    _, action, _ = lifecycle.advance(state, Begun())
    assert isinstance(action, RunPlan)
    return replace(action.plan, phase=spec.phases[0])


@pytest.mark.parametrize(
    ("saved", "newest", "step"),
    [
        (((10, True), (20, False)), 20, 10),
        (((10, True), (20, False), (30, False)), None, 10),
        (((10, False),), None, None),  # the first one, which never became whole
        (((10, False),), 10, None),  # the only one, which was just overwritten
    ],
)
async def test_a_bad_checkpoint_costs_no_more_than_a_step_back(
    saved: Saved, newest: int | None, step: int | None
) -> None:
    ended = await outcome(saved, newest=newest)
    assert ended.result == "success"
    assert (None if ended.resume is None else ended.resume.step) == step


async def test_newer_ones_than_the_chosen_are_set_aside_and_the_record_says_where() -> None:
    saved = ((10, True), (20, False), (30, False))
    fake = backend(saved)
    ended = await outcome(saved, newest=30, fake=fake)
    assert sorted(ended.notes) == [
        f"checkpoint set aside: {FOLDER}/.everstep/set_aside/step-{step}" for step in (20, 30)
    ]
    assert ended.newer_saved is not None
    assert ended.newer_saved.text == "2 newer ones set aside: step 30, step 20", "no reason is left"
    left = fake.cluster.state.storage.newest_first(FOLDER)
    assert [one.step for one in left] == [10]


async def test_each_newer_one_that_is_set_aside_has_its_reason() -> None:
    fake = backend(((10, True), (20, False), (30, False)))
    ended = await carried_out(fake, await first_plan(fake), is_repeated=False)
    assert ended.newer_saved is not None
    assert ended.newer_saved.text == "2 newer ones set aside: step 30, step 20 (damaged)"


class Refusing(FakeBackend):
    """A storage where nothing of what is in it may be renamed."""

    async def ensure_set_aside(self, order: SetAsideOrder) -> SetAside:
        return SetAside(why=f"{order.paths[0]}: not permitted")


async def test_what_cannot_be_renamed_is_said_and_stays_behind_the_chosen_one() -> None:
    saved = ((10, True), (20, True))
    ended = await outcome(saved, newest=20, fake=backend(saved, Refusing()), older_than_step=20)
    assert (ended.resume and ended.resume.step, ended.newer_remain) == (10, True)
    assert ended.notes == (f"checkpoints not set aside (20): {FOLDER}/step-20: not permitted",)


async def test_where_the_start_fails_all_stay_where_they_are() -> None:
    saved = ((10, False), (20, False))
    fake = backend(saved)
    await outcome(saved, newest=30, fake=fake)
    left = fake.cluster.state.storage.newest_first(FOLDER)
    assert [one.step for one in left] == [20, 10]


async def test_what_went_away_with_its_storage_is_waited_for_and_nobody_begins_anew() -> None:
    fake = backend(())
    plan = replace(await first_plan(fake), saved_as="step-10")
    began = await fake.clock()
    ended = await carried_out(fake, plan)
    assert ended.result == "failed"
    assert ended.cause is not None
    assert ended.cause.kind == "storage.given_up"
    assert await fake.clock() - began >= (plan.phase.limits.requeue_s or 0.0)
    fake.cluster.state.storage.save(FOLDER, [(10, 0.0)])
    ended = await carried_out(fake, replace(plan, key="again"))
    assert (ended.result, ended.resume and ended.resume.step) == ("success", 10)


@pytest.mark.parametrize("moves_back", [True, False])
async def test_a_job_that_is_submitted_again_waits_for_what_it_saved_before(
    *, moves_back: bool
) -> None:
    """It began at step 1, without a word, where the folder of its checkpoints was missing."""
    fake = backend(())
    plan = await first_plan(fake)
    await carried_out(fake, plan)
    storage = fake.cluster.state.storage
    storage.save(FOLDER, [(10, 0.0)])
    storage.move_away(FOLDER)
    again = replace(plan, job=replace(plan.job, run="again"), key="again")
    waits: list[str] = []

    async def note(wait: Wait | None) -> None:
        waits.append("" if wait is None else wait.what)
        if moves_back and FOLDER in waits[-1]:
            storage.move_back(FOLDER)

    ended = await carried_out(fake, again, wait=note)
    assert any(f"{FOLDER} has none; move them back into it. To begin" in what for what in waits)
    if moves_back:
        assert (ended.result, ended.resume and ended.resume.step) == ("success", 10)
    else:
        assert ended.cause is not None
        assert ended.cause.kind == "storage.given_up"


@pytest.mark.parametrize(
    ("saved", "newest", "checkpoint"),
    [
        (((10, False), (20, False)), None, "there are: 20 is bad, 10 is bad"),
        (((20, False),), 10, "there are: 20 is bad"),  # somebody removed the good one
    ],
)
async def test_where_work_was_saved_and_is_all_bad_the_start_fails_and_names_it(
    saved: Saved, newest: int | None, checkpoint: str
) -> None:
    ended = await outcome(saved, newest=newest)
    assert ended.result == "failed"
    assert ended.cause is not None
    assert ended.cause.kind == "checkpoint.none_left"
    assert checkpoint in ended.cause.message


async def test_the_only_one_is_set_aside_and_the_record_says_that_training_begins_anew() -> None:
    saved = ((10, False),)
    fake = backend(saved)
    ended = await outcome(saved, newest=10, fake=fake)
    assert ended.notes == (
        "the only checkpoint is bad: training starts from the beginning",
        f"checkpoint set aside: {FOLDER}/.everstep/set_aside/step-10",
    )
    assert fake.cluster.state.storage.newest_first(FOLDER) == ()


async def test_whoever_does_not_want_to_begin_anew_is_told_of_the_only_one_instead() -> None:
    fake = backend(((10, False),))
    phase = (await first_plan(fake)).phase
    strict = replace(phase, policy=replace(phase.policy, needs_checkpoint=True))
    ended = await outcome((), newest=10, fake=fake, phase=strict)
    assert ended.cause is not None
    assert "there are: 10 is bad" in ended.cause.message


async def test_after_going_back_the_last_one_is_not_the_only_one() -> None:
    ended = await outcome(((10, False),), newest=10, older_than_step=10)
    assert ended.cause is not None
    assert ended.cause.kind == "checkpoint.none_left"


async def test_where_none_is_older_all_stay_and_the_start_fails_with_that() -> None:
    saved = ((10, True), (5, False))
    fake = backend(saved)
    ended = await outcome(saved, newest=10, fake=fake, older_than_step=10)
    assert ended.cause is not None
    assert ended.cause.kind == "checkpoint.none_older"
    assert "no good checkpoint is older than 10 (there are: 10, 5 is bad)" in ended.cause.message
    left = fake.cluster.state.storage.newest_first(FOLDER)
    assert [one.step for one in left] == [10, 5]


class WithoutWorkdir(FakeBackend):
    """The folder in which the command begins is not there."""

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        return FenceState.refused(f"the workdir {order.run.workdir} is no folder", no_folder=True)


async def test_a_launch_in_a_workdir_that_is_not_there_ends_at_once_and_a_restart_waits_for_it() -> (
    None
):
    fake = backend((), WithoutWorkdir())
    plan = await first_plan(fake)
    began = await fake.clock()
    launched = await carried_out(fake, plan)
    assert launched.cause is not None
    assert (launched.cause.kind, launched.cause.message) == (
        "start.failed",
        "the workdir . is no folder",
    )
    assert await fake.clock() - began < (plan.phase.limits.requeue_s or 0.0)
    restarted = await carried_out(fake, replace(plan, n=1, key="again"))
    assert restarted.cause is not None
    assert restarted.cause.kind == "storage.given_up"
    assert await fake.clock() - began >= (plan.phase.limits.requeue_s or 0.0)


class CutOff(FakeBackend):
    """Its checkpoints say nothing of themselves, and were written right before their writer ended."""

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        checkpoints = await super().checkpoints(job)
        return tuple(replace(one, good=False, is_sure=False) for one in checkpoints)


async def test_where_no_checkpoint_is_known_to_be_whole_the_newest_that_may_be_is_loaded() -> None:
    """A script that takes the newest by itself loads it, and the record has to say so."""
    saved = ((10, True), (20, True))
    ended = await outcome(saved, newest=None, fake=backend(saved, CutOff()))
    assert (ended.result, ended.resume and ended.resume.step) == ("success", 20)
    assert ended.notes == ()


async def test_one_that_may_be_cut_off_and_failed_to_load_twice_keeps_no_job_from_its_beginning() -> (
    None
):
    saved = ((10, True),)
    fake = backend(saved, CutOff())
    ended = await outcome(saved, newest=10, fake=fake, older_than_step=10)
    assert (ended.result, ended.resume) == ("success", None)
    assert ended.notes == (
        "the only checkpoint is bad: training starts from the beginning",
        f"checkpoint set aside: {FOLDER}/.everstep/set_aside/step-10",
    )
