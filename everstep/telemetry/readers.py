"""The histogram of the stages of restarts, made at each export from the sum over all jobs.

Histograms of OpenTelemetry's SDK add up what a process recorded and take nothing back; none is observed. The
readers here add to what they collected the one that the sum has (docs/decisions/0047).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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

from everstep.chronicle.totals import BUCKETS_S, Stages
from everstep.telemetry.instruments import STAGES

SCOPE = "everstep"


@dataclass(slots=True)
class ExactStages:
    """The histogram as it is now."""

    newest: Callable[[], Stages | None]  # None: the sum was not read yet
    since: int = field(default_factory=time.time_ns)

    def added(self, collected: MetricsData) -> MetricsData:
        """What was collected, and the histogram among the other metrics of its scope."""
        stages = self.newest()
        if not stages:
            return collected
        resources = [
            replace(
                resource,
                scope_metrics=[
                    replace(scope, metrics=[*scope.metrics, self._histogram(stages)])
                    if scope.scope.name == SCOPE
                    else scope
                    for scope in resource.scope_metrics
                ],
            )
            for resource in collected.resource_metrics
        ]
        return replace(collected, resource_metrics=resources)

    def _histogram(self, stages: Stages) -> Metric:
        now = time.time_ns()
        points = [self._point(stage, buckets, now) for stage, buckets in stages.items()]
        data = Histogram(
            data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE
        )
        return Metric(name=STAGES.name, description=STAGES.meaning, unit=STAGES.unit, data=data)

    def _point(
        self, stage: str, buckets: Mapping[int, tuple[int, float]], now: int
    ) -> HistogramDataPoint:
        counts = [buckets.get(bucket, (0, 0.0))[0] for bucket in range(len(BUCKETS_S) + 1)]
        unknown: Any = None  # the sum has no least and no greatest; the exporters leave them out
        return HistogramDataPoint(
            attributes={"stage": stage},
            start_time_unix_nano=self.since,
            time_unix_nano=now,
            count=sum(counts),
            sum=sum(total for _, total in buckets.values()),
            bucket_counts=counts,
            explicit_bounds=BUCKETS_S,
            min=unknown,
            max=unknown,
        )


class _WithStages(MetricReader):
    """Hands on what it collected together with the histogram, once it has one."""

    exact_stages: ExactStages | None = None

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any
    ) -> None:
        if self.exact_stages is not None:
            metrics_data = self.exact_stages.added(metrics_data)
        super()._receive_metrics(metrics_data, timeout_millis, **options)  # type: ignore[safe-super]


class PageReader(_WithStages, PrometheusMetricReader):
    """Fills the page that Prometheus scrapes."""


class ExportingReader(_WithStages, PeriodicExportingMetricReader):
    """Sends to a collector again and again."""
