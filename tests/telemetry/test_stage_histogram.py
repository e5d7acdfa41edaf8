"""The histogram of stages is that of the records, by both ways out, also where a reset takes records back."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from everstep.chronicle.counters import BUCKETS_S
from everstep.dialects import job_memo
from everstep.processes import free_port
from tests.support.byhand import reset
from tests.support.devserver import DevServer
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import until
from tests.support.stage import Handle, StageOfProcesses, document
from tests.telemetry.receiver import Receiver, Samples, receiver, scrape

Stages = dict[str, tuple[int, float, tuple[int, ...]]]
"""Of each stage its count, its sum, and how many took at most as long as each bound and for ever."""


def of_records(records: Iterable[Mapping[str, Any]]) -> Stages:
    took: dict[str, list[float]] = {}
    for record in records:
        for stage, took_s in record["stages_s"].items():
            if took_s is not None:
                took.setdefault(stage, []).append(took_s)
    totals = {}
    for stage, all_s in took.items():
        counts = [0] * (len(BUCKETS_S) + 1)
        for took_s in all_s:
            counts[bisect_left(BUCKETS_S, took_s)] += 1
        totals[stage] = len(all_s), round(sum(all_s), 3), tuple(accumulate(counts))
    return totals


def of_page(samples: Samples) -> Stages:
    name = "everstep_restart_stage_duration_seconds"
    buckets: dict[str, dict[float, float]] = {}
    for (sample, labels), value in samples.items():
        if sample == f"{name}_bucket":
            bound = dict(labels)
            buckets.setdefault(bound["stage"], {})[float(bound["le"])] = value
    return {
        stage: (
            int(samples[f"{name}_count", frozenset({("cluster", "local"), ("stage", stage)})]),
            round(samples[f"{name}_sum", frozenset({("cluster", "local"), ("stage", stage)})], 3),
            tuple(int(count) for _, count in sorted(at_most.items())),
        )
        for stage, at_most in buckets.items()
    }


def of_export(received: Receiver) -> Stages:
    return {
        next(each.value.string_value for each in point.attributes if each.key == "stage"): (
            point.count,
            round(point.sum, 3),
            tuple(accumulate(point.bucket_counts)),
        )
        for point in received.histogram("everstep.restart.stage.duration")
    }


async def until_running(job: Handle, clock: StandingClock) -> None:
    async with asyncio.timeout(HUNG_S):
        while (await job.query("status"))["state"] != "running":
            await clock.pass_for(5)


async def until_exported(address: str, received: Receiver, expected: Stages) -> None:
    """Until the page and the newest export both are of these records."""
    page, export = None, None
    try:
        async with asyncio.timeout(HUNG_S):
            while not page == export == expected:
                await asyncio.sleep(0.1)
                page, export = of_page(await scrape(address)), of_export(received)
    except TimeoutError:
        assert page == expected
        assert export == expected


async def until_trained(job: Handle, restarts: int) -> None:
    """Until a first step followed each of so many restarts."""
    async with asyncio.timeout(HUNG_S):
        while True:
            records: list[dict[str, Any]] = await job.query("restarts")
            if len(records) == restarts and all(r["stages_s"]["first_step"] for r in records):
                return
            await asyncio.sleep(0.05)


async def tasks(job: Handle) -> int:
    """How many of its workflow tasks are completed."""
    kinds = [event.event_type async for event in job.fetch_history_events()]
    return kinds.count(EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)


@pytest.mark.long
async def test_the_histogram_of_stages_follows_the_records_through_a_kill_and_a_reset(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """The worker that made the records is killed before it exports once; then a reset takes some back.

    Only this one compares a page and an export with records that a reset took back.
    """
    address = f"127.0.0.1:{free_port()}"
    hour, often = "3600000", "200"
    async with receiver() as received:
        env = {
            "EVERSTEP_METRICS_ADDRESS": address,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{received.port}",
            "OTEL_METRIC_EXPORT_INTERVAL": hour,
        }
        async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
            await stage.admin.fault("at 35s kill demo 2 exit 1")
            job = await stage.submit(document(env={"STEPS": "100000000"}))
            await until_trained(job, 1)
            first = await tasks(job)
            for restarts in (2, 3):
                await stage.admin.fault("kill demo 1 exit 1")
                await until_trained(job, restarts)
            await job.execute_update("pause", {"reason": "a look"})  # sends the last first step too
            await until(job, lambda now: bool(now["state"] == "paused"))
            records = await job.query("restarts")
            stage.worker.kill9()
            assert not received.names, "nothing was exported"
            stage.worker = stage.new_worker(env={"OTEL_METRIC_EXPORT_INTERVAL": often})
            await stage.worker.start()
            await until_exported(address, received, of_records(records))

            # The monitor of the paused run waits without a limit, and may outlive that run for a moment: time
            # would pass to the end of the new run's training.
            clock = StandingClock(stage.fake)
            await clock.hold()
            new_run = await reset(job, to=first, updates=False)
            newest = stage.client.get_workflow_handle("demo", run_id=new_run)
            await until_running(newest, clock)
            await newest.execute_update("stop", {"reason": "enough"})
            await clock.let_go()
            records = job_memo.restarts_of(await newest.result())
            after = of_records(records)
            assert 1 <= len(records) < 3, "those after the first, and what the reset itself needed"
            await until_exported(address, received, after)
            stage.worker.kill9()
            await stage.worker.start()
            await until_exported(address, received, after)
