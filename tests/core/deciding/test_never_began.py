"""A command that cannot be found is tried once: no restart finds it."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.spec import Match, Policy, Rule
from tests.support.builders import ScriptedJob, fact, job_spec, running, sighting

NO_FILE = "python3: can't open file '/a/train.py': [Errno 2] No such file or directory"


def ended(code: int, last: str, **more: Any) -> Fact:
    details = {"exit_code": code, "log": f"something before\n{last}\n", **more}
    return fact("process.exit", slot=0, rank=0, message=f"exit code {code}: {last}", **details)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        (2, NO_FILE),
        (1, "/usr/bin/python3.11: No module named train"),
        (2, "sh: 0: cannot open train.sh: No such file"),
        (127, "/bin/sh: 1: nosuch: not found"),
        (126, "/bin/sh: 1: ./train.sh: Permission denied"),
    ],
)
def test_what_never_ran_fails_at_once_with_its_last_words(code: int, last: str) -> None:
    decision = running().see(ended(code, last))
    assert decision.level is Level.FAIL
    assert last in decision.reason


def test_a_start_that_failed_at_the_launch_is_not_tried_again() -> None:
    job = ScriptedJob(spec=job_spec())
    decision = job.fails("start.failed", at=Step.START, slot=0, message="nosuch: No such file")
    assert decision.level is Level.FAIL
    assert "nosuch: No such file" in decision.reason
    assert job.records == ()


def test_a_start_that_failed_after_a_launch_that_had_to_be_repaired_is_not_tried_again() -> None:
    job = ScriptedJob(spec=job_spec())
    job.fails("pod.gone", at=Step.START, slot=0)
    decision = job.fails("start.failed", at=Step.START, slot=0, message="nosuch: No such file")
    assert decision.level is Level.FAIL


def test_what_ran_once_is_tried_elsewhere() -> None:
    job = running()
    job.report("refresh", step=5)
    assert job.see(ended(2, NO_FILE)).level is Level.IN_PLACE
    assert job.fails("start.failed", at=Step.START, slot=0).level is Level.POD


def test_a_second_run_is_tried_elsewhere() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    assert job.see(ended(2, NO_FILE)).level is not Level.FAIL


def test_another_end_before_a_step_is_tried_again() -> None:
    assert running().see(ended(2, "train.py: error: no data")).level is Level.IN_PLACE


def test_a_rule_of_the_document_has_the_last_word() -> None:
    rule = Rule(match=Match(exit_code=(2,)), action="levels", levels=(Level.JOB,))
    assert running(Policy(rules=(rule,))).see(ended(2, NO_FILE)).level is Level.JOB
