"""Processes of `everstep run`: slow ones, one beside another that serves metrics, and one on a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.observing.hardware import Devices
from everstep.client.exit_codes import Exit
from everstep.client.serving import metrics_page, working
from everstep.client.serving.working import Machine, Worker, children_ended
from everstep.processes import Process, ProcessFailed, free_port
from tests.support.patience import HUNG_S


def children() -> set[str]:
    """The PIDs of this process's children."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


async def test_a_worker_that_starts_slowly_gets_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further worker would slow the others down on a machine too busy to start one."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.setattr(working, "WORKER_S", 0.0)
    before = children()
    with socket.create_server(("127.0.0.1", 0)) as silent, children_ended():
        server = {"TEMPORAL_ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}"}
        devices = Devices(kind="simulated", count=1, why="a test")
        worker = Worker(
            Machine(nodes=1, devices=devices), lambda: server, is_alone=True, is_of_run=True
        )
        started = []
        for _ in range(2):
            with pytest.raises(ProcessFailed, match="not ready within 0 s"):
                await worker.ensure_alive()
            started.append(children() - before)
    assert len(started[0]) == 1
    assert started[1] == started[0]


@pytest.mark.parametrize(("is_alone", "is_of_run"), [(True, False), (True, True), (False, True)])
async def test_a_worker_of_run_serves_no_metrics_where_another_one_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_alone: bool,
    is_of_run: bool,
) -> None:
    """Both have the EVERSTEP_METRICS_ADDRESS of one shell. A job must not fail for that."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    monkeypatch.setattr(working, "WORKER_S", 0.0)
    variables: list[Mapping[str, str]] = []

    def sleeping(_command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Process:
        """In place of a worker, which ends by itself where it cannot serve its metrics."""
        variables.append(env)
        return Process(["sleep", "300"], env=env, **options)

    monkeypatch.setattr(working, "Process", sleeping)
    with socket.create_server(("127.0.0.1", 0)) as other, children_ended():
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("EVERSTEP_METRICS_ADDRESS", address)
        devices = Devices(kind="simulated", count=1, why="a test")
        machine = Machine(nodes=1, devices=devices)
        server = {"TEMPORAL_ADDRESS": address}
        worker = Worker(machine, lambda: server, is_alone=is_alone, is_of_run=is_of_run)
        for _ in range(2):
            with pytest.raises(ProcessFailed, match="not ready within 0 s"):
                await worker.ensure_alive()
        (started,) = variables
        assert started["EVERSTEP_METRICS_ADDRESS"] == ("" if is_of_run else address)
        assert worker._process is not None
        worker._process.end(within_s=HUNG_S)
        with pytest.raises(ProcessFailed, match="not ready within 0 s"):
            await worker.ensure_alive()  # another process, and no second note
    note = f"the worker of this command serves no metrics: {address} is taken"
    assert caplog.messages == ([note] if is_of_run else [])


@pytest.mark.parametrize(
    ("end", "is_kept"),
    [(None, False), (asyncio.CancelledError(), False), (ProcessFailed("it died"), True)],
)
def test_the_log_of_a_second_worker_stays_only_where_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException | None, is_kept: bool
) -> None:
    """Ctrl-C while it starts is no failure. Each Ctrl-C left a log behind."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    machine = Machine(nodes=1, devices=Devices(kind="simulated", count=1, why="a test"))
    monkeypatch.setattr(working, "_numbers", iter([7]))
    worker = Worker(machine, dict, is_alone=False, is_of_run=True)
    log = tmp_path / f"worker-{os.getpid()}-7.log"
    log.touch()
    with contextlib.suppress(ProcessFailed, asyncio.CancelledError), worker.log_kept_if_failed():
        if end is not None:
            raise end
    assert log.exists() == is_kept


@pytest.mark.parametrize("is_alone", [pytest.param(True, marks=pytest.mark.long), False])
async def test_of_two_runs_at_once_one_serves_the_metrics_and_the_other_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_alone: bool,
) -> None:
    """Neither finds the address taken before both have begun, maybe in two state directories."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    looks = iter([False])
    is_taken = metrics_page.is_taken
    monkeypatch.setattr(
        metrics_page, "is_taken", lambda where: next(looks, None) or is_taken(where)
    )
    monkeypatch.setattr(working, "WORKER_S", HUNG_S)
    with socket.create_server(("127.0.0.1", 0)) as other, children_ended():
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("EVERSTEP_METRICS_ADDRESS", address)
        devices = Devices(kind="simulated", count=1, why="a test")
        server = {"TEMPORAL_ADDRESS": f"127.0.0.1:{free_port()}"}
        worker = Worker(
            Machine(nodes=1, devices=devices), lambda: server, is_alone=is_alone, is_of_run=True
        )
        with pytest.raises(ProcessFailed) as raised:
            await worker.ensure_alive()
    assert raised.value.code == Exit.UNREACHABLE, "the second try got as far as the server"
    note = f"the worker of this command serves no metrics: {address} is taken"
    assert caplog.messages == [note]


async def test_a_process_that_cannot_write_its_log_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full its log is empty, and it cannot say what is wrong."""
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 100, 50, 50, 0, 255))
    with children_ended():
        process = Process(["false"], name="temporal server", log=tmp_path / "log")
        monkeypatch.setattr(os, "statvfs", lambda _path: full)
        with pytest.raises(ProcessFailed) as raised:
            await process.succeeds(within_s=HUNG_S)
    reason = f"less than 1 MB is left in {tmp_path}"
    assert raised.value.short == f"temporal server: ended with 1; {reason}"
