"""Every time-out, retry and cancellation of ours on one screen. Workflows name none themselves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.common import Priority, RetryPolicy, VersioningBehavior
from temporalio.workflow import (
    ActivityCancellationType,
    ChildWorkflowCancellationType,
    ContinueAsNewVersioningBehavior,
    ParentClosePolicy,
)

# Where workers have versions, a workflow stays with that of its run, and a Recovery with that of its job. The
# next run takes the current one.
PINNED = VersioningBehavior.PINNED
UPGRADED = ContinueAsNewVersioningBehavior.AUTO_UPGRADE

TASK_TIMEOUT = timedelta(seconds=3)
"""A worker killed in the middle of a workflow task costs this much, for the server alone can end the task."""

RECOVERY_TASK_TIMEOUT = timedelta(seconds=1)
"""The same within a Recovery. Its history is short, and no local activity is a part of its tasks."""

STICKY_TIMEOUT = timedelta(seconds=1)
"""What every workflow that a killed worker had cached waits before another one takes it over."""

HEARTBEAT = timedelta(seconds=2)
HEARTBEAT_THROTTLE = timedelta(milliseconds=500)

# Steps and the monitor wait for the world, so they may last as long as a job; their heartbeat says
# whether a worker is still at it. A fault of the path to the cluster is tried again for ever; an
# order that came too late is not.
STEP: dict[str, Any] = {
    "start_to_close_timeout": timedelta(days=365),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=500),
        backoff_coefficient=1.0,
        non_retryable_error_types=["StaleGeneration", "InvalidSpec"],
    ),
    # The next step assumes that this one has stopped.
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}

TAKEN_WITHIN = timedelta(seconds=60)
"""The time that a job waits for a worker to take a step before it shows that there is none."""

NOT_REGISTERED = "NotFoundError"
"""The type of the SDK's failure for an activity that the worker does not have."""


def _first(usual: dict[str, Any]) -> dict[str, Any]:
    """Options of the first order of an activity, which ends where no worker takes it or none has it.

    The job shows that and orders it again as usual, so that a long outage adds nothing to its history.
    """
    retries: RetryPolicy = usual["retry_policy"]
    final = [*(retries.non_retryable_error_types or ()), NOT_REGISTERED]
    return {
        **usual,
        "schedule_to_start_timeout": TAKEN_WITHIN,
        "retry_policy": replace(retries, non_retryable_error_types=final),
    }


FIRST_STEP = _first(STEP)

# Pure functions and reads: short, three tries, then the job waits with a visible error.
LOCAL: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=10),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=100),
        maximum_attempts=3,
        non_retryable_error_types=["InvalidSpec"],
    ),
}

# A short call that touches the cluster and is tried again until it works.
CALL: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "heartbeat_timeout": HEARTBEAT,  # who waits for the quarantine does not wait for 30 s
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10)
    ),
}

FIRST_CALL = _first(CALL)

# To isolate or release a node on the cluster: tried a few times, so that a release that comes meanwhile ends
# the tries. The quarantine orders it again, more slowly; a thousand wait where an API server is gone.
FIRST_SETTLING: dict[str, Any] = {
    **CALL,
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_attempts=4),
}
LATER_SETTLING: dict[str, Any] = {
    **CALL,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(seconds=10), backoff_coefficient=1.0, maximum_attempts=4
    ),
}

# A question of an operator's update: its answer is shown as unknown where the cluster gives none soon.
QUESTION: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=3),
    "heartbeat_timeout": HEARTBEAT,
}


def saving(within_s: float) -> dict[str, Any]:
    """A request to save now, which may take so long. A killed worker costs some seconds more."""
    return {
        "schedule_to_close_timeout": timedelta(seconds=within_s + 30.0),
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=500),
            backoff_coefficient=1.0,
            non_retryable_error_types=["StaleGeneration", "WrongCluster"],
        ),
    }


# What is written and told beside everything else: storage or a webhook may be gone for days.
PUBLISH: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(minutes=1)
    ),
    # The one that takes its place begins where it ended.
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}

LAST_LINES = timedelta(seconds=5)
"""The time that pods, and what still runs in them, stay for the lines of run.log that an agent writes.

That takes milliseconds, some four seconds where agents are stopped, and without end where storage hangs.
"""

LAST_WORDS = timedelta(seconds=10)
"""Time limit of the last publication of a job that has ended."""

STUCK_RETRY = timedelta(seconds=30)
"""Seconds until a job tries again after a local activity failed for good; a message wakes it earlier."""

RECOVERY: dict[str, Any] = {
    "task_timeout": RECOVERY_TASK_TIMEOUT,
    # Before all that starts or waits, on a server that orders tasks by it; the fairness key is its job's.
    "priority": Priority(priority_key=1),
    # Its step has to end before the job does anything else.
    "cancellation_type": ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
    # So that it closes in order, and its row says so, when its job is terminated.
    "parent_close_policy": ParentClosePolicy.REQUEST_CANCEL,
}

CANCEL_COMES = timedelta(seconds=5)
"""Within this time the cancel of a Recovery follows on the end of its job, also on a busy server."""

QUARANTINE_PATIENCE = timedelta(seconds=10)
"""The time that a job waits for the quarantine's answer before it isolates for itself."""

EVENTS_KEPT = 4_000
"""The quarantine goes on as a new run before its history grows beyond this."""
