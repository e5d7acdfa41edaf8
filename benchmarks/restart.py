"""How long from a fact to the first step against it: real server, real worker, fake cluster.

From the histories: the monitor's completion in the job to the start of the first step of the
Recovery. Detection is not in it (that is the backend's), nor is what the steps take.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from temporalio.api.history.v1 import HistoryEvent

from benchmarks.support.histories import Incident, at_ms, first, incidents
from tests.support.devserver import DevServer
from tests.support.stage import StageOfProcesses, document

GOAL_MS = 100.0
LIMIT_S = 120.0
ROUNDS = 8
PODS, MANY_PODS = 4, 1_000
JOB = "bench"

Mark = tuple[str, HistoryEvent]


def faults() -> list[str]:
    """A crash, a device that heals and a lost node, again and again, with progress in between.

    Each time another device: three times the same fault would be another story.
    """
    lines = []
    for n in range(ROUNDS):
        steps = (60 * n + 15, 60 * n + 35, 60 * n + 55)
        kinds = (f"kill {JOB} 1 exit 1", f"device n0 {n} 80E01801 heals", f"node-down {_victim(n)}")
        lines += [f"at step {s} of {JOB} {kind}" for s, kind in zip(steps, kinds, strict=True)]
    return lines


def _victim(n: int) -> str:
    """The nodes that the job loses one after the other: n0 stays, in a job of four a slot moves on."""
    return f"n{n + 3}"


def marks(incident: Incident) -> list[Mark]:
    """The moments on the way, in order."""
    job, recovery = incident.job, incident.recovery
    return [
        ("the monitor's report is in the history", job[0]),
        ("the job's worker has the task", first(job, "WORKFLOW_TASK_STARTED")),
        ("decided, and the Recovery asked for", first(job, "WORKFLOW_TASK_COMPLETED")),
        ("the Recovery is there", recovery[0]),
        ("its worker has the task", first(recovery, "WORKFLOW_TASK_STARTED")),
        ("its first step is asked for", first(recovery, "WORKFLOW_TASK_COMPLETED")),
        ("its first step runs", first(recovery, "ACTIVITY_TASK_STARTED")),
    ]


def total_ms(incident: Incident) -> float:
    moments = marks(incident)
    return at_ms(moments[-1][1]) - at_ms(moments[0][1])


async def measured(*, stock: bool = False, pods: int = PODS) -> list[Incident]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as directory:
        async with await DevServer.start(stock=stock) as server:
            namespace = await server.new_namespace("bench")
            nodes = pods + ROUNDS
            async with StageOfProcesses(server, namespace, Path(directory), nodes=nodes) as stage:
                for line in faults():
                    await stage.admin.fault(line)
                body = document(JOB, nodes=pods, env={"STEPS": str(60 * ROUNDS + 20)})
                report = await asyncio.wait_for((await stage.submit(body)).result(), LIMIT_S)
                assert report["status"] == "Completed", report
                return await incidents(stage.client, JOB)


def row(name: str, values: Sequence[float]) -> str:
    return f"  {name:<42}{statistics.median(values):8.1f}{min(values):8.1f}{max(values):8.1f}"


def show(settings: str, found: Sequence[Incident]) -> float:
    print(f"\nfact returned -> first step started, {settings}, {len(found)} incidents, ms")
    print(f"  {'':<42}{'median':>8}{'min':>8}{'max':>8}")
    tables = [marks(incident) for incident in found]
    for n in range(1, len(tables[0])):
        spent = [at_ms(table[n][1]) - at_ms(table[n - 1][1]) for table in tables]
        print(row(f"... {tables[0][n][0]}", spent))
    totals = [total_ms(incident) for incident in found]
    print(row("in all", totals))
    return statistics.median(totals)


async def main() -> int:
    dev = show("dev settings", await measured())
    show(f"dev settings, {MANY_PODS} pods", await measured(pods=MANY_PODS))
    stock = show("stock settings", await measured(stock=True))
    print(f"\nmedian: {dev:.0f} ms on dev settings, {stock:.0f} ms on stock settings")
    print(
        f"goal on dev settings: at most {GOAL_MS:.0f} ms, {'met' if dev <= GOAL_MS else 'MISSED'}"
    )
    return 0 if dev <= GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
