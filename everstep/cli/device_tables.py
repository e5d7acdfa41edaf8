"""Use and memory of devices in words: a row for each slot whose devices show some of it."""

from __future__ import annotations

from everstep.cli.tables import Column, TableRow


def _indices(row: TableRow) -> str:
    return " ".join(str(device["index"]) for device in row["devices"])


def _percents(row: TableRow) -> str:
    """`97 96 ?`: of each device in its order."""
    return " ".join("?" if d["percent"] is None else f"{d['percent']:.0f}" for d in row["devices"])


def _memory(row: TableRow) -> str | None:
    """`70.1 70.3 of 80.0`: of each device in its order; the totals once where they are alike."""
    used = [_gigabytes(device["memory_mb"]) for device in row["devices"]]
    totals = [_gigabytes(device["memory_total_mb"]) for device in row["devices"]]
    if set(totals) <= {"?"}:
        return None if set(used) <= {"?"} else " ".join(used)
    of = totals if len(set(totals)) > 1 else totals[:1]
    return f"{' '.join(used)} of {' '.join(of)}"


def _gigabytes(megabytes: float | None) -> str:
    return "?" if megabytes is None else f"{megabytes / 1024:.1f}"


SLOT, NODE = Column("SLOT", "slot", is_pinned=True), Column("NODE", "node", is_pinned=True)
USE = (
    Column("DEVICES", _indices),
    Column("USE (%)", _percents),
    Column("MEMORY (GB)", _memory),
)
OF_JOB = (SLOT, NODE, *USE)
OF_NODES = (NODE, Column("JOB", "job", is_pinned=True), SLOT, *USE)


def line(row: TableRow) -> str:
    """`n0, devices 0 1: 97 96 %, 70.1 70.3 of 80.0 GB`."""
    memory = _memory(row)
    gigabytes = "" if memory is None else f", {memory} GB"
    return f"{row['node']}, devices {_indices(row)}: {_percents(row)} %{gigabytes}"


def least_percent(row: TableRow) -> float:
    """The use of the device that is used least; 0 where none shows it."""
    return min((d["percent"] for d in row["devices"] if d["percent"] is not None), default=0.0)
