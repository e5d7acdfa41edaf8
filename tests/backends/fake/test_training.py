"""What the processes of a job on the fake cluster do, as set by their environment."""

from __future__ import annotations

import pytest

from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated.training import Script, script_of
from everstep.core.levels import CAPABILITIES
from everstep.core.world import Checkpoint, Observation, PodState
from tests.backends.conftest import FakeRun
from tests.backends.lab import Run


def over(observation: Observation) -> bool:
    return bool(observation.pods) and all(len(pod.exits) == pod.ranks for pod in observation.pods)


def test_an_empty_environment_is_the_usual_job() -> None:
    assert script_of({}) == Script()


def test_a_value_nobody_can_read_is_left_at_its_default() -> None:
    assert script_of({"STEPS": "many", "STEP_S": "2", "CRASH_AT_STEP": "1:2"}) == Script(step_s=2.0)


def test_a_number_of_steps_without_end_is_left_at_its_default() -> None:
    assert script_of({"STEPS": "inf", "STEP_S": "2"}) == Script(step_s=2.0)


async def test_steps_are_gained_at_their_pace(demo: FakeRun) -> None:
    demo.env = {"STEP_S": "2.5", "START_S": "10", "WARMUP_S": "4"}
    await demo.launch()
    started = await demo.backend.clock()
    assert started == EPOCH + 2 + 10
    observation = await demo.observe(until=started + 4 + 2.5 * 6)
    observation = await demo.observe(until=started + 4 + 2.5 * 6)
    run = observation.pods[2].run
    assert (run.step, run.step_at, run.first_step_at) == (7, observation.now, started + 4)
    assert (run.longest_gap_s, run.moved_at) == (2.5, observation.now)


async def test_before_the_first_step_there_is_none(demo: FakeRun) -> None:
    await demo.launch()
    pod = await demo.pod(0)
    assert (pod.run.step, pod.run.step_at, pod.run.first_step_at) == (None, None, None)
    assert pod.run.moved_at == await demo.backend.clock()


async def test_the_first_step_wakes_who_observes(demo: FakeRun) -> None:
    demo.env = {"WARMUP_S": "40"}
    await demo.launch()
    started = await demo.backend.clock()
    observation = await demo.see(lambda observation: observation.pods[0].run.step is not None)
    assert observation.now == started + 40


async def test_everybody_ends_with_the_code_that_was_asked_for(demo: FakeRun) -> None:
    demo.env = {"STEPS": "5", "EXIT_CODE": "3", "CRASH_EXCEPTION": "ValueError"}
    await demo.launch()
    await demo.see(over)
    exits = [(f.rank, f.details["exit_code"], f.details["exception"]) for f in demo.facts]
    assert exits == [(rank, 3, "ValueError") for rank in range(4)]


async def test_a_rank_crashes_whenever_it_reaches_the_step(demo: FakeRun) -> None:
    demo.env = {"CRASH_AT_STEP": "2:15:42", "CRASH_LOG": "loss is nan"}
    await demo.launch()
    for restart in range(3):
        fact = await demo.fact("process.exit")
        assert (fact.rank, fact.details["exit_code"]) == (2, 42)
        assert fact.details["log"] == "loss is nan"
        pods = (await demo.observe_now()).pods
        assert {pod.run.step for pod in pods} == {14}  # the step that crashes is not completed
        await demo.again(f"restart {restart}")


async def test_a_start_behind_the_step_does_not_crash(demo: FakeRun) -> None:
    demo.env = {"STEPS": "30", "CRASH_AT_STEP": "0:5:1"}
    await demo.launch()
    await demo.fault("at step 3 of demo kill demo 1")
    demo.env = {"STEPS": "30", "CRASH_AT_STEP": "0:5:1"}
    await demo.fact("process.exit")
    await demo.new_generation("behind")
    await demo.stop()
    await demo.start(resume=Checkpoint(step=20, path="elsewhere"))
    await demo.see(over)
    assert all(pod.is_done for pod in (await demo.observe_now()).pods)


async def test_two_ranks_may_crash_at_once(demo: FakeRun) -> None:
    demo.env = {"CRASH_AT_STEP": "0:5:1,3:5:1,1:9:1"}
    await demo.launch()
    await demo.fact("process.exit")
    assert [fact.rank for fact in demo.facts] == [0, 3]


async def test_when_one_rank_ends_the_others_wait_for_it(demo: FakeRun) -> None:
    await demo.launch()
    await demo.fault("at step 8 of demo kill demo 1")
    fact = await demo.fact("process.exit")
    observation = await demo.observe(until=fact.at + 500)
    waiting = observation.pods[0]
    assert (waiting.state, waiting.run.step, waiting.run.moved_at) == (
        PodState.RUNNING,
        8,
        fact.at,
    )
    assert observation.pods[1].state is PodState.EXITED


async def test_the_agent_ends_the_other_ranks_of_the_slot_and_does_not_report_them(
    demo: FakeRun,
) -> None:
    demo.processes_per_node = 2
    await demo.launch()
    await demo.fault("kill demo 2 exit 5")
    await demo.fact("process.exit")
    pod = await demo.pod(1)
    assert [(e.rank, str(e.exit)) for e in pod.exits] == [(2, "exit code 5"), (3, "signal 9")]
    assert [fact.rank for fact in demo.facts] == [2]


async def test_the_other_ranks_of_the_slot_live_on_if_the_order_says_so(demo: FakeRun) -> None:
    demo.processes_per_node = 2
    await demo.new_generation("launch")
    await demo.place()
    await demo.start(stop_siblings=False)
    await demo.fault("kill demo 2 exit 5")
    pod = await demo.pod(1)
    assert ([exit.rank for exit in pod.exits], pod.state) == ([2], PodState.RUNNING)


async def test_checkpoints_follow_from_the_steps(demo: FakeRun) -> None:
    demo.env = {"STEPS": "100", "CHECKPOINT_EVERY": "7"}
    await demo.launch()
    observation = await demo.step(29)
    assert observation.checkpoint is not None
    assert (observation.checkpoint.step, observation.checkpoint.at) == (28, observation.now - 1)
    assert [c.step for c in await demo.backend.checkpoints(demo.ref)] == [28, 21, 14, 7]


@pytest.mark.parametrize(
    ("env", "path"),
    [({"CHECKPOINT_EVERY": "0"}, "/checkpoints"), ({"CHECKPOINT_EVERY": "5"}, None)],
)
async def test_some_jobs_save_nothing(demo: FakeRun, env: dict[str, str], path: str | None) -> None:
    demo.env = {"STEPS": "20", **env}
    await demo.new_generation("launch")
    await demo.place()
    await demo.start(checkpoints_path=path)
    observation = await demo.see(over)
    assert observation.checkpoint is None
    assert await demo.backend.checkpoints(demo.ref) == ()


async def test_checkpoints_outlive_the_job(demo: FakeRun) -> None:
    demo.env = {"STEPS": "30"}
    await demo.launch()
    await demo.see(over)
    await demo.gone()
    later = Run(demo.lab, run="run-2", env={"STEPS": "40"})
    await later.launch()
    await later.see(lambda observation: observation.pods[0].run.step is not None)
    assert (await later.pod(0)).run.step == 31


async def test_a_finished_training_started_again_ends_at_once(demo: FakeRun) -> None:
    demo.env = {"STEPS": "30"}
    await demo.launch()
    await demo.see(over)
    await demo.again("restart")
    began = await demo.backend.clock()
    observation = await demo.see(over)
    assert observation.now == began + 1
    assert all(pod.is_done and pod.run.step is None for pod in observation.pods)


async def test_steps_may_be_out_of_sight(demo: FakeRun) -> None:
    demo.env = {"SHOW_STEPS": "0", "LIBRARY": "1"}
    await demo.launch()
    observation = await demo.observe(until=await demo.backend.clock() + 20)
    observation = await demo.observe(until=observation.now + 20)
    pod = observation.pods[0]
    assert (pod.run.step, pod.run.first_step_at, pod.can) == (None, None, CAPABILITIES)
    assert pod.run.moved_at == observation.now


async def test_nobody_steps_before_everybody_has_started(demo: FakeRun) -> None:
    await demo.new_generation("launch")
    await demo.place()
    await demo.fault("silence n3")
    order = demo.start_order()
    state = await demo.backend.ensure_started(order)
    await demo.observe(until=await demo.backend.clock() + 100)
    await demo.observe(until=await demo.backend.clock() + 100)
    state = await demo.backend.ensure_started(order)
    assert (state.started, state.pending) == ((0, 1, 2), (3,))
    assert (await demo.pod(0)).run.step is None
    await demo.fault("unsilence n3")
    await demo.until_done(lambda: demo.backend.ensure_started(order))
    await demo.step(1)


async def test_an_end_with_grace_takes_a_moment_and_saves_the_step(demo: FakeRun) -> None:
    demo.env = {"STOP_S": "3"}
    await demo.launch()
    await demo.step(13)
    await demo.new_generation("stop")
    began = await demo.backend.clock()
    await demo.stop(grace_s=15.0)
    assert await demo.backend.clock() == began + 3
    assert [c.step for c in await demo.backend.checkpoints(demo.ref)] == [13, 10]


async def test_what_was_saved_in_the_grace_comes_with_the_end_of_the_job(demo: FakeRun) -> None:
    await demo.launch()
    await demo.step(13)
    end = await demo.until_done(lambda: demo.backend.ensure_gone(demo.ref, grace_s=15.0))
    assert end.saved is not None
    assert end.saved.step == 13


async def test_who_hangs_is_killed_when_the_grace_is_over(demo: FakeRun) -> None:
    await demo.launch()
    await demo.step(13)
    await demo.fault("hang demo 2")
    await demo.new_generation("stop")
    began = await demo.backend.clock()
    await demo.stop(grace_s=15.0)
    assert await demo.backend.clock() == began + 15
    assert [c.step for c in await demo.backend.checkpoints(demo.ref)] == [10]


async def test_a_second_order_without_grace_kills_at_once(demo: FakeRun) -> None:
    await demo.launch()
    await demo.new_generation("stop")
    assert (await demo.backend.ensure_stopped(demo.stop_order(grace_s=15.0))).pending
    assert (await demo.backend.ensure_stopped(demo.stop_order())).done
