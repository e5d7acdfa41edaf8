"""An activity that fails again and again shows in `status`, also where no code of ours ran."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.api.common.v1 import ActivityType
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo

from everstep.client.jobs.status import with_failing

PODS = [{"slot": 0, "state": "running"}, {"slot": 1, "state": "lost"}]
RUNNING: dict[str, Any] = {"state": "running", "waiting_for": None, "warnings": [], "pods": PODS}


def pending(name: str, attempt: int, why: str = "no such activity") -> PendingActivityInfo:
    kind, failure = ActivityType(name=name), Failure(message=why)
    return PendingActivityInfo(activity_type=kind, attempt=attempt, last_failure=failure)


def test_a_job_whose_monitor_fails_is_unreachable_and_waits_for_it() -> None:
    status = with_failing(RUNNING, [pending("monitor", 5)])
    text = "monitor, which failed 4 times: no such activity"
    assert (status["state"], status["waiting_for"]) == ("unreachable", text)
    assert status["waiting_reason"] == "ActivityFailing"
    assert [warning["message"] for warning in status["warnings"]] == [text]


def test_no_pod_of_a_job_whose_monitor_fails_is_shown_running() -> None:
    """As after its record was deleted, which takes the pods with it. A lost one is not seen better."""
    failing = with_failing(RUNNING, [pending("monitor", 5)])
    assert [pod["state"] for pod in failing["pods"]] == ["unreachable", "lost"]
    assert with_failing(RUNNING, [pending("publish", 9)])["pods"] == PODS


def test_what_the_job_itself_waits_for_stays() -> None:
    job = {**RUNNING, "state": "launching", "waiting_for": "room for 1 more pod"}
    status = with_failing(job, [pending("place", 9)])
    assert status["waiting_for"] == "room for 1 more pod"
    assert len(status["warnings"]) == 1


def test_no_job_waits_for_what_is_published_beside_it() -> None:
    status = with_failing(RUNNING, [pending("publish", 9, "the disk is full")])
    assert (status["state"], status["waiting_for"]) == ("running", None)
    assert status["warnings"][0]["message"].endswith("the disk is full")


def test_a_monitor_that_outlived_many_workers_fails_only_until_the_next_one_beats() -> None:
    lost = pending("monitor", 9, "activity Heartbeat timeout")
    lost.state = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    lost.last_failure.timeout_failure_info.SetInParent()
    lost.last_started_time.FromSeconds(100)
    lost.last_heartbeat_time.FromSeconds(99)
    assert with_failing(RUNNING, [lost])["state"] == "unreachable"
    lost.last_heartbeat_time.FromSeconds(101)
    assert with_failing(RUNNING, [lost]) == RUNNING


def test_a_monitor_that_failed_for_a_while_fails_until_an_attempt_lasts() -> None:
    """As it does where EVERSTEP_HOME was away and is back."""
    failed = pending("monitor", 33, "EVERSTEP_HOME was moved")
    failed.state = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    failed.last_started_time.FromSeconds(100)
    failed.last_heartbeat_time.FromSeconds(102)
    assert with_failing(RUNNING, [failed])["state"] == "unreachable"
    failed.last_heartbeat_time.FromSeconds(106)
    assert with_failing(RUNNING, [failed]) == RUNNING


@pytest.mark.parametrize(
    "activities",
    [[], [pending("monitor", 4)], [PendingActivityInfo(attempt=9)]],  # the last one never failed
)
def test_a_few_failures_are_no_word(activities: list[PendingActivityInfo]) -> None:
    assert with_failing(RUNNING, activities) == RUNNING
