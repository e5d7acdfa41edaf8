"""The player of cases on this machine, where a look at its files falls between two of their writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cases.on_machine import OnMachine
from tests.cases.table import CASES

START = {
    "generation": 1,
    "params": "",
    "env": {
        "MA_SCHEDULE_CNT": "1",
        "MA_PROC_START_CNT": "1",
        "EVERSTEP_POD": "p",
        "NNODES": "2",
    },
}


class Job:
    """Answers `status`: two pods run, of generation 1."""

    async def query(self, _name: str) -> dict[str, Any]:
        pods = [{"slot": slot, "state": "running"} for slot in (0, 1)]
        return {"state": "running", "generation": 1, "pods": pods}


def test_a_file_that_is_opened_and_has_no_line_yet_is_no_start(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace(address="", namespace="")
    player, job = OnMachine(nothing, nothing, tmp_path, CASES[0]), Job()
    player.control.mkdir()
    first, second = (player.control / f"starts-{slot}.jsonl" for slot in (0, 1))
    first.write_text(json.dumps(START) + "\n")
    second.touch()
    assert not asyncio.run(player._runs(job, 1))  # type: ignore[arg-type]  # all that it asks a job
    second.write_text(json.dumps(START) + "\n")
    assert asyncio.run(player._runs(job, 1))  # type: ignore[arg-type]
