"""A worker of `everstep run` that takes its time is waited for, and gets no second one beside it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from everstep.agent.observing.hardware import Devices
from everstep.cli.running_here import working
from everstep.cli.running_here.working import Machine, Worker, children_ended
from everstep.processes import ProcessFailed


def children() -> set[str]:
    """The PIDs of this process's children."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


async def test_a_worker_that_starts_slowly_gets_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine too busy to start one, each would make the others slower still."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.setattr(working, "WORKER_S", 0.0)
    before = children()
    with socket.create_server(("127.0.0.1", 0)) as silent, children_ended():
        server = {"TEMPORAL_ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}"}
        devices = Devices(kind="simulated", count=1, why="a test")
        worker = Worker(Machine(nodes=1, devices=devices), lambda: server, is_alone=True)
        started = []
        for _ in range(2):
            with pytest.raises(ProcessFailed, match="not ready within 0 s"):
                await worker.ensure_alive()
            started.append(children() - before)
    assert len(started[0]) == 1
    assert started[1] == started[0]
