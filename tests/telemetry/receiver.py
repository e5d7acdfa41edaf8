"""A real OTLP receiver over gRPC, and a real scrape, each read by the library that others read it with."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio  # type: ignore[import-untyped]  # its types are in a package of others
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families


@dataclass(slots=True)
class TraceReceiver(TraceServiceServicer):
    """Every span that was received, in its order, and the service that each is of."""

    spans: list[Span] = field(default_factory=list)
    services: list[str] = field(default_factory=list)

    async def Export(  # noqa: N802 (the name is the service's)
        self, request: ExportTraceServiceRequest, _context: object
    ) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self.spans += spans
            self.services += [attributes.get("service.name", "")] * len(spans)
        return ExportTraceServiceResponse()


@dataclass(slots=True)
class Receiver(MetricsServiceServicer):
    """What was received: the names of metrics, the services that sent them, the newest export itself."""

    port: int = 0
    newest: list[ResourceMetrics] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    services: set[str] = field(default_factory=set)
    traces: TraceReceiver = field(default_factory=TraceReceiver)

    async def Export(  # noqa: N802 (the name is the service's)
        self, request: ExportMetricsServiceRequest, _context: object
    ) -> ExportMetricsServiceResponse:
        self.newest = list(request.resource_metrics)
        for resource in self.newest:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(attributes.get("service.name", ""))
            self.names |= {m.name for scope in resource.scope_metrics for m in scope.metrics}
        return ExportMetricsServiceResponse()

    def histogram(self, name: str) -> list[HistogramDataPoint]:
        """The points of a histogram in the newest export."""
        return [
            point
            for resource in self.newest
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.histogram.data_points
        ]


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    server = grpc.aio.server()
    receiver = Receiver()
    add_MetricsServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]  # generated
    add_TraceServiceServicer_to_server(receiver.traces, server)  # type: ignore[no-untyped-call]  # generated
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(grace=None)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(address: str) -> Samples:
    """Every sample of the page, by name and labels."""

    def page() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(page))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
