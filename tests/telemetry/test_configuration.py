"""Metrics are off unless enabled, by the standard variables or for Prometheus."""

from __future__ import annotations

import pytest

from everstep.telemetry.configuration import MetricsConfiguration, configuration, host_and_port

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}
OVER_HTTP = {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}

ROWS: dict[str, tuple[str | None, dict[str, str], MetricsConfiguration]] = {
    "nothing is set": (None, {}, MetricsConfiguration()),
    "an address": ("127.0.0.1:9464", {}, MetricsConfiguration(prometheus_address="127.0.0.1:9464")),
    "an empty address": ("", {}, MetricsConfiguration()),
    "an endpoint": (
        None,
        ENDPOINT,
        MetricsConfiguration(otlp_protocol="grpc", traces_protocol="grpc"),
    ),
    "over http": (
        None,
        {**ENDPOINT, **OVER_HTTP},
        MetricsConfiguration(otlp_protocol="http/protobuf", traces_protocol="grpc"),
    ),
    "both": (
        ":9464",
        ENDPOINT,
        MetricsConfiguration(
            prometheus_address=":9464", otlp_protocol="grpc", traces_protocol="grpc"
        ),
    ),
    "another exporter": (
        None,
        {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"},
        MetricsConfiguration(traces_protocol="grpc"),
    ),
    "traces elsewhere": (
        None,
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        MetricsConfiguration(otlp_protocol="grpc"),
    ),
    "disabled": (":9464", {**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, MetricsConfiguration()),
    "a short interval": (
        None,
        {**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "500"},
        MetricsConfiguration(otlp_protocol="grpc", traces_protocol="grpc", read_fleet_s=0.5),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_variables_say_where_metrics_go(row: str) -> None:
    address, environ, expected = ROWS[row]
    assert configuration(address, environ) == expected


@pytest.mark.parametrize(
    ("address", "environ", "sentence"),
    [
        ("9464", {}, "give HOST:PORT"),
        ("127.0.0.1:99999", {}, "give HOST:PORT"),
        (None, {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/protobuf work"),
        (None, {**ENDPOINT, "OTEL_METRIC_EXPORT_INTERVAL": "1m"}, "give milliseconds"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(
    address: str | None, environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        configuration(address, environ)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        (":9464", ("0.0.0.0", 9464)),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address) == expected
