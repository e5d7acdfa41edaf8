"""What an incident adds to the histories: events and bytes, of a small job, a large one and a huge one.

Histories are limited (51,200 events, 50 MB) and so is each payload (2 MB); what is in them is replayed
when another worker takes a job over. Real server, real worker, fake cluster.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from benchmarks.support.histories import at_ms, cycles, history, is_of, largest_payload
from tests.support import rows
from tests.support.devserver import DevServer
from tests.support.stage import StageOfProcesses, document

JOB = "bench"
SUGGESTED_EVENTS, SUGGESTED_KB = 4_096, 4_096
"""Beyond either a server with its own settings suggests to continue as new."""
SIZES = (2, 1_000, 10_000)
SPARES = 4
LIMIT_S = 240.0
FAULTS = (
    f"at step 15 of {JOB} kill {JOB} 1 exit 1",
    f"at step 35 of {JOB} node-down n1",
    f"at step 55 of {JOB} preempt {JOB}",
)
KINDS = ("crash, in_place", "node, pod", "preempted, job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a piece of history."""

    events: int
    kb: float

    @classmethod
    def of(cls, events: Sequence[HistoryEvent]) -> Size:
        return cls(events=len(events), kb=sum(event.ByteSize() for event in events) / 1024)

    def __str__(self) -> str:
        return f"{self.events:>8}{self.kb:>10.1f}"


async def measured(server: DevServer, pods: int) -> Client:
    """A client of the namespace in which the job has run."""
    namespace = await server.new_namespace("bench")
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as directory:
        async with StageOfProcesses(
            server, namespace, Path(directory), nodes=pods + SPARES
        ) as stage:
            for line in FAULTS:
                await stage.admin.fault(line)
            job = await stage.submit(document(JOB, nodes=pods, env={"STEPS": "80"}))
            report = await asyncio.wait_for(job.result(), LIMIT_S)
            assert report["status"] == "Completed", report
            return stage.client


async def show(client: Client, pods: int) -> None:
    whole = await history(client, JOB)
    print(f"\n{pods} pods{'':<16}{'events':>8}{'KB':>10}")
    print(f"  {'the whole job':<20}{Size.of(whole)}")
    payloads = [largest_payload(whole)]
    for n, (kind, cycle) in enumerate(zip(KINDS, cycles(whole), strict=True), start=1):
        row = await rows.recovery(client, client.get_workflow_handle(JOB), n)
        recovery = await history(client, row)
        payloads.append(largest_payload(recovery))
        print(f"  {kind + ': job':<20}{Size.of(cycle)}   decided in {_decided_ms(cycle):.0f} ms")
        print(f"  {'        its Recovery':<20}{Size.of(recovery)}")
    sizes = [Size.of(cycle) for cycle in cycles(whole)]
    fit = min(
        SUGGESTED_EVENTS / statistics.mean(size.events for size in sizes),
        SUGGESTED_KB / statistics.mean(size.kb for size in sizes),
    )
    print(f"  so many incidents before the server suggests a new run: about {fit:.0f}")
    size, where = max(payloads)
    print(f"  largest payload: {size / 1024:.1f} KB, {where}")


def _decided_ms(cycle: Sequence[HistoryEvent]) -> float:
    """From the watch's report to the order for the Recovery: the workflow's own time and `decide`."""
    asked = next(e for e in cycle if is_of(e, "START_CHILD_WORKFLOW_EXECUTION_INITIATED"))
    return at_ms(asked) - at_ms(cycle[0])


async def main() -> int:
    sizes = tuple(int(pods) for pods in sys.argv[1:]) or SIZES
    async with await DevServer.start() as server:
        for pods in sizes:
            await show(await measured(server, pods), pods)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
