"""What is to be written beside a job's model is written while pods live whose agents can do that."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from everstep.backends.fake.backend import FakeBackend
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable
from everstep.core.world import JobRef
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.scene import until
from tests.support.stage import Stage, document
from workflows import options

STEPS = {"STEPS": "100000000"}


async def until_written(stage: Stage, start: str) -> None:
    """The newest line of run.log begins so."""
    async with asyncio.timeout(HUNG_S):
        while not ["", *await stage.admin.recorded("demo")][-1].startswith(start):
            await asyncio.sleep(0.02)


async def test_a_restart_that_takes_all_pods_away_is_told_before_they_go(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.fault("at 30s preempt demo")
        await stage.admin.hold("ensure_generation", nth=2, job="demo")  # the first is the launch's
        job = await stage.submit(document())
        await stage.admin.wait_held()
        await until_written(stage, "restart 1: preempted -> job")
        await stage.admin.release()
        await job.result()


@pytest.mark.parametrize("name", ["stop", pytest.param("cancel", marks=pytest.mark.long)])
async def test_the_end_of_a_job_is_told_before_its_pods_go(
    server: DevServer, namespace: str, tmp_path: Path, name: str
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        job = await stage.submit(document(env=STEPS))
        await until_written(stage, "generation 1 started")
        await stage.admin.hold("*", job="demo")
        await (job.cancel() if name == "cancel" else job.execute_update("stop", {}))
        assert (await stage.admin.wait_held()).verb == "ensure_recorded"
        assert (await job.query("status"))["state"] == "stopping"
        assert "ensure_gone" not in await stage.admin.calls()
        await stage.admin.release()
        with contextlib.suppress(WorkflowFailureError):  # it was cancelled
            await job.result()
        assert (await stage.admin.recorded("demo"))[-1].startswith("stopped: ")


@pytest.mark.long
async def test_storage_that_hangs_keeps_the_pods_for_a_while_only(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one waits as long as the last lines are tried for."""
    async with Stage(server, namespace, tmp_path) as stage:
        job = await stage.submit(document(env=STEPS))
        await until_written(stage, "generation 1 started")
        await stage.admin.hold("ensure_recorded", job="demo")
        await job.execute_update("stop", {})
        await stage.admin.wait_held()
        assert (await job.result())["status"] == "Terminated"
        assert (await stage.admin.recorded("demo"))[-1].startswith("stopped: ")


async def test_a_job_says_at_its_end_how_many_lines_its_log_lacks(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_backend: FakeBackend, _job: JobRef, _entries: tuple[Entry, ...]) -> None:
        raise BackendUnavailable("out/demo: no space left on device")

    monkeypatch.setattr(FakeBackend, "ensure_recorded", full)
    for patience in ("LAST_LINES", "LAST_WORDS"):
        monkeypatch.setattr(options, patience, timedelta(seconds=0.5))
    async with Stage(server, namespace, tmp_path) as stage:
        job = await stage.submit(document(env={"STEPS": "20"}))
        assert (await job.result())["status"] == "Completed"
        newest = (await job.query("events"))[-1]
        assert (newest["level"], newest["message"]) == (
            "Warning",
            "2 lines of run.log could not be written",
        )


async def test_a_log_that_cannot_be_written_is_in_the_status_and_an_event_until_it_is(
    server: DevServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_backend: FakeBackend, _job: JobRef, _entries: tuple[Entry, ...]) -> None:
        raise BackendUnavailable("out/demo: no space left on device")

    def is_shown(status: dict[str, Any]) -> bool:
        return any("no space left" in row["message"] for row in status["warnings"])

    async with Stage(server, namespace, tmp_path) as stage:
        await stage.admin.hold("observe", nth=6, job="demo")  # the job does not end meanwhile
        with monkeypatch.context() as patched:
            patched.setattr(FakeBackend, "ensure_recorded", full)
            job = await stage.submit(document())
            status = await until(job, is_shown)
            (warning,) = status["warnings"]
            assert warning["message"].startswith("publish, which failed 4 times: out")
            events = [event["message"] for event in await job.query("events")]
            assert sum("no space left" in event for event in events) == 1
        await until(job, lambda status: not is_shown(status))
        await stage.admin.release()
        assert (await job.result())["status"] == "Completed"
