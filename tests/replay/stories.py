"""What is recorded: one story for every way through the loop, each on a real server and worker.

A story brings its job, says what breaks and what operators do, and lets it come to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import WorkflowFailureError

from everstep.core import names
from tests.support.moments import Event
from tests.support.patience import HUNG_S
from tests.support.rows import recovery
from tests.support.scene import Scene, refusal, tell, until, until_state
from tests.support.stage import Handle, document

Deeds = Callable[[Scene, Handle], Awaitable[None]]
FAIL_ON_3 = {"rules": [{"match": {"exit_code": [3]}, "action": "fail", "why": "bad data"}]}
TWO_PHASES = [{"name": "warmup", "env": {"STEPS": "20"}}, {"name": "main"}]


async def nothing(_scene: Scene, _job: Handle) -> None:
    """The faults say it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One job on a small cluster. `JOB` in a fault stands for its name."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    faults: Sequence[str] = ()
    deeds: Deeds = nothing
    until_s: float = 34.0  # the clock stands from here on, until the deeds are done
    nodes: int = 3  # of the cluster

    async def tell(self, scene: Scene, name: str) -> Handle:
        """The job after its end, however it ended."""
        await scene.new_cluster(nodes=self.nodes)
        for fault in self.faults:
            await scene.admin.fault(fault.replace("JOB", name))
        spec = {"nodes": 2, "env": {"STEPS": "60"}, "accelerators_per_node": 2, **self.spec}
        job = await scene.running(document(name, **spec), until_s=self.until_s)
        await self.deeds(scene, job)
        with suppress(WorkflowFailureError):
            await scene.end(job)
        return job


# -- What operators do ------------------------------------------------------------------------------


async def stop(_scene: Scene, job: Handle) -> None:
    await tell(job, "stop", reason="enough")


async def cancel(_scene: Scene, job: Handle) -> None:
    await job.cancel()


async def stop_a_recovery(scene: Scene, job: Handle) -> None:
    await scene.held_at("ensure_placed")
    await tell(job, "stop", reason="enough")
    child = await recovery(scene.stage.client, job)
    await Event(child, "WORKFLOW_EXECUTION_CANCEL_REQUESTED").reached(scene.stage)
    await scene.admin.release()


async def terminate_a_recovery(scene: Scene, job: Handle) -> None:
    await scene.held_at("ensure_placed")
    row = await recovery(scene.stage.client, job)
    await scene.stage.client.get_workflow_handle(row).terminate()
    await until(job, lambda status: "/recovery-2-" in str(status["recovery"]))
    await scene.admin.release()


async def pause_and_resume(scene: Scene, job: Handle) -> None:
    await tell(job, "pause", reason="lunch")
    await until_state(job, "paused")
    await scene.clock.pass_to(50)
    await scene.admin.fault("node-down n1")
    await scene.clock.pass_to(100)
    await tell(job, "resume")
    await until_state(job, "recovering")


async def updates(scene: Scene, job: Handle) -> None:
    """All of them, some twice, some wrong."""
    fault = {"kind": "device.fault", "node": "n1", "device": 0, "code": "80E01801"}
    for _ in range(2):
        await tell(job, "report_fault", id="one", **fault)
        await tell(job, "set_budget", id="two", name="any", limit=5)
    await until_state(job, "recovering")
    await scene.clock.pass_to(60)
    await refusal(job, "hot_update", {"patch": {"nods": 3}})
    await tell(job, "hot_update", patch={"env": {"STEPS": "200"}}, when="now")
    await until_state(job, "recovering")
    await scene.clock.pass_to(80)
    await tell(job, "restart", level="pod", reason="new firmware")
    await until_state(job, "recovering")


STORIES: Mapping[str, Story] = {
    "success": Story(),
    "in_place": Story(faults=["at 35s kill JOB 1 exit 1"]),
    "suspension": Story(spec={"limits": {"hang_s": 60}}, faults=["at 35s hang JOB 1"]),
    "pod": Story(faults=["at 35s node-down n1"]),
    "job": Story(faults=["at 35s preempt JOB"]),
    "maintenance": Story(faults=["at 35s maintenance n1", "at 50s clear n1"], nodes=2),
    "elastic": Story(
        spec={"nodes": {"min": 1, "wanted": 2}},
        faults=["at 35s node-down n1", "at 120s add-node n9"],
        nodes=2,
    ),
    "rollback": Story(faults=["at 38s bad-checkpoint JOB 30"]),
    "fail": Story(spec={"recovery": FAIL_ON_3}, faults=["at 35s kill JOB 1 exit 3"]),
    "downgrade": Story(faults=["heal-takes n1 0 2h", "at 35s device n1 0 80E01801 heals"]),
    "superseded": Story(
        faults=["at 35s node-down n1", "at 36s node-down n2"], nodes=5, spec={"nodes": 3}
    ),
    "quota": Story(
        spec={"recovery": {"budgets": {"once": {"limit": 1, "levels": ["in_place"]}}}},
        faults=["at 35s kill JOB 1 exit 1", "at 60s kill JOB 1 exit 1"],
    ),
    "lost_during_launch": Story(faults=["at 1s node-down n1"], until_s=20),
    "stop": Story(deeds=stop),
    "cancel": Story(deeds=cancel),
    "stop_during_a_recovery": Story(faults=["at 35s node-down n1"], deeds=stop_a_recovery),
    "recovery_terminated": Story(faults=["at 35s node-down n1"], deeds=terminate_a_recovery),
    "pause": Story(deeds=pause_and_resume),
    "updates": Story(
        spec={"recovery": {"budgets": {"any": {"limit": 9, "levels": ["in_place", "pod"]}}}},
        deeds=updates,
    ),
    "new_run": Story(spec={"phases": TWO_PHASES}, faults=["at 35s kill JOB 1 exit 1"]),
    "phase_failed": Story(
        spec={"phases": TWO_PHASES, "recovery": FAIL_ON_3}, faults=["at 35s kill JOB 1 exit 3"]
    ),
}


async def wrong_document(scene: Scene) -> Handle:
    job = await scene.stage.submit({"kind": "TrainingJob"}, job_id="wrong-document")
    with suppress(WorkflowFailureError):
        await job.result()
    return job


async def quarantine(scene: Scene) -> Handle:
    """What the stories before it made it isolate, and a release."""
    handle: Handle = scene.stage.client.get_workflow_handle(names.quarantine_id("local"))
    began, over = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"
    await tell(handle, "isolate", node="n0", at=began, until=over)
    await tell(handle, "release", node="n1")
    await tell(handle, "expire", now=1767225600.0 + 600)
    await refusal(handle, "release", {})
    return handle


async def janitor(scene: Scene) -> Handle:
    """Removes what a terminated job left behind, and looks on."""
    await scene.new_cluster(nodes=3)
    job = await scene.running(document("left-behind", nodes=2))
    await job.terminate()
    await scene.clock.let_go()
    handle: Handle = scene.stage.client.get_workflow_handle(names.janitor_id("local"))
    async with asyncio.timeout(HUNG_S):
        while await scene.stage.fake.leftovers():
            await asyncio.sleep(0.02)
    return handle


OTHER_STORIES: Mapping[str, Callable[[Scene], Awaitable[Handle]]] = {
    "wrong_document": wrong_document,
    "quarantine": quarantine,
    "janitor": janitor,
}
RECOVERIES = ("pod", "downgrade", "stop_during_a_recovery")
"""Stories whose first Recovery is kept too."""
