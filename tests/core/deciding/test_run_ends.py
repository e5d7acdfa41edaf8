"""What records and reasons say of runs that ended before a step, or each like the one before."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.chronicle import record_rows, views
from everstep.core.facts import Fact
from everstep.core.levels import Level
from everstep.core.spec import Budget, Policy
from everstep.dialects import responses
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, fact, job_spec, running

EARLY = "success, ended before a step"
UNCONDITIONAL = modelarts(job_retry=8, unconditional=True)


def crash(job: ScriptedJob, exception: str = "ValueError: bad shard 7", **details: Any) -> Fact:
    return fact(
        "process.exit",
        at=job.state.now + 1,
        generation=job.state.generation,
        slot=1,
        rank=1,
        exit_code=1,
        exception=exception,
        **details,
    )


def crashed(job: ScriptedJob, *exceptions: str, steps: tuple[int | None, ...]) -> str:
    """The reason of the last decision, after a crash for each of the exceptions."""
    for exception, step in zip(exceptions, steps, strict=True):
        if step is not None:
            job.report(step=step)
        job.see(crash(job, exception, at_step=step))
        if job.decisions[-1].is_executed:
            job.succeeds()
    return job.decisions[-1].reason


SAME = ("ValueError: bad shard at 0x7f3a", "ValueError: bad shard at 0x1b2c") * 2


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        (Policy(), 4),
        (UNCONDITIONAL, 4),
        (Policy(budgets=(Budget(name="all", limit=2, levels=(*Level,)),)), 3),
    ],
    ids=["no progress", "a series", "a budget"],
)
def test_the_same_exception_at_the_same_step_is_probably_the_code(
    policy: Policy, times: int
) -> None:
    job = running(policy)
    reason = crashed(job, *SAME[:times], steps=(34,) * times)
    assert job.decisions[-1].level is Level.FAIL
    sentence = f"ValueError at step 34, {times} times in a row: probably the code or the data"
    assert reason.endswith(sentence)
    assert job.state.ending_reason.endswith(sentence)


@pytest.mark.parametrize(
    ("exception", "means"),
    [
        ("OSError: [Errno 28] No space left on device", "make room or mend it, or write elsewhere"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "another node can help"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "a smaller batch or more devices help"),
    ],
)
def test_an_exception_that_says_its_cause_is_not_laid_on_the_code(
    exception: str, means: str
) -> None:
    reason = crashed(running(), *(exception,) * 4, steps=(34,) * 4)
    assert reason.endswith(means)
    assert "probably the code" not in reason


def test_another_node_is_named_only_where_a_restart_may_use_one() -> None:
    """A restart in the same containers comes first, and stays on the node."""
    job = running()
    lost = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    crashed(job, *(lost,) * 4, steps=(34,) * 4)
    levels = [decision.level for decision in job.decisions]
    assert levels == [Level.IN_PLACE, Level.POD, Level.JOB, Level.FAIL]
    sentences = ["another node can help" in decision.reason for decision in job.decisions]
    assert sentences == [False, True, True, True]


OTHER_ENDS = (
    ("another exception", ("ValueError: a", "KeyError: a") * 2, (34,) * 4),
    ("another step", ("ValueError: a",) * 4, (34, 33, 34, 33)),
    ("no exception", ("",) * 4, (34,) * 4),
)


@pytest.mark.parametrize(
    ("exceptions", "steps"), [row[1:] for row in OTHER_ENDS], ids=[row[0] for row in OTHER_ENDS]
)
def test_crashes_that_are_not_alike_blame_nobody(
    exceptions: tuple[str, ...], steps: tuple[int, ...]
) -> None:
    reason = crashed(running(), *exceptions, steps=steps)
    assert "no progress after 3 restarts" in reason
    assert "probably" not in reason


def test_progress_in_between_begins_the_count_anew() -> None:
    job = running()
    crashed(job, *SAME[:3], steps=(34,) * 3)
    job.saves(30)
    assert "4 times in a row" in crashed(job, *SAME, steps=(34,) * 4)


def test_another_recovery_in_between_begins_the_count_anew() -> None:
    job = running(Policy(no_progress_restarts=4))
    crashed(job, *SAME[:3], steps=(34,) * 3)
    job.see(fact("device.fault", node="n2", device=0, code="80E01801"))
    job.succeeds()
    assert "probably" not in crashed(job, *SAME[:2], steps=(34,) * 2)


def test_a_restart_whose_ranks_end_before_a_step_says_so() -> None:
    job = running()
    job.report(step=34)
    job.see(crash(job, at_step=34))
    job.succeeds()
    job.see(crash(job))
    job.succeeds()
    job.report(step=35)
    job.see(crash(job, at_step=35))
    first, second = responses.restarts(job.chronicle)[:2]
    assert (first["recover_result"], first["ended"]) == ("success", "ended before a step")
    assert first["stages_s"]["first_step"] is None
    assert record_rows.result(first) == EARLY
    early_in_words = EARLY.replace("success", "started")
    assert early_in_words in record_rows.story(first)
    assert early_in_words in views.page(job.state, job.chronicle).replace("\u00a0", " ")
    assert (second["ended"], record_rows.result(second)) == (None, "success")


def test_the_reason_that_ends_the_job_says_how_many_ended_before_a_step() -> None:
    job = running(log_pattern="iteration (?P<step>[0-9]+)")
    job.report(step=34)
    reason = crashed(job, "", "", "", "", steps=(34, None, None, None))
    assert reason == (
        "no progress after 3 restarts; the last: exit code 1; "
        "the last 3 restarts ended before a step"
    )
    assert {r["ended"] for r in responses.restarts(job.chronicle)} == {"ended before a step"}


def test_of_a_job_that_never_showed_a_step_it_is_not_said_that_it_made_none() -> None:
    job = running()
    reason = crashed(job, *["NameError: torhc"] * 4, steps=(None,) * 4)
    assert "NameError before a step was seen, 4 times in a row" in reason
    assert {r["ended"] for r in responses.restarts(job.chronicle)} == {
        "ended before a step was seen"
    }


def test_a_first_start_that_ends_early_is_no_restart_that_did() -> None:
    job = ScriptedJob(spec=job_spec(Policy(no_progress_restarts=0))).launches()
    assert "restart ended" not in crashed(job, "", steps=(None,))


def test_a_restart_that_an_operator_ends_did_not_end_by_itself() -> None:
    job = running()
    job.see(crash(job))
    job.succeeds()
    job.see(fact("operator.restart", level="job"))
    assert [r["ended"] for r in responses.restarts(job.chronicle)] == [None, None]
