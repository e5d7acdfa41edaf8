"""Export of a job's spans. Their IDs and times come from the job's records, so that a repeat exports the
same.

The OpenTelemetry API gives a span an ID and a time of its own; so `ReadableSpan` objects are built directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from everstep.chronicle.chronicle import QueuedSpan
from everstep.chronicle.publishing import Publication
from everstep.core.world import AgentWork
from everstep.telemetry.metrics import service_resource
from everstep.telemetry.trace_ids import span_id, trace_id
from everstep.version import __version__

JobKey = tuple[str, str]
"""ID and first run."""

AGENTS = Resource({"service.name": "everstep-agent"})
"""The service of spans of agents' work, which a worker exports."""
STAGE_OF_WORK = {"stop": "stop"}
"""The stage in which an agent did a work; any other work belongs to the stage `start`."""

SCOPE = InstrumentationScope("everstep", __version__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSpans:
    """Sends spans to a collector; endpoint, headers and time-outs are the standard OTEL_* variables."""

    exporter: SpanExporter
    resource: Resource

    @classmethod
    def over(cls, protocol: str) -> Self:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            return cls(exporter=OTLPSpanExporter(), resource=service_resource())
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as OverHttp,
        )

        return cls(exporter=OverHttp(), resource=service_resource())

    async def export(self, publication: Publication) -> bool:
        job = publication.job.id, publication.first_run
        spans = [
            span for queued in publication.spans for span in _spans(job, queued, self.resource)
        ]
        result = await asyncio.to_thread(self.exporter.export, spans)
        return result is SpanExportResult.SUCCESS


def _spans(job: JobKey, queued: QueuedSpan, resource: Resource) -> Iterator[ReadableSpan]:
    """The span itself; below it one for each stage, which follow each other, and those of agents' work."""
    yield _span(job, queued, resource)
    for work in queued.works:
        yield _span(job, _agent_span(queued, work), AGENTS)
    at = queued.began
    for stage, took in queued.stages_s.items():
        if took:
            stage_span = QueuedSpan(
                key=f"{queued.key}/{stage}",
                parent=queued.key,
                name=stage,
                began=at,
                ended=at + took,
            )
            yield _span(job, stage_span, resource)
        at += took


def _agent_span(queued: QueuedSpan, work: AgentWork) -> QueuedSpan:
    stage = STAGE_OF_WORK.get(work.name, "start")
    stage_key = f"{queued.key}/{stage}"
    return QueuedSpan(
        key=f"{stage_key}/{work.name}/{work.slot}",
        parent=stage_key if queued.stages_s.get(stage) else queued.key,
        name=f"agent {work.name}",
        began=work.began,
        ended=work.ended,
        attributes={"everstep.slot": work.slot, "everstep.node": work.node},
    )


def _span(job: JobKey, queued: QueuedSpan, resource: Resource) -> ReadableSpan:
    began = _nanoseconds(queued.began)
    return ReadableSpan(
        name=queued.name,
        context=_context(job, queued.key),
        parent=_context(job, queued.parent) if queued.parent else None,
        resource=resource,
        attributes={"everstep.job": job[0], **queued.attributes},
        events=[Event(line, timestamp=began) for line in queued.evidence],
        status=Status(StatusCode.ERROR if queued.is_error else StatusCode.UNSET),
        start_time=began,
        end_time=max(_nanoseconds(queued.ended), began),
        instrumentation_scope=SCOPE,
    )


def _nanoseconds(at: float) -> int:
    return round(at * 1_000) * 1_000_000


def _context(job: JobKey, key: str) -> SpanContext:
    """The same IDs for the same span, whichever process exports it, and however often."""
    return SpanContext(
        trace_id=int(trace_id(*job), 16),
        span_id=int(span_id(*job, key), 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
