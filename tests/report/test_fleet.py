"""The report of many jobs: nodes that break most, causes, and only what happened since then."""

from __future__ import annotations

from dataclasses import replace

from everstep.report import render
from everstep.report.fleet_report import FleetSource, fleet_report
from everstep.report.job_report import JobSource, job_report
from everstep.report.lives import LifeSource
from tests.report.job import CREATED, record, run, source


def job(name: str, *restarts: tuple[float, str, str | None]) -> JobSource:
    """A job that crashed at these seconds, by this class, on this node."""
    records = [record(n, at, cls=cls, node=node) for n, (at, cls, node) in enumerate(restarts, 1)]
    made = source([run(8, 10, 100)], records)
    return replace(made, status={**made.status, "id": name})


def fleet(*jobs: JobSource, since: float = 0.0) -> FleetSource:
    return FleetSource(jobs=jobs, since=CREATED + since, now=CREATED + 100.0)


def test_nodes_that_break_most_come_first_over_all_jobs() -> None:
    made = fleet_report(
        fleet(
            job("a", (20, "node", "n2"), (40, "device", "n1")),
            job("b", (30, "device", "n2"), (50, "crash", None)),
        )
    )
    assert [(row["node"], row["faults"], row["jobs"]) for row in made["nodes"]] == [
        ("n2", 2, ["a", "b"]),
        ("n1", 1, ["a"]),
    ]
    assert made["nodes"][0]["causes"] == {"node": 1, "device": 1}
    assert {row["class"]: row["restarts"] for row in made["causes"]} == {
        "node": 1,
        "device": 2,
        "crash": 1,
    }


def test_faults_of_the_script_are_no_faults_of_the_node_they_were_seen_on() -> None:
    crashes = job("a", *((n, cls, "n0") for n, cls in enumerate(("crash", "hang", "numeric"), 20)))
    checked = replace(
        job("b"),
        records=[
            record(1, 20, cls="precheck", node="n1"),
            {**record(2, 30, cls="precheck", node="n2"), "isolated": True},
        ],
    )
    made = fleet_report(fleet(crashes, checked))
    assert [(row["node"], row["faults"]) for row in made["nodes"]] == [("n2", 1)]
    assert "n0 broke" not in made["summary"][1]
    faults = {row["node"]: row["faults"] for row in job_report(crashes)["nodes"]}
    assert faults == {"n0": 0}


def test_only_restarts_since_then_count() -> None:
    made = fleet_report(fleet(job("a", (20, "node", "n2"), (40, "device", "n1")), since=30.0))
    assert [row["node"] for row in made["nodes"]] == ["n1"]
    assert [row["restarts"] for row in made["jobs"]] == [1]


def test_one_restart_is_one() -> None:
    made = fleet_report(fleet(job("a", (20, "node", "n2"))))
    assert made["summary"][1] == "There was 1 restart, by node. n2 broke most, 1 time."


def test_work_of_an_unknown_length_that_was_done_again_is_named() -> None:
    runs = [run(8, 10, 60, steps=(0, 50)), run(63, 65, 100, steps=(None, 100), generation=2)]
    made = fleet_report(fleet(source(runs, [record(1, 60, step=50)])))
    assert made["summary"][2].endswith(
        "0 s of work was done again, and an unknown part of the work."
    )


def life(number: int, made: JobSource) -> JobSource:
    lives = [LifeSource(number=number, status=made.status, report=made.report)]
    return replace(made, lives=lives)


def test_a_job_with_several_lives_is_one_job_with_the_restarts_of_all() -> None:
    made = fleet_report(
        fleet(
            life(1, job("a", (20, "node", "n2"))),
            life(2, job("a", (40, "node", "n2"), (50, "device", "n1"))),
            life(1, job("b")),
        )
    )
    assert made["states"] == {"completed": 2}
    assert made["summary"][0] == "2 jobs ran in 3 lives, of which 2 ended (2 completed)."
    assert made["summary"][1].startswith("There were 3 restarts")
    rows = [(row["id"], row["life"], row["lives"], row["restarts"]) for row in made["jobs"]]
    assert sorted(rows) == [("a", 1, 2, 1), ("a", 2, 2, 2), ("b", 1, 1, 0)]
    for page in (render.fleet_html(made), render.fleet_markdown(made)):
        assert "a, life 2" in page
        assert "b, life" not in page


def test_a_fleet_without_jobs_has_a_page() -> None:
    made = fleet_report(fleet())
    assert made["summary"][0] == "0 jobs ran, of which 0 ended."
    assert "0 jobs ran" in render.fleet_html(made)
    assert render.fleet_markdown(made)
