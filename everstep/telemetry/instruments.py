"""The metrics of ours: name, kind, unit, meaning, labels. docs/observability.md is written from this table.

Names follow the conventions of OpenTelemetry; Prometheus shows `everstep.jobs` as `everstep_jobs`. No
label names a job or a pod: there may be any number of them. Each has the label `cluster` besides those here.
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
LONGEST_WAIT = Instrument(
    "everstep.jobs.waiting.longest",
    "s",
    (),
    "The longest that a `launching` phase has waited for its start.",
)
ISOLATED_NODES = Instrument(
    "everstep.nodes.isolated", "{node}", (), "Nodes in the quarantine of the cluster."
)
LONGEST_ISOLATION = Instrument(
    "everstep.nodes.isolated.longest", "s", (), "The longest isolation that still lasts."
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
    "How long a stage of a restart took: detect, decide, space, stop, heal, place, start, first_step.",
)
ENDS = Instrument("everstep.jobs.ended", "{job}", ("result",), "Jobs that ended, by how they did.")
TIME = Instrument(
    "everstep.job.time",
    "s",
    ("use",),
    "Time of all jobs by use: wait, training, down, lost (steps done again), paused.",
)
LOST_TIME = Instrument(
    "everstep.time.lost",
    "s",
    ("cause", "kind"),
    "What each class of fault cost: down, and again (steps that were done again).",
)
TRAINING_RATIO = Instrument(
    "everstep.training.ratio",
    "1",
    (),
    "Effective training time ratio of all jobs: training, over all time since their first steps.",
)
BUDGETS = Instrument(
    "everstep.budget.used",
    "{unit}",
    ("budget",),
    "Units of budgets that all jobs have used; those that were returned are taken off.",
)
HANG_MARGIN = Instrument(
    "everstep.hang.margin",
    "1",
    (),
    "The least share of a hang limit that is left, over the jobs that this worker monitors.",
)
UNREACHABLE_AGENTS = Instrument(
    "everstep.agents.unreachable",
    "{agent}",
    (),
    "Agents that do not answer, of the jobs that this worker monitors.",
)
SLOW_RANKS = Instrument(
    "everstep.ranks.slow",
    "{rank}",
    (),
    "Ranks that fall behind their peers, of the jobs that this worker monitors.",
)
UNREACHABLE_CLUSTER = Instrument(
    "everstep.cluster.unreachable",
    "s",
    (),
    "How long the cluster (its API server, its database) has not answered this worker; 0: it answers.",
)
UNREACHABLE_WEBHOOK = Instrument(
    "everstep.webhook.unreachable",
    "s",
    (),
    "How long the webhook has taken no notice of this worker; 0: it took the last one.",
)
FLEET = (JOBS, LONGEST_WAIT, ISOLATED_NODES, LONGEST_ISOLATION)
TOTALS = (RESTARTS, STAGES, ENDS, TIME, LOST_TIME, TRAINING_RATIO, BUDGETS)
WORKER = (HANG_MARGIN, SLOW_RANKS, UNREACHABLE_AGENTS, UNREACHABLE_CLUSTER, UNREACHABLE_WEBHOOK)
OWN = (*FLEET, *TOTALS, *WORKER)
