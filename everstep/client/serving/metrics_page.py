"""`dev --observe`: metrics of the worker on a page of this machine, and a Prometheus configuration for it."""

from __future__ import annotations

import importlib.util
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from everstep.client.exit_codes import Exit, Failed
from everstep.telemetry.configuration import host_and_port

VARIABLE = "EVERSTEP_METRICS_ADDRESS"
ADDRESS = "127.0.0.1:9464"
"""The usual port of a page for Prometheus."""
CONNECT_S = 1.0

CONFIGURATION = """\
# Written by `everstep dev --observe`.
global: {{scrape_interval: 5s}}
scrape_configs:
  - job_name: everstep
    static_configs: [{{targets: ["{target}"]}}]
"""


def is_taken(address: str) -> bool:
    """Whether a process, as the worker of `dev`, listens at this address of a page of metrics."""
    try:
        with socket.create_connection(host_and_port(address), timeout=CONNECT_S):
            return True
    except (ValueError, OSError):  # the worker reports an address that makes no sense
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """Where the worker serves its metrics, and the configuration that has Prometheus read them."""

    target: str
    configuration: Path

    @classmethod
    def begin(cls, directory: Path) -> Self:
        """Have the worker of this command serve its metrics, at EVERSTEP_METRICS_ADDRESS if it is set."""
        if importlib.util.find_spec("opentelemetry.exporter.prometheus") is None:
            raise Failed(Exit.USAGE, "--observe needs `pip install 'everstep[telemetry]'`")
        address = os.environ.setdefault(VARIABLE, ADDRESS)
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise Failed(Exit.USAGE, str(error)) from None
        target = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        path = directory / "prometheus.yaml"
        path.write_text(CONFIGURATION.format(target=target))
        return cls(target=target, configuration=path)

    def __str__(self) -> str:
        return (
            f"metrics http://{self.target}/metrics\n"
            f"look    prometheus --config.file={self.configuration}, then http://127.0.0.1:9090"
        )
