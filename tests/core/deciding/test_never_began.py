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


# -- A module that cannot be imported --------------------------------------------------------------

NO_MODULE = "ModuleNotFoundError: No module named 'einops'"


def lacks(job: ScriptedJob, exception: str = NO_MODULE, *, slot: int = 0) -> Level:
    end: dict[str, Any] = {"exit_code": 1, "exception": exception, "slot": slot, "rank": slot}
    generation = job.state.generation
    return job.see(fact("process.exit", generation=generation, message="", **end)).level


@pytest.mark.parametrize(
    "exception",
    [NO_MODULE, "ImportError: cannot import name 'Muon' from 'torch.optim' (/opt/torch/optim.py)"],
)
def test_an_import_is_tried_once_more_in_new_pods(exception: str) -> None:
    job = running()
    assert lacks(job, exception) is Level.JOB
    assert "an import is tried once more, in new pods" in job.decisions[-1].reason
    job.succeeds()
    assert lacks(job, exception, slot=1) is Level.FAIL
    assert "the same import failed again in new pods" in job.state.ending_reason


def test_an_import_that_fails_of_another_module_is_tried_once_more_too() -> None:
    job = running()
    lacks(job)
    job.succeeds()
    assert lacks(job, "ModuleNotFoundError: No module named 'triton'") is Level.JOB


def test_a_mount_that_comes_late_lets_the_job_begin() -> None:
    job = running()
    lacks(job)
    job.succeeds()
    job.report("refresh", step=5)
    assert lacks(job) is not Level.FAIL, "it trained, so its module was there"


def test_an_import_of_a_job_that_trained_is_a_crash_as_any_other() -> None:
    job = running()
    job.saves(30)
    assert lacks(job) is Level.IN_PLACE


def test_a_ladder_or_a_rule_of_the_document_answers_an_import() -> None:
    rule = Rule(match=Match(exit_code=(1,)), action="levels", levels=(Level.POD,))
    job = running(Policy(rules=(rule,)))
    for _ in range(2):
        assert lacks(job) is Level.POD
        job.succeeds()
