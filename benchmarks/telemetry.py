"""What metrics and traces cost a restart: in the workflow, to export its spans, and to send its totals.

The workflow's share is processor time of the topics that count and trace, over the events of one restart.
The rest is time beside the restart, in the publication: a real receiver over gRPC, a real server.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence

from activities.fleet_totals import TemporalCounters
from everstep.chronicle import fold, spans, totals
from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fleet_totals import JobReport
from everstep.chronicle.publishing import Publication
from everstep.core.levels import FaultClass
from everstep.core.loop.job_events import JobEvent
from everstep.core.world import WORKS_KEPT, AgentWork
from everstep.telemetry.traces import OtlpSpans
from tests.support.builders import ScriptedJob, running, sighting
from tests.support.devserver import DevServer
from tests.telemetry.receiver import receiver

GOAL_MS = 5.0
RUNS = 200
WORKS = tuple(
    AgentWork(slot=slot, node=f"n{slot}", name=name, began=1_000.0, ended=1_000.0 + slot)
    for name in ("stop", "fence", "checkpoints", "start")
    for slot in range(WORKS_KEPT)
)
"""Of agents, as many as a restart reports at most."""


def restarted() -> tuple[Chronicle, tuple[JobEvent, ...], ScriptedJob]:
    """A chronicle before a restart, the events of the restart, and the job after it."""
    told = running()
    before, known = told.chronicle, len(told.events)
    told.see(sighting(FaultClass.CRASH))
    told.succeeds(works=WORKS)
    told.report(first_step_at=told.state.now + 7.0)
    return before, tuple(told.events[known:]), told


def folded_ms(before: Chronicle, events: Sequence[JobEvent]) -> tuple[float, float]:
    """Processor time of the two topics, and of all, for one restart."""
    took = 0.0

    def timed(noted: Callable[[Chronicle, JobEvent], Chronicle]) -> Callable[..., Chronicle]:
        def note(known: Chronicle, event: JobEvent) -> Chronicle:
            nonlocal took
            began = time.process_time()
            known = noted(known, event)
            took += time.process_time() - began
            return known

        return note

    kept = totals.with_event, spans.with_event
    totals.with_event, spans.with_event = map(timed, kept)
    try:
        began = time.process_time()
        fold.folded(before, events)
        return 1_000 * took, 1_000 * (time.process_time() - began)
    finally:
        totals.with_event, spans.with_event = kept


async def exported_ms(publication: Publication) -> list[float]:
    async with receiver() as received:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{received.port}"
        exporter = OtlpSpans.over("grpc")
        found = []
        for _ in range(RUNS):
            began = time.perf_counter()
            assert await exporter.export(publication)
            found.append(1_000 * (time.perf_counter() - began))
        return found


async def sent_ms(publication: Publication) -> list[float]:
    async with await DevServer.start() as server:
        client = await server.connect(await server.new_namespace("bench"))
        counters = TemporalCounters(client=client, cluster="local")
        found = []
        for n in range(RUNS):
            report = JobReport(key="bench", at=float(n), totals=publication.totals)
            began = time.perf_counter()
            await counters.take(report)
            found.append(1_000 * (time.perf_counter() - began))
        return found


def show(what: str, found: Sequence[float]) -> None:
    middle, least, most = statistics.median(found), min(found), max(found)
    print(f"  {what:<44}{middle:8.2f}{least:8.2f}{most:8.2f}")


async def main() -> None:
    before, events, told = restarted()
    both, every = zip(*(folded_ms(before, events) for _ in range(RUNS)), strict=True)
    print(
        f"ms per restart, {RUNS} runs, load {os.getloadavg()[0]:.1f}{'':>11}median     min     max"
    )
    show("in the workflow: totals and spans (processor)", both)
    show("in the workflow: all topics (processor)", every)
    show("beside it: spans to a collector", await exported_ms(told.unpublished))
    show("beside it: totals to their workflow", await sent_ms(told.unpublished))
    print(f"  goal in the way of a restart: {GOAL_MS:g}")


if __name__ == "__main__":
    asyncio.run(main())
