"""Ranks that go on over a restart: what every backend promises of the members of a generation."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.seeing.watching import Watch, report
from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import PodState, PodView, StartState
from everstep.protocol import wire
from tests.backends.conftest import FakeRun
from tests.backends.lab import Lab, Run, effects
from tests.backends.local_lab import LocalLab
from tests.support.marks import process_of

NEVER_ENDS = {"STEPS": "100000"}
BOTH = {"processes_per_node": 2}
ENDED = (PodState.STOPPED, PodState.EXITED)


async def launched(lab: Lab, **changes: Any) -> Run:
    """A job that runs for ever, in its first generation."""
    job = Run(lab, env=NEVER_ENDS, **changes)
    await job.launch()
    await job.step(1)
    return job


async def processes(job: Run) -> dict[int, object]:
    """Rank -> what stays the same as long as its process does."""
    pods = (await job.observe_now()).pods
    if not isinstance(job.lab, LocalLab):
        return {rank: incarnation for pod in pods for rank, incarnation in _incarnations(job, pod)}
    states = [job.lab.backend.agents.by_uid[pod.uid].state for pod in pods]
    return {
        rank["rank"]: process_of(state["uid"], rank["pid"])
        for state in states
        if state is not None and state["run"] is not None
        for rank in state["run"]["ranks"]
        if rank["exited_at"] is None
    }


def _incarnations(job: Run, pod: PodView) -> list[tuple[int, int]]:
    if pod.state in ENDED:
        return []
    first, older = pod.slot * job.processes_per_node, dict(pod.older_ranks)
    if pod.generation == job.generation and pod.run.started_at is None:
        return list(pod.older_ranks)  # the others are still to be started
    ranks = range(first, first + job.processes_per_node)
    return [(rank, older.get(rank, pod.generation)) for rank in ranks]


def only_ranks(values: dict[int, object], *ranks: int) -> dict[int, object]:
    return {rank: values[rank] for rank in ranks}


async def stopped_but(job: Run, *keep: int, key: str = "process") -> tuple[int, ...]:
    """The ranks that were kept in a new generation."""
    await job.new_generation(key)
    return (await job.stop(keep=keep)).kept_ranks


async def answer(job: Run, **changes: Any) -> StartState:
    """What a start came to; it may have failed."""
    order = job.start_order(**changes)
    ends = await job.backend.clock() + 300.0
    while True:
        state = await job.backend.ensure_started(order)
        if state.done or state.failed:
            return state
        assert (await job.observe(until=ends)).now < ends, f"neither done nor failed: {state}"


async def test_kept_ranks_keep_their_process_and_get_the_new_generation(lab: Lab) -> None:
    job = await launched(lab, slots=(0, 1), **BOTH)
    before = await processes(job)
    ranks_kept = await stopped_but(job, 0, 2)
    assert ranks_kept == (0, 2)
    assert await processes(job) == only_ranks(before, 0, 2)
    waits = (await job.observe_now()).pods
    assert {(pod.generation, pod.run.started_at) for pod in waits} == {(2, None)}
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    await job.step(2)
    after = await processes(job)
    assert only_ranks(after, 0, 2) == only_ranks(before, 0, 2)
    assert not {*only_ranks(after, 1, 3).items()} & {*before.items()}
    pods = (await job.observe_now()).pods
    assert [(pod.generation, pod.ranks, pod.older_ranks) for pod in pods] == [
        (2, 2, ((0, 1),)),
        (2, 2, ((2, 1),)),
    ]
    assert not job.facts, "nobody ended by himself"


async def test_who_is_not_kept_ends_and_others_of_the_job_go_on(lab: Lab) -> None:
    job = await launched(lab)
    before = await processes(job)
    assert await stopped_but(job, 0, 1, 3) == (0, 1, 3)
    assert await processes(job) == only_ranks(before, 0, 1, 3)
    assert (await job.pod(2)).state is PodState.STOPPED


async def test_every_rank_may_be_kept(lab: Lab) -> None:
    job = await launched(lab)
    before = await processes(job)
    ranks_kept = await stopped_but(job, *job.slots)
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    assert await processes(job) == before
    assert {pod.generation for pod in (await job.observe_now()).pods} == {2}


async def test_an_incarnation_is_told_over_several_generations(lab: Lab) -> None:
    job = await launched(lab)
    before = await processes(job)
    for key, keep in (("first", (0, 1, 2)), ("second", (0, 2, 3))):
        ranks_kept = await stopped_but(job, *keep, key=key)
        await job.fence(kept_ranks=ranks_kept)
        await job.start(kept_ranks=ranks_kept)
    assert only_ranks(await processes(job), 0, 2) == only_ranks(before, 0, 2)
    pods = (await job.observe_now()).pods
    assert [pod.older_ranks for pod in pods] == [((0, 1),), (), ((2, 1),), ((3, 2),)]
    assert await older_as_watched(job) == {0: 1, 2: 1, 3: 2}


async def older_as_watched(job: Run) -> dict[int, int]:
    """What status has its incarnations from."""
    order = WatchOrder(
        job=job.ref,
        cluster="local",
        generation=job.generation,
        cursor="",
        since=0.0,
        limits=Limits(),
        active=job.slots,
    )
    return dict(
        report(order, Watch(learned=Learned()), await job.observe_now(), "refresh").older_ranks
    )


async def test_a_pod_may_be_replaced_while_ranks_elsewhere_go_on(lab: Lab) -> None:
    job = await launched(lab)
    before = await processes(job)
    ranks_kept = await stopped_but(job, 0, 1, 3)
    await job.place(recreate=(2,))
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    assert only_ranks(await processes(job), 0, 1, 3) == only_ranks(before, 0, 1, 3)


async def test_a_dead_rank_cannot_be_kept(lab: Lab) -> None:
    job = await launched(lab)
    await lab.fault("kill demo 2")
    await job.fact("process.exit")
    before = await processes(job)
    ranks_kept = await stopped_but(job, *job.slots)
    assert ranks_kept == (0, 1, 3)
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    assert only_ranks(await processes(job), *ranks_kept) == only_ranks(before, *ranks_kept)


async def test_a_rank_of_a_lost_container_cannot_be_kept(lab: Lab) -> None:
    job = await launched(lab)
    await lab.fault("node-down n2")
    await job.fact("node.down")
    assert await stopped_but(job, *job.slots) == (0, 1, 3)


async def test_a_kept_rank_that_ended_since_makes_the_start_fail(lab: Lab) -> None:
    job = await launched(lab)
    ranks_kept = await stopped_but(job, *job.slots)
    await job.fence(kept_ranks=ranks_kept)
    await lab.fault("kill demo 2")
    assert (await job.fact("process.exit")).generation == job.generation
    state = await answer(job, kept_ranks=ranks_kept)
    assert state.failed[2] == "ranks that were to go on: 2; those that live: none"


async def test_a_start_that_forgets_who_was_kept_fails(lab: Lab) -> None:
    job = await launched(lab)
    ranks_kept = await stopped_but(job, 1, 2)
    await job.fence(kept_ranks=ranks_kept)
    state = await answer(job, kept_ranks=(1,))
    assert state.failed == {2: "ranks that were to go on: none; those that live: 2"}


async def test_a_later_stop_ends_whom_an_earlier_one_kept(lab: Lab) -> None:
    job = await launched(lab)
    await stopped_but(job, *job.slots)
    assert await stopped_but(job, key="job") == ()
    assert await processes(job) == {}


async def test_a_stop_of_the_same_generation_that_keeps_fewer_ends_the_others(lab: Lab) -> None:
    job = await launched(lab)
    before = await processes(job)
    await stopped_but(job, *job.slots)
    assert (await job.stop(keep=(0, 3))).kept_ranks == (0, 3)
    assert await processes(job) == only_ranks(before, 0, 3)


async def test_a_survivor_that_cannot_be_reached_is_ended_by_the_fence(lab: Lab) -> None:
    job = await launched(lab)
    await lab.fault("node-down n1 partition")
    await job.fact("node.not_ready")
    await job.new_generation("process")
    state = await job.backend.ensure_stopped(job.stop_order(keep=job.slots))
    assert (state.pending, state.kept_ranks) == ((1,), (0, 2, 3))
    await job.fence(kept_ranks=state.kept_ranks)
    await lab.fault("node-up n1")
    await job.see(
        lambda observation: any(p.slot == 1 and p.silent_since is None for p in observation.pods)
    )
    await job.see(
        lambda observation: any(p.slot == 1 and p.state in ENDED for p in observation.pods)
    )
    assert (await job.pod(1)).generation == 1
    late = await job.backend.ensure_stopped(job.stop_order(keep=job.slots))
    assert late.kept_ranks == (0, 2, 3), "nor can it be kept when it is back"


STEPS: dict[str, Callable[[Run, tuple[int, ...]], Awaitable[Any]]] = {
    "generation": lambda job, _: job.new_generation("process"),
    "stop": lambda job, ranks_kept: job.stop(keep=ranks_kept),
    "fence": lambda job, ranks_kept: job.fence(kept_ranks=ranks_kept),
    "start": lambda job, ranks_kept: job.start(kept_ranks=ranks_kept),
}
"""What a level that keeps ranks comes to."""


async def test_every_step_may_be_carried_out_twice(lab: Lab) -> None:
    job = await launched(lab)
    before, ranks_kept = await processes(job), (0, 1, 3)
    for step in STEPS.values():
        await step(job, ranks_kept)
        now, done = await processes(job), await effects(lab)
        await step(job, ranks_kept)
        assert (await processes(job), await effects(lab)) == (now, done)
    assert only_ranks(await processes(job), *ranks_kept) == only_ranks(before, *ranks_kept)


async def test_a_stop_that_comes_again_after_the_start_ends_nobody(lab: Lab) -> None:
    job = await launched(lab)
    ranks_kept = await stopped_but(job, 0, 1, 3)
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    running = await processes(job)
    assert (await job.stop(keep=ranks_kept)).kept_ranks == ranks_kept
    await job.fence(kept_ranks=ranks_kept)
    await job.step(2)
    assert await processes(job) == running


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
async def test_another_worker_goes_on_wherever_the_one_before_was_killed(
    local_lab: LocalLab, step: str
) -> None:
    """Only real agents still have the instructions of the worker before."""
    job = await launched(local_lab)
    before, ranks_kept = await processes(job), (0, 1, 3)
    for name, carry_out in STEPS.items():
        await carry_out(job, ranks_kept)
        if name == step:
            await local_lab.another_worker()
            await carry_out(job, ranks_kept)  # nobody was told that it is done
    await job.step(2)
    assert only_ranks(await processes(job), *ranks_kept) == only_ranks(before, *ranks_kept)


async def test_a_fence_keeps_whom_its_worker_has_not_heard_of_since(local_lab: LocalLab) -> None:
    job = await launched(local_lab, slots=(0, 1))
    before = await processes(job)
    ranks_kept = await stopped_but(job, *job.slots)
    for watched in local_lab.backend.agents.by_uid.values():
        assert watched.task is not None
        watched.task.cancel()
        watched.state = None
    await job.fence(kept_ranks=ranks_kept)
    assert await processes(job) == before


def environment(pid: object) -> dict[str, str]:
    """Of a process, as it was started."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.partition("=")[::2] for word in words)


async def test_kept_ranks_are_told_the_variables_that_new_ones_are_started_with(
    local_lab: LocalLab,
) -> None:
    job = await launched(local_lab, slots=(0, 1), **BOTH)
    ranks_kept = await stopped_but(job, 0, 3)
    await job.fence(kept_ranks=ranks_kept)
    await job.start(kept_ranks=ranks_kept)
    environments = {rank: environment(pid) for rank, pid in (await processes(job)).items()}
    for rank, neighbour in ((0, 1), (3, 2)):
        instruction = json.loads(
            (Path(environments[rank][wire.RANK_FOLDER]) / wire.INSTRUCTION).read_text()
        )
        assert (instruction["do"], instruction["generation"]) == ("rebuild", 2)
        env, started = instruction["env"], environments[neighbour]
        rank_variables = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "ROLE_RANK": str(rank)}
        assert env == {name: started[name] for name in env} | rank_variables
        assert {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "EVERSTEP_GENERATION"} <= env.keys()
        assert env["EVERSTEP_STATE_FROM"] == "0,3"
        assert env["MASTER_PORT"] != environments[rank]["MASTER_PORT"]


async def test_on_the_fake_cluster_the_kept_ranks_alone_are_told_to_rebuild(demo: FakeRun) -> None:
    demo.env = NEVER_ENDS
    await demo.launch()
    ranks_kept = await stopped_but(demo, 0, 3)
    await demo.fence(kept_ranks=ranks_kept)
    for _ in range(2):
        await demo.start(kept_ranks=ranks_kept)
    rebuild_effects = [what for what in await effects(demo.lab) if what.startswith("rebuild")]
    assert rebuild_effects == ["rebuild rank 0 of demo (g2)", "rebuild rank 3 of demo (g2)"]


async def test_where_nobody_is_kept_nothing_is_told(local_lab: LocalLab) -> None:
    job = await launched(local_lab, slots=(0,))
    await job.again("restart")
    (env,) = [environment(pid) for pid in (await processes(job)).values()]
    assert not (Path(env[wire.RANK_FOLDER]) / wire.INSTRUCTION).exists()
    assert "EVERSTEP_STATE_FROM" not in env


SPEAKING = """
cd "$EVERSTEP_RANK_FOLDER" && echo '["rebuild", "pause"]' > fresh && mv fresh capabilities.json
[ "$RANK" = 0 ] && echo '["rebuild", "guard"]' > fresh && mv fresh capabilities.json
exec sleep 1000
"""


async def test_a_pod_can_do_what_all_its_ranks_say_they_can(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0, 1), processes_per_node=2)
    local_lab.command = ("/bin/sh", "-c", SPEAKING)
    await job.launch()
    capabilities = {0: ("rebuild",), 1: ("pause", "rebuild")}
    await job.see(
        lambda observation: {pod.slot: pod.can for pod in observation.pods} == capabilities
    )
