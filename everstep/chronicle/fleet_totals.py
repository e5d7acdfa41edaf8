"""The totals of all jobs of a cluster: each job's newest totals by its key, and their sum.

A job sends all of its totals with everything that it publishes. They replace those of before (`with_report`):
a repeat, a killed worker or a reset job adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.counters import sum_of_totals

ENDED_KEPT = 100
"""So many ended jobs are kept apart: what a job sends again after a reset replaces what it sent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The totals of one job, as it sent them."""

    key: str  # job and first run: an ID may be used again
    at: float  # by the clock of the job's cluster
    totals: JobTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """The totals of all jobs of a cluster, since its first one."""

    jobs: Mapping[str, JobReport] = field(default_factory=dict)  # the newest last
    earlier: JobTotals = field(default_factory=JobTotals)  # of ended jobs that are not kept apart
    earlier_ends: Mapping[str, int] = field(default_factory=dict)  # how these ended


def with_report(fleet: FleetTotals, report: JobReport) -> FleetTotals:
    """Replace the totals of one job. A report older than the stored one arrived late and changes nothing."""
    before = fleet.jobs.get(report.key)
    if before is not None and before.at > report.at:
        return fleet
    other_jobs = {key: job for key, job in fleet.jobs.items() if key != report.key}
    return _bounded(replace(fleet, jobs={**other_jobs, report.key: report}))


def _bounded(fleet: FleetTotals) -> FleetTotals:
    """Move the totals of ended jobs to `earlier`, but for the newest ENDED_KEPT."""
    ended = [key for key, job in fleet.jobs.items() if job.totals.ended]
    for key in ended[: max(len(ended) - ENDED_KEPT, 0)]:
        totals = fleet.jobs[key].totals
        count = fleet.earlier_ends.get(totals.ended, 0)
        fleet = replace(
            fleet,
            jobs={other: job for other, job in fleet.jobs.items() if other != key},
            earlier=sum_of_totals(fleet.earlier, totals),
            earlier_ends={**fleet.earlier_ends, totals.ended: count + 1},
        )
    return fleet


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
