"""Whatever a job orders logs of which job it is, whichever activity: the order has a header that says so."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.plugin import plugin_of
from everstep.telemetry.log_labels import HEADER
from everstep.telemetry.trace_ids import trace_id
from everstep.worker_settings import WorkerSettings
from tests.support.at_work import at_work
from tests.support.devserver import DevServer
from tests.telemetry.lines import logged_lines
from worker import workers

HISTORIES = Path(__file__).parents[1] / "replay" / "histories"
OF_NO_JOB = ("janitor", "quarantine")

ONCE: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
TOO_MANY = ["x"] * 9
"""No activity takes so many arguments: each fails before it does anything."""


@workflow.defn(name="OrdersAll")
class OrdersAll:
    """Orders each activity once, as a job would that is in its phase `main`."""

    def log_labels(self) -> Mapping[str, Any]:
        return {"job": "demo", "first_run": "r1", "phase": "main", "generation": 4}

    @workflow.run
    async def run(self, activities: list[str], local: list[str]) -> None:
        orders = [workflow.execute_activity(name, args=TOO_MANY, **ONCE) for name in activities]
        orders += [workflow.execute_local_activity(name, args=TOO_MANY, **ONCE) for name in local]
        await asyncio.gather(*orders, return_exceptions=True)


def of(*workers: Worker) -> list[Any]:
    return [each for worker in workers for each in worker.config()["activities"]]


def name_of(activity: Any) -> str:
    return str(activity.__temporal_activity_definition.name)


async def test_each_activity_that_a_job_may_order_logs_job_phase_generation_and_trace(
    server: DevServer, namespace: str
) -> None:
    client: Client = await server.connect(namespace)
    backend = FakeBackend(FakeSettings(nodes=1))
    thinking, acting = workers(client, plugin_of(client, backend, WorkerSettings(backend="fake")))
    all_in_one = Worker(
        client,
        task_queue="all",
        workflows=[OrdersAll],
        activities=of(thinking, acting),
        activity_executor=thinking.config()["activity_executor"],
        interceptors=thinking.config()["interceptors"],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    ordered = [[*map(name_of, of(acting))], [*map(name_of, of(thinking))]]
    async with at_work(all_in_one), logged_lines() as lines:
        await client.execute_workflow(OrdersAll.run, args=ordered, id="orders", task_queue="all")
    labels = {
        line["activity"]: {
            name: line.get(name) for name in ("job", "phase", "generation", "trace_id")
        }
        for line in lines.lines
        if "activity" in line
    }
    expected = {"job": "demo", "phase": "main", "generation": 4, "trace_id": trace_id("demo", "r1")}
    assert labels == {name: expected for names in ordered for name in names}
    assert acting.config()["interceptors"] == thinking.config()["interceptors"]


JOBS = sorted(path.stem for path in HISTORIES.glob("*.json") if path.stem not in OF_NO_JOB)


@pytest.mark.parametrize("name", JOBS)
def test_each_activity_of_the_recorded_jobs_was_ordered_with_its_labels(name: str) -> None:
    """Of jobs and of their restarts, which are workflows of their own."""
    events = json.loads((HISTORIES / f"{name}.json").read_text())["events"]
    began = events[0]["workflowExecutionStartedEventAttributes"]
    job = began.get("parentWorkflowExecution", {}).get("workflowId", began["workflowId"])
    orders = filter(None, (event.get("activityTaskScheduledEventAttributes") for event in events))
    labels = [labels_of(order) for order in orders]
    assert labels or name == "wrong_document"
    assert {(each["job"], each["phase"]) for each in labels} <= {(job, "main"), (job, "warmup")}
    assert len({each["first_run"] for each in labels}) <= 1


def labels_of(order: Mapping[str, Any]) -> dict[str, Any]:
    context: dict[str, Any] = json.loads(b64decode(order["header"]["fields"][HEADER]["data"]))
    return context
