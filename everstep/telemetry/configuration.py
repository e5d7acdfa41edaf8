"""Where metrics and traces go, if anywhere. OpenTelemetry reads the standard OTEL_* variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

PROTOCOLS = ("grpc", "http/protobuf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfiguration:
    """Where metrics and traces go. Without an address and a protocol they are off."""

    prometheus_address: str | None = None  # host:port, served by the worker
    otlp_protocol: str | None = None  # one of PROTOCOLS; its endpoint is in OTEL_*
    traces_protocol: str | None = None  # the same for traces; None: they are off
    read_fleet_s: float = 15.0  # how often values of the fleet are read

    @property
    def is_on(self) -> bool:
        return self.prometheus_address is not None or self.otlp_protocol is not None


def configuration(
    address: str | None, environ: Mapping[str, str] = os.environ
) -> MetricsConfiguration:
    """`address` is EVERSTEP_METRICS_ADDRESS; `ValueError` with a sentence where something is wrong."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return MetricsConfiguration()
    if address:
        host_and_port(address)
    return MetricsConfiguration(
        prometheus_address=address or None,
        otlp_protocol=_otlp_protocol(environ, "METRICS"),
        traces_protocol=traces_protocol(environ),
        read_fleet_s=_read_fleet_s(environ),
    )


READ_FLEET_S = 15.0


def _read_fleet_s(environ: Mapping[str, str]) -> float:
    """The usual interval, or OTEL_METRIC_EXPORT_INTERVAL (milliseconds) where that is shorter."""
    text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    try:
        return min(max(float(text) / 1_000, 0.1), READ_FLEET_S) if text else READ_FLEET_S
    except ValueError:
        raise ValueError(
            f"OTEL_METRIC_EXPORT_INTERVAL is {text!r}; give milliseconds, 60000"
        ) from None


def host_and_port(address: str) -> tuple[str, int]:
    """`127.0.0.1:9464`, `[::1]:9464` or `:9464`, which is every interface."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"EVERSTEP_METRICS_ADDRESS is {address!r}; give HOST:PORT, 127.0.0.1:9464")
    return host.strip("[]") or "0.0.0.0", int(port)


def traces_protocol(environ: Mapping[str, str]) -> str | None:
    """How spans go to a collector; None where no traces are wanted."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return None if is_off else _otlp_protocol(environ, "TRACES")


def _otlp_protocol(environ: Mapping[str, str], kind: str) -> str | None:
    """None where no endpoint is named, or OTEL_<kind>_EXPORTER names another exporter."""
    exporters = environ.get(f"OTEL_{kind}_EXPORTER", "otlp").split(",")
    endpoints = (f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if "otlp" not in exporters or not any(environ.get(name) for name in endpoints):
        return None
    protocol = (
        environ.get(f"OTEL_EXPORTER_OTLP_{kind}_PROTOCOL")
        or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or PROTOCOLS[0]
    )
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; {' or '.join(PROTOCOLS)} work"
        )
    return protocol
