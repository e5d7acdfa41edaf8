"""The metrics of one worker: OpenTelemetry's SDK with its exporters, and two sources.

The Temporal SDK records into a buffer of its runtime; `Metrics` drains it every second and exports it under
the same names (`sdk_metrics`). Metrics of the fleet (jobs by state, isolated nodes) are read from the
server every few seconds (`fleet`), and instruments observe the newest values at each export.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from temporalio.runtime import (
    LoggingConfig,
    MetricBuffer,
    MetricBufferDurationFormat,
    Runtime,
    TelemetryConfig,
)

from everstep.chronicle.counters import BUCKETS_S
from everstep.chronicle.fleet_totals import FleetSum
from everstep.telemetry import sdk_metrics
from everstep.telemetry.configuration import MetricsConfiguration, host_and_port
from everstep.telemetry.fleet import Fleet
from everstep.telemetry.instruments import (
    BUDGETS,
    ENDS,
    HANG_MARGIN,
    ISOLATED_NODES,
    JOBS,
    LONGEST_ISOLATION,
    LONGEST_WAIT,
    LOST_TIME,
    RESTARTS,
    SLOW_RANKS,
    STAGES,
    TIME,
    TRAINING_RATIO,
    UNREACHABLE_AGENTS,
    UNREACHABLE_CLUSTER,
    UNREACHABLE_WEBHOOK,
    Instrument,
)
from everstep.telemetry.readers import (
    Distribution,
    ExportingReader,
    ObservedHistogram,
    PageReader,
)
from everstep.telemetry.readiness import Readiness
from everstep.telemetry.sdk_metrics import SdkMetrics
from everstep.version import __version__

SCOPE = "everstep"

BUFFER = 50_000
"""Updates of the SDK between two drains; a worker of 200 jobs makes some hundreds a second."""
DRAIN_S = 1.0

NO_ENDS = dict.fromkeys(("Completed", "Failed", "Terminated", "Canceled", "Invalid"), 0)
"""Exported from the start: Prometheus takes a counter that begins at 1 for one that did not increase."""

Stop = Callable[[], None]


@dataclass(slots=True)
class Metrics:
    """The metrics of this process. They are created before the client, which needs their `runtime`."""

    provider: MeterProvider
    buffer: MetricBuffer
    runtime: Runtime
    sdk: SdkMetrics
    read_fleet_s: float
    stops: list[Stop] = field(default_factory=list)
    readiness: Readiness = field(default_factory=Readiness)
    fleet: Fleet | None = None

    async def run(self, fleet: Fleet) -> None:
        """Drain the buffer of the SDK and read the fleet until cancelled."""
        self.fleet = fleet
        await asyncio.gather(self._drain_forever(), self._read_fleet_forever(fleet))

    async def _drain_forever(self) -> None:
        while True:
            self.drain()
            await asyncio.sleep(DRAIN_S)

    async def _read_fleet_forever(self, fleet: Fleet) -> None:
        while True:
            await fleet.read()
            await asyncio.sleep(self.read_fleet_s)

    def drain(self) -> None:
        """Record what the SDK recorded since the last call."""
        self.sdk.add(self.buffer.retrieve_updates())

    def stages(self) -> Iterable[Distribution]:
        """How long the stages of all restarts took; none before the fleet was first read."""
        fleet = self.fleet
        if fleet is None or fleet.sum is None:
            return []
        stages = fleet.sum.totals.stages
        return [
            _distribution({**_cluster(fleet), "stage": stage}, buckets)
            for stage, buckets in stages.items()
        ]

    def close(self) -> None:
        """Send what is left."""
        with contextlib.suppress(RuntimeError):
            self.drain()
        self.provider.shutdown()
        for stop in self.stops:
            stop()


def _distribution(
    labels: Mapping[str, str], buckets: Mapping[int, tuple[int, float]]
) -> Distribution:
    counts = [buckets.get(bucket, (0, 0.0))[0] for bucket in range(len(BUCKETS_S) + 1)]
    return Distribution(labels, counts, sum(total for _, total in buckets.values()))


def metrics(
    configuration: MetricsConfiguration, logging: LoggingConfig = LoggingConfig.default
) -> Metrics:
    """The metrics of this process; `OSError` where the address cannot be listened on.

    `logging`: of the core of the Temporal SDK, whose runtime is made here.
    """
    readers: list[PageReader | ExportingReader] = []
    stops: list[Stop] = []
    readiness = Readiness()
    if configuration.prometheus_address is not None:
        reader, stop = _prometheus(configuration.prometheus_address, readiness)
        readers.append(reader)
        stops.append(stop)
    if configuration.otlp_protocol is not None:
        readers.append(ExportingReader(_otlp(configuration.otlp_protocol)))
    provider = MeterProvider(
        metric_readers=readers,
        resource=service_resource(),
        shutdown_on_exit=False,
    )
    buffer = MetricBuffer(BUFFER, duration_format=MetricBufferDurationFormat.SECONDS)
    runtime = Runtime(
        telemetry=TelemetryConfig(logging=logging, metrics=buffer, attach_service_name=False),
        worker_heartbeat_interval=None,
    )
    sdk = SdkMetrics(provider.get_meter(sdk_metrics.SCOPE))
    worker_metrics = Metrics(
        provider=provider,
        sdk=sdk,
        buffer=buffer,
        runtime=runtime,
        read_fleet_s=configuration.read_fleet_s,
        stops=stops,
        readiness=readiness,
    )
    _observe_fleet(worker_metrics)
    stages = ObservedHistogram(
        SCOPE, STAGES.name, STAGES.unit, STAGES.meaning, time.time_ns(), worker_metrics.stages
    )
    for each in readers:
        each.histograms = lambda: (stages, *sdk.histograms)
    return worker_metrics


def service_resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first; else the service is `everstep`."""
    resource = Resource.create({"service.version": __version__})
    if not str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource
    return resource.merge(Resource({SERVICE_NAME: "everstep"}))


def _prometheus(address: str, readiness: Readiness) -> tuple[PageReader, Stop]:
    """A page for Prometheus and one for readiness probes, served from a thread."""
    from prometheus_client import CollectorRegistry, start_http_server

    host, port = host_and_port(address)
    registry = CollectorRegistry()
    server, thread = start_http_server(port, host, registry)
    page: Any = server.get_app()
    server.set_app(readiness.with_ready_path(page))
    reader = PageReader(registry=registry, scope_info_enabled=False)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return reader, stop


def _otlp(protocol: str) -> MetricExporter:
    """Endpoint, headers, certificates and time-outs are the standard OTEL_EXPORTER_OTLP_* variables."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
        OTLPMetricExporter as OverHttp,
    )

    return OverHttp()


def _observe_fleet(metrics: Metrics) -> None:
    """Create the instruments of the fleet. They have no values before the fleet was first read."""
    meter = metrics.provider.get_meter(SCOPE, __version__)

    def gauge(instrument: Instrument, values: Callable[[Fleet], Iterable[Observation]]) -> None:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            fleet = metrics.fleet
            return [] if fleet is None else _of_cluster(fleet, values(fleet))

        meter.create_observable_gauge(
            instrument.name, [observe], unit=instrument.unit, description=instrument.meaning
        )

    def counter(
        instrument: Instrument, values: Callable[[FleetSum], Iterable[Observation]]
    ) -> None:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            fleet = metrics.fleet
            if fleet is None or fleet.sum is None:
                return []
            return _of_cluster(fleet, values(fleet.sum))

        meter.create_observable_counter(
            instrument.name, [observe], unit=instrument.unit, description=instrument.meaning
        )

    counter(RESTARTS, lambda total: _by_label(RESTARTS, total.totals.restarts))
    counter(ENDS, lambda total: _by_label(ENDS, {**NO_ENDS, **total.ends}))
    highest: dict[str, float] = {}
    counter(TIME, lambda total: _by_label(TIME, without_falls(highest, total.totals.time_s)))
    counter(LOST_TIME, lambda total: _by_label(LOST_TIME, total.totals.lost_s))
    gauge(TRAINING_RATIO, _training_ratio)
    gauge(BUDGETS, _budgets)
    gauge(HANG_MARGIN, lambda fleet: _hang_margin(fleet.monitors()))
    gauge(UNREACHABLE_AGENTS, lambda fleet: [Observation(_sum_of("unreachable", fleet.monitors()))])
    gauge(SLOW_RANKS, lambda fleet: [Observation(_sum_of("slow_ranks", fleet.monitors()))])
    gauge(JOBS, lambda fleet: [Observation(n, {"state": s}) for s, n in fleet.jobs.items()])
    gauge(LONGEST_WAIT, lambda fleet: [Observation(fleet.longest_wait_s)])
    gauge(ISOLATED_NODES, lambda fleet: _if_read(fleet, fleet.isolated))
    gauge(LONGEST_ISOLATION, lambda fleet: _if_read(fleet, fleet.longest_s))
    gauge(UNREACHABLE_CLUSTER, lambda fleet: [Observation(fleet.cluster_unreachable_s())])
    gauge(UNREACHABLE_WEBHOOK, lambda fleet: _if_set(fleet.webhook_unreachable_s()))


def _cluster(fleet: Fleet) -> dict[str, str]:
    """The label that every metric of ours has."""
    return {"cluster": fleet.cluster}


def _of_cluster(fleet: Fleet, values: Iterable[Observation]) -> Iterable[Observation]:
    """The values, each with the label of its cluster."""
    return [
        Observation(each.value, {**_cluster(fleet), **(each.attributes or {})}) for each in values
    ]


def _if_read(fleet: Fleet, value: float | None) -> list[Observation]:
    return [] if fleet.isolated is None else _if_set(value)


def _if_set(value: float | None) -> list[Observation]:
    return [] if value is None else [Observation(value)]


def without_falls(highest: dict[str, float], sums: Mapping[str, float]) -> Mapping[str, float]:
    """The sums, each no lower than before: a counter that falls is taken for one that was reset.

    A run that does steps of several earlier runs again takes their time out of the sum of training. The sum
    then stays at its highest value until later training exceeds that.
    """
    highest |= {key: max(value, highest.get(key, 0.0)) for key, value in sums.items()}
    return highest


def _by_label(instrument: Instrument, values: Mapping[str, float]) -> Iterable[Observation]:
    """Values whose keys are the labels of the instrument, in their order."""
    most = len(instrument.labels) - 1
    for key, value in values.items():
        labels = zip(instrument.labels, key.split("/", most), strict=True)
        yield Observation(value, dict(labels))


def _training_ratio(fleet: Fleet) -> Iterable[Observation]:
    """None before a job has trained."""
    time_s = {} if fleet.sum is None else fleet.sum.totals.time_s
    since_start = sum(s for use, s in time_s.items() if use != "wait")
    return [Observation(time_s.get("training", 0.0) / since_start)] if since_start > 0 else []


def _budgets(fleet: Fleet) -> Iterable[Observation]:
    return _by_label(BUDGETS, {} if fleet.sum is None else fleet.sum.totals.budgets)


def _hang_margin(glances: Iterable[Mapping[str, Any]]) -> Iterable[Observation]:
    """None where no job has a limit now."""
    margins = [
        1 - glance["still_s"] / glance["still_limit_s"]
        for glance in glances
        if glance.get("still_limit_s")
    ]
    return [Observation(min(margins))] if margins else []


def _sum_of(key: str, glances: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(glance.get(key, 0)) for glance in glances)
