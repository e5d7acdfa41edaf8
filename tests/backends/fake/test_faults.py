"""Each fault of the fake cluster by its name: its effect and the facts it reports."""

from __future__ import annotations

import pytest

from everstep.backends.fake.faults import FAULTS, parse_fault
from everstep.backends.fake.settings import EPOCH
from everstep.backends.fault_lines import When
from everstep.core.deciding.playbook import CATCH_ALL, row_for
from everstep.core.facts import Fact
from everstep.core.world import NodeView, PodState
from everstep.protocol.exits import Exit, RankExit
from tests.backends.conftest import FakeLab, FakeRun
from tests.backends.lab import Run, nodes_of

LONG = {"STEPS": "100000"}


@pytest.fixture
async def running(demo: FakeRun) -> FakeRun:
    """A job of four slots with one device each that gained three steps."""
    demo.env = LONG
    await demo.launch()
    await demo.step(3)
    return demo


async def node(run: Run, name: str) -> NodeView:
    return next(node for node in await run.backend.nodes() if node.name == name)


async def kinds(run: Run) -> list[str]:
    return [fact.kind for fact in (await run.observe_now()).facts]


async def newest(run: Run) -> Fact:
    return (await run.observe_now()).facts[-1]


async def gains_steps(run: Run) -> bool:
    before = (await run.pod(0)).run.step or 0
    ends = await run.backend.clock() + 5
    while (observation := await run.observe(until=ends)).now < ends:
        pass
    return (observation.pods[0].run.step or 0) > before


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "when", "words", "options"),
    [
        ("node-down n1", When(), ("n1",), []),
        ("at 35s node-down n1 partition", When(at_s=35), ("n1",), ["partition"]),
        ("at 2m node-up n1  # and back", When(at_s=120), ("n1",), []),
        ("at 1.5h clear n1", When(at_s=5400), ("n1",), []),
        ("in 5s clear n1 3", When(in_s=5), ("n1", "3"), []),
        ("at step 40 of demo hang demo 2", When(step=40, job="demo"), ("demo", "2"), []),
        ("device n1 0 80E01801 heals", When(), ("n1", "0", "80E01801"), ["heals"]),
        ("slow-teardown n1 90s", When(), ("n1", "90s"), []),
        ("metric n1 0 37.5", When(), ("n1", "0", "37.5"), []),
        ("metric n1 0 vary", When(), ("n1", "0", "vary"), []),
        ("kill demo 1 signal 15", When(), ("demo", "1"), ["signal"]),
        ("kill demo 1 exit 3 log='vocab size'", When(), ("demo", "1"), ["exit", "log"]),
        ("fact demo net.flap node=n1", When(), ("demo", "net.flap"), ["node"]),
    ],
)
def test_a_line_is_read(line: str, when: When, words: tuple[str, ...], options: list[str]) -> None:
    fault = parse_fault(line)
    assert (fault.when, fault.words, sorted(fault.options)) == (when, words, options)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("", "names no fault; known are node-down, "),
        ("explode n1", "names no fault"),
        ("node-down", "should read: node-down NODE"),
        ("node-down n1 softly", "should read: node-down NODE"),
        ("device n1 first 80E01801", "should read: device NODE INDEX CODE"),
        ("device n1 0 ''", "should read: device NODE INDEX CODE"),
        ("metric n1 0 VALUE", r"should read: metric NODE INDEX VALUE\|vary"),
        ("metric n1 0 -3", "should read: metric"),
        ("kill demo 1 signal KILL", r"should read: kill JOB RANK \[signal N\|exit N\]"),
        ("kill demo 1 mood=bad", "should read: kill"),
        ("at noon node-down n1", "should begin: at 35s, in 5s, or at step 40 of JOB"),
        ("at step x of demo preempt demo", "should begin"),
    ],
)
def test_a_line_that_cannot_be_read_says_how_it_should_be(line: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_fault(line)


@pytest.mark.parametrize(
    "line", ["node-down n9", "device n1 8 X", "hang demo 9", "hang other 0", "kill-agent demo 7"]
)
async def test_what_is_not_there_cannot_break(running: FakeRun, line: str) -> None:
    with pytest.raises(ValueError, match=r"no node|no device|no rank|no job|no pod"):
        await running.fault(line)


async def test_a_later_fault_that_cannot_happen_is_noted(running: FakeRun) -> None:
    await running.fault("in 5s hang demo 9")
    await running.admin.advance(10)
    (failed_effect,) = [
        e.what for e in await running.admin.effects() if e.what.startswith("could not")
    ]
    assert failed_effect == "could not in 5s hang demo 9: demo has no rank 9"


def test_every_fault_that_is_pinned_for_rehearsals_is_there() -> None:
    pinned = "node-down node-up device clear metric precheck kill hang kill-agent preempt"
    assert set(FAULTS) >= {*pinned.split(), "slow-teardown"}


# --- when ---------------------------------------------------------------------------------------


async def test_a_fault_happens_at_its_time(running: FakeRun) -> None:
    await running.fault("at 35s kill demo 1")
    assert (await running.fact("process.exit")).at == EPOCH + 35


async def test_a_fault_of_the_past_happens_now(running: FakeRun) -> None:
    await running.fault("at 1s kill demo 1")
    assert (await newest(running)).at == await running.backend.clock()


async def test_a_fault_happens_once_when_its_step_is_completed(demo: FakeRun) -> None:
    await demo.fault("at step 20 of demo kill demo 1")
    await demo.launch()
    await demo.fact("process.exit")
    observation = await demo.observe_now()
    assert (
        observation.pods[0].run.step,
        observation.checkpoint and observation.checkpoint.step,
    ) == (
        20,
        20,
    )
    await demo.again("restart")
    await demo.step(30)
    assert await kinds(demo) == ["process.exit"]


async def test_a_step_already_completed_has_come(running: FakeRun) -> None:
    await running.fault("at step 2 of demo kill demo 1")
    assert await kinds(running) == ["process.exit"]


async def test_a_step_waits_through_a_restart(running: FakeRun) -> None:
    await running.fault("at step 30 of demo preempt demo", "kill demo 0")
    await running.again("restart")
    assert not (await kinds(running)).count("job.preempted")
    await running.fact("job.preempted")
    assert (await running.pod(0)).run.step == 30


# --- nodes --------------------------------------------------------------------------------------


async def test_node_down_ends_everything_there_at_once(running: FakeRun) -> None:
    await running.fault("node-down n2")
    assert await kinds(running) == ["node.down"]
    assert (await running.pod(2)).state is PodState.LOST
    assert not await gains_steps(running)


async def test_node_up_after_a_loss_brings_the_node_back_but_not_its_pods(
    running: FakeRun,
) -> None:
    await running.fault("node-down n2", "node-up n2")
    assert await kinds(running) == ["node.down", "node.up"]
    assert (await node(running, "n2")).ready
    assert (await running.pod(2)).state is PodState.LOST


async def test_a_partition_leaves_the_ranks_alone(running: FakeRun) -> None:
    await running.fault("node-down n2 partition")
    (fact,) = (await running.observe_now()).facts
    assert (fact.kind, fact.details["proven"]) == ("node.not_ready", False)
    assert not (await node(running, "n2")).ready
    seen_at = (await running.pod(2)).run.step
    assert await gains_steps(running)
    pod = await running.pod(2)
    assert (pod.state, pod.run.step) == (PodState.UNREACHABLE, seen_at)


async def test_after_a_partition_the_agents_tell_what_was_missed(running: FakeRun) -> None:
    await running.fault("node-down n2 partition", "in 4s kill demo 2 exit 9")
    await running.admin.advance(10)
    assert (await running.pod(2)).exits == ()
    assert await kinds(running) == ["node.not_ready"]
    await running.fault("node-up n2")
    assert await kinds(running) == ["node.not_ready", "node.up", "process.exit"]
    died_at = await running.backend.clock() - 6
    assert (await newest(running)).at == died_at
    assert (await running.pod(2)).exits == (RankExit(2, died_at, Exit(code=9)),)


async def test_a_partition_may_turn_out_to_be_a_loss(running: FakeRun) -> None:
    await running.fault("node-down n2 partition", "node-down n2")
    assert await kinds(running) == ["node.not_ready", "node.down"]
    assert (await running.pod(2)).state is PodState.LOST


async def test_processes_behind_a_partition_end_when_the_fence_has_stood_long_enough(
    demo: FakeRun,
) -> None:
    demo.env, demo.slots = LONG, (0,)
    await demo.launch()
    await demo.step(3)
    await demo.fault("node-down n0 partition")
    await demo.new_generation("pod")
    await demo.place()
    fenced_at = await demo.backend.clock()
    await demo.fence()
    saved = await demo.backend.checkpoints(demo.ref)
    assert saved[0].at <= fenced_at + 30, "an older generation saved behind the fence"
    assert saved[0].at > fenced_at + 10, "until then it went on"


async def test_silence_is_noticed_by_nobody_but_the_slots(running: FakeRun) -> None:
    await running.fault("silence n1")
    assert await kinds(running) == []
    assert (await node(running, "n1")).ready
    since = await running.backend.clock()
    pod = await running.pod(1)
    assert (pod.state, pod.silent_since) == (PodState.UNREACHABLE, since)
    assert await gains_steps(running)
    await running.fault("unsilence n1")
    pod = await running.pod(1)
    assert (pod.state, pod.silent_since) == (PodState.RUNNING, None)
    assert pod.run.step == (await running.pod(0)).run.step


async def test_node_facts_are_told_to_everybody_on_the_node(fake_lab: FakeLab) -> None:
    one, two = FakeRun(fake_lab, id="one"), FakeRun(fake_lab, id="two", slots=(0,))
    for run in (one, two):
        await run.new_generation("launch")
        await run.backend.ensure_placed(run.place_order())
    await one.fault("node-down n0", "node-down n3")
    assert await kinds(one) == ["node.down", "node.down"]
    assert await kinds(two) == ["node.down"]
    assert (await one.observe_now()).facts[0] == (await two.observe_now()).facts[0]


async def test_maintenance_is_announced_and_keeps_others_away(running: FakeRun) -> None:
    await running.fault("maintenance n0", "maintenance n0")
    assert await kinds(running) == ["maintenance.notice"]
    assert [fact.kind for fact in await running.backend.check(running.ref)] == await kinds(running)
    assert await gains_steps(running)
    await running.new_generation("job")
    assert "n0" not in nodes_of(await running.place())
    await running.fault("clear n0")
    await running.new_generation("again")
    assert "n0" in nodes_of(await running.place())


async def test_a_new_node_is_a_place(fake_lab: FakeLab) -> None:
    run = FakeRun(fake_lab, slots=tuple(range(6)))
    await run.new_generation("launch")
    assert not (await run.backend.ensure_placed(run.place_order())).placed
    await run.fault("add-node spare", "add-node spare")
    assert "spare" in nodes_of(await run.place())


async def test_clear_makes_a_node_as_new(running: FakeRun) -> None:
    await running.fault(
        "device n1 0 X no-heals",
        "device n1 3 Y",
        "precheck n1 disk",
        "slow-teardown n1 50",
        "metric n1 0 vary",
        "silence n1",
        "node-down n1 partition",
        "clear n1",
    )
    assert (await running.pod(1)).state is PodState.RUNNING
    node_view = await node(running, "n1")
    assert node_view.ready
    assert {device.health for device in node_view.devices} == {"ok"}
    assert await running.backend.check(running.ref) == ()


# --- devices ------------------------------------------------------------------------------------


async def test_a_device_fault_carries_what_the_line_says(running: FakeRun) -> None:
    await running.fault("device n1 0 80C98002 minor no-heals user")
    fact = await newest(running)
    assert (fact.node, fact.device, fact.slot, fact.code) == ("n1", 0, 1, "80C98002")
    assert fact.details == {"severity": "minor", "heals": False, "user_induced": True}
    assert fact.id == "fake/n1/0/1"


@pytest.mark.parametrize(
    ("words", "details"),
    [
        ("", {"severity": "major", "heals": True}),
        ("critical", {"severity": "critical", "heals": False}),
        ("critical heals", {"severity": "critical", "heals": True}),
    ],
)
async def test_what_a_device_fault_does_not_say(
    running: FakeRun, words: str, details: dict[str, object]
) -> None:
    await running.fault(f"device n1 0 X {words}")
    assert (await newest(running)).details == details


async def test_a_code_that_is_already_there_is_no_news(running: FakeRun) -> None:
    await running.fault("device n1 0 X", "device n1 0 X", "clear n1 0", "device n1 0 X")
    assert await kinds(running) == ["device.fault", "device.healed", "device.fault"]
    assert len({fact.id for fact in (await running.observe_now()).facts}) == 3


async def test_a_faulty_device_is_not_placed_but_a_warned_one_is(fake_lab: FakeLab) -> None:
    run = FakeRun(fake_lab, slots=(0,), devices=8)
    await run.fault("device n0 7 X", "device n1 7 Y warning")
    await run.new_generation("launch")
    assert nodes_of(await run.place()) == {"n1"}
    (standby_fact,) = (await run.observe_now()).facts
    assert (standby_fact.code, standby_fact.slot) == ("Y", 0), (
        "the new pod is told what its node already has"
    )
    assert [fact.id for fact in await run.backend.check(run.ref)] == [standby_fact.id]


async def test_a_heal_takes_its_time(running: FakeRun) -> None:
    await running.fault("device n1 0 X", "device n1 1 Y", "heal-takes n1 1 90")

    async def healed(device: int) -> float:
        began = await running.backend.clock()
        while True:
            state = await running.backend.ensure_healed(
                running.ref, generation=running.generation, node="n1", device=device
            )
            if state.state == "healed":
                return await running.backend.clock() - began
            assert (await node(running, "n1")).devices[device].health == "healing"
            await running.observe()

    assert await healed(0) == 10
    assert await healed(1) == 90


async def test_a_new_fault_after_a_failed_heal_is_asked_anew(running: FakeRun) -> None:
    async def ask() -> str:
        state = await running.backend.ensure_healed(
            running.ref, generation=running.generation, node="n1", device=0
        )
        return state.state

    await running.fault("device n1 0 X no-heals")
    assert await ask() == "healing"
    await running.admin.advance(10)
    assert await ask() == "failed"
    await running.fault("device n1 0 Z")
    assert await ask() == "healing"


async def test_a_varying_device_is_movement_while_everything_else_is_still(
    running: FakeRun,
) -> None:
    await running.fault("hang demo 0")
    still_since = await running.backend.clock()
    await running.admin.advance(100)
    assert {pod.run.moved_at for pod in (await running.observe_now()).pods} == {still_since}
    await running.fault("metric n1 0 vary")
    await running.admin.advance(100)
    assert (await running.pod(1)).run.moved_at == still_since + 200
    await running.fault("metric n1 0 37")
    await running.admin.advance(100)
    assert (await running.pod(1)).run.moved_at == still_since + 200
    assert (await running.pod(0)).run.moved_at == still_since


# --- processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "details"),
    [
        ("", {"signal": 9}),
        ("signal 15", {"signal": 15}),
        ("exit 3", {"exit_code": 3}),
        (
            "exit 1 exception=ValueError log='a b'",
            {"exit_code": 1, "exception": "ValueError", "log": "a b"},
        ),
    ],
)
async def test_kill_ends_a_rank(running: FakeRun, words: str, details: dict[str, object]) -> None:
    await running.fault(f"kill demo 2 {words}")
    fact = await newest(running)
    assert (fact.kind, fact.rank, fact.slot, fact.node) == ("process.exit", 2, 2, "n2")
    assert fact.details == {**details, "at_step": 3}
    assert fact.id == "fake/demo-2-g1/1/1"


async def test_a_rank_that_ends_well_is_no_fact(running: FakeRun) -> None:
    await running.fault("kill demo 2 exit 0")
    assert await kinds(running) == []
    assert (await running.pod(2)).is_done
    assert not await gains_steps(running)


async def test_a_hanging_rank_stops_everybody_and_says_nothing(running: FakeRun) -> None:
    await running.fault("hang demo 2")
    assert await kinds(running) == []
    assert not await gains_steps(running)
    assert {pod.state for pod in (await running.observe_now()).pods} == {PodState.RUNNING}


async def test_kill_agent_takes_the_container_on_a_sound_node(running: FakeRun) -> None:
    await running.fault("kill-agent demo 2")
    fact = await newest(running)
    assert (fact.kind, fact.slot, fact.node, fact.generation) == ("agent.gone", 2, "n2", 1)
    assert (await running.pod(2)).state is PodState.LOST
    assert (await node(running, "n2")).ready
    await running.new_generation("next")
    assert (await running.stop()).stopped == (0, 1, 2, 3)
    assert (await running.backend.ensure_started(running.start_order())).pending == (0, 1, 2, 3)
    await running.observe()
    await running.admin.advance(10)
    assert (await running.backend.ensure_started(running.start_order())).pending == (2,)


async def test_preemption_is_a_notice(running: FakeRun) -> None:
    await running.fault("preempt demo")
    assert await kinds(running) == ["job.preempted"]
    assert await gains_steps(running)


# --- storage ------------------------------------------------------------------------------------


async def test_storage_that_cannot_be_written_keeps_nothing(running: FakeRun) -> None:
    await running.step(10)
    await running.fault("storage demo unwritable", "storage demo unwritable")
    assert await kinds(running) == ["storage.unwritable"]
    assert [fact.kind for fact in await running.backend.check(running.ref)] == await kinds(running)
    await running.step(25)
    assert [c.step for c in await running.backend.checkpoints(running.ref)] == [10]
    await running.fault("storage demo writable")
    await running.step(35)
    assert [c.step for c in await running.backend.checkpoints(running.ref)] == [30, 10]
    assert await kinds(running) == ["storage.unwritable", "storage.writable"]


async def test_no_fence_is_written_where_nothing_can_be(running: FakeRun) -> None:
    await running.fault("storage demo unwritable")
    await running.new_generation("next")
    await running.stop()
    state = await running.backend.ensure_fenced(running.fence_order())
    assert (state.done, state.unwritable) == (False, "the storage of demo is unwritable")
    await running.fault("storage demo writable")
    assert (await running.backend.ensure_fenced(running.fence_order())).done


async def test_a_bad_checkpoint_is_marked_and_told(running: FakeRun) -> None:
    await running.step(25)
    await running.fault("bad-checkpoint demo 20")
    fact = await newest(running)
    assert (fact.kind, fact.details["step"]) == ("checkpoint.bad", 20)
    saved = await running.backend.checkpoints(running.ref)
    assert [(c.step, c.good) for c in saved] == [(20, False), (10, True)]
    observation = await running.observe_now()
    assert observation.checkpoint is not None
    assert observation.checkpoint.step == 10


async def test_a_hidden_bad_checkpoint_is_found_by_who_loads_it(running: FakeRun) -> None:
    await running.step(25)
    await running.fault("bad-checkpoint demo 20 hidden", "kill demo 0")
    await running.again("restart")
    await running.fact("checkpoint.bad")
    ends = [(f.generation, f.details["exception"]) for f in running.facts if f.generation == 2]
    assert ends == [(2, "CheckpointError")] * 4
    await running.again("from an older one")
    await running.step(25)
    saved = await running.backend.checkpoints(running.ref)
    assert [(c.step, c.good) for c in saved] == [(20, True), (10, True)], "saved anew"


async def test_there_must_be_a_checkpoint_to_spoil(running: FakeRun) -> None:
    with pytest.raises(ValueError, match="demo has no checkpoint of step 20"):
        await running.fault("bad-checkpoint demo 20")


# --- the rest -----------------------------------------------------------------------------------


async def test_slow_teardown_holds_up_new_pods_and_the_end(running: FakeRun) -> None:
    await running.fault("slow-teardown n1 90")
    await running.new_generation("pod")
    await running.stop()
    began = await running.backend.clock()
    state = await running.backend.ensure_placed(running.place_order(recreate=(1,)))
    assert (state.placed, state.waiting_for) == (False, "demo/1 on n1 to go")
    await running.place(recreate=(1,))
    assert await running.backend.clock() == began + 90 + 2
    await running.gone()
    assert await running.backend.clock() == began + 2 * 90 + 2


async def test_any_fact_can_be_told(running: FakeRun) -> None:
    await running.fault("fact demo net.flap node=n1 slot=1 code=007 rate=0.5 up=false note=soon")
    fact = await newest(running)
    assert (fact.kind, fact.node, fact.slot, fact.code) == ("net.flap", "n1", 1, "007")
    assert fact.details == {"rate": 0.5, "up": False, "note": "soon"}
    assert row_for(fact) is CATCH_ALL


async def test_a_failing_check_can_be_repaired(demo: FakeRun) -> None:
    await demo.fault("precheck n1 disk hardware", "precheck n1 net", "precheck n1 disk clear")
    await demo.new_generation("launch")
    await demo.place()
    state = await demo.until_done(lambda: demo.backend.ensure_prechecked(demo.precheck_order()))
    assert [fact.kind for fact in state.failures] == ["precheck.net"]


async def test_the_playbook_knows_what_the_cluster_tells_by_itself(running: FakeRun) -> None:
    await running.step(10)
    await running.fault(
        "bad-checkpoint demo 10", "storage demo", "storage demo writable", "maintenance n0",
        "preempt demo", "device n0 0 X", "clear n0 0", "kill demo 0", "kill-agent demo 1",
        "node-down n2 partition", "node-up n2", "node-down n3",
    )  # fmt: skip
    facts = (await running.observe_now()).facts
    assert len(facts) == 12
    assert [fact.kind for fact in facts if row_for(fact) is CATCH_ALL] == []
