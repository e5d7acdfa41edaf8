"""The trace of a job, as a collector receives it over gRPC, from workers of which one is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.rows import recovery
from tests.support.stage import StageOfProcesses, document
from tests.telemetry.receiver import Samples, receiver
from tests.telemetry.test_worker_metrics import recovery_began, until_scraped

WORDS = "ZeroDivisionError"
"""A rank's last ones."""


def attributes(span: Span) -> Mapping[str, Any]:
    return {
        each.key.removeprefix("everstep."): getattr(
            each.value, each.value.WhichOneof("value") or "string_value"
        )
        for each in span.attributes
    }


@pytest.mark.long
async def test_a_job_is_one_trace_though_a_worker_is_killed_in_a_recovery(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one sees the spans of two workers in one trace."""
    async with receiver() as received:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{received.port}"}
        async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
            for fault in (f"at 35s kill demo 2 exit 1 exception={WORDS}", "at 80s node-down n2"):
                await stage.admin.fault(fault)
            phases = [{"name": "warmup", "env": {"STEPS": "20"}}, {"name": "main"}]
            job = await stage.submit(document(phases=phases))
            await recovery_began(stage.client, "demo/main/recovery-2")
            stage.worker.kill9()
            await stage.worker.start()
            report = await job.result()
            async with asyncio.timeout(HUNG_S):
                while "job" not in {span.name for span in received.traces.spans}:
                    await asyncio.sleep(0.05)

    spans = {span.span_id: span for span in received.traces.spans}  # one may arrive twice
    assert len({span.trace_id for span in spans.values()}) == 1
    (root,) = [span for span in spans.values() if not span.parent_span_id]
    assert root.name == "job"
    assert {span.parent_span_id for span in spans.values()} <= {*spans, b""}, "a parent is missing"
    names = Counter(span.name for span in spans.values())
    assert (names["phase warmup"], names["phase main"], names["run"]) == (1, 1, 4)
    assert names["launch"] == 2, "one of each phase"
    assert (names["incident crash"], names["incident node"]) == (1, 1)
    assert names["first_step"] == 0
    records = [record for phase in report["phases"] for record in phase["restarts"]]
    for record in records:
        (span,) = [s for s in spans.values() if attributes(s).get("restart") == record["n"]]
        values = attributes(span)
        assert span.name == f"restart {record['level']}"
        assert values["fault.class"] == record["fault"]["class"]
        assert (values["result"], values["reason"]) == (record["recover_result"], record["reason"])
        assert [event.name for event in span.events] == record["seen"]
        if values["fault.class"] == "crash":
            assert [event.name for event in span.events if WORDS in event.name]
        steps = {s.name for s in spans.values() if s.parent_span_id == span.span_id}
        took = {name for name, s in record["stages_s"].items() if s and name != "first_step"}
        assert steps == took
        assert spans[span.parent_span_id].name == f"incident {record['fault']['class']}"
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())


@pytest.mark.long
async def test_a_replay_emits_nothing(server: DevServer, namespace: str, tmp_path: Path) -> None:
    """Only this one counts spans and restarts after a worker had to replay a job."""
    address = f"127.0.0.1:{free_port()}"
    async with receiver() as received:
        env = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{received.port}",
            "EVERSTEP_METRICS_ADDRESS": address,
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }
        async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
            await stage.admin.fault("at 35s kill demo 2 exit 1")
            job = await stage.submit(document())
            await job.result()
            async with asyncio.timeout(HUNG_S):
                while "job" not in {span.name for span in received.traces.spans}:
                    await asyncio.sleep(0.05)
            counted = restarts(await until_scraped(address, lambda now: bool(restarts(now))))
            sent = [span.span_id for span in received.traces.spans]
            stage.worker.kill9()
            await stage.worker.start()
            assert len(await job.query("restarts")) == 1  # by a worker that had to replay the job
            restart = stage.client.get_workflow_handle(await recovery(stage.client, job))
            await restart.query("__stack_trace")
            assert (
                restarts(await until_scraped(address, lambda now: bool(restarts(now)))) == counted
            )
            assert [span.span_id for span in received.traces.spans] == sent
    assert set(Counter(sent).values()) == {1}
    assert sum(counted.values()) == 1


def restarts(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if key[0] == "everstep_restarts_total"}
