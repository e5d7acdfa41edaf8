"""The lives of an ID in the report of its job: what became of each, and which steps a later one did again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle.chronicle import STARTS_KEPT
from everstep.report import render
from everstep.report.job_report import job_report
from everstep.report.lives import LifeSource
from tests.report.job import report, run, source, status

Row = Mapping[str, Any]


def started(step: int | None, newest: int | None, *, phase: str = "main") -> dict[str, Any]:
    """A run that started at this step and reached the newest; None: it showed none."""
    return run(8, None if newest is None else 10, 60, steps=(step, newest), phase=phase)


def lives(*of_each: Sequence[Row], **last: Any) -> list[LifeSource]:
    """A life with these runs each. Values of the status of the one before the newest are `last`."""
    made = [
        LifeSource(number=number, status=status(state="stopped"), report=report(runs, 100.0))
        for number, runs in enumerate(of_each, 1)
    ]
    made[-2] = replace(made[-2], status={**made[-2].status, **last})
    return made


def left_nothing(life: LifeSource) -> LifeSource:
    """The life, ended from outside before it left a report."""
    report = {"created_at": life.report["created_at"], "ended_at": None, "phases": []}
    return replace(life, report=report)


def lost(of_lives: Sequence[LifeSource]) -> list[int | None]:
    rows = job_report(source([], lives=of_lives))["lives"]
    return [row["lost_steps"] for row in rows]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([[started(0, 117)], [started(0, 200)]], [117, 0]),
        ([[started(0, 117)], [started(100, 200)]], [17, 0]),
        ([[started(0, 117)], [started(100, None)]], [17, 0]),
        ([[started(0, 100), started(80, 117)], [started(100, 200)]], [17, 0]),
        ([[started(0, 100), started(80, None)], [started(60, 200)]], [20, 0]),
        ([[started(0, 100)], [started(100, 200)]], [0, 0]),
        ([[started(0, 100)], [], [started(60, 200)]], [40, 0, 0]),
        ([[started(0, 100)], [started(80, 120)], [started(60, 200)]], [20, 60, 0]),
        ([[started(0, 100)], []], [0, 0]),
        ([[], [started(0, 100)]], [0, 0]),
    ],
    ids=[
        "from the beginning",
        "from a checkpoint",
        "the later life shows no step yet",
        "those done again within the life are not counted",
        "the last run of the life made no step",
        "nothing was lost",
        "a life without a start in between",
        "three lives",
        "the later one has not started yet",
        "the earlier one never started",
    ],
)
def test_steps_that_a_later_life_did_again_are_counted(
    runs: Sequence[Sequence[Row]], expected: list[int | None]
) -> None:
    assert lost(lives(*runs)) == expected


@pytest.mark.parametrize(
    "runs",
    [
        [[started(0, 117)], [started(None, 200)]],
        [[started(0, None)], [started(0, None)]],
        [[started(0, 117)], [started(100, 200)] * STARTS_KEPT],
    ],
    ids=["no checkpoint names the step", "the script shows none", "the first start is forgotten"],
)
def test_an_unknown_number_of_steps_stays_unknown(runs: Sequence[Sequence[Row]]) -> None:
    assert lost(lives(*runs)) == [None, 0]


def test_each_phase_is_compared_with_itself() -> None:
    earlier = [started(0, 20, phase="warmup"), started(0, 117)]
    assert lost(lives(earlier, [started(100, 200)])) == [17, 0], "from the phase main on"
    again = [started(0, 20, phase="warmup"), started(0, 40)]
    assert lost(lives(earlier, again)) == [20 + 117, 0], "all phases again"


def test_a_life_that_left_no_report_counts_by_the_step_that_the_server_has() -> None:
    ended, newest = lives([], [started(100, 200)], step=117, phase="main")
    assert lost([left_nothing(ended), newest]) == [17, 0]
    ended, newest = lives([], [started(100, 200)], step=None, phase="main")
    assert lost([left_nothing(ended), newest]) == [None, 0]
    ended, newest = lives([], [started(100, 200)], step=None, phase=None)
    assert lost([left_nothing(ended), newest]) == [0, 0], "it never began a phase"


def test_the_report_says_what_became_of_each_life() -> None:
    why = {"reason": "stopped: a new model", "restarts": 5, "step": 117, "checkpoint_step": 100}
    made = job_report(
        source([started(0, 200)], lives=lives([started(0, 117)], [started(0, 200)], **why))
    )
    assert made["lives"][0] == {
        "life": 1,
        "began_at": report([], 100.0)["created_at"],
        "ended_at": report([], 100.0)["ended_at"],
        "state": "stopped",
        "reason": "stopped: a new model",
        "restarts": 5,
        "first_step": 0,
        "last_step": 117,
        "checkpoint_step": 100,
        "lost_steps": 117,
    }
    sentence = "1 life of this ID came before, with 5 restarts; later lives did 117 steps again."
    assert made["summary"][-1] == sentence
    for page in (render.html(made), render.markdown(made)):
        assert "Lives" in page
        assert "stopped: a new model" in page
        assert sentence in page


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([[started(0, 117)], [started(None, 200)]], "did an unknown number of steps again"),
        ([[started(0, 9)], [started(0, 9)], [started(None, 9)]], "did at least 9 steps again"),
        ([[started(0, 117)], [started(117, 200)]], "did no steps again"),
        ([[started(0, 1)], [started(0, 2)]], "did 1 step again"),
    ],
)
def test_the_summary_says_only_what_is_known(runs: Sequence[Sequence[Row]], words: str) -> None:
    made = job_report(source([], lives=lives(*runs)))
    assert words in made["summary"][-1]


def test_a_job_that_was_submitted_once_has_no_section_of_lives() -> None:
    alone = LifeSource(number=1, status=status(), report=report([started(0, 100)], 100.0))
    made = job_report(source([started(0, 100)], lives=[alone]))
    assert [row["life"] for row in made["lives"]] == [1]
    assert len(made["summary"]) == 3
    assert "Lives" not in render.html(made) + render.markdown(made)
