"""What the Temporal SDK recorded arrives in the instruments of the same names, however it was condensed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_GAUGE,
    BUFFERED_METRIC_KIND_HISTOGRAM,
)

from everstep.telemetry.readers import WithHistograms
from everstep.telemetry.sdk_metrics import SdkMetrics


def metric(name: str, kind: int) -> Any:
    return SimpleNamespace(name=name, kind=kind, unit="", description="")


REQUESTS = metric("temporal_request", BUFFERED_METRIC_KIND_COUNTER)
SLOTS = metric("temporal_worker_task_slots_used", BUFFERED_METRIC_KIND_GAUGE)
LATENCY = metric("temporal_request_latency", BUFFERED_METRIC_KIND_HISTOGRAM)
BEAT, POLL = {"operation": "RecordActivityTaskHeartbeat"}, {"operation": "PollActivityTaskQueue"}
NONE: Mapping[str, str] = {}


class Reader(WithHistograms, InMemoryMetricReader):
    """What is exported, read in this process."""


class Buffer:
    """Hands out the updates of one drain after the other."""

    def __init__(self, *drains: list[tuple[Any, float, Mapping[str, str]]]) -> None:
        self._drains = list(drains)

    def retrieve_updates(self) -> list[Any]:
        rows = self._drains.pop(0)
        return [SimpleNamespace(metric=m, value=v, attributes=a) for m, v, a in rows]


def test_counters_add_up_gauges_keep_the_last_and_histograms_every_value() -> None:
    reader = Reader()
    buffer: Any = Buffer(
        [
            (REQUESTS, 1, BEAT),
            (SLOTS, 4, NONE),
            (SLOTS, 5, dict(NONE)),
            (LATENCY, 0.002, BEAT),
            (REQUESTS, 2, POLL),
            (REQUESTS, 3, BEAT),
            (LATENCY, 0.004, BEAT),
            (SLOTS, 2, NONE),
        ],
        [(REQUESTS, 5, BEAT)],
    )
    sdk = SdkMetrics(MeterProvider([reader]).get_meter("temporalio"))
    reader.histograms = lambda: sdk.histograms
    sdk.add(buffer.retrieve_updates())
    sdk.add(buffer.retrieve_updates())
    points: dict[tuple[str, str], Any] = {}
    data: Any = reader.get_metrics_data()
    for each in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in each.data.data_points:
            points[each.name, point.attributes.get("operation", "")] = point
    assert points["temporal_request", BEAT["operation"]].value == 9
    assert points["temporal_request", POLL["operation"]].value == 2
    assert points["temporal_worker_task_slots_used", ""].value == 2
    latency = points["temporal_request_latency", BEAT["operation"]]
    assert (latency.count, round(latency.sum, 6)) == (2, 0.006)
