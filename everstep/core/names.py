"""Public names: workflows, queues, queries, search attributes. Pinned."""

from __future__ import annotations

import re
from collections.abc import Mapping

TASK_QUEUE = "everstep"
TRAINING_JOB = "TrainingJob"
RECOVERY = "Recovery"
NODE_QUARANTINE = "NodeQuarantine"
JANITOR = "Janitor"
FLEET_TOTALS = "FleetTotals"

RECOVERY_FAILED = "RecoveryFailed"
"""The type of the failure of a Recovery whose level failed; its details are the outcome."""

SENTENCE_FAILURES = frozenset(
    {"InvalidSpec", "JobFailed", RECOVERY_FAILED, "CommandRejected", "ClusterRefused"}
)
"""Types of failures that are a sentence for people: where in our code they were raised says nothing."""

KEYWORDS = (
    "TrainJob",
    "TrainState",
    "TrainPhase",
    "TrainCluster",
    "FaultClass",
    "FaultCode",
    "RecoveryLevel",
    "RecoveryResult",
)
INTS = ("Restarts", "LastStep")
KEYWORD_LISTS = ("FaultNodes", "IsolatedNodes")


RECORD_RESULT: Mapping[str, str] = {
    "success": "success",
    "failed": "downgrade",
    "superseded": "terminated",
}
"""The outcome of a Recovery -> `recover_result` of its record."""


def cluster_queue(cluster: str) -> str:
    """Where activities run that touch this cluster."""
    return f"{TASK_QUEUE}-{cluster}"


ID_MOST = 1_000
"""Bytes of a workflow's ID that the server takes."""


def recovery_key(*, phase: str, n: int, level: str, cls: str, node: str | None) -> str:
    """`<phase>/recovery-<n>-<level>-<class>[-<node>]`: IDs alone show the story in a list."""
    where = "" if node is None else "-" + re.sub(r"[^\w.-]", "_", node)
    return f"{phase}/recovery-{n}-{level}-{cls}{where}"


def recovery_id(job: str, key: str) -> str:
    """`<job id>/<key>`, cut to what the server takes: what is lost stands behind the number."""
    return f"{job}/{key}".encode()[:ID_MOST].decode(errors="ignore")


def next_key(key: str) -> str:
    """The key for the same restart where another workflow has the ID of this one: `recovery-3~2-...`."""
    before, number, after = re.split(r"(/recovery-\d+(?:~\d+)?)", key, maxsplit=1)
    first, _, times = number.partition("~")
    return f"{before}{first}~{int(times or 1) + 1}{after}"


ID_SHOWN = 100
JOB_ID_MOST = 940
"""Bytes of a job's ID: of those of a restart, `/<phase>/recovery-<n>` has to find room too."""


RESERVED_ID = re.compile(r"(janitor|quarantine|totals)/|.*/recovery-", re.DOTALL)
"""What the IDs of our other workflows begin with; no job may have one of them."""


def refused(job: str) -> str | None:
    """Why this cannot be the ID of a job, or None."""
    if RESERVED_ID.match(job):
        return (
            f"id: {job[:ID_SHOWN]} has the shape of the IDs of restarts, janitors, quarantines and totals; "
            "start the job under another one"
        )
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


def totals_id(cluster: str) -> str:
    return f"totals/{cluster}"


def filter_value(text: str) -> str:
    """A text as a value in a filter of the list of workflows."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
