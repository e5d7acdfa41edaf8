"""The report of all jobs since a time: restarts by cause, nodes that break most, where time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.chronicle.shapes import moment
from everstep.chronicle.views import STAGES
from everstep.report.accounting import Account, Restart, account, seconds
from everstep.report.job_report import JobSource, causes, is_of_node, time_values
from everstep.report.sentences import ENDS, count, losses, percent

Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSource:
    """The jobs that ran at some time since `since`; of an ID each life, the oldest first."""

    jobs: Sequence[JobSource]
    since: float
    now: float
    gaps: Sequence[str] = ()  # sentences about what could not be read


def fleet_report(source: FleetSource) -> dict[str, Any]:
    """Plain JSON values. Restarts count if they were decided since then; times of jobs are whole."""
    accounts = [account(job.report, job.records, now=job.now) for job in source.jobs]
    recent = [_since(one.restarts, source.since) for one in accounts]
    restarts = [restart for of_job in recent for restart in of_job]
    total = _sum(accounts)
    newest = {job.status["id"]: job for job in source.jobs}  # of each ID its newest life
    lives = Counter(job.status["id"] for job in source.jobs)
    states = Counter(str(job.status["state"]) for job in newest.values())
    nodes = _nodes(source.jobs, recent)
    by_cause = causes(restarts)
    return {
        "since": moment(source.since),
        "as_of": moment(source.now),
        "summary": _summary(states, lives, by_cause, nodes, total),
        "jobs": sorted(
            (
                {**_job(*each), "lives": lives[each[0].status["id"]]}
                for each in zip(source.jobs, accounts, recent, strict=True)
            ),
            key=lambda row: -(row["lost_s"] + row["down_s"]),
        ),
        "states": dict(states),
        "time": time_values(total),
        "causes": by_cause,
        "nodes": nodes,
        "faults": _faults(source.jobs, recent),
        "gaps": list(source.gaps),
    }


def _since(restarts: Sequence[Restart], since: float) -> list[Restart]:
    return [r for r in restarts if (seconds(r.record["at"]) or 0.0) >= since]


def _sum(accounts: Sequence[Account]) -> Account:
    stages = {
        name: took
        for name in (*STAGES, "other")
        if (took := sum(one.stages_s.get(name, 0.0) for one in accounts))
    }
    return Account(
        total_s=sum(one.total_s for one in accounts),
        wait_s=sum(one.wait_s for one in accounts),
        training_s=sum(one.training_s for one in accounts),
        down_s=sum(one.down_s for one in accounts),
        lost_s=sum(one.lost_s for one in accounts),
        paused_s=sum(one.paused_s for one in accounts),
        has_unknown_loss=any(one.has_unknown_loss for one in accounts),
        stages_s=stages,
    )


def _job(job: JobSource, time: Account, recent: Sequence[Restart]) -> dict[str, Any]:
    values = time_values(time)
    return {
        "id": job.status["id"],
        "life": job.life,
        "state": job.status["state"],
        "restarts": sum(r.record["refused_by"] is None for r in recent),
        **{key: values[key] for key in ("total_s", "down_s", "lost_s", "ettr")},
    }


def _nodes(jobs: Sequence[JobSource], recent: Sequence[Sequence[Restart]]) -> list[dict[str, Any]]:
    """Nodes with faults of their own, the worst first. A fault that took two levels counts once."""
    rows: dict[str, dict[str, Any]] = {}
    for job, restarts in zip(jobs, recent, strict=True):
        incidents = {(r.record["phase"], r.record["incident"]): r for r in reversed(restarts)}
        # The first record of an incident has all of its down time.
        for restart in incidents.values():
            fault = restart.record["fault"]
            if fault["node"] is None or not is_of_node(restart.record):
                continue
            empty: dict[str, Any] = {"node": fault["node"], "faults": 0, "down_s": 0.0}
            row = rows.setdefault(fault["node"], {**empty, "causes": Counter(), "jobs": set()})
            row["faults"] += 1
            row["down_s"] += restart.down_s
            row["causes"][fault["class"]] += 1
            row["jobs"].add(job.status["id"])
    node_rows = sorted(rows.values(), key=lambda row: (-row["faults"], -row["down_s"], row["node"]))
    return [
        {
            **row,
            "down_s": round(row["down_s"], 3),
            "causes": dict(row["causes"].most_common()),
            "jobs": sorted(row["jobs"]),
        }
        for row in node_rows
    ]


def _faults(jobs: Sequence[JobSource], recent: Sequence[Sequence[Restart]]) -> list[dict[str, Any]]:
    """Each fault, the oldest first; one that took two levels counts once. `simulate --trace` reads them."""
    rows: list[dict[str, Any]] = []
    for job, restarts in zip(jobs, recent, strict=True):
        incidents = {(r.record["phase"], r.record["incident"]): r for r in reversed(restarts)}
        for restart in incidents.values():
            fault = restart.record["fault"]
            node = fault["node"] if is_of_node(restart.record) else None
            row = {"job": job.status["id"], "at": restart.record["at"]}
            rows.append({**row, "class": fault["class"], "node": node})
    return sorted(rows, key=lambda row: str(row["at"]))


def _summary(
    states: Counter[str],
    lives: Counter[str],
    by_cause: Sequence[Value],
    nodes: Sequence[Value],
    time: Account,
) -> list[str]:
    ended = sum(n for state, n in states.items() if state in ENDS)
    listed = ", ".join(f"{n} {state}" for state, n in states.most_common())
    total = sum(row["restarts"] for row in by_cause)
    most = "by" if total == 1 else "most of them by"
    cause = f", {most} {_most(by_cause)['class']}" if total else ""
    node = f" {nodes[0]['node']} broke most, {count(nodes[0]['faults'], 'time')}." if nodes else ""
    times = f" in {lives.total()} lives" if len(lives) < lives.total() else ""
    return [
        f"{count(len(lives), 'job')} ran{times}, of which {ended} ended{f' ({listed})' if listed else ''}.",
        f"There {'was' if total == 1 else 'were'} {count(total, 'restart')}{cause}.{node}",
        f"The jobs trained for {percent(time.ettr)} of the time since their first steps: {losses(time)}.",
    ]


def _most(by_cause: Sequence[Value]) -> Value:
    return max(by_cause, key=lambda row: row["restarts"])
