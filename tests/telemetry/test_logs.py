"""Log lines as JSON: what they say, of whom, and that nothing in them can end a line."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.telemetry.logs import JsonLine, log_with
from everstep.telemetry.trace_ids import trace_id
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.stage import StageOfProcesses, document


def line(message: str, **extra: Any) -> dict[str, Any]:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("somewhere", logging.WARNING, __file__, 1, message, (), error)
    record.__dict__.update(extra)
    text = JsonLine().format(record)
    assert len(text.splitlines()) == 1
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_is_one_object_whatever_is_logged() -> None:
    found = line("two\nlines \x1b[2J \ud800")
    assert found["message"].startswith("two\nlines")
    assert "\x1b" not in found["message"]
    assert (found["level"], found["logger"]) == ("warning", "somewhere")
    assert found["exception"].endswith("ValueError: bad\nvalue")


@pytest.mark.parametrize(
    ("workflow_id", "job", "phase"),
    [("demo", "demo", None), ("a/b/main/recovery-2-pod-node-n1", "a/b", "main")],
)
def test_job_and_phase_are_those_of_the_workflow(
    workflow_id: str, job: str, phase: str | None
) -> None:
    about = {"workflow_id": workflow_id, "activity_type": "stop", "attempt": 3}
    found = line("x", temporal_activity=about)
    assert (found["job"], found.get("phase")) == (job, phase)
    assert (found["activity"], found["attempt"]) == ("stop", 3)


async def test_a_task_adds_what_it_works_for() -> None:
    async def work(generation: int) -> dict[str, Any]:
        log_with(job="demo", generation=generation)
        await asyncio.sleep(0)
        return line("x")

    found = await asyncio.gather(work(1), work(2))
    assert [each["generation"] for each in found] == [1, 2]
    assert "generation" not in line("x")


async def test_a_worker_logs_objects_on_request(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Storage takes nothing, which is a warning of the job's publication."""
    async with StageOfProcesses(
        server, namespace, tmp_path, env={"EVERSTEP_LOG_FORMAT": "json"}
    ) as stage:
        await stage.admin.fault("at 35s storage demo")
        await stage.admin.fault("at 50s kill demo 1 exit 1")
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        first = (await job.describe()).run_id
        async with asyncio.timeout(HUNG_S):
            while "run.log cannot be written" not in stage.worker.log.read_text():
                await asyncio.sleep(0.05)
        lines = stage.worker.log.read_text().splitlines()
        found = [json.loads(text) for text in lines if text.startswith("{")]
    (about, *_) = [each for each in found if "run.log cannot" in each["message"]]
    assert (about["job"], about["activity"], about["level"]) == ("demo", "publish", "warning")
    assert about["trace_id"] == trace_id("demo", first)


KEYS = ("job", "phase", "generation", "trace_id", "attempt", "level")


async def test_what_a_step_of_a_restart_logs_names_its_phase_generation_and_trace(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """The step fails once, and Temporal tries it again."""
    async with StageOfProcesses(
        server, namespace, tmp_path, env={"EVERSTEP_LOG_FORMAT": "json"}
    ) as stage:
        await stage.admin.fail("ensure_stopped", nth=2)
        await stage.admin.fault("at 35s kill demo 1 exit 1")
        job = await stage.submit(document(env={"STEPS": "60"}))
        first = (await job.describe()).run_id
        await job.result()
        lines = stage.worker.log.read_text().splitlines()
        found = [json.loads(text) for text in lines if text.startswith("{")]
    (about, *_) = [each for each in found if each.get("activity") == "stop"]
    shown = {name: about[name] for name in KEYS}
    assert shown == {
        "trace_id": trace_id("demo", first),
        "job": "demo",
        "phase": "main",
        "generation": 1,
        "attempt": 1,
        "level": "warning",
    }
