"""The Temporal SDK's core is written in Rust and logs by itself: also its lines are JSON on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.processes import free_port
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses
from tests.support.workerproc import READY

OF_CORE = "gRPC call poll_"
"""The beginning of what the core warns of where the server went away."""


async def lines_after_the_server_went(home: Path, env: Mapping[str, str]) -> list[str]:
    """What the worker has logged by the moment at which its core warns."""
    home.mkdir(exist_ok=True)
    async with (
        await DevServer.start() as server,
        StageOfProcesses(server, "default", home, env=env) as stage,
    ):
        server.kill()
        async with asyncio.timeout(HUNG_S):
            while OF_CORE not in stage.worker.log.read_text():
                await asyncio.sleep(0.05)
        *whole, _begun = stage.worker.log.read_text().split("\n")
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The lines of three workers whose servers went away."""

    text: list[str]
    json: list[str]
    json_measured: list[str]


@pytest.fixture(scope="module")
async def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """At once: the core retries for nine seconds before it warns."""
    home = tmp_path_factory.mktemp("core_lines")
    as_json = {"EVERSTEP_LOG_FORMAT": "json"}
    measured = {"EVERSTEP_METRICS_ADDRESS": f"127.0.0.1:{free_port()}"}
    text, json_lines, json_measured = await asyncio.gather(
        lines_after_the_server_went(home / "text", {}),
        lines_after_the_server_went(home / "json", as_json),
        lines_after_the_server_went(home / "measured", {**as_json, **measured}),
    )
    return Logs(text=text, json=json_lines, json_measured=json_measured)


@pytest.mark.parametrize("worker", ["json", "json_measured"])
async def test_lines_of_the_core_are_objects_on_request(logs: Logs, worker: str) -> None:
    """Also where nothing is measured: metrics bring a runtime of their own."""
    ready, *lines = getattr(logs, worker)
    assert ready == READY
    (about, *_) = [line for line in map(json.loads, lines) if line["message"].startswith(OF_CORE)]
    assert (about["level"], about["logger"]) == ("warning", "temporalio.core")
    assert about["target"] == "temporalio_client::retry"
    assert "tcp connect error" in about["fields"]["error"]
    assert about["time"].endswith("Z")


async def test_lines_of_the_core_are_text_otherwise(logs: Logs) -> None:
    ready, *lines = logs.text
    assert ready == READY
    assert [line for line in lines if OF_CORE in line and "tcp connect error" in line]
