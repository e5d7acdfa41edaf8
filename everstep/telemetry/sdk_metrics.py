"""What the Temporal SDK records, added up by metric and attributes, for instruments that are observed.

A worker of 200 jobs makes some hundreds of updates a second. An instrument of OpenTelemetry hashes the
attributes of each once for each reader (docs/decisions/0032); here an update is a number added to another.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from opentelemetry.metrics import Meter, Observation
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_GAUGE,
    BUFFERED_METRIC_KIND_HISTOGRAM,
    BufferedMetric,
    BufferedMetricUpdate,
)

from everstep.chronicle.counters import BUCKETS_S
from everstep.telemetry.readers import Distribution, ObservedHistogram

SCOPE = "temporalio"


@dataclass(slots=True)
class MetricSeries:
    """One metric with one set of attributes: its value, or the sum and the buckets of a histogram."""

    attributes: Mapping[str, Any]
    value: float = 0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))


def _add(series: MetricSeries, values: Sequence[float]) -> None:
    series.value += sum(values)


def _replace(series: MetricSeries, values: Sequence[float]) -> None:
    series.value = values[-1]


def _distribute(series: MetricSeries, values: Sequence[float]) -> None:
    series.value += sum(values)
    for value in values:
        series.counts[bisect_left(BUCKETS_S, value)] += 1


ADD: Mapping[int, Callable[[MetricSeries, Sequence[float]], None]] = {
    BUFFERED_METRIC_KIND_COUNTER: _add,
    BUFFERED_METRIC_KIND_GAUGE: _replace,
    BUFFERED_METRIC_KIND_HISTOGRAM: _distribute,
}


@dataclass(slots=True)
class SdkMetrics:
    """Every metric of the SDK, with its series by their attributes. One thread adds, others export."""

    meter: Meter
    histograms: tuple[ObservedHistogram, ...] = ()
    _series: dict[str, dict[frozenset[tuple[str, Any]], MetricSeries]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, updates: Iterable[BufferedMetricUpdate]) -> None:
        """Add what the SDK recorded since the last call.

        The first update of a metric creates its instrument.
        """
        for update, values in _grouped(updates):
            metric = update.metric
            if metric.name not in self._series:
                self._create(metric)
            attributes = update.attributes
            key = frozenset(attributes.items())
            with self._lock:
                series = self._series[metric.name].setdefault(key, MetricSeries(dict(attributes)))
                ADD[metric.kind](series, values)

    def _create(self, metric: BufferedMetric) -> None:
        name, unit, about = metric.name, metric.unit or "", metric.description or ""
        self._series[name] = {}
        if metric.kind == BUFFERED_METRIC_KIND_HISTOGRAM:
            points = partial(self._distributions, name)
            observed = ObservedHistogram(SCOPE, name, unit, about, time.time_ns(), points)
            self.histograms = (*self.histograms, observed)
            return
        is_counter = metric.kind == BUFFERED_METRIC_KIND_COUNTER
        create = (
            self.meter.create_observable_counter
            if is_counter
            else self.meter.create_observable_gauge
        )
        create(name, [lambda _options: self._observations(name)], unit, about)

    def _observations(self, name: str) -> list[Observation]:
        with self._lock:
            return [
                Observation(each.value, each.attributes) for each in self._series[name].values()
            ]

    def _distributions(self, name: str) -> list[Distribution]:
        with self._lock:
            return [
                Distribution(each.attributes, tuple(each.counts), each.value)
                for each in self._series[name].values()
            ]


def _grouped(
    updates: Iterable[BufferedMetricUpdate],
) -> Iterable[tuple[BufferedMetricUpdate, list[float]]]:
    """The updates grouped by metric and attributes: one update of each group, and the values of all.

    Groups are found by the identity of the attributes, as the SDK uses the same object again and again.
    """
    groups: dict[tuple[int, int], tuple[BufferedMetricUpdate, list[float]]] = {}
    for update in updates:
        metric = update.metric
        key = id(metric), id(update.attributes)  # the update that the group has keeps both alive
        group = groups.get(key)
        if group is None:
            groups[key] = update, [update.value]
        elif metric.kind == BUFFERED_METRIC_KIND_GAUGE:
            del groups[key]
            groups[key] = update, [update.value]  # the last one comes last
        else:
            group[1].append(update.value)
    return groups.values()
