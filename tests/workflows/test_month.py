"""A busy job's month on the real server, in virtual time: nothing grows, questions stay quick.

Only the server shows what runs hand to each other over a month; more incidents are played without it, in
`tests/core/loop/test_month.py`.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from everstep.core import names
from tests.support.devserver import DevServer
from tests.support.moments import Incident, isolated, until_incident
from tests.support.patience import HUNG_S
from tests.support.rows import runs
from tests.support.scene import until
from tests.support.stage import Handle, StageOfProcesses, document

DAY_S = 86_400
INCIDENTS, CHECKPOINTS = 800, 100_000
GAP_S = 30 * DAY_S // (INCIDENTS + 1)
NODES, SPARES = 8, 2
FLAT = 1.15
QUICK_S = 2.0
"""For an answer of a worker that has other things to do, on a machine that has too. The median is printed;
how much work an answer is, is asserted where a month is played without any server."""
LOG = logging.getLogger(__name__)

# In turn; NODE is one that a pod of the job is on.
BREAKS = (
    "kill busy 1",
    "kill busy 2 exit 1",
    "device NODE 0 80E01801",
    "hang busy 3",
    "kill-agent busy 2",
    "node-down NODE",
    "device NODE 1 80E18402 critical",
    "preempt busy",
)


def busy() -> dict[str, Any]:
    steps = CHECKPOINTS * 10
    return document(
        "busy",
        env={
            "STEPS": str(steps),
            "STEP_S": f"{30 * DAY_S / steps:.6f}",
            "CHECKPOINT_EVERY": "10",
        },
        recovery={"no_progress_restarts": None},
    )


@dataclass(slots=True)
class Diary:
    """What was measured between two incidents."""

    answered_in_s: list[float] = field(default_factory=list)


@pytest.fixture
async def stage(
    server: DevServer, namespace: str, tmp_path: Any
) -> AsyncIterator[StageOfProcesses]:
    async with StageOfProcesses(server, namespace, tmp_path, nodes=NODES) as stage:
        yield stage


async def answers_of_queries(job: Handle, diary: Diary) -> dict[str, Any]:
    """The job's status once it trains again, and how long one question takes."""
    await until(job, lambda status: status["state"] == "running")
    began = time.perf_counter()
    status: dict[str, Any] = await job.query("status")
    diary.answered_in_s.append(time.perf_counter() - began)
    return status


async def released(stage: StageOfProcesses, status: dict[str, Any]) -> None:
    """An operator mends and gives back what is isolated before there is no spare any more."""
    nodes = [row["name"] for row in await isolated(stage) or ()]
    if NODES - len(status["pods"]) - len(nodes) >= SPARES:
        return
    quarantine = stage.client.get_workflow_handle(names.quarantine_id(stage.cluster))
    for node in nodes:
        await stage.admin.fault(f"clear {node}")
        await quarantine.execute_update("release", {"node": node})


async def broken(stage: StageOfProcesses, job: Handle, number: int, diary: Diary) -> None:
    status = await answers_of_queries(job, diary)
    await released(stage, status)
    homes = [pod["node"] for pod in status["pods"]]
    line = BREAKS[number % len(BREAKS)].replace("NODE", homes[number // 8 % len(homes)])
    await stage.admin.fault(line)


async def carried(stage: StageOfProcesses, job: Handle) -> list[int]:
    """How large what each run handed to the next one was, in bytes."""
    sizes = []
    for run in (await runs(stage.client, job))[1:]:
        begun = await anext(run.fetch_history_events(page_size=1))
        inputs = begun.workflow_execution_started_event_attributes.input
        sizes.append(sum(len(payload.data) for payload in inputs.payloads))
    return sizes


@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_a_month_of_a_busy_job(stage: StageOfProcesses) -> None:
    diary, began = Diary(), time.perf_counter()
    job, clock = await until_incident(stage, Incident(body=busy(), faults=(), begins_s=30.0))
    for number in range(INCIDENTS):
        await clock.pass_to((number + 1) * GAP_S)
        await broken(stage, job, number, diary)
    await clock.let_go()
    report = await asyncio.wait_for(job.result(), HUNG_S)
    took = time.perf_counter() - began
    sizes = await carried(stage, job)
    LOG.info(
        "%d incidents in %.0f s, %d runs; handed over %d bytes at first, %d half way, %d at last; "
        "a question took %.0f ms (%.0f-%.0f)",
        INCIDENTS,
        took,
        len(sizes) + 1,
        sizes[0],
        sizes[len(sizes) // 2],
        sizes[-1],
        *(
            1e3 * t
            for t in (
                statistics.median(diary.answered_in_s),
                min(diary.answered_in_s),
                max(diary.answered_in_s),
            )
        ),
    )
    (phase,) = report["phases"]
    assert report["status"] == "Completed"
    assert phase["last_checkpoint_step"] == CHECKPOINTS * 10
    assert phase["restarts"][-1]["incident"] >= INCIDENTS
    assert sizes[-1] < FLAT * sizes[len(sizes) // 2]
    assert statistics.median(diary.answered_in_s) < QUICK_S
