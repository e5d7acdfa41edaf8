"""A job goes on as a new run again and again: nothing is lost between two of them, nothing counted twice.

A server of its own suggests a new run after a dozen events, so that there is one after nearly every
incident. What such a job leaves behind has to be what it leaves on a server that never suggests it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import pytest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import CancelledError

from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.moments import Trace, trace
from tests.support.patience import HUNG_S
from tests.support.rows import runs
from tests.support.scene import (
    Scene,
    differences,
    restarts_of,
    shared_scene,
    tell,
    until,
    until_state,
)
from tests.support.stage import Handle, document
from workflows.node_quarantine import Opening

EVENTS = 12
POLL_S = 0.02
TRIES = 3
"""Of an activity that a busy machine takes for dead, since its heartbeat is late: each has to be held."""
OFTEN = {
    "limit.historyCount.suggestContinueAsNew": str(EVENTS),
    # A server takes ten at once by itself. The client tries the others again, but not for ever: on a busy
    # machine it gives up before their turn comes.
    "history.maxInFlightUpdates": "100",
}


@pytest.fixture(scope="module")
async def often(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A scene on a server that suggests a new run all the time."""
    home = tmp_path_factory.mktemp("often")
    async with (
        await DevServer.start(settings=OFTEN, log=home / "temporal.log") as server,
        shared_scene(server, home) as scene,
    ):
        yield scene


@pytest.fixture(scope="module")
async def never(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    async with shared_scene(server, tmp_path_factory.mktemp("never")) as scene:
        yield scene


@pytest.fixture
async def scene(often: Scene) -> Scene:
    await often.new_cluster(nodes=8)
    return often


async def times_gone_on(scene: Scene, job: Handle) -> int:
    """How often the job went on as a new run."""
    return len(await runs(scene.stage.client, job)) - 1


FAULTS = (
    "at 10s kill story 1 exit 1",
    "at 45s kill story 2 exit 1",
    "at 70s device n1 0 80E01801 heals",
    "at 100s node-down n2",
    "at 130s device n3 1 80E01801 critical",
    "at 160s preempt story",
    "at 400s bad-checkpoint story 190",
)
BUDGETS = {
    "coarse": {"limit": 9, "levels": ["pod", "job"]},
    "gentle": {"limit": 9, "levels": ["in_place"], "when": "succeeded"},
}


def story() -> dict[str, Any]:
    return document(
        "story",
        phases=[
            {"name": "warmup", "env": {"STEPS": "20"}},
            {"name": "main", "env": {"STEPS": "300"}},
        ],
        recovery={"budgets": BUDGETS},
    )


async def play(scene: Scene) -> tuple[Trace, int]:
    """The same story each time: what breaks, and what operators say at which moment."""
    await scene.new_cluster(nodes=8)
    for fault in FAULTS:
        await scene.admin.fault(fault)
    job = await scene.running(story(), until_s=60)
    await tell(job, "set_budget", id="a", name="gentle", limit=4)
    await scene.clock.pass_to(200)
    await tell(job, "restart", id="b", level="pod", reason="new firmware")
    await until_state(job, "recovering")
    await scene.clock.pass_to(230)
    await tell(job, "hot_update", id="c", patch={"env": {"CHECKPOINT_EVERY": "5"}}, when="now")
    await until_state(job, "recovering")
    await scene.clock.pass_to(260)
    await tell(job, "pause", id="d", reason="lunch")
    await until_state(job, "paused")
    await scene.clock.pass_to(270)
    await scene.admin.fault("kill-agent story 1")
    await scene.clock.pass_to(300)
    await tell(job, "resume", id="e")
    await until(job, lambda status: status["state"] != "paused")
    await scene.clock.pass_to(340)
    await tell(job, "report_fault", id="f", kind="node.down", node="n0")
    await until_state(job, "recovering")
    for name, args in SENT_BEFORE:
        assert (await tell(job, name, **args))["again"]
    await scene.end(job)
    return await trace(scene.stage, job), await times_gone_on(scene, job)


SENT_BEFORE: list[tuple[str, dict[str, Any]]] = [
    ("set_budget", {"id": "a", "name": "gentle", "limit": 1}),
    ("restart", {"id": "b", "level": "job"}),
    ("hot_update", {"id": "c", "patch": {"env": {"STEPS": "1"}}}),
    ("pause", {"id": "d"}),
    ("resume", {"id": "e"}),
    ("report_fault", {"id": "f", "kind": "node.down", "node": "n1"}),
]


@pytest.mark.long
async def test_a_job_of_many_runs_leaves_what_a_job_of_few_leaves(
    often: Scene, never: Scene
) -> None:
    (expected, few), (actual, many) = await asyncio.gather(play(never), play(often))
    assert few == 1, "only the second phase is a new run"
    assert many >= 10
    assert (actual.report["status"], len(restarts_of(actual.report))) == ("Completed", 11)
    assert differences(asdict(expected), asdict(actual)) == []


async def test_commands_sent_in_a_flood_of_new_runs_are_each_applied_once(scene: Scene) -> None:
    job = await scene.running(document("flood"))
    ids = [f"{n}" for n in range(12)]
    args = {"kind": "subhealth.slow_disk", "node": "n1", "at": 1767225634.0}
    sent = [
        (update_id, tell(job, "report_fault", id=update_id, **args)) for update_id in (*ids, *ids)
    ]
    answers = await asyncio.gather(*(answer for _, answer in sent))
    applied = Counter(
        update_id
        for (update_id, _), answer in zip(sent, answers, strict=True)
        if not answer["again"]
    )
    assert applied == dict.fromkeys(ids, 1)
    report = await scene.end(job)

    assert (report["status"], restarts_of(report)) == ("Completed", [])
    assert await times_gone_on(scene, job) >= 1


async def test_a_cancel_between_two_runs_still_clears_the_cluster(scene: Scene) -> None:
    phases = [{"name": name, "env": {"STEPS": "10"}} for name in ("one", "two")]
    job = await scene.running(document("between", phases=phases), until_s=5)
    await scene.clock.let_go()
    await until(job, lambda status: bool(status["phase"] == "two"))
    await job.cancel()
    with pytest.raises(WorkflowFailureError) as failed:
        await job.result()
    assert isinstance(failed.value.cause, CancelledError)
    assert await scene.stage.fake.leftovers() == ()


async def test_a_cancel_of_a_run_that_is_about_to_go_on_as_another_cancels_the_job(
    scene: Scene,
) -> None:
    """It waits for an adoption, which takes long. No one cancels the next run."""
    job = await scene.running(document("handing-over"), until_s=5)
    for _ in range(TRIES):
        await scene.admin.hold("ensure_adopted")
    adoption = asyncio.create_task(tell(job, "adopt"))
    await scene.admin.wait_held()
    async with asyncio.timeout(HUNG_S):
        while await under_way(job) != ["adopt"]:
            await asyncio.sleep(POLL_S)
    await job.cancel()
    await scene.admin.release()
    await scene.clock.let_go()
    with pytest.raises(WorkflowFailureError):
        await job.result()
    assert (await job.describe()).status is WorkflowExecutionStatus.CANCELED
    with pytest.raises(WorkflowUpdateFailedError):
        await adoption
    assert await scene.stage.fake.leftovers() == ()


async def under_way(job: Handle) -> list[str]:
    """The activities of the newest run."""
    description = (await job.describe()).raw_description
    return [activity.activity_type.name for activity in description.pending_activities]


async def test_the_quarantine_forgets_nothing_from_run_to_run(scene: Scene) -> None:
    handle: Handle = await scene.stage.client.start_workflow(
        names.NODE_QUARANTINE,
        Opening(cluster="local"),
        id=names.quarantine_id("local"),
        task_queue=names.TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    nodes = [f"n{n}" for n in range(8)]
    await asyncio.gather(*(tell(handle, "isolate", node=node) for node in nodes))
    await asyncio.gather(*(tell(handle, "release", node=node) for node in nodes[:3]))
    assert sorted(entry["name"] for entry in await handle.query("nodes")) == nodes[3:]
    assert await times_gone_on(scene, handle) >= 2
    for node in nodes[3:]:
        await tell(handle, "release", node=node)
