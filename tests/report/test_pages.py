"""The page is one file: nothing from outside, no script, nothing that a job's text can break out of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from everstep.report import charts, render
from everstep.report.fleet_report import FleetSource, fleet_report
from everstep.report.job_report import JobSource, job_report
from tests.report.job import at, record, run, source, status

HOSTILE = (
    '</pre></details><script src="http://evil.example/x.js"></script><img src=x>`|\x1b]0;x\x07'
)
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Elements(HTMLParser):
    """Every element with its attributes, and whether each that was opened is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def crashed(**more: Any) -> JobSource:
    return source(
        [run(8, 10, 60, steps=(0, 50)), run(63, 65, 100, steps=(40, 100), generation=2)],
        [record(1, 60, step=50, resume_step=40, stop=1.0, start=2.0, first_step=2.0, **more)],
    )


def test_the_page_needs_nothing_else_and_runs_nothing() -> None:
    page = render.html(job_report(crashed()))
    elements = Elements(page).tags
    assert not {"script", "link", "iframe", "img"} & {tag for tag, _ in elements}
    assert not {"src", "href", "onclick", "onload"} & {key for _, has in elements for key in has}
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.parametrize("where", ["reason", "node"])
def test_what_a_job_wrote_stays_text(where: str) -> None:
    made = job_report(crashed(**{where: HOSTILE}))
    page, text = render.html(made), render.markdown(made)
    elements = Elements(page).tags
    assert not {"script", "img"} & {tag for tag, _ in elements}
    assert "\x1b" not in page + text


def test_readers_who_see_no_drawing_are_told_what_it_shows() -> None:
    elements = Elements(render.html(job_report(crashed()))).tags
    drawings = [has for tag, has in elements if tag == "svg"]
    assert len(drawings) == 2
    assert all(has["role"] == "img" and has["aria-label"] for has in drawings)
    assert [has for tag, has in elements if tag == "html"] == [{"lang": "en"}]


def test_a_page_says_what_happened_first() -> None:
    made = job_report(crashed())
    assert made["summary"] == [
        "demo completed after 1 min 40 s in 1 phase, at step 100.",
        "It was restarted 1 time (1 × crash), by level: 1 × in_place.",
        "It trained for 83.3 % of the time since its first step: 5 s were down time, 10 s of work was "
        "done again.",
    ]
    for page in (render.html(made), render.markdown(made)):
        assert page.index("demo completed after") < page.index("Where the time went")


def table_rows(page: str) -> list[list[str]]:
    """The cells of each row of each table, of HTML or Markdown."""
    cells = [re.split(r" ?\| ?|</?t[dhr][^>]*>", line) for line in page.splitlines()]
    return [[cell for cell in row if cell] for row in cells]


@pytest.mark.parametrize("page", [render.html, render.markdown])
def test_what_the_drawings_show_is_in_words_too(page: Callable[[dict[str, Any]], str]) -> None:
    """Each generation, the slots of each node, and until when a node is isolated."""
    entry = {"reason": "XID 79", "by": "demo", "since": at(60), "until": at(90_000)}
    job_status = {"isolated_nodes": ["n1"], "pods": [{"slot": 3, "node": "n2"}]}
    made = job_report(
        replace(crashed(cls="node"), isolation={"n1": entry}, status=status(**job_status))
    )
    rows = table_rows(page(made))
    day = "2026-05-28"
    for n, clock, steps in (
        (1, ("20:26:48", "20:26:50", "20:27:40"), ["0", "50", "10"]),
        (2, ("20:27:43", "20:27:45", "20:28:20"), ["40", "100", "0"]),
    ):
        assert ["main", f"{n}", *(f"{day} {time}" for time in clock), *steps] in rows
    assert ["n1", "-", "1", "XID 79, until 2026-05-29 21:26:40, by demo"] in rows
    assert ["n2", "3", "0", "no"] in rows


@pytest.mark.parametrize("page", [render.html, render.markdown])
def test_a_restart_shows_its_evidence_the_last_words_and_what_else_was_considered(
    page: Callable[[dict[str, Any]], str],
) -> None:
    details: dict[str, Any] = {
        "seen": ["process.exit n1 exit code 1", "ValueError: loss is NaN"],
        "passed_over": ["in_place: budget process has no unit left", "elastic: 4 nodes are fixed"],
        "evidence": "out/demo/.everstep/evidence/g1",
    }
    made = crashed()
    (restart,) = made.records
    text = unescape(page(job_report(replace(made, records=[{**restart, **details}]))))
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    for line in details["seen"]:
        assert ["seen", line] in lines
    for line in details["passed_over"]:
        assert ["not", line] in lines
    assert ["decided", "in_place: crash of rank 1: exit code 1"] in lines
    assert details["evidence"] in text.replace("\\", "")


@pytest.mark.parametrize("page", [render.html, render.markdown])
def test_a_page_has_the_document_as_it_was_submitted(page: Callable[[dict[str, Any]], str]) -> None:
    document = {"kind": "TrainingJob", "spec": {"command": ["python", "a<b>.py"], "nodes": 4}}
    text = page(job_report(replace(crashed(), document=document)))
    (block,) = re.findall(r"(?:<pre>|```\w*\n)(\{.*?\n\})", unescape(text), re.DOTALL)
    assert json.loads(block) == document


@pytest.mark.parametrize("page", [render.html, render.markdown])
@pytest.mark.parametrize(
    ("loaded", "cells"),
    [
        ((None,), ["crash", "1", "5 s", "unknown", "unknown"]),
        ((40, None), ["crash", "2", "10 s", "10 s at least", "10 at least"]),
    ],
)
def test_a_cost_that_is_unknown_is_no_zero(
    loaded: Sequence[int | None], cells: list[str], page: Callable[[dict[str, Any]], str]
) -> None:
    """No checkpoint shows how many steps the next run did again."""
    runs, records = [run(8, 10, 60, steps=(0, 50))], []
    for n, step in enumerate(loaded, 1):
        ended = 60.0 * n
        records.append(record(n, ended, step=50, resume_step=step, start=3.0, first_step=2.0))
        runs.append(run(ended + 3, ended + 5, ended + 60, steps=(step, 50), generation=n + 1))
    made = job_report(source(runs, records, ended=200.0, now=200.0))
    assert cells in table_rows(page(made))


def test_a_job_that_never_started_has_a_page() -> None:
    waiting = source([], ended=None, job_status={"state": "launching", "step": None})
    made = job_report(waiting)
    assert made["time"]["ettr"] is None
    assert "No run of this job reported its steps." in render.html(made)
    assert render.markdown(made)


@pytest.mark.parametrize("what", ["never started", "lost its memo", "unstaged", "no jobs"])
def test_no_table_is_empty(what: str) -> None:
    """A heading without rows reads as if something were missing."""
    began = source([], ended=None, job_status={"state": "launching", "step": None, "pods": []})
    empty = replace(began, report={"created_at": at(0), "ended_at": None, "phases": []})
    unstaged = source([run(8, 10, 60), run(63, 65, 100, generation=2)], [record(1, 60)])
    jobs = {"never started": began, "lost its memo": empty, "unstaged": unstaged}
    if what == "no jobs":
        fleet = fleet_report(FleetSource(jobs=[], since=0.0, now=1.0))
        html, markdown = render.fleet_html(fleet), render.fleet_markdown(fleet)
    else:
        html, markdown = render.html(made := job_report(jobs[what])), render.markdown(made)
    tables = re.findall("<table>.*?</table>", html, re.DOTALL)
    assert [table for table in tables if "<td" not in table] == []
    assert re.findall(r"^\|[- |:]+\|\n(?!\|)", markdown, re.MULTILINE) == []
    headings = r"<h2>[^<]*</h2>\s*<h2|<h3>[^<]*</h3>\s*<h|^## .*\n+## "
    assert re.findall(headings, html + markdown, re.MULTILINE) == []


def test_a_job_that_runs_is_reported_as_far_as_it_is() -> None:
    """The steps of a run are those of its last report; the watch that follows has newer ones."""
    runs = [run(8, 10, 60, steps=(0, 50)), run(63, 65, None, steps=(50, None), generation=2)]
    so_far = {"state": "running", "step": 426, "checkpoint_step": 420}
    made = job_report(source(runs, ended=None, job_status=so_far))
    assert [(row["generation"], row["step"]) for row in made["runs"]] == [(1, 50), (2, 426)]
    assert made["phases"][0]["last_checkpoint_step"] == 420


def large() -> JobSource:
    """1,000 pods and 500 restarts, each of which moved a pod to a spare node."""
    records = [
        record(
            n,
            100.0 * n,
            cls="node",
            step=10 * n,
            resume_step=10 * n - 1,
            nodes={"before": {str(n): f"n{n}"}, "after": {str(n): f"spare{n}"}},
            stop=1.0,
            first_step=2.0,
        )
        for n in range(1, 501)
    ]
    runs = [
        run(
            100.0 * n + 3,
            100.0 * n + 5,
            100.0 * (n + 1),
            steps=(10 * n - 1, 10 * n + 10),
            generation=n,
        )
        for n in range(451, 501)
    ]
    pods = [{"slot": n, "node": f"spare{n}" if 1 <= n <= 500 else f"n{n}"} for n in range(1_000)]
    return source(runs, records, ended=50_100.0, job_status={"pods": pods})


def test_a_large_job_is_a_page_of_two_megabytes_at_most() -> None:
    made = job_report(large())
    assert (len(made["restarts"]), len(made["nodes"])) == (500, 1_500)
    assert len(render.html(made).encode()) <= 2_000_000


MARK = re.compile(r'class="mark" d="M[\d.]+ ([\d.]+)V([\d.]+)"')


def heights(drawing: str) -> set[float]:
    return {float(bottom) - float(top) for top, bottom in MARK.findall(drawing)}


def test_a_few_restarts_are_lines_and_many_are_marks_of_their_nodes() -> None:
    few, many = (charts.timeline(job_report(job)) for job in (crashed(), large()))
    assert heights(few) == {3.0 * charts.ROW}, "phases, runs and one node"
    assert heights(many) == {1.0 * charts.ROW}
    assert len(MARK.findall(many)) == 500


def test_nodes_are_sorted_by_their_numbers() -> None:
    text = charts.timeline(job_report(large()))
    names = re.findall(r'class="end"[^>]*>(n\d+)<', text)
    assert names[1:5] == ["n0", "n2", "n3", "n4"], "n1 is first, as it broke most"


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (1, [0, 1]),
        (7, [0, 2, 4, 6]),
        (100, [0, 20, 40, 60, 80, 100]),
        (5_010, [0, 1_000, 2_000, 3_000, 4_000, 5_000]),
        (999_999, [0, 200_000, 400_000, 600_000, 800_000]),
    ],
)
def test_steps_are_marked_at_round_numbers(most: int, ticks: list[int]) -> None:
    made = job_report(source([run(1.0, 1.0, 90.0, steps=(0, most))], [], ended=100.0))
    drawing = charts.steps_over_time(made)
    assert [int(n) for n in re.findall(r'class="end"[^>]*>(\d+)<', drawing)] == ticks


def test_a_drawing_says_run_and_step_where_there_is_one() -> None:
    one = charts.steps_over_time(
        job_report(
            source(
                [run(8, 10, 60, steps=(0, 50)), run(63, 65, 100, steps=(49, 100), generation=2)],
                [record(1, 60, step=50, resume_step=49)],
            )
        )
    )
    assert "<desc>2 runs; the highest step is 100; 1 step was done again.</desc>" in one
    none = charts.steps_over_time(job_report(source([run(1, 1, 90, steps=(0, 7))], [], ended=100)))
    assert "<desc>1 run; the highest step is 7; 0 steps were done again.</desc>" in none


def test_a_drawing_says_node_where_one_is_left_out() -> None:
    pods = [{"slot": n, "node": f"n{n}"} for n in range(charts.ROWS_MOST + 1)]
    made = job_report(source([run(1, 1, 90)], [], ended=100.0, job_status={"pods": pods}))
    assert ">+1 node<" in charts.timeline(made)


def test_nodes_whose_names_begin_alike_have_labels_of_their_own() -> None:
    names = [
        *(f"ip-10-0-23-{n}.eu-central-1.internal" for n in (17, 18)),
        *(f"gke-training-pool-a100-{end}" for end in ("x7k2", "x7k3")),
    ]
    report = job_report(large())
    nodes = [{**report["nodes"][0], "node": name} for name in names]
    drawing = charts.timeline({**report, "nodes": nodes})
    labels = re.findall(r'<text class="end" x="130"[^>]*>([^<]*)</text>', drawing)
    assert labels[2:] == ["gke-…100-x7k2", "gke-…100-x7k3", "ip-10-0-23-17", "ip-10-0-23-18"]


def test_the_legend_has_the_colours_that_occur() -> None:
    report = job_report(large())
    node = {**report["nodes"][0], "slots": report["nodes"][0]["slots"][:1], "isolated": None}
    isolated = {**node, "isolated": {"reason": "hot", "until": None, "by": None}}
    nodes_by_legend = {
        ("phase", "run"): [],
        ("phase", "run", "node"): [node],
        ("phase", "run", "isolated"): [isolated],
        ("phase", "run", "node", "isolated"): [isolated, node],
    }
    for classes, nodes in nodes_by_legend.items():
        legend = charts.timeline_legend({**report, "nodes": nodes})
        assert tuple(cls for cls, _ in legend) == classes
    assert "isolated by now" in render.html({**report, "nodes": [isolated]})
