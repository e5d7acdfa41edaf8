"""Updates of a running job of several phases, each with its own books: a trainer configuration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError

from activities.local_activities import LocalActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import Scene, refusal, tell, until, until_state

BUDGET = {"recovery": {"budgets": {"nights": {"limit": 5}}}}


def body(name: str, **phase: Any) -> dict[str, Any]:
    init = {"checkpoint": {"steps": 10}, "autorestart": {"max_num_restarts": 1}}
    trainers = [{"init": {**init, "model_dir": f"{name}/{n}"}, "fit": {}} for n in (1, 2)]
    section = {"command": "train", "env": {"STEPS": "60"}, **phase}
    return {"trainer": trainers, "everstep": section, "metadata": {"name": name}}


async def test_a_hot_update_of_a_phase_changes_that_phase_alone_which_has_no_budgets(
    scene: Scene,
) -> None:
    job = await scene.running(body("trainers"))
    error = await refusal(job, "set_budget", {"name": "max_num_restarts", "limit": 9})
    assert error.endswith("no budget 'max_num_restarts'; this phase has none")
    later = {"name": "phase-2", "env": {"STEPS": "90"}}
    await tell(job, "hot_update", patch={"phases": [later]})
    now = {"name": "phase-1", "env": {"STEPS": "80"}}
    await tell(job, "hot_update", patch={"phases": [now]}, when="now")
    await until_state(job, "recovering")
    report = await scene.end(job)
    assert [phase["last_checkpoint_step"] for phase in report["phases"]] == [80, 90]
    assert [len(phase["restarts"]) for phase in report["phases"]] == [1, 0]


class Slow:
    """`patch` of a worker that waits for `go` before it changes the document."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()

    @activity.defn(name="patch")
    async def patch(self, document: Any, fragment: dict[str, Any]) -> Any:
        self.began.set()
        await self.go.wait()
        return LocalActivities().patch(document, fragment)


@pytest.mark.long
async def test_a_hot_update_that_the_end_of_a_phase_overtakes_restarts_nothing(
    client: Client,
) -> None:
    """The next phase starts with the changed document anyway.

    Only this one ends a phase while a change of the document is under way.
    """
    backend, slow, local = FakeBackend(FakeSettings(nodes=6)), Slow(), LocalActivities()
    clock = StandingClock(backend)
    thinks = thinker(client, local.compile, slow.patch, local.decide)
    async with at_work(thinks, actor(client, backend)):
        job = await clock.hold_with(backend.admin, submit(client, body("overtaken")))
        await clock.pass_to(30)
        await until_state(job, "running")
        patch = {"limits": {"grace_s": 5}}
        update = asyncio.create_task(tell(job, "hot_update", patch=patch, when="now"))
        await asyncio.wait_for(slow.began.wait(), HUNG_S)
        await clock.let_go()
        await until(job, lambda status: bool(status["phase"] == "phase-2"))
        slow.go.set()
        await update
        report = await asyncio.wait_for(job.result(), HUNG_S)
    assert [phase["state"] for phase in report["phases"]] == ["completed", "completed"]
    assert [phase["restarts"] for phase in report["phases"]] == [[], []]


@pytest.mark.long
async def test_the_restarts_without_a_checkpoint_are_changed_by_a_hot_update(scene: Scene) -> None:
    """Where the trainer allows one.

    Only this one counts the restarts that a changed limit allows.
    """
    crashes = {"CRASH_AT_STEP": "0:15:1"}
    job = await scene.running(body("patient", env={"STEPS": "60", **crashes}), until_s=8.0)
    more = {"name": "phase-1", "recovery": {"no_progress_restarts": 3}}
    await tell(job, "hot_update", patch={"phases": [more]})
    with pytest.raises(WorkflowFailureError):
        await scene.end(job)
    assert len(await job.query("restarts")) == 3


async def test_a_budget_is_set_for_the_phase_that_runs(scene: Scene) -> None:
    job = await scene.running(body("budgets", **BUDGET))
    await tell(job, "set_budget", name="nights", limit=9)
    first = await until(job, lambda status: bool(status["budgets"]))
    assert first["budgets"]["nights"]["limit"] == 9
    report = await scene.end(job)
    assert [phase["budgets"]["nights"]["limit"] for phase in report["phases"]] == [9, 5]
