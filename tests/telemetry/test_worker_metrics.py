"""What a worker exports: scraped as Prometheus would, and received as a collector would, both at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.receiver import Samples, receiver, scrape


async def until_scraped(address: str, claim: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(HUNG_S):
        while not claim(found := await scrape(address)):
            await asyncio.sleep(0.1)
    return found


SDK = {
    "temporal_workflow_completed_total",
    "temporal_activity_execution_latency_seconds_bucket",
}


def jobs(state: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return "everstep_jobs", frozenset({("state", state)})


async def test_a_worker_exports_its_own_metrics_and_those_of_the_sdk(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with receiver() as received:
        env = {
            "EVERSTEP_METRICS_ADDRESS": address,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{received.port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_SERVICE_NAME": "train-west",
        }
        async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
            paused = await stage.submit(document(env={"STEPS": "100000000"}))
            await paused.execute_update("pause", {"reason": "a look"})
            found = await until_scraped(address, lambda now: now.get(jobs("paused")) == 1.0)
            assert found[jobs("running")] == 0.0
            await paused.execute_update("stop", {})
            await paused.result()
            found = await until_scraped(address, lambda now: now.get(jobs("paused")) == 0.0)
            found = await until_scraped(address, lambda now: {name for name, _ in now} >= SDK)
            assert not [label for _, labels in found for label in labels if "demo" in label[1]], (
                "no label names a job"
            )
            async with asyncio.timeout(HUNG_S):
                while not received.names >= {"everstep.jobs", "temporal_workflow_completed"}:
                    await asyncio.sleep(0.1)
    assert received.services == {"train-west"}


async def test_isolated_nodes_are_counted(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"EVERSTEP_METRICS_ADDRESS": address, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    isolated = "everstep_nodes_isolated", frozenset({("cluster", "local")})
    async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
        await until_scraped(address, lambda now: now.get(isolated) == 0.0)
        await stage.admin.fault("at 35s node-down n2")
        job = await stage.submit(document())
        await job.result()
        await until_scraped(address, lambda now: now.get(isolated) == 1.0)
