"""The Temporal SDK's core is written in Rust and logs by itself: also its lines are JSON on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
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
    """What the worker has logged by the moment at which its core warns, after nine seconds of retries."""
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


AS_JSON = {"EVERSTEP_LOG_FORMAT": "json"}


def measured() -> dict[str, str]:
    """Variables of a worker that exports: metrics bring a runtime of their own."""
    return {**AS_JSON, "EVERSTEP_METRICS_ADDRESS": f"127.0.0.1:{free_port()}"}


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(lambda: AS_JSON, id="json"),
        pytest.param(measured, id="json_measured", marks=pytest.mark.long),
    ],
)
async def test_lines_of_the_core_are_objects_on_request(
    tmp_path: Path, env: Callable[[], Mapping[str, str]]
) -> None:
    """The long row has the runtime of a worker that exports metrics."""
    ready, *lines = await lines_after_the_server_went(tmp_path, env())
    assert ready == READY
    (about, *_) = [line for line in map(json.loads, lines) if line["message"].startswith(OF_CORE)]
    assert (about["level"], about["logger"]) == ("warning", "temporalio.core")
    assert about["target"] == "temporalio_client::retry"
    assert "tcp connect error" in about["fields"]["error"]
    assert about["time"].endswith("Z")


@pytest.mark.long
async def test_lines_of_the_core_are_text_otherwise(tmp_path: Path) -> None:
    """Only this one reads lines of the core where JSON was not requested."""
    ready, *lines = await lines_after_the_server_went(tmp_path, {})
    assert ready == READY
    assert [line for line in lines if OF_CORE in line and "tcp connect error" in line]
