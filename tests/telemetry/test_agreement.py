"""Metrics, report and records of one job say the same to the second, whatever happened to its workflow.

That they do over every course of events is in tests/core (`assert_views_agree`); that they do though a
worker is killed in a recovery is in test_worker_metrics.py. Here its history is cut: by new runs, by a reset.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client

from everstep.chronicle.fleet_totals import FleetSum
from everstep.core import names
from everstep.dialects import job_memo
from everstep.processes import free_port
from everstep.report.accounting import account, seconds
from everstep.report.job_report import causes
from tests.support.byhand import reset
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.rows import runs
from tests.support.scene import until
from tests.support.stage import Stage, document
from tests.support.story import seconds_by_use
from tests.support.workerproc import WorkerProcess
from tests.telemetry.receiver import Samples
from tests.telemetry.test_worker_metrics import until_scraped
from workflows.training_job import TrainingJob

METRICS = {"EVERSTEP_METRICS_ADDRESS": "127.0.0.1:9464"}  # on; only a whole worker listens


async def totals(client: Client) -> FleetSum:
    fleet_totals: FleetSum = await client.get_workflow_handle(names.totals_id("local")).query(
        "totals", result_type=FleetSum
    )
    return fleet_totals


def agree(fleet_totals: FleetSum, report: dict[str, Any]) -> None:
    """What was counted for the metrics is what the job's own report and records say."""
    records = job_memo.restarts_of(report)
    counted = Counter(f"{r['fault']['class']}/{r['level']}/{r['recover_result']}" for r in records)
    assert dict(fleet_totals.totals.restarts) == dict(counted)
    assert fleet_totals.ends == {report["status"]: 1}
    end = seconds(report["ended_at"])
    assert end is not None
    time = account(report, records, now=end)
    uses = seconds_by_use(time)
    assert {use: fleet_totals.totals.time_s.get(use, 0.0) for use in uses} == pytest.approx(
        uses, abs=0.1
    )
    for row in causes(time.restarts):
        lost = [
            fleet_totals.totals.lost_s.get(f"{row['class']}/{kind}", 0.0)
            for kind in ("down", "again")
        ]
        assert lost == pytest.approx([row["down_s"], row["lost_s"]], abs=0.1)


async def until_true(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(HUNG_S):
        while not await claim():
            await asyncio.sleep(0.05)


PODS, CRASHES, EVERY_S = 100, 12, 40
EVENTS_MOST, BYTES_MOST = 200, 1_000_000


@pytest.mark.long
async def test_a_job_of_many_pods_and_restarts_goes_on_as_new_runs_and_all_of_it_agrees(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server suggests a new run at 4,096 events or 4 MB; here it comes far earlier.

    Only this one compares the totals of a job of several runs with its report.
    """

    def should_renew(job: TrainingJob) -> bool:
        is_long = workflow.info().get_current_history_length() > EVENTS_MOST // 2
        return job.state.incident is None and is_long

    monkeypatch.setattr(TrainingJob, "_should_renew", should_renew)
    async with Stage(server, namespace, tmp_path, nodes=PODS, env=METRICS) as stage:
        for n in range(CRASHES):
            await stage.admin.fault(f"at {35 + n * EVERY_S}s kill demo {n} exit 1")
        steps = str((CRASHES + 2) * EVERY_S)
        await stage.submit(document(nodes=PODS, env={"STEPS": steps}))
        newest = stage.client.get_workflow_handle("demo")
        report = await newest.result()
        fleet_totals = await totals(stage.client)
        chain = [await run.describe() for run in await runs(stage.client, newest)]
        last = await newest.describe()
    assert len(chain) >= 3, "it went on as a new run"
    for run in chain:
        described = run.raw_info
        assert described.history_length <= EVENTS_MOST + 50
        assert described.history_size_bytes <= BYTES_MOST
    assert len(job_memo.restarts_of(report)) == CRASHES
    assert last.search_attributes["LastStep"] == [int(steps)]
    agree(fleet_totals, report)


def exported(samples: Samples, name: str) -> dict[str, float]:
    """The values of a metric, by its labels."""
    return {
        "/".join(value for label, value in sorted(labels) if label != "cluster"): sample
        for (each, labels), sample in samples.items()
        if each == name
    }


async def test_the_page_of_a_worker_has_the_times_costs_and_budgets_of_the_report(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Exported by one that saw nothing of the job: it began when the job was over."""
    async with Stage(server, namespace, tmp_path, env=METRICS) as stage:
        for fault in ("at 35s kill demo 2 exit 1", "at 80s node-down n2"):
            await stage.admin.fault(fault)
        job = await stage.submit(document(recovery={"budgets": {"all": {"limit": 5}}}))
        report = await job.result()
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    async with WorkerProcess(
        address=server.address, namespace=namespace, home=tmp_path / "later", env=env
    ):
        ended = (
            "everstep_jobs_ended_total",
            frozenset({("cluster", "local"), ("result", "Completed")}),
        )
        samples = await until_scraped(address, lambda now: now.get(ended) == 1.0)
    end = seconds(report["ended_at"])
    assert end is not None
    time = account(report, job_memo.restarts_of(report), now=end)
    uses = {use: getattr(time, f"{use}_s") for use in ("wait", "training", "down", "lost")}
    page = exported(samples, "everstep_job_time_seconds_total")
    assert {use: page[use] for use in uses} == pytest.approx(uses, abs=0.1)
    costs = {
        f"{row['class']}/{kind}": row[key]
        for row in causes(time.restarts)
        for kind, key in (("down", "down_s"), ("again", "lost_s"))
    }
    assert {row.partition("/")[0] for row in costs} == {"crash", "node"}
    lost = exported(samples, "everstep_time_lost_seconds_total")
    assert {cost: lost.get(cost, 0.0) for cost in costs} == pytest.approx(costs, abs=0.1)
    assert exported(samples, "everstep_training_ratio")[""] == pytest.approx(time.ettr, abs=0.001)
    budgets = report["phases"][0]["budgets"]
    used = {name: budget["used"] for name, budget in budgets.items() if budget["used"]}
    assert exported(samples, "everstep_budget_used") == used
    assert used


@pytest.mark.long
async def test_a_job_that_was_reset_agrees_with_what_became_of_it(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one adds up a job whose records a reset took back."""
    async with Stage(server, namespace, tmp_path, env=METRICS) as stage:
        for fault in ("at 35s kill demo 2 exit 1", "at 80s node-down n2"):
            await stage.admin.fault(fault)
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        await until(job, lambda status: bool(status["restarts"] == 2))

        async def both_are_counted() -> bool:
            return sum((await totals(stage.client)).totals.restarts.values()) == 2

        await until_true(both_are_counted)
        new_run = await reset(job, to=6, updates=False)
        newest = stage.client.get_workflow_handle("demo", run_id=new_run)
        await until(newest, lambda status: bool(status["state"] == "running"))
        await newest.execute_update("stop", {"reason": "enough"})
        report = await newest.result()
        fleet_totals = await totals(stage.client)
    agree(fleet_totals, report)
