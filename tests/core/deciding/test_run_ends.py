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
from tests.support.builders import Told, fact, job_spec, running

EARLY = "success, ended before a step"
UNCONDITIONAL = modelarts(job_retry=8, unconditional=True)


def crash(told: Told, exception: str = "ValueError: bad shard 7", **said: Any) -> Fact:
    return fact(
        "process.exit",
        at=told.state.now + 1,
        generation=told.state.generation,
        slot=1,
        rank=1,
        exit_code=1,
        exception=exception,
        **said,
    )


def crashed(told: Told, *exceptions: str, steps: tuple[int | None, ...]) -> str:
    """The reason of the last decision, after a crash for each of the exceptions."""
    for exception, step in zip(exceptions, steps, strict=True):
        if step is not None:
            told.report(step=step)
        told.see(crash(told, exception, at_step=step))
        if told.decisions[-1].is_executed:
            told.succeeds()
    return told.decisions[-1].reason


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
    told = running(policy)
    reason = crashed(told, *SAME[:times], steps=(34,) * times)
    assert told.decisions[-1].level is Level.FAIL
    said = f"ValueError at step 34, {times} times in a row: probably the code or the data"
    assert reason.endswith(said)
    assert told.state.ending_reason.endswith(said)


OTHERS = (
    ("another exception", ("ValueError: a", "KeyError: a") * 2, (34,) * 4),
    ("another step", ("ValueError: a",) * 4, (34, 33, 34, 33)),
    ("no exception", ("",) * 4, (34,) * 4),
)


@pytest.mark.parametrize(
    ("exceptions", "steps"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS]
)
def test_crashes_that_are_not_alike_blame_nobody(
    exceptions: tuple[str, ...], steps: tuple[int, ...]
) -> None:
    reason = crashed(running(), *exceptions, steps=steps)
    assert "no progress after 3 restarts" in reason
    assert "probably" not in reason


def test_progress_in_between_begins_the_count_anew() -> None:
    told = running()
    crashed(told, *SAME[:3], steps=(34,) * 3)
    told.saves(30)
    assert "4 times in a row" in crashed(told, *SAME, steps=(34,) * 4)


def test_another_recovery_in_between_begins_the_count_anew() -> None:
    told = running(Policy(no_progress_restarts=4))
    crashed(told, *SAME[:3], steps=(34,) * 3)
    told.see(fact("device.fault", node="n2", device=0, code="80E01801"))
    told.succeeds()
    assert "probably" not in crashed(told, *SAME[:2], steps=(34,) * 2)


def test_a_restart_whose_ranks_end_before_a_step_says_so() -> None:
    told = running()
    told.report(step=34)
    told.see(crash(told, at_step=34))
    told.succeeds()
    told.see(crash(told))
    told.succeeds()
    told.report(step=35)
    told.see(crash(told, at_step=35))
    first, second = responses.restarts(told.chronicle)[:2]
    assert (first["recover_result"], first["ended"]) == ("success", "ended before a step")
    assert first["stages_s"]["first_step"] is None
    assert record_rows.result(first) == EARLY
    assert EARLY in record_rows.story(first)
    assert EARLY in views.page(told.state, told.chronicle).replace("\u00a0", " ")
    assert (second["ended"], record_rows.result(second)) == (None, "success")


def test_the_reason_that_ends_the_job_says_how_many_ended_before_a_step() -> None:
    told = running(log_pattern="iteration (?P<step>[0-9]+)")
    told.report(step=34)
    reason = crashed(told, "", "", "", "", steps=(34, None, None, None))
    assert reason == (
        "no progress after 3 restarts; the last: exit code 1; "
        "the last 3 restarts ended before a step"
    )
    assert {r["ended"] for r in responses.restarts(told.chronicle)} == {"ended before a step"}


def test_of_a_job_that_never_showed_a_step_it_is_not_said_that_it_made_none() -> None:
    told = running()
    reason = crashed(told, *["NameError: torhc"] * 4, steps=(None,) * 4)
    assert "NameError before a step was seen, 4 times in a row" in reason
    assert {r["ended"] for r in responses.restarts(told.chronicle)} == {
        "ended before a step was seen"
    }


def test_a_first_start_that_ends_early_is_no_restart_that_did() -> None:
    told = Told(spec=job_spec(Policy(no_progress_restarts=0))).launches()
    assert "restart ended" not in crashed(told, "", steps=(None,))


def test_a_restart_that_an_operator_ends_did_not_end_by_itself() -> None:
    told = running()
    told.see(crash(told))
    told.succeeds()
    told.see(fact("operator.restart", level="job"))
    assert [r["ended"] for r in responses.restarts(told.chronicle)] == [None, None]
