"""Pods that fail one after the other before their agent answers: a job that never ran ends with that."""

from __future__ import annotations

from everstep.core.facts import PODS_FAILED
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.recovering.placement import start_failures_reason
from everstep.core.spec import Policy
from everstep.core.world import PlaceState
from tests.support.builders import ScriptedJob, job_spec, running, sighting

WORDS = "pod demo-0-g1: failed 4 times before its agent answered: exit code 7"


def test_a_launch_whose_pods_fail_ends_the_job_with_their_last_words() -> None:
    job = ScriptedJob(spec=job_spec(Policy()))
    decision = job.fails(PODS_FAILED, at=Step.PLACE, message=WORDS)
    assert decision.level is Level.FAIL
    assert WORDS in decision.reason
    assert "what never ran is not tried again" in decision.reason


def test_a_job_that_ran_takes_its_next_level_where_new_pods_fail() -> None:
    job = running(Policy())
    job.see(sighting(FaultClass.NODE))
    assert job.fails(PODS_FAILED, at=Step.PLACE, message=WORDS).level is Level.JOB


def test_pods_are_tried_until_one_more_than_the_limit_failed() -> None:
    failed = PlaceState(placed=False, start_failures=4, failure=WORDS)
    assert start_failures_reason(3, failed) == WORDS
    allowed = ((4, failed), (None, failed), (0, PlaceState(placed=False)))
    assert [start_failures_reason(most, state) for most, state in allowed] == ["", "", ""]
