"""The report of one job as plain values: what `everstep report ID --json` prints and the pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.chronicle.shapes import moment
from everstep.chronicle.time_use import Run
from everstep.core.levels import FaultClass
from everstep.report.accounting import Account, Restart, account
from everstep.report.lives import LifeSource, life_rows, lives_sentence
from everstep.report.sentences import ENDS, summary

Value = Mapping[str, Any]

OF_THE_NODE = frozenset({FaultClass.NODE, FaultClass.DEVICE, FaultClass.DEVICE_FATAL})
OF_ISOLATED_NODES = frozenset({FaultClass.PRECHECK})
"""A check before the start isolates the node only where it found faulty hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """What is known of a job when its report is made."""

    status: Value
    report: Value  # the JobReport, of a living job as it would be now
    records: Sequence[Value]  # every restart, oldest first
    now: float
    document: Any = None  # as submitted; None where the server has forgotten it
    # By node, as `everstep nodes` returns it.
    isolation: Mapping[str, Value] = field(default_factory=dict)
    gaps: Sequence[str] = ()  # sentences about what could not be read
    lives: Sequence[LifeSource] = ()  # of the ID, oldest first; this job is in the last one

    @property
    def life(self) -> int:
        return self.lives[-1].number if self.lives else 1


def job_report(source: JobSource) -> dict[str, Any]:
    """Plain JSON values; what is not known is null."""
    status, report = source.status, source.report
    time = account(report, source.records, now=source.now)
    lives = life_rows(source.lives, now=source.now)
    return {
        "id": status["id"],
        "state": status["state"],
        "is_final": status["state"] in ENDS,
        "as_of": moment(source.now),
        "summary": [*summary(status, report, time), *filter(None, [lives_sentence(lives)])],
        "reason": report.get("reason"),
        "created_at": report.get("created_at"),
        "started_at": report.get("started_at"),
        "ended_at": report.get("ended_at"),
        "step": status.get("step"),
        "checkpoint_step": status.get("checkpoint_step"),
        "time": time_values(time),
        "causes": causes(time.restarts),
        "phases": [_phase(phase, status) for phase in report.get("phases", ())],
        "runs": [_run(run, status) for run in time.runs],
        "restarts": [{**_restart(restart), "life": source.life} for restart in time.restarts],
        "lives": lives,
        "nodes": _nodes(source),
        "budgets": status.get("budgets"),
        "document": source.document,
        "gaps": list(source.gaps),
        "links": dict(status.get("links") or {}),
        "ui": status.get("ui"),
    }


def time_values(time: Account) -> dict[str, Any]:
    return {
        "total_s": _rounded(time.total_s),
        "wait_s": _rounded(time.wait_s),
        "training_s": _rounded(time.training_s),
        "down_s": _rounded(time.down_s),
        "lost_s": _rounded(time.lost_s),
        "paused_s": _rounded(time.paused_s),
        "ettr": None if time.ettr is None else round(time.ettr, 6),
        "has_unknown_loss": time.has_unknown_loss,
        "stages_s": {name: _rounded(took) for name, took in time.stages_s.items()},
    }


def _rounded(s: float | None) -> float | None:
    return None if s is None else round(s, 3)


def causes(restarts: Sequence[Restart]) -> list[dict[str, Any]]:
    """What each class of fault cost, the costliest first."""
    rows: dict[str, dict[str, Any]] = {}
    for restart in restarts:
        cls = restart.record["fault"]["class"]
        empty = {"class": cls, "restarts": 0, "down_s": 0.0, "lost_s": 0.0, "lost_steps": 0}
        row = rows.setdefault(cls, {**empty, "has_unknown_loss": False})
        row["restarts"] += restart.record["refused_by"] is None
        row["down_s"] = round(row["down_s"] + restart.down_s, 3)
        row["lost_s"] = round(row["lost_s"] + (restart.lost_s or 0.0), 3)
        row["lost_steps"] += restart.lost_steps or 0
        row["has_unknown_loss"] |= restart.lost_s is None
    return sorted(rows.values(), key=lambda row: -(row["down_s"] + row["lost_s"]))


def is_of_node(record: Value) -> bool:
    """Whether the node of this restart broke. A crash, a hang or a bad number is the script's own."""
    cls = record["fault"]["class"]
    return cls in OF_THE_NODE or (cls in OF_ISOLATED_NODES and record["isolated"] is True)


PHASE_KEYS = ("name", "state", "began_at", "ended_at", "budgets", "last_checkpoint_step")


def _phase(phase: Value, status: Value) -> dict[str, Any]:
    """A phase that runs has its newest checkpoint from the status, which is newer than any report."""
    values = {key: phase.get(key) for key in (*PHASE_KEYS, "recoveries")}
    runs = status["state"] not in ENDS and status.get("phase") == phase["name"]
    if runs and (saved := status.get("checkpoint_step")) is not None:
        values["last_checkpoint_step"] = saved
    return values


def _run(run: Run, status: Value) -> dict[str, Any]:
    return {
        "phase": run.phase,
        "generation": run.generation,
        "started_at": moment(run.started_at),
        "first_step_at": moment(run.first_step_at),
        "ended_at": None if run.is_open else moment(run.ended_at),
        "starting_step": run.starting_step,
        "step": status.get("step") if run.is_open else run.step,
        "lost_steps": run.lost_steps,
        "lost_s": _rounded(run.lost_s),
    }


def _restart(restart: Restart) -> dict[str, Any]:
    return {
        **restart.record,
        "down_s": _rounded(restart.down_s),
        "lost_steps": restart.lost_steps,
        "lost_s": _rounded(restart.lost_s),
    }


# -- nodes ----------------------------------------------------------------------------------------


def _nodes(source: JobSource) -> list[dict[str, Any]]:
    """Each node that the job was on or has isolated: its slots over time, its own faults, isolation."""
    spans = _places(source)
    faults: dict[str, int] = {}
    for record in source.records:
        if (node := record["fault"]["node"]) is not None:
            faults[node] = faults.get(node, 0) + is_of_node(record)
    isolated = set(source.status.get("isolated_nodes") or ())
    names = sorted({*spans, *faults, *isolated})
    return [
        {
            "node": node,
            "slots": spans.get(node, []),
            "faults": faults.get(node, 0),
            "isolated": _isolation(source, node) if node in isolated else None,
        }
        for node in names
    ]


def _isolation(source: JobSource, node: str) -> dict[str, Any]:
    entry = source.isolation.get(node, {})
    return {key: entry.get(key) for key in ("reason", "by", "since", "until")}


def _places(source: JobSource) -> dict[str, list[dict[str, Any]]]:
    """Which slots each node had, from when to when.

    Goes backwards: from where the slots are now, through the records, to where they were at the start.
    """
    end = source.report.get("ended_at")
    # Slot -> its node after this moment, and until when it was there.
    later = {
        int(pod["slot"]): (pod["node"], end) for pod in source.status.get("pods", ()) if pod["node"]
    }
    spans: dict[str, list[dict[str, Any]]] = {}

    def add_span(slot: int, since: str | None) -> None:
        node, until = later.pop(slot, (None, None))
        if node is not None:
            spans.setdefault(node, []).append({"slot": slot, "from": since, "until": until})

    for record in reversed(source.records):
        for slot in map(int, record["nodes"]["after"]):
            add_span(slot, record["at"])
            if (before := record["nodes"]["before"].get(str(slot))) is not None:
                later[slot] = (before, record["at"])
    for slot in list(later):
        add_span(slot, source.report.get("started_at"))
    return spans
