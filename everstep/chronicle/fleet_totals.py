"""The totals of all jobs of a cluster: each job's newest totals by its key, and their sum.

A job sends all of its totals with everything that it publishes. They replace those of before (`with_report`):
a repeat, a killed worker or a reset job adds nothing twice. All of it goes from run to run in one payload, so
that jobs and names are bounded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.counters import BUCKETS_S, sum_of_totals

ENDED_KEPT = 100
"""Ended jobs that are kept apart: what a job sends again after a reset replaces what it sent before."""
JOBS_KEPT = 1_000
"""The most jobs, running ones included: one that is terminated never reports its end."""
JOBS_BYTES_MOST = 1_200_000
"""Their size as JSON."""
REPORT_BYTES_MOST = 100_000
"""The size of one. A larger one was not made by a job, and is left out."""
SUMMED_KEPT = 5_000
"""Jobs that are in `earlier`: what they report later is left out, as it would count twice."""
NAMES_KEPT = 100
"""Names of restarts, budgets and so on in `earlier`. Further ones are `other`."""
NAME_BYTES_MOST = 200

PARTS_MOST = 3
"""Parts of a name: `class/level/result`."""

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The totals of one job, as it sent them."""

    key: str  # job and first run: an ID may be used again
    at: float  # by the clock of the job's cluster
    totals: JobTotals
    size: int = 0  # bytes as JSON, measured once it is here


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The totals of all jobs of a cluster, since its first one."""

    jobs: Mapping[str, JobReport] = field(default_factory=dict)  # the newest last
    earlier: JobTotals = field(default_factory=JobTotals)  # of jobs that are not kept apart
    summed: tuple[str, ...] = ()  # these jobs, the newest: hashes of their keys
    earlier_ends: Mapping[str, int] = field(default_factory=dict)  # how these ended


def with_report(fleet: FleetTotals, report: JobReport) -> FleetTotals:
    """Replace the totals of one job. A report older than the stored one arrived late and changes nothing."""
    report = replace(report, size=len(json.dumps(asdict(report)).encode()))
    before = fleet.jobs.get(report.key)
    is_late = before is not None and before.at > report.at
    if is_late or report.size > REPORT_BYTES_MOST or _hash(report.key) in fleet.summed:
        return fleet
    other_jobs = {key: job for key, job in fleet.jobs.items() if key != report.key}
    fleet = replace(fleet, jobs={**other_jobs, report.key: report})
    for key in tuple(_excess(fleet)):
        fleet = _sum_up(fleet, key)
    return fleet


def _excess(fleet: FleetTotals) -> Iterator[str]:
    """The jobs for which there is no room: ended ones but for the newest ENDED_KEPT, then the oldest."""
    ended = [key for key, job in fleet.jobs.items() if job.totals.ended]
    # In order: a workflow has to come to the same sums again.
    excess = dict.fromkeys(ended[: max(len(ended) - ENDED_KEPT, 0)])
    yield from excess
    left = {key: job.size for key, job in fleet.jobs.items() if key not in excess}
    count, size = len(left), sum(left.values())
    for key, job_size in left.items():
        if count <= JOBS_KEPT and size <= JOBS_BYTES_MOST:
            return
        count, size = count - 1, size - job_size
        yield key


def _sum_up(fleet: FleetTotals, key: str) -> FleetTotals:
    """Add the totals of the job to `earlier`."""
    totals = fleet.jobs[key].totals
    ends = fleet.earlier_ends
    if totals.ended:
        ends = _with_bounded_names({**ends, totals.ended: ends.get(totals.ended, 0) + 1})
    return replace(
        fleet,
        jobs={other: job for other, job in fleet.jobs.items() if other != key},
        earlier=_bounded(sum_of_totals(fleet.earlier, totals)),
        earlier_ends=ends,
        summed=(*fleet.summed, _hash(key))[-SUMMED_KEPT:],
    )


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()[:12]


def _bounded(totals: JobTotals) -> JobTotals:
    """The totals with a bounded number of names."""
    buckets = range(len(BUCKETS_S) + 1)
    stages = {
        name: {n: value for n, value in stage.items() if n in buckets}
        for name, stage in list(totals.stages.items())[:NAMES_KEPT]
        if len(name.encode(errors="replace")) <= NAME_BYTES_MOST
    }
    return replace(
        totals,
        restarts=_with_bounded_names(totals.restarts),
        stages=stages,
        time_s=_with_bounded_names(totals.time_s),
        lost_s=_with_bounded_names(totals.lost_s),
        budgets=_with_bounded_names(totals.budgets),
    )


def _with_bounded_names(counts: Mapping[str, Number]) -> dict[str, Number]:
    """The counts, those of too many or too long names as one: `other`, with as many parts as they have."""
    bounded: dict[str, Number] = {}
    for name, count in counts.items():
        is_new = name not in bounded and len(bounded) >= NAMES_KEPT
        if is_new or len(name.encode(errors="replace")) > NAME_BYTES_MOST:
            parts = min(name.count("/") + 1, PARTS_MOST)
            rest = "/".join(["other"] * parts)
            bounded[rest] = bounded.get(rest, 0) + count
        else:
            bounded[name] = bounded.get(name, 0) + count
    return bounded


def summed(fleet: FleetTotals) -> JobTotals:
    """The totals of all jobs that ever were."""
    total = fleet.earlier
    for job in fleet.jobs.values():
        total = sum_of_totals(total, job.totals)
    return replace(total, ended="")


def ends(fleet: FleetTotals) -> dict[str, int]:
    """The number of ended jobs by how they ended."""
    counts = dict(fleet.earlier_ends)
    for job in fleet.jobs.values():
        if job.totals.ended:
            counts[job.totals.ended] = counts.get(job.totals.ended, 0) + 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSum:
    """The totals of all jobs, as they are exported."""

    totals: JobTotals
    ends: Mapping[str, int]
