"""The workflow that adds up all jobs: continued, ended by hand, and with its ID in use elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import RPCError

from activities.fleet_totals import TemporalCounters
from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.fleet_totals import FleetSum, JobReport
from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, Stage, StageOfProcesses, document
from workflows import options

METRICS = {"EVERSTEP_METRICS_ADDRESS": "127.0.0.1:9464"}  # on; only a whole worker listens


def job(name: str, crashes: int, ended: str = "") -> JobReport:
    totals = JobTotals(restarts={"crash/in_place/success": crashes}, ended=ended)
    return JobReport(key=name, at=float(crashes), totals=totals)


async def total(client: Client) -> FleetSum:
    handle = client.get_workflow_handle(names.totals_id("local"))
    fleet_totals: FleetSum = await handle.query("totals", result_type=FleetSum)
    return fleet_totals


async def until_counted(client: Client, crashes: int) -> FleetSum:
    async with asyncio.timeout(HUNG_S):
        while (fleet_totals := await total(client)).totals.restarts != {
            "crash/in_place/success": crashes
        }:
            await asyncio.sleep(0.05)
    return fleet_totals


async def test_the_sum_is_carried_over_when_the_history_is_long(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "EVENTS_KEPT", 10)
    async with Stage(server, namespace, tmp_path) as stage:
        counters = TemporalCounters(client=stage.client, cluster="local")
        await counters.take(job("a", 1))
        handle = stage.client.get_workflow_handle(names.totals_id("local"))
        first = (await handle.describe()).run_id
        for n in range(2, 12):
            await counters.take(job("a", n))
            await until_counted(stage.client, n)
        await counters.take(job("b", 2, ended="Completed"))
        assert (await until_counted(stage.client, 13)).ends == {"Completed": 1}
        assert (await handle.describe()).run_id != first


async def test_after_a_terminate_living_jobs_are_counted_again(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        counters = TemporalCounters(client=stage.client, cluster="local")
        for report in (job("gone", 5, ended="Completed"), job("living", 1)):
            await counters.take(report)
        await until_counted(stage.client, 6)
        await stage.client.get_workflow_handle(names.totals_id("local")).terminate("by hand")
        await counters.take(job("living", 2))
        assert (await until_counted(stage.client, 2)).ends == {}


async def test_another_workflow_with_the_id_gets_no_signal(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        stranger: Any = await stage.client.start_workflow(
            "Stranger", id=names.totals_id("local"), task_queue="elsewhere"
        )
        counters = TemporalCounters(client=stage.client, cluster="local")
        problem = await counters.take(job("a", 1))
        assert problem.startswith("totals/local is a Stranger, not the totals of cluster local")
        kinds = Counter([event.event_type async for event in stranger.fetch_history_events()])
        assert kinds.total() == 2, "started, and a task for its own worker"
        await stranger.terminate("as the sentence says")
        assert await counters.take(job("a", 1)) == ""
        await until_counted(stage.client, 1)


async def test_ends_and_first_steps_are_exact_where_no_notice_of_them_is_wanted(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document may subscribe to hangs alone."""
    monkeypatch.setattr("everstep.chronicle.happenings.EVENTS", ("JobHanged",))
    async with Stage(server, namespace, tmp_path, env=METRICS) as stage:
        await stage.admin.fault("at 35s kill demo 2 exit 1")
        report = await (await stage.submit(document())).result()
        fleet_totals = await total(stage.client)
    assert fleet_totals.ends == {"Completed": 1}
    (record,) = report["phases"][0]["restarts"]
    for stage_name in ("start", "first_step"):
        ((count, took),) = fleet_totals.totals.stages[stage_name].values()
        assert count == 1
        assert took == pytest.approx(record["stages_s"][stage_name], abs=0.001)


async def publications(job: Handle) -> tuple[int, int]:
    """How many of a job's publications are done, and how many are not."""
    begun = set[int]()
    done = 0
    async for event in job.fetch_history_events():
        if event.activity_task_scheduled_event_attributes.activity_type.name == "publish":
            begun.add(event.event_id)
        elif event.activity_task_completed_event_attributes.scheduled_event_id in begun:
            done += 1
    return done, len(begun) - done


async def signals(client: Client) -> int:
    """How many the totals of the cluster were sent."""
    handle = client.get_workflow_handle(names.totals_id("local"))
    kinds = list[int]()
    with contextlib.suppress(RPCError):  # none was sent yet
        kinds = [event.event_type async for event in handle.fetch_history_events()]
    return kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)


@pytest.mark.long
async def test_neither_a_new_worker_nor_a_line_of_run_log_sends_totals_that_were_sent(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one counts the signals to the totals before and after a worker is killed."""
    async with StageOfProcesses(server, namespace, tmp_path, env=METRICS) as stage:
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        async with asyncio.timeout(HUNG_S):
            while not (await signals(stage.client)):
                await asyncio.sleep(0.05)
            while (
                "wait" not in (await total(stage.client)).totals.time_s
            ):  # the first step is known
                await asyncio.sleep(0.05)
            while (before := await publications(job))[1]:
                await asyncio.sleep(0.05)
        sent = await signals(stage.client)
        stage.worker.kill9()
        await stage.worker.start()
        await job.execute_update("pause", {"reason": "a line of run.log"})
        async with asyncio.timeout(HUNG_S):
            while (after := await publications(job))[0] == before[0] or after[1]:
                await asyncio.sleep(0.05)
        assert await signals(stage.client) == sent
