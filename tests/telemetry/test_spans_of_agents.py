"""What real agents did for a restart is in its trace, though the worker that ordered it was killed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.rehearsal import Rehearsal, gist, small
from tests.telemetry.receiver import TraceReceiver, receiver
from tests.telemetry.test_traces import attributes

AGENT = "everstep-agent"


def of_agents(received: TraceReceiver) -> list[Span]:
    paired = zip(received.spans, received.services, strict=True)
    return [span for span, service in paired if service == AGENT]


def children(spans: list[Span], parent: bytes) -> Counter[tuple[str, Any]]:
    return Counter(
        (span.name, attributes(span)["slot"]) for span in spans if span.parent_span_id == parent
    )


def span_by_name(spans: list[Span], name: str) -> Span:
    (span,) = [span for span in spans if span.name == name]
    return span


def stages(spans: list[Span], whole: Span) -> dict[str, Span]:
    return {span.name: span for span in spans if span.parent_span_id == whole.span_id}


@pytest.mark.long
async def test_agents_add_what_they_did_once_though_the_worker_is_killed(tmp_path: Path) -> None:
    async with receiver() as received:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{received.port}"}
        async with Rehearsal(tmp_path / "r", env=env) as r:
            job = await r.submit(small(tmp_path / "job", "traced", steps=40))
            await r.until(lambda: r.step(generation=1) >= 5, "five steps")
            await r.fault("kill traced 1")
            await r.until(lambda: _stopped(r), "the stop of the other rank")
            r.worker.kill9()
            await r.worker.start()
            report = await r.report(job)
            traces = received.traces
            await r.until(lambda: "job" in {span.name for span in traces.spans}, "the last span")
    assert gist(report) == [("crash", "in_place", "success")]

    spans = of_agents(traces)
    stages_of = partial(stages, traces.spans)
    launch, restart = (span_by_name(traces.spans, name) for name in ("launch", "restart in_place"))
    stop = stages_of(restart)["stop"]
    assert children(spans, stop.span_id) == {("agent stop", 0): 1, ("agent stop", 1): 1}
    for whole in (launch, restart):
        start = stages_of(whole)["start"]
        done = children(spans, start.span_id)
        assert done[("agent fence", 0)] == done[("agent checkpoints", 0)] == 1
        assert (done[("agent start", 0)], done[("agent start", 1)]) == (1, 1)
        for span in (span for span in spans if span.parent_span_id == start.span_id):
            assert span.trace_id == whole.trace_id
            assert whole.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= whole.end_time_unix_nano
    assert {span.parent_span_id for span in spans} == {
        *(stages_of(whole)["start"].span_id for whole in (launch, restart)),
        stop.span_id,
    }
    places = {(attributes(span)["slot"], attributes(span)["node"]) for span in spans}
    assert places == {(0, "n0"), (1, "n1")}


def _stopped(r: Rehearsal) -> bool:
    """Whether an agent has carried out the stop of the restart."""
    return any(pod.state()["stopped_below"] >= 2 for pod in r.pods("traced"))
