"""A rank finds the span of its run in TRACEPARENT: what it traces itself is part of the job's trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everstep.backends.agents.commands.ranks import Meeting, RankSettings, RunPlace, run_command
from everstep.core.world import JobRef, SlotStart, StartOrder
from everstep.protocol.wire import RunOrder
from tests.support.machine import Machine
from tests.telemetry.receiver import receiver

TRACES = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4317"}


def traceparent(worker: dict[str, str], document: dict[str, str]) -> str | None:
    """What a rank finds, by the variables of its worker and of its document."""
    order = StartOrder(
        job=JobRef(id="demo", run="run", first_run="run"),
        phase="main",
        generation=1,
        run=RunOrder(command=["x"]),
        slots={0: SlotStart(node_rank=0, schedule_count=1, process_start_count=1)},
        env=document,
    )
    command = run_command(
        order,
        0,
        RunPlace(uid="pod", agent="", devices=(), accelerator="none", metrics=None),
        meeting=Meeting(hosts=("127.0.0.1",), port=1),
        settings=RankSettings(cluster="local", fence_s=1.0, environ=worker, pass_env=()),
    )
    return command["env"].get("TRACEPARENT")


def test_it_is_there_where_the_worker_exports_traces() -> None:
    header = traceparent(TRACES, {}) or ""
    assert [len(part) for part in header.split("-")] == [2, 32, 16, 2]


@pytest.mark.parametrize("off", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_it_is_absent_where_no_span_would_be_its_parent(off: dict[str, str]) -> None:
    assert traceparent({}, {}) is None
    assert traceparent({**TRACES, **off}, {}) is None


def test_the_document_has_the_last_word() -> None:
    assert traceparent(TRACES, {"TRACEPARENT": "mine"}) == "mine"


@pytest.mark.long
async def test_each_run_of_a_real_job_finds_its_own_span(tmp_path: Path) -> None:
    machine, output = Machine.at(tmp_path / "home"), tmp_path / "found"
    script = f'echo "$TRACEPARENT" >> {output}; test $(wc -l < {output}) = 2'  # fails once
    async with receiver() as received:
        machine.env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"http://127.0.0.1:{received.port}"
        try:
            run = ("run", "--id", "traced", "--", "sh", "-c", script)
            ended = await asyncio.to_thread(machine.everstep, *run, cwd=tmp_path)
            assert ended.returncode == 0, ended.stdout + ended.stderr
        finally:
            await asyncio.to_thread(machine.end)
    runs = {
        f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
        for span in received.traces.spans
        if span.name == "run"
    }
    parents = output.read_text().split()
    assert len(parents) == len(set(parents)) == 2
    assert set(parents) == runs
