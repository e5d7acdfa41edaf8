"""Workflows ended or reset by hand, at each step: docs/operations/troubleshooting.md has the rules."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import CancelledError, TerminatedError

from everstep.core import names
from everstep.dialects import job_memo
from everstep.plugin import ensure_janitor
from tests.support.byhand import (
    BODY,
    BY_HAND,
    DEVICE,
    LAST,
    NODE,
    assert_one_life,
    at,
    brought_to,
    closed,
    ended_as,
    isolated_nodes,
    reset,
    restarts_of,
    starts,
    sweep,
)
from tests.support.devserver import DevServer
from tests.support.moments import Call, Event, Incident, Moment
from tests.support.patience import HUNG_S
from tests.support.rows import recovery
from tests.support.stage import Handle, Stage, StageOfProcesses

STEPS: dict[str, tuple[Incident, Moment]] = {
    "stop": (NODE, Call("ensure_generation", "after")),
    "heal": (DEVICE, Call("ensure_healed", "after")),
    "isolate": (NODE, Call("ensure_isolated", "before")),
    "place": (NODE, Call("ensure_placed", "after")),
    "resume": (NODE, Call("ensure_fenced", "after")),
    "start": (NODE, Call("ensure_started", "before")),
}
"""A call of each step, at which the step is held while its workflow is changed by hand."""

AFTER_THE_LAUNCH = 6  # workflow tasks: the document, the clock, four steps
ALL_STARTED = Call("ensure_started", "after", 2)


def rows(table: Iterable[str]) -> Any:
    """Every row of the table; all but one take their turn with the long tests."""
    return [row if row == "place" else pytest.param(row, marks=pytest.mark.long) for row in table]


End = Callable[[WorkflowHandle[Any, Any]], Awaitable[None]]


async def terminate(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.terminate("by hand")


async def cancel(handle: WorkflowHandle[Any, Any]) -> None:
    await handle.cancel()


# -- Recovery -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [terminate, pytest.param(cancel, marks=pytest.mark.long)])
@pytest.mark.parametrize("step", rows(STEPS))
async def test_a_recovery_ended_by_hand_is_repeated_free_of_charge(
    server: DevServer, namespace: str, tmp_path: Path, step: str, end: End
) -> None:
    incident, moment = STEPS[step]
    async with at(server, namespace, tmp_path, incident, moment) as (stage, job):
        await end(stage.client.get_workflow_handle(await recovery(stage.client, job)))
        second = await recovery(stage.client, job, 2)
        await Event(second, "WORKFLOW_EXECUTION_STARTED").reached(stage)
        await stage.admin.release()
        report = await job.result()

        level = "in_place" if incident is DEVICE else "pod"
        assert restarts_of(report) == [
            (level, "terminated", {"hardware": 1}),
            (level, "success", {}),
        ]
        assert report["phases"][0]["budgets"]["hardware"]["used"] == 1
        assert report["phases"][0]["isolated_nodes"] == (["n2"] if incident is NODE else [])
        began = await starts(stage)
        assert len(set(began)) == len(began), began


@pytest.mark.long
async def test_a_recovery_ended_after_every_slot_had_started_was_a_success(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one ends a Recovery that has nothing left to do."""
    async with at(server, namespace, tmp_path, NODE, ALL_STARTED) as (stage, job):
        await terminate(stage.client.get_workflow_handle(await recovery(stage.client, job)))
        await stage.admin.release()
        report = await job.result()

        assert restarts_of(report) == [("pod", "success", {"hardware": 1})]
        (record,) = report["phases"][0]["restarts"]
        assert record["generation"] == {"from": 1, "to": 2}
        assert record["nodes"] == {"before": {"2": "n2"}, "after": {"2": "n4"}}
        assert report["phases"][0]["isolated_nodes"] == ["n2"]
        assert report["phases"][0]["budgets"]["hardware"]["used"] == 1


@pytest.mark.parametrize("step", rows(STEPS))
async def test_a_recovery_reset_by_hand_goes_on_and_tells_its_outcome(
    server: DevServer, namespace: str, tmp_path: Path, step: str
) -> None:
    incident, moment = STEPS[step]
    async with at(server, namespace, tmp_path, incident, moment) as (stage, job):
        await reset(stage.client.get_workflow_handle(await recovery(stage.client, job)))
        await stage.admin.release()
        report = await job.result()

        level = "in_place" if incident is DEVICE else "pod"
        assert restarts_of(report) == [(level, "success", {"hardware": 1})]


# -- TrainingJob --------------------------------------------------------------------------------


JOB_MOMENTS: dict[str, tuple[Incident, Moment]] = {
    **STEPS,
    "watching": (NODE, Call("observe", "before")),
    "all started": (NODE, ALL_STARTED),
    "decided": (NODE, Event("demo", "START_CHILD_WORKFLOW_EXECUTION_INITIATED")),
}


def how(
    when: str, end: WorkflowExecutionStatus
) -> tuple[WorkflowExecutionStatus] | tuple[WorkflowExecutionStatus, None]:
    """How the Recovery ends with its job; a requested one may never begin."""
    return (end, None) if when == "decided" else (end,)


@pytest.mark.parametrize("when", rows(JOB_MOMENTS))
async def test_a_cancelled_job_stops_in_order_and_never_restarts(
    server: DevServer, namespace: str, tmp_path: Path, when: str
) -> None:
    incident, moment = JOB_MOMENTS[when]
    async with at(server, namespace, tmp_path, incident, moment) as (stage, job):
        before = await starts(stage)
        await job.cancel()
        if when != "watching":
            row = await recovery(stage.client, job)
            assert await closed(stage, row) in how(when, WorkflowExecutionStatus.CANCELED)
        await stage.admin.release()

        assert isinstance(await ended_as(job), CancelledError)
        assert await stage.fake.leftovers() == ()
        memo = await (await job.describe()).memo()
        assert memo["report"]["status"] == "Terminated"
        assert memo["status"]["state"] == "stopped"
        assert [r["recover_result"] for r in job_memo.restarts_of(memo["report"])] in (
            [],
            ["terminated"],
        )
        assert await starts(stage) == before


@pytest.mark.parametrize(
    "verb", ["ensure_placed", pytest.param("ensure_started", marks=pytest.mark.long)]
)
async def test_a_job_cancelled_during_its_launch_leaves_nothing(
    server: DevServer, namespace: str, tmp_path: Path, verb: str
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.hold(verb, when="after")
        job = await stage.submit(BODY)
        await stage.admin.wait_held()
        await job.cancel()
        await stage.admin.release()

        assert isinstance(await ended_as(job), CancelledError)
        assert await stage.fake.leftovers() == ()


@pytest.mark.long
@pytest.mark.parametrize("back_first", [True, False])
async def test_a_job_cancelled_while_no_worker_lives_stops_in_order(
    server: DevServer, namespace: str, tmp_path: Path, back_first: bool
) -> None:
    """A cancelled monitor has no receiver any more for its report."""
    async with StageOfProcesses(server, namespace, tmp_path) as stage:
        job = await brought_to(stage, NODE, Call("observe", "before"))
        stage.worker.kill9()
        if not back_first:
            await until_monitor_is_given_up(job)
        await job.cancel()
        await stage.admin.release()
        await stage.worker.start()

        assert isinstance(await ended_as(job), CancelledError)
        assert await stage.fake.leftovers() == ()


async def until_monitor_is_given_up(job: Handle) -> None:
    while True:
        pending = (await job.describe()).raw_description.pending_activities
        if [a for a in pending if a.activity_type.name == "monitor" and a.attempt > 1]:
            return
        await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("when", rows(JOB_MOMENTS))
async def test_the_janitor_removes_what_a_terminated_job_left(
    server: DevServer, namespace: str, tmp_path: Path, when: str
) -> None:
    incident, moment = JOB_MOMENTS[when]
    async with at(server, namespace, tmp_path, incident, moment, env=BY_HAND) as (stage, job):
        await job.terminate("by hand")
        assert isinstance(await ended_as(job), TerminatedError)
        if when != "watching":
            row = await recovery(stage.client, job)
            assert await closed(stage, row) in how(when, WorkflowExecutionStatus.CANCELED)
        await stage.admin.release()
        assert [left.job.id for left in await stage.fake.leftovers()] == ["demo"]

        assert await sweep(stage) == ["demo"]
        assert await stage.fake.leftovers() == ()


async def test_one_janitor_lives_and_comes_by_itself(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with at(server, namespace, tmp_path, NODE, ALL_STARTED) as (stage, job):
        janitor = stage.client.get_workflow_handle(names.janitor_id(stage.cluster))
        first = (await janitor.describe()).run_id
        await ensure_janitor(stage.client, stage.cluster)  # a second worker of the cluster
        await job.terminate("by hand")
        await stage.admin.release()
        async with asyncio.timeout(HUNG_S):
            while await stage.fake.leftovers():
                await asyncio.sleep(0.02)
        description = await janitor.describe()
        assert (description.run_id, description.status) == (first, WorkflowExecutionStatus.RUNNING)


@pytest.mark.long
async def test_the_janitor_leaves_living_jobs_alone(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one sweeps while a restart of a living job is held."""
    async with at(server, namespace, tmp_path, NODE, ALL_STARTED, env=BY_HAND) as (stage, job):
        assert await sweep(stage) == []
        await stage.admin.release()
        assert restarts_of(await job.result()) == [("pod", "success", {"hardware": 1})]


@pytest.mark.parametrize("when", rows(JOB_MOMENTS))
async def test_a_job_reset_to_its_beginning_takes_over_what_runs(
    server: DevServer, namespace: str, tmp_path: Path, when: str
) -> None:
    incident, moment = JOB_MOMENTS[when]
    async with at(server, namespace, tmp_path, incident, moment) as (stage, job):
        await reset(job)
        await stage.admin.release()
        report = await stage.client.get_workflow_handle("demo").result()

        await assert_one_life(stage, report)


@pytest.mark.long
@pytest.mark.parametrize("when", rows(JOB_MOMENTS))
async def test_a_job_reset_to_its_newest_task_adopts_the_world(
    server: DevServer, namespace: str, tmp_path: Path, when: str
) -> None:
    """Its reset is the shortest one; the quick one beside it resets a job to its beginning."""
    incident, moment = JOB_MOMENTS[when]
    async with at(server, namespace, tmp_path, incident, moment) as (stage, job):
        await reset(job, to=LAST)
        await stage.admin.release()
        report = await stage.client.get_workflow_handle("demo").result()

        assert report["status"] == "Completed"
        assert report["phases"][0]["last_checkpoint_step"] == 60
        assert await isolated_nodes(stage) == (["n2"] if incident is NODE else [])


@pytest.mark.parametrize(
    ("updates", "status"),
    [(True, "Terminated"), pytest.param(False, "Completed", marks=pytest.mark.long)],
)
async def test_a_stopped_job_that_is_reset_hears_the_stop_again_unless_updates_are_left_out(
    server: DevServer, namespace: str, tmp_path: Path, updates: bool, status: str
) -> None:
    async with at(server, namespace, tmp_path, *JOB_MOMENTS["watching"]) as (stage, job):
        await stage.admin.release()
        await job.execute_update("stop", {})
        await job.result()

        await reset(job, to=AFTER_THE_LAUNCH, updates=updates)
        report = await stage.client.get_workflow_handle("demo").result()
        assert report["status"] == status
        assert await stage.fake.leftovers() == ()


@pytest.mark.long
async def test_a_restart_that_a_reset_sends_again_before_a_pause_runs_once_with_the_resume(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one resets a job to the beginning whose restart and pause are sent again together."""
    async with at(server, namespace, tmp_path, *JOB_MOMENTS["watching"]) as (stage, job):
        await stage.admin.release()
        await job.execute_update("restart", {"reason": "a try"})
        await job.execute_update("pause", {})
        await until_state(job, "paused")
        run = await reset(job)
        again = stage.client.get_workflow_handle("demo", run_id=run)
        await until_state(again, "paused")
        before = await starts(stage)
        await again.execute_update("resume", {})
        report = await again.result()

        assert report["status"] == "Completed"
        later = (what for what in await starts(stage) if what not in before)
        assert len({what.split()[-1] for what in later}) == 1, "one more generation"


async def until_state(job: Handle, state: str) -> None:
    """Wait until the job is in this state; one that was just reset may not answer yet."""
    async with asyncio.timeout(HUNG_S):
        while True:
            with contextlib.suppress(WorkflowQueryFailedError):
                if (await job.query("status"))["state"] == state:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.parametrize("to", [1, LAST])
async def test_signals_that_a_reset_sends_again_have_their_time_and_are_applied(
    server: DevServer, namespace: str, tmp_path: Path, to: int
) -> None:
    """At its first task the job has read nothing yet, not even the time of its cluster.

    Only this one reads the times of signals that a reset sends again.
    """
    async with at(server, namespace, tmp_path, *JOB_MOMENTS["watching"]) as (stage, job):
        await job.signal("hot_update", {"patch": {"env": {"LR": "2"}}, "by": "an operator"})
        await job.signal("set_budget", {"name": "hardware", "limit": 7})
        await job.signal("set_budget", {"name": "nosuch", "limit": 7})
        await job.query("status")  # whoever answers has read them
        run = await reset(job, to=to)
        await stage.admin.release()
        again = stage.client.get_workflow_handle("demo", run_id=run)
        report = await again.result()
        assert report["phases"][0]["budgets"]["hardware"]["limit"] == 7
        document = await again.query("document")
        assert document["document"]["spec"]["env"]["LR"] == "2"
        (change,) = document["changes"]
        events = await again.query("events")
        (refusal,) = (one for one in events if "nosuch" in one["message"])
        assert min(change["at"], refusal["time"]) >= events[0]["time"] > "2026"
