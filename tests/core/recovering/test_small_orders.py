"""What is written of a large job grows with what changed, not with the job."""

from __future__ import annotations

from dataclasses import replace

from everstep.converter import DATA_CONVERTER
from everstep.core.deciding.decision import StepOrder, StepResult
from everstep.core.levels import FaultClass, Step
from everstep.core.loop.next_actions import Observe, next_action, watch_order
from everstep.core.recovering import recovery
from everstep.core.recovering.plans import ANSWERED_KEPT
from everstep.core.seeing import watching
from everstep.core.seeing.watching import Watch
from everstep.core.state import FACT_IDS_KEPT, Learned, Mode
from everstep.core.world import Observation, PodRef, PodState, PodView
from everstep.protocol.wire import RunProgress
from tests.support.builders import ScriptedJob, running, sighting

PODS = 1_000
A_STEP = 4 * 1024


def size(value: object) -> int:
    return len(DATA_CONVERTER.payload_converter.to_payload(value).data)


def observation(job: ScriptedJob, **states: PodState) -> Observation:
    pods = tuple(
        PodView(
            slot=n,
            node=slot.node,
            uid=slot.uid,
            state=states.get(f"slot{n}", PodState.RUNNING),
            run=RunProgress(generation=job.state.generation),
        )
        for n, slot in job.state.slots.items()
    )
    return Observation(now=job.state.now, cursor="1", pods=pods)


def test_a_report_names_the_pods_in_another_state_than_the_job_knows() -> None:
    job = running(nodes=PODS)
    watch = Watch(learned=Learned())
    order = watch_order(job.state)
    quiet = watching.report(order, watch, observation(job), "refresh")
    assert (quiet.pods, size(quiet) < A_STEP, size(order) < A_STEP) == ((), True, True)
    ended = watching.report(order, watch, observation(job, slot7=PodState.EXITED), "facts")
    assert [(pod.slot, pod.state) for pod in ended.pods] == [(7, "exited")]


def test_a_job_that_looks_anew_is_told_of_every_pod() -> None:
    job = running(nodes=4)
    action = next_action(replace(job.state, mode=Mode.READING))
    assert isinstance(action, Observe)
    report = watching.report(action.order, Watch(learned=Learned()), observation(job), "refresh")
    assert [pod.slot for pod in report.pods] == [0, 1, 2, 3]


def test_every_order_of_a_restart_in_place_is_small() -> None:
    job = running(nodes=PODS)
    job.see(sighting(FaultClass.CRASH))
    assert size(job.plan) < A_STEP
    progress = recovery.begin(job.plan)
    while isinstance(order := recovery.next_step(progress), StepOrder):
        assert size(order) < A_STEP
        following = recovery.after(progress, _done(order))
        assert isinstance(following, recovery.PlanProgress)
        progress = following
    assert (order.result, order.was_started, size(order) < A_STEP) == ("success", True, True)


def test_what_steps_are_told_of_facts_that_were_answered_does_not_grow_with_the_job() -> None:
    job = running(nodes=PODS)
    answered = tuple(f"demo-{n}-g7-c0ffee/d00df00d/{n}" for n in range(FACT_IDS_KEPT))
    job.state = replace(job.state, seen_ids=answered)
    job.see(sighting(FaultClass.CRASH))
    assert job.plan.known_fact_ids[:-1] == answered[-ANSWERED_KEPT + 1 :]
    assert size(job.plan) < A_STEP


def test_new_pods_of_one_step_are_kept_beside_those_of_a_later_one() -> None:
    job = running()
    job.see(sighting(FaultClass.NODE))
    progress = recovery.begin(job.plan)
    for number, step in enumerate(
        job.plan.remedy.steps[: job.plan.remedy.steps.index(Step.PLACE) + 2]
    ):
        order = recovery.next_step(progress)
        assert isinstance(order, StepOrder)
        pods = {number: PodRef(node=f"m{number}", uid=str(step))}
        following = recovery.after(progress, replace(_done(order), pods=pods))
        assert isinstance(following, recovery.PlanProgress)
        progress = following
    assert sorted(progress.so_far.pods) == list(range(progress.index))


def _done(order: StepOrder) -> StepResult:
    return StepResult(
        end="done",
        now=order.since,
        cursor=order.cursor,
        generation=order.generation,
        active=order.active,
    )
