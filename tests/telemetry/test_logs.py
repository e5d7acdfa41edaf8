"""Log lines as JSON: their fields, their subject, and that no value can end a line."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.telemetry.trace_ids import trace_id
from everstep.telemetry.worker_log import JsonLine, log_with
from tests.support.devserver import DevServer
from tests.support.scene import Scene, until
from tests.support.stage import Stage, document
from tests.telemetry.lines import logged_lines


def line(message: str, **extra: Any) -> dict[str, Any]:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("somewhere", logging.WARNING, __file__, 1, message, (), error)
    record.__dict__.update(extra)
    text = JsonLine().format(record)
    assert len(text.splitlines()) == 1
    label_record: dict[str, Any] = json.loads(text)
    return label_record


def test_a_line_is_one_object_whatever_is_logged() -> None:
    record = line("two\nlines \x1b[2J \ud800")
    assert record["message"].startswith("two\nlines")
    assert "\x1b" not in record["message"]
    assert (record["level"], record["logger"]) == ("warning", "somewhere")
    assert record["exception"].endswith("ValueError: bad\nvalue")


@pytest.mark.parametrize(
    ("workflow_id", "job", "phase"),
    [("demo", "demo", None), ("a/b/main/recovery-2-pod-node-n1", "a/b", "main")],
)
def test_job_and_phase_are_those_of_the_workflow(
    workflow_id: str, job: str, phase: str | None
) -> None:
    kind = "Recovery" if phase else "TrainingJob"
    about = {
        "workflow_id": workflow_id,
        "workflow_type": kind,
        "activity_type": "stop",
        "attempt": 3,
    }
    record = line("x", temporal_activity=about)
    assert (record["job"], record.get("phase")) == (job, phase)
    assert (record["activity"], record["attempt"]) == ("stop", 3)


def test_a_workflow_that_works_for_many_jobs_is_none() -> None:
    record = line("x", temporal_activity={"workflow_id": "janitor/a", "workflow_type": "Janitor"})
    assert "job" not in record
    assert record["workflow_id"] == "janitor/a"


async def test_a_line_about_one_job_has_no_labels_of_another() -> None:
    """A loop that serves many jobs logs about one of them, maybe in a task that began for another."""
    assert line("x", job="demo")["job"] == "demo"
    log_with(job="demo", phase="main")
    assert line("x", job="demo")["phase"] == "main"
    assert line("x", job="other").get("phase") is None
    assert line("x", job="other")["job"] == "other"


async def test_a_task_adds_what_it_works_for() -> None:
    async def work(generation: int) -> dict[str, Any]:
        log_with(job="demo", generation=generation)
        await asyncio.sleep(0)
        return line("x")

    records = await asyncio.gather(work(1), work(2))
    assert [each["generation"] for each in records] == [1, 2]
    assert "generation" not in line("x")


async def test_what_a_task_does_not_know_has_no_key() -> None:
    log_with(job="demo", phase="", generation=0)
    record = line("x")
    assert (record["job"], record["generation"]) == ("demo", 0)
    assert "phase" not in record


async def test_what_a_publication_logs_names_its_job_and_trace(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Storage takes nothing. That a worker's own process logs such objects is shown in test_core_lines.py."""
    async with Stage(server, namespace, tmp_path) as stage, logged_lines() as lines:
        await stage.admin.fault("at 35s storage demo")
        await stage.admin.fault("at 50s kill demo 1 exit 1")
        job = await stage.submit(document(env={"STEPS": "100000000"}))
        first = (await job.describe()).run_id
        about = await lines.until(lambda line: "run.log cannot be written" in line["message"])
    assert (about["job"], about["activity"], about["level"]) == ("demo", "publish", "warning")
    assert about["trace_id"] == trace_id("demo", first)


KEYS = ("job", "phase", "generation", "trace_id", "attempt", "level")


async def test_what_a_step_of_a_restart_logs_names_its_phase_generation_and_trace(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """The step fails once, and Temporal tries it again."""
    async with Stage(server, namespace, tmp_path) as stage, logged_lines() as lines:
        await stage.admin.fail("ensure_stopped", nth=2)
        await stage.admin.fault("at 35s kill demo 1 exit 1")
        job = await stage.submit(document(env={"STEPS": "60"}))
        first = (await job.describe()).run_id
        await job.result()
        about = await lines.until(lambda line: line.get("activity") == "stop")
    assert {name: about[name] for name in KEYS} == {
        "trace_id": trace_id("demo", first),
        "job": "demo",
        "phase": "main",
        "generation": 1,
        "attempt": 1,
        "level": "warning",
    }


@pytest.mark.parametrize(
    ("phase", "at_s"), [pytest.param("warmup", 34.0, marks=pytest.mark.long), ("main", 200.0)]
)
async def test_what_a_watch_logs_names_the_phase_that_it_watches(
    server: DevServer, namespace: str, tmp_path: Path, phase: str, at_s: float
) -> None:
    """The cluster is away for a moment, which fails an attempt of the monitor.

    The long row has the first phase.
    """
    phases = [{"name": "warmup", "env": {"STEPS": "100"}}, {"name": "main"}]
    body = document(env={"STEPS": "100000000"}, phases=phases)
    async with Stage(server, namespace, tmp_path) as stage, logged_lines() as lines:
        job = await Scene(stage).running(body, until_s=at_s)
        await until(job, lambda status: status["phase"] == phase and status["state"] == "running")
        await stage.admin.unavailable()
        about = await lines.until(lambda line: line.get("activity") == "monitor")
        await stage.admin.unavailable(False)
        first = (await job.describe()).raw_description.workflow_execution_info.first_run_id
    assert {name: about.get(name) for name in KEYS} == {
        "trace_id": trace_id("demo", first),
        "job": "demo",
        "phase": phase,
        "generation": 1 if phase == "warmup" else 2,
        "attempt": 1,
        "level": "warning",
    }
