"""The metrics of ours: name, kind, unit, meaning, labels. docs/observability.md is written from this table.

Names follow the conventions of OpenTelemetry; Prometheus shows `everstep.jobs` as `everstep_jobs`. No
label names a job or a pod: there may be any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric."""

    name: str
    unit: str
    labels: tuple[str, ...]
    meaning: str


JOBS = Instrument(
    "everstep.jobs", "{job}", ("state",), "Open jobs by state; `launching` ones wait for places."
)
ISOLATED_NODES = Instrument(
    "everstep.nodes.isolated", "{node}", ("cluster",), "Nodes in the quarantine of the cluster."
)
LONGEST_ISOLATION = Instrument(
    "everstep.nodes.isolated.longest", "s", ("cluster",), "The longest isolation that still lasts."
)
OWN = (JOBS, ISOLATED_NODES, LONGEST_ISOLATION)

BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400)
"""Of every duration: from 50 ms to hours."""
