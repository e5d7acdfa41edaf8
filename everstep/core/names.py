"""The names by which the outside knows us: workflows, queues, queries, search attributes. Pinned."""

from __future__ import annotations

TASK_QUEUE = "everstep"
TRAINING_JOB = "TrainingJob"
RECOVERY = "Recovery"
NODE_QUARANTINE = "NodeQuarantine"
JANITOR = "Janitor"

KEYWORDS = (
    "TrainJob",
    "TrainState",
    "TrainPhase",
    "TrainCluster",
    "FaultClass",
    "FaultCode",
    "RecoveryLevel",
)
INTS = ("Restarts", "LastStep")
KEYWORD_LISTS = ("FaultNodes", "IsolatedNodes")


def cluster_queue(cluster: str) -> str:
    """Where activities run that touch this cluster."""
    return f"{TASK_QUEUE}-{cluster}"


def recovery_id(job: str, key: str) -> str:
    """`<job id>/<phase>/recovery-<n>`; `key` is the plan's."""
    return f"{job}/{key}"


JOB_ID_MOST = 940
"""Bytes of a job's ID: of 1,000 that the server takes, `/<phase>/recovery-<n>` has to find room too."""


def too_long(job: str) -> str | None:
    """Why this cannot be the ID of a job: its first restart could never begin."""
    if (size := len(job.encode())) <= JOB_ID_MOST:
        return None
    return (
        f"id: the workflow's ID has {size} bytes and may have {JOB_ID_MOST}: each of its restarts is "
        "a workflow named after it; start it under a shorter one"
    )


def quarantine_id(cluster: str) -> str:
    return f"quarantine/{cluster}"


def janitor_id(cluster: str) -> str:
    return f"janitor/{cluster}"
