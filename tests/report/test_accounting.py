"""Every second of a job is counted once: waiting, training, down, done again, paused."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.report.accounting import Account, account
from everstep.report.job_report import job_report
from tests.report.job import CREATED, record, report, run, source

NOTHING = {"wait_s": 0.0, "training_s": 0.0, "down_s": 0.0, "lost_s": 0.0, "paused_s": 0.0}


def of(runs: list[dict[str, Any]], records: list[dict[str, Any]], ended: float | None) -> Account:
    return account(report(runs, ended), records, now=CREATED + 100.0)


WAYS: dict[
    str, tuple[list[dict[str, Any]], list[dict[str, Any]], float | None, dict[str, float]]
] = {
    "nothing happened": (
        [run(8, 10, 100, steps=(0, 90))],
        [],
        100.0,
        {"wait_s": 10.0, "training_s": 90.0},
    ),
    "it never started": ([], [], None, {"wait_s": 100.0}),
    "a crash: ten of fifty steps are done again": (
        [run(8, 10, 60, steps=(0, 50)), run(63, 65, 100, steps=(40, 100), generation=2)],
        [record(1, 60, step=50, resume_step=40, stop=1, start=2, first_step=2)],
        100.0,
        {"wait_s": 10.0, "down_s": 5.0, "lost_s": 10.0, "training_s": 75.0},
    ),
    "a hang: nothing was trained between the fault and its detection": (
        [run(8, 10, 60, steps=(0, 20)), run(63, 65, 100, steps=(20, 40), generation=2)],
        [
            record(
                1, 60, cls="hang", step=20, resume_step=20, detect=30, stop=1, start=2, first_step=2
            )
        ],
        100.0,
        {"wait_s": 10.0, "down_s": 35.0, "training_s": 55.0},
    ),
    "a run that made no step loses none": (
        [
            run(8, 10, 60, steps=(0, 50)),
            run(62, None, 64, steps=(40, 50), generation=2),
            run(66, 70, 100, steps=(40, 100), generation=3),
        ],
        [
            record(1, 60, step=50, resume_step=40, stop=1, start=1),
            record(2, 64, step=50, resume_step=40, stop=1, start=1, first_step=4),
        ],
        100.0,
        {"wait_s": 10.0, "down_s": 8.0, "lost_s": 10.0, "training_s": 72.0},
    ),
    "a checkpoint was bad: steps of the run before the last one are done again too": (
        [
            run(0, 0, 105, steps=(0, 105)),
            run(110, None, 112, steps=(100, None), generation=2),
            run(120, 120, 200, steps=(50, 130), generation=3),
        ],
        [
            record(1, 105, step=105, resume_step=100, stop=1, start=4),
            record(2, 112, resume_step=50, stop=1, start=7),
        ],
        200.0,
        {"down_s": 13.0, "lost_s": 55.0, "training_s": 132.0},
    ),
    "back behind the beginning of the newest run": (
        [
            run(0, 0, 100, steps=(0, 100)),
            run(110, 110, 115, steps=(100, 105), generation=2),
            run(120, 120, 200, steps=(50, 130), generation=3),
        ],
        [
            record(1, 100, step=100, resume_step=100, stop=1, start=9),
            record(2, 115, step=105, resume_step=50, stop=1, start=4),
        ],
        200.0,
        {"down_s": 15.0, "lost_s": 55.0, "training_s": 130.0},
    ),
    "a pause while a restart is under way": (
        [
            run(8, 10, 60, steps=(0, 50), paused=65),
            run(80, 82, 100, steps=(50, 90), generation=2),
        ],
        [record(1, 60, result="terminated", step=50, stop=1)],
        100.0,
        {"wait_s": 10.0, "down_s": 5.0, "paused_s": 17.0, "training_s": 68.0},
    ),
    "a pause between phases": (
        [
            run(8, 10, 50, steps=(0, 40), phase="warmup", paused=52),
            run(84, 85, 100, steps=(40, 80), generation=2),
        ],
        [],
        100.0,
        {"wait_s": 12.0, "paused_s": 33.0, "training_s": 55.0},
    ),
    "a pause": (
        [
            run(8, 10, 60, steps=(0, 50), why="paused: new switch"),
            run(80, 82, 100, steps=(50, 90), generation=2),
        ],
        [],
        100.0,
        {"wait_s": 10.0, "paused_s": 22.0, "training_s": 68.0},
    ),
    "still running": (
        [run(8, 10, None, steps=(0, None))],
        [],
        None,
        {"wait_s": 10.0, "training_s": 90.0},
    ),
    "between phases nothing is down": (
        [
            run(8, 10, 50, steps=(0, 40), phase="warmup"),
            run(54, 55, 100, steps=(40, 80), generation=2),
        ],
        [],
        100.0,
        {"wait_s": 15.0, "training_s": 85.0},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_second_belongs_to_one_use(way: str) -> None:
    runs, records, ended, expected = WAYS[way]
    totals = of(runs, records, ended)
    assert {key: pytest.approx(getattr(totals, key), abs=0.002) for key in NOTHING} == {
        **NOTHING,
        **expected,
    }
    assert sum(getattr(totals, key) for key in NOTHING) == pytest.approx(totals.total_s)
    assert sum(totals.stages_s.values()) == pytest.approx(totals.down_s, abs=0.002)


def test_stages_are_shown_in_the_order_in_which_they_pass() -> None:
    runs = [run(8, 10, 60, steps=(0, 50)), run(70, 75, 90, steps=(50, 60), generation=2)]
    records = [record(1, 60, stop=1, start=2, first_step=2), record(2, 90, detect=3, place=2)]
    totals = of(runs, records, 100.0)
    assert [*totals.stages_s] == ["detect", "stop", "place", "start", "first_step", "other"]


def test_what_no_stage_covers_is_not_shown_where_it_is_nothing() -> None:
    """The report of a job and that of a week of the fleet show the same stages."""
    runs = [run(8, 10, 60), run(63, 65, 100, generation=2)]
    totals = of(runs, [record(1, 60, stop=1.0, start=2.0, first_step=2.0)], 100.0)
    assert totals.stages_s == {"stop": 1.0, "start": 2.0, "first_step": 2.0}


def test_steps_whose_number_is_unknown_are_not_guessed() -> None:
    runs = [run(8, 10, 60, steps=(0, 50)), run(63, 65, 100, steps=(None, 100), generation=2)]
    totals = of(
        runs, [record(1, 60, step=50, resume_step=None, stop=1, start=2, first_step=2)], 100.0
    )
    assert totals.runs[0].lost_steps is None
    assert totals.has_unknown_loss
    assert totals.lost_s == 0.0


def test_an_incident_of_two_levels_costs_once() -> None:
    runs = [run(8, 10, 60, steps=(0, 50)), run(75, 80, 100, steps=(40, 100), generation=3)]
    records = [
        record(1, 60, step=50, result="downgrade", stop=5, start=5),
        record(2, 70, incident=1, level="pod", resume_step=40, stop=1, start=4, first_step=5),
    ]
    totals = of(runs, records, 100.0)
    assert [(r.down_s, r.lost_steps) for r in totals.restarts] == [
        (pytest.approx(20.0), 10),
        (0.0, 0),
    ]


def test_runs_that_a_job_forgot_are_found_in_its_records() -> None:
    """A job keeps its newest runs; its records, which Temporal keeps, reach further back."""
    runs, records, step = [], [], 0
    for n in range(1, 41):
        began = 10.0 * n
        runs.append(run(began, began + 1, began + 8, steps=(step, step + 7), generation=n))
        records.append(
            record(
                n,
                began + 8,
                step=step + 7,
                resume_step=step + 5,
                stop=1.0,
                start=1.0,
                first_step=1.0,
            )
        )
        step += 5
    runs.append(run(410.0, 411.0, 420.0, steps=(step, step + 9), generation=41))
    whole = account(report(runs, 420.0), records, now=CREATED + 420.0)
    partial = {**report(runs, 420.0), "runs": runs[-5:]}
    totals = account(partial, records, now=CREATED + 420.0)
    for key in ("down_s", "wait_s", "training_s", "lost_s"):
        # Of the very first run no record tells its first step.
        assert getattr(totals, key) == pytest.approx(getattr(whole, key), abs=1.01), key
    assert len(totals.runs) == len(whole.runs)


def test_the_place_of_a_slot_that_was_scaled_away_is_shown_until_then() -> None:
    shrunk: dict[str, dict[str, str | None]] = {"before": {"1": "n1"}, "after": {"1": None}}
    grown: dict[str, dict[str, str | None]] = {"before": {}, "after": {"1": "n5"}}
    made = job_report(
        source(
            [run(8, 10, 60), run(63, 65, 80, generation=2), run(83, 85, 100, generation=3)],
            [
                record(1, 60, cls="node", level="elastic", nodes=shrunk),
                record(2, 80, cls="planned", level="elastic", nodes=grown),
            ],
            job_status={"pods": [{"slot": 0, "node": "n0"}, {"slot": 1, "node": "n5"}]},
        )
    )
    spans = {row["node"]: [(s["from"], s["until"]) for s in row["slots"]] for row in made["nodes"]}
    first, second = [restart["at"] for restart in made["restarts"]]
    assert spans["n1"] == [(made["started_at"], first)]
    assert spans["n5"] == [(second, made["ended_at"])]


def test_places_are_followed_back_from_the_newest() -> None:
    moved = {"before": {"1": "n1"}, "after": {"1": "n4"}}
    made = job_report(
        source(
            [run(8, 10, 60), run(63, 65, 100, generation=2)],
            [record(1, 60, cls="node", level="pod", nodes=moved)],
            job_status={
                "pods": [{"slot": 0, "node": "n0"}, {"slot": 1, "node": "n4"}],
                "isolated_nodes": ["n1"],
            },
            isolation={"n1": {"reason": "n1 is down", "by": "demo", "since": None, "until": None}},
        )
    )
    nodes = {row["node"]: row for row in made["nodes"]}
    assert [(s["slot"], s["from"], s["until"]) for s in nodes["n1"]["slots"]] == [
        (1, made["started_at"], made["restarts"][0]["at"])
    ]
    assert [(s["slot"], s["until"]) for s in nodes["n4"]["slots"]] == [(1, made["ended_at"])]
    assert nodes["n1"]["isolated"]["reason"] == "n1 is down"
    assert nodes["n1"]["faults"] == 1
