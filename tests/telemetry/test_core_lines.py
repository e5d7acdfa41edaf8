"""The Temporal SDK's core is written in Rust and logs by itself: also its lines are JSON on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


async def objects(home: Path, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The same of a worker that logs JSON, each line parsed, without the one that it is ready."""
    json_env = {"EVERSTEP_LOG_FORMAT": "json", **env}
    ready, *lines = await lines_after_the_server_went(home, json_env)
    assert ready == READY
    return [json.loads(line) for line in lines]


async def test_lines_of_the_core_are_objects_on_request(tmp_path: Path) -> None:
    """Also where nothing is measured: metrics bring a runtime of their own."""
    measured = {"EVERSTEP_METRICS_ADDRESS": f"127.0.0.1:{free_port()}"}
    both = await asyncio.gather(
        objects(tmp_path / "plain", {}), objects(tmp_path / "measured", measured)
    )
    for line in both:
        (about, *_) = [each for each in line if each["message"].startswith(OF_CORE)]
        assert (about["level"], about["logger"]) == ("warning", "temporalio.core")
        assert about["target"] == "temporalio_client::retry"
        assert "tcp connect error" in about["fields"]["error"]
        assert about["time"].endswith("Z")


async def test_lines_of_the_core_are_text_otherwise(tmp_path: Path) -> None:
    ready, *lines = await lines_after_the_server_went(tmp_path, {})
    assert ready == READY
    assert [line for line in lines if OF_CORE in line and "tcp connect error" in line]
