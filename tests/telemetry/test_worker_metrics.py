"""What a worker exports: scraped as Prometheus would, and received as a collector would, both at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.quarantine_client import start_options
from everstep.chronicle.shapes import seconds
from everstep.client.jobs.found_job import find
from everstep.client.jobs.status import glance
from everstep.core import names
from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.moments import Incident, StandingClock, until_incident
from tests.support.patience import HUNG_S
from tests.support.scene import Scene, tell
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.receiver import Receiver, Samples, receiver, scrape


async def until_scraped(address: str, claim: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(HUNG_S):
        while not claim(samples := await scrape(address)):
            await asyncio.sleep(0.1)
    return samples


SDK = {
    "temporal_workflow_completed_total",
    "temporal_activity_execution_latency_seconds_bucket",
}


def jobs(state: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return "everstep_jobs", frozenset({("cluster", "local"), ("state", state)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporting:
    """A worker that exports both ways, its cluster, and what it exports."""

    stage: StageOfProcesses
    address: str
    received: Receiver


@pytest.fixture(scope="module")
async def exporting(
    server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Exporting]:
    """One for the quick tests: a worker that exports takes three seconds to start."""
    address = f"127.0.0.1:{free_port()}"
    namespace, home = await server.new_namespace("exporting"), tmp_path_factory.mktemp("exporting")
    async with receiver() as received:
        env = {
            "EVERSTEP_METRICS_ADDRESS": address,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{received.port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_SERVICE_NAME": "train-west",
        }
        async with StageOfProcesses(server, namespace, home, env=env) as stage:
            yield Exporting(stage=stage, address=address, received=received)


async def test_a_worker_exports_its_own_metrics_and_those_of_the_sdk_and_spans(
    exporting: Exporting,
) -> None:
    stage, address, received = exporting.stage, exporting.address, exporting.received
    await Scene(stage).new_cluster()
    paused = await stage.submit(document("demo-paused", env={"STEPS": "100000000"}))
    await paused.execute_update("pause", {"reason": "a look"})
    samples = await until_scraped(address, lambda now: now.get(jobs("paused")) == 1.0)
    assert samples[jobs("running")] == 0.0
    await until_scraped(address, lambda now: now.get(ISOLATED) == 0.0)
    await paused.execute_update("stop", {})
    await paused.result()
    samples = await until_scraped(address, lambda now: now.get(jobs("paused")) == 0.0)
    samples = await until_scraped(address, lambda now: {name for name, _ in now} >= SDK)
    assert not [label for _, labels in samples for label in labels if "demo" in label[1]], (
        "no label names a job"
    )
    async with asyncio.timeout(HUNG_S):
        while not received.names >= {"everstep.jobs", "temporal_workflow_completed"}:
            await asyncio.sleep(0.1)
        while not received.histogram("temporal_activity_execution_latency"):
            await asyncio.sleep(0.1)
        while "job" not in {span.name for span in received.traces.spans}:
            await asyncio.sleep(0.1)
    (point, *_) = received.histogram("temporal_activity_execution_latency")
    assert 0 < point.count == sum(point.bucket_counts)
    assert point.sum > 0.0
    assert received.services == {*received.traces.services} == {"train-west"}


ISOLATED = "everstep_nodes_isolated", frozenset({("cluster", "local")})
LONGEST = "everstep_nodes_isolated_longest_seconds", frozenset({("cluster", "local")})


def value(samples: Samples, name: str) -> float | None:
    """Of a metric that has no label but that of the cluster."""
    return samples.get((name, frozenset({("cluster", "local")})))


async def test_hang_margin_and_silent_agents_are_what_the_job_shows(exporting: Exporting) -> None:
    """Cluster time stands while both are read, so that they are of one moment."""
    stage, address = exporting.stage, exporting.address
    await Scene(stage).new_cluster()
    margin, silent = "everstep_hang_margin", "everstep_agents_unreachable"
    faults = ("at 35s hang demo 1", "at 40s silence n2")
    limits = {"hang_s": 400, "unreachable_s": 300}
    incident = Incident(body=document(limits=limits), faults=faults, begins_s=34.0)
    job, clock = await until_incident(stage, incident)
    samples = await until_scraped(address, lambda now: value(now, margin) is not None)
    assert 0.95 < (value(samples, margin) or 0.0) <= 1.0
    assert value(samples, silent) == 0.0
    await clock.pass_to(135.0)
    samples = await until_scraped(address, lambda now: (value(now, margin) or 1.0) < 0.8)
    assert value(samples, margin) == pytest.approx(1 - 100 / 400, abs=0.01)
    assert value(samples, silent) == 1.0

    async def status_has_both() -> bool:
        """The status is of the newest report: the one about the silent agent came before."""
        heartbeats = await glance(await find(stage.client, job.id))
        is_same = value(samples, margin) == 1 - heartbeats["still_s"] / heartbeats["still_limit_s"]
        return bool(heartbeats["unreachable"] == 1 and is_same)

    async with asyncio.timeout(HUNG_S):
        while not await status_has_both():
            await asyncio.sleep(0.05)
    await clock.let_go()
    await job.terminate("its end would wait for the silent node")
    await until_scraped(address, lambda now: now.get(jobs("running")) == 0.0)


@pytest.mark.long
async def test_the_longest_wait_for_places_is_that_of_the_first_in_the_queue(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one reads from a page for how long jobs wait for places."""
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    longest = "everstep_jobs_waiting_longest_seconds"
    async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
        await until_scraped(address, lambda now: value(now, longest) == 0.0)
        clock = StandingClock(stage.fake)
        await clock.hold()  # nothing else gives way
        first = await stage.submit(document("first", nodes=1_000))
        second = await stage.submit(document("second", nodes=1_000))
        samples = await until_scraped(address, lambda now: now.get(jobs("launching")) == 2.0)
        began = [(await job.describe()).start_time.timestamp() for job in (first, second)]
        samples = await until_scraped(address, lambda now: (value(now, longest) or 0.0) > 0.0)
        waited_s = time.time() - min(began)
        assert waited_s - 5.0 < (value(samples, longest) or 0.0) <= waited_s
        for job in (first, second):
            await job.execute_update("stop", {"grace_s": 0})
        await until_scraped(address, lambda now: value(now, longest) == 0.0)


@pytest.mark.long
async def test_the_longest_isolation_is_that_of_the_node_that_was_isolated_first(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """One is isolated by hand, one by a job, whose cluster has a clock of its own: it began far earlier.

    Only this one reads from a page for how long nodes are isolated.
    """
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
        quarantine = await stage.client.start_workflow(
            names.NODE_QUARANTINE, {"cluster": "local"}, **start_options("local")
        )
        await until_scraped(address, lambda now: now.get(ISOLATED) == now.get(LONGEST) == 0.0)

        async def began(node: str) -> float:
            rows = await quarantine.query("nodes")
            return next(seconds(row["since"]) for row in rows if row["name"] == node)

        async def until_longest_is_of(node: str, *, isolated: int) -> None:
            """A value is as old as the worker's last reading."""
            begin = await began(node)
            least = time.time() - begin
            samples = await until_scraped(
                address,
                lambda now: now.get(ISOLATED) == isolated and now.get(LONGEST, 0.0) >= least,
            )
            assert samples[LONGEST] <= time.time() - begin

        await tell(quarantine, "isolate", node="n5", reason="it smokes")
        await until_longest_is_of("n5", isolated=1)
        await stage.admin.fault("at 35s node-down n2")
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        await until_scraped(address, lambda now: now.get(ISOLATED) == 2.0)
        assert await began("n2") < await began("n5")
        await until_longest_is_of("n2", isolated=2)
        await tell(quarantine, "release", node="n2")
        await until_longest_is_of("n5", isolated=1)
        await tell(quarantine, "release", node="n5")
        await until_scraped(address, lambda now: now.get(ISOLATED) == now.get(LONGEST) == 0.0)
        await job.execute_update("stop", {"grace_s": 0})


COSTS = {
    "everstep_job_time_seconds_total",
    "everstep_time_lost_seconds_total",
    "everstep_training_ratio",
    "everstep_agents_unreachable",
}


def restarts(samples: Samples) -> dict[tuple[str, str, str], float]:
    """How many restarts were exported, by cause, level and result."""
    return {
        (labels["cause"], labels["level"], labels["result"]): value
        for name, pairs in samples
        if name == "everstep_restarts_total" and (labels := dict(pairs))
        for value in [samples[name, pairs]]
    }


@pytest.mark.long
async def test_exported_restarts_are_the_records_though_the_worker_is_killed_in_a_recovery(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Counted in a durable place: not in the worker, which may die before or after it counts.

    Only this one kills a worker that exports; test_agreement compares the records with what one exports.
    """
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
        for fault in ("at 35s kill demo 2 exit 1", "at 50s node-down n2", "at 75s kill demo 1"):
            await stage.admin.fault(fault)
        job = await stage.submit(document())
        await recovery_began(stage.client, "demo/main/recovery-2")
        stage.worker.kill9()
        await stage.worker.start()
        report = await job.result()
        records = report["phases"][0]["restarts"]
        expected = Counter((r["fault"]["class"], r["level"], r["recover_result"]) for r in records)
        assert expected.total() >= 3
        ended = (
            "everstep_jobs_ended_total",
            frozenset({("cluster", "local"), ("result", "Completed")}),
        )
        samples = await until_scraped(
            address, lambda now: restarts(now) == dict(expected) and now.get(ended) == 1.0
        )
        assert {name for name, _ in samples} >= COSTS
        for stage_name in ("stop", "start"):
            stages = [r["stages_s"][stage_name] for r in records]
            took = [s for s in stages if s is not None]
            labels = frozenset({("cluster", "local"), ("stage", stage_name)})
            name = "everstep_restart_stage_duration_seconds"
            assert samples[f"{name}_count", labels] == len(took)
            assert samples[f"{name}_sum", labels] == pytest.approx(sum(took), abs=0.001)
        stage.worker.kill9()  # another process exports the same
        await stage.worker.start()
        await until_scraped(address, lambda now: restarts(now) == dict(expected))
        await until_scraped(address, lambda now: now.get(ISOLATED) == 1.0)


async def recovery_began(client: Client, prefix: str) -> None:
    """Until a Recovery whose ID begins so is running."""
    async with asyncio.timeout(HUNG_S):
        while True:
            rows = client.list_workflows("WorkflowType = 'Recovery'")
            if [row.id async for row in rows if row.id.startswith(prefix)]:
                return
            await asyncio.sleep(0.02)
