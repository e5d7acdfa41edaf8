"""Readers of metrics that add histograms made at each export to what they collected.

Histograms of OpenTelemetry's SDK add up what a process recorded, one value after the other, and take nothing
back; none is observed, as counters and gauges may be (docs/decisions/0047).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)

from everstep.chronicle.counters import BUCKETS_S


@dataclass(frozen=True, slots=True)
class Distribution:
    """A point of a histogram: how many values each bucket of BUCKETS_S and the one above have, their sum."""

    attributes: Mapping[str, Any]
    counts: Sequence[int]
    total: float


@dataclass(frozen=True, slots=True)
class ObservedHistogram:
    """A histogram whose points are computed when it is exported; without points it is left out."""

    scope: str
    name: str
    unit: str
    about: str
    since: int  # nanoseconds
    points: Callable[[], Iterable[Distribution]]

    def metric(self) -> Metric | None:
        now = time.time_ns()
        points = [self._point(each, now) for each in self.points()]
        if not points:
            return None
        data = Histogram(
            data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE
        )
        return Metric(name=self.name, description=self.about, unit=self.unit, data=data)

    def _point(self, point: Distribution, now: int) -> HistogramDataPoint:
        unknown: Any = None  # least and greatest; the exporters leave them out
        return HistogramDataPoint(
            attributes=point.attributes,
            start_time_unix_nano=self.since,
            time_unix_nano=now,
            count=sum(point.counts),
            sum=point.total,
            bucket_counts=point.counts,
            explicit_bounds=BUCKETS_S,
            min=unknown,
            max=unknown,
        )


def with_histograms(collected: MetricsData, histograms: Iterable[ObservedHistogram]) -> MetricsData:
    """What was collected, and the histograms among the other metrics of their scopes."""
    by_scope: dict[str, list[Metric]] = {}
    for histogram in histograms:
        if (metric := histogram.metric()) is not None:
            by_scope.setdefault(histogram.scope, []).append(metric)
    resources = [
        replace(
            resource,
            scope_metrics=[
                replace(scope, metrics=[*scope.metrics, *by_scope.get(scope.scope.name, ())])
                for scope in resource.scope_metrics
            ],
        )
        for resource in collected.resource_metrics
    ]
    return replace(collected, resource_metrics=resources)


class WithHistograms(MetricReader):
    """Hands on what it collected together with the histograms."""

    histograms: Callable[[], Iterable[ObservedHistogram]] = tuple

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any
    ) -> None:
        complete = with_histograms(metrics_data, self.histograms())
        super()._receive_metrics(complete, timeout_millis, **options)  # type: ignore[safe-super]


class PageReader(WithHistograms, PrometheusMetricReader):
    """Fills the page that Prometheus scrapes."""


class ExportingReader(WithHistograms, PeriodicExportingMetricReader):
    """Sends to a collector again and again."""
