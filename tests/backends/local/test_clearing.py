"""How an old pod goes: first its processes, then its place. What a new one waits for, on every backend."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.local.database.placing import to_text
from everstep.core.world import PlaceState, PodState
from everstep.dialects.modelarts.policy import modelarts
from tests.backends.conftest import FakeLab
from tests.backends.lab import DEVICES, NODES, Lab, Run, leave_room_on, left_on, uids_of
from tests.backends.local_lab import LocalLab
from tests.backends.placer import PLACED
from tests.backends.whole import report, restarts, whole_job
from tests.support.child import Child
from tests.support.patience import HUNG_S

NEVER_ENDS = {"STEPS": "1000000"}
CLEARING_S = 0.3
SHORT_S = 2.0
"""Waited for by tests."""
LONG_S = 60.0
"""Pods without a waiting job."""
PLACER = "tests.backends.placer"


async def placed_again(
    job: Run, slot: int, *, key: str = "again", **changes: Any
) -> tuple[PlaceState, float]:
    """The slot in a new pod, and how long that took from the end of its processes on."""
    await job.new_generation(key)
    await job.stop()
    began = await job.backend.clock()
    state = await job.place(recreate=(slot,), reissued=True, **changes)
    return state, await job.backend.clock() - began


@pytest.fixture
async def running(job: Run) -> Run:
    """A job on n0 and n1."""
    job.env = NEVER_ENDS
    await job.launch()
    return job


async def slow(job: Run, seconds: float, node: str = "n1") -> None:
    await job.lab.fault(f"slow-teardown {node} {seconds:g}")


async def test_a_new_pod_waits_until_the_place_of_the_old_one_is_cleared(running: Run) -> None:
    await slow(running, SHORT_S)
    _, took_s = await placed_again(running, 1)
    assert took_s >= SHORT_S


async def test_a_new_pod_is_made_so_long_after_the_old_processes_though_clearing_lasts(
    running: Run,
) -> None:
    await slow(running, LONG_S)
    _, took_s = await placed_again(running, 1, clearing_s=CLEARING_S)
    assert CLEARING_S <= took_s < LONG_S
    await running.fence()
    await running.start()
    assert (await running.pod(1)).generation == running.generation


async def test_a_place_that_is_cleared_in_time_is_not_waited_for_any_longer(running: Run) -> None:
    _, took_s = await placed_again(running, 1, clearing_s=LONG_S)
    assert took_s < LONG_S


async def test_the_node_whose_place_is_still_being_cleared_takes_the_new_pod(lab: Lab) -> None:
    await leave_room_on(lab, 2)
    job = Run(lab, slots=(0, 1), devices="all", env=NEVER_ENDS)
    await job.launch()
    old = await job.pod(1)
    await slow(job, LONG_S, old.node)
    state, took_s = await placed_again(job, 1, clearing_s=CLEARING_S)
    assert took_s < LONG_S
    assert state.pods[1].node == old.node
    assert state.pods[1].uid != old.uid


async def test_devices_are_given_back_with_the_processes(running: Run) -> None:
    await slow(running, LONG_S)
    other = Run(running.lab, id="other", slots=(0,), devices="all")
    other_nodes = tuple(n.name for n in await running.backend.nodes() if n.name != "n1")
    await other.new_generation("launch")
    order = other.place_order(avoid=other_nodes)
    assert not (await other.backend.ensure_placed(order)).placed
    began = await other.backend.clock()
    async with asyncio.timeout(LONG_S):
        owner = asyncio.create_task(running.gone())
        state = await other.place(avoid=other_nodes)
    assert state.pods[0].node == "n1"
    assert await other.backend.clock() - began < LONG_S
    owner.cancel()


async def test_what_is_being_cleared_is_cleared_whatever_comes_and_nothing_is_left(
    running: Run,
) -> None:
    await slow(running, SHORT_S)
    dead_at = await running.backend.clock()
    await placed_again(running, 1, clearing_s=CLEARING_S, avoid=("n1",))
    await placed_again(running, 1, key="once more", clearing_s=CLEARING_S, avoid=("n1",))
    observation = await running.observe_now()
    assert set(uids_of(observation)) == {0, 1}
    await running.gone()
    assert await running.backend.clock() - dead_at >= SHORT_S
    assert running.ref not in await left_on(running.lab)


async def test_the_end_of_a_job_waits_until_every_place_is_cleared(running: Run) -> None:
    await slow(running, SHORT_S)
    began = await running.backend.clock()
    await running.gone()
    assert await running.backend.clock() - began >= SHORT_S
    assert all(running.id not in node.jobs for node in await running.backend.nodes())


async def test_a_node_lost_while_its_place_is_being_cleared_disturbs_nothing(
    running: Run,
) -> None:
    await slow(running, LONG_S)
    state, _ = await placed_again(running, 1, clearing_s=CLEARING_S, avoid=("n1",))
    await running.lab.fault("node-down n1")
    await running.fence()
    await running.start()
    assert state.pods[1].node == "n2"
    assert (await running.pod(1)).state in (PodState.RUNNING, PodState.STARTING)
    lost_at = await running.backend.clock()
    await running.gone()
    assert await running.backend.clock() - lost_at < LONG_S


@pytest.mark.long
async def test_another_worker_goes_on_clearing_where_the_last_one_was_killed(
    local_lab: LocalLab, tmp_path: Path
) -> None:
    """Only a worker in a process of its own dies in the middle of it."""
    job = Run(local_lab, slots=(0, 1), env=NEVER_ENDS)
    await job.launch()
    await slow(job, 2 * SHORT_S)
    old = await job.pod(1)
    await job.new_generation("again")
    await job.stop()
    dead_at = await job.backend.clock()
    order = job.place_order(recreate=(1,), clearing_s=CLEARING_S, avoid=("n1",))

    await local_lab.leave()
    settings = {"home": str(local_lab.backend.settings.home), "nodes": NODES, "devices": DEVICES}
    arguments = [json.dumps(settings), to_text(order)]
    worker = Child([sys.executable, "-m", PLACER, *arguments], name="placer", log=tmp_path / "log")

    async def has_placed() -> bool:
        return PLACED in worker.output()

    await worker.until(has_placed, within_s=HUNG_S)
    worker.kill()

    await local_lab.another_worker()
    job.cursor = ""
    state = await job.until_done(lambda: job.backend.ensure_placed(order))
    assert (old.node, state.pods[1].node) == ("n1", "n2")
    await job.gone()
    assert await job.backend.clock() - dead_at >= 2 * SHORT_S
    assert await job.backend.leftovers() == ()


@pytest.mark.parametrize(
    ("clearing_s", "waits_s"), [(None, 600.0), (10.0, 10.0), (10.0 / 3, 10.0 / 3)]
)
async def test_a_rebuilt_job_waits_for_slow_places_only_as_long_as_it_says(
    fake_lab: FakeLab, clearing_s: float | None, waits_s: float
) -> None:
    job = whole_job(
        fake_lab,
        modelarts(job_retry=8, unconditional=True),
        env={"STEPS": "100"},
        clearing_s=clearing_s,
    )
    await fake_lab.fault("slow-teardown n1 600")
    await fake_lab.fault("at 60s kill demo 2 exit 1")
    await job.run()
    (restart,) = restarts(job)
    assert report(job)["status"] == "Completed"
    assert restart["recover"] == "job_reschedule"
    assert waits_s - 1e-5 <= restart["stages_s"]["place"] < waits_s + 5.0
