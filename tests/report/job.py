"""A job by hand: runs and restart records as a job answers them, times in seconds after its creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everstep.chronicle.shapes import moment
from everstep.chronicle.views import STAGES
from everstep.report.job_report import JobSource

CREATED = 1_780_000_000.0


def at(s: float | None) -> str | None:
    return None if s is None else moment(CREATED + s)


def run(
    began: float,
    first_step: float | None,
    ended: float | None,
    *,
    steps: tuple[int | None, int | None] = (None, None),
    generation: int = 1,
    phase: str = "main",
    why: str | None = None,
    paused: float | None = None,
) -> dict[str, Any]:
    return {
        "phase": phase,
        "generation": generation,
        "started_at": at(began),
        "first_step_at": at(first_step),
        "ended_at": at(ended),
        "nodes": 4,
        "starting_step": steps[0],
        "step": steps[1],
        "why": why,
        "paused_at": at(paused),
    }


def record(
    n: int,
    decided: float,
    *,
    cls: str = "crash",
    level: str = "in_place",
    incident: int | None = None,
    result: str = "success",
    step: int | None = None,
    resume_step: int | None = None,
    nodes: Mapping[str, Mapping[str, str | None]] | None = None,
    node: str | None = "n1",
    reason: str = "crash of rank 1: exit code 1",
    **stages_s: float,
) -> dict[str, Any]:
    return {
        "n": n,
        "incident": n if incident is None else incident,
        "phase": "main",
        "at": at(decided),
        "fault": {"class": cls, "kind": "process.exit", "node": node, "owner": "user"},
        "level": level,
        "isolated": False,
        "recover_result": result,
        "bills": {},
        "reason": reason,
        "generation": {"from": n, "to": n + 1},
        "nodes": nodes or {"before": {}, "after": {}},
        "step": step,
        "resume_step": resume_step,
        "evidence": None,
        "stages_s": {name: stages_s.get(name) for name in STAGES},
        "seen": ["process.exit n1 exit code 1"],
        "passed_over": [],
        "refused_by": None,
        "end_reason": None,
        "notes": [],
        "waited": [],
    }


def report(
    runs: Sequence[Mapping[str, Any]], ended: float | None = None, **more: Any
) -> dict[str, Any]:
    began = next((row["started_at"] for row in runs), None)
    return {
        "id": "demo",
        "reason": None,
        "created_at": at(0),
        "started_at": began,
        "ended_at": at(ended),
        "runs": list(runs),
        "phases": [
            {
                "name": "main",
                "state": "completed",
                "began_at": at(0),
                "ended_at": at(ended),
                "budgets": {},
                "last_checkpoint_step": 100,
                "recoveries": 1,
            }
        ],
        **more,
    }


def status(**more: Any) -> dict[str, Any]:
    usual = {
        "id": "demo",
        "state": "completed",
        "phase": "main",
        "step": 100,
        "checkpoint_step": 100,
        "waiting_for": None,
        "waiting_reason": None,
        "pods": [],
        "budgets": {},
        "isolated_nodes": [],
        "ui": None,
    }
    return {**usual, **more}


def source(
    runs: Sequence[Mapping[str, Any]],
    records: Sequence[Mapping[str, Any]] = (),
    *,
    ended: float | None = 100.0,
    now: float = 100.0,
    job_status: Mapping[str, Any] | None = None,
    **more: Any,
) -> JobSource:
    return JobSource(
        status=status(**(job_status or {})),
        report=report(runs, ended),
        records=records,
        now=CREATED + now,
        **more,
    )
