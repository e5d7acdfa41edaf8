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
RESTARTS = Instrument(
    "everstep.restarts",
    "{restart}",
    ("cause", "level", "result"),
    "Restart records of all jobs, those that a budget refused included.",
)
STAGES = Instrument(
    "everstep.restart.stage.duration",
    "s",
    ("stage",),
    "How long a stage of a restart took: detect, decide, stop, heal, place, start, first_step.",
)
ENDS = Instrument("everstep.jobs.ended", "{job}", ("result",), "Jobs that ended, by how they did.")
OWN = (JOBS, ISOLATED_NODES, LONGEST_ISOLATION, RESTARTS, STAGES, ENDS)
