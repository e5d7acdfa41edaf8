"""What the lists show: never more than the server takes, for it refuses the whole task otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from everstep.chronicle import views
from everstep.chronicle.chronicle import Chronicle
from everstep.converter import DATA_CONVERTER
from everstep.core.deciding.decision import Outcome, StepOrder
from everstep.core.deciding.decision_input import decision_input
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Step
from everstep.core.recovering import recovery
from everstep.core.state import Wait
from everstep.core.world import Checkpoint
from tests.support.builders import running, sighting
from workflows import attributes
from workflows.recovery import line, summary

LIMIT_BYTES = 2_048
"""The server's own limit for one value, unless another is set."""


def test_a_recovery_is_found_by_every_node_of_its_fault() -> None:
    job = running(nodes=4)
    lost = (sighting(FaultClass.NODE, node=node) for node in ("n1", "n2"))
    job.see(*lost)
    row = attributes.of_recovery(job.state, job.chronicle, job.plan)
    assert row[attributes.KEYS["FaultNodes"]] == ["n1", "n2"]


def test_a_recovery_is_found_by_the_nodes_that_it_isolates() -> None:
    isolated = attributes.KEYS["IsolatedNodes"]
    job = running(nodes=4)
    job.see(sighting(FaultClass.NODE, node="n1"))
    assert attributes.of_recovery(job.state, job.chronicle, job.plan)[isolated] == ["n1"]
    job.succeeds()
    job.see(sighting(FaultClass.CRASH, node="n2"))
    assert attributes.of_recovery(job.state, job.chronicle, job.plan).get(isolated) is None
    assert attributes.of_job(job.state, job.chronicle)["IsolatedNodes"] == ["n1"]


@pytest.mark.parametrize(
    ("cls", "step", "text"),
    [
        (FaultClass.DEVICE, Step.HEAL, "wait for heal · 80E01801 on n1/3"),
        (FaultClass.DEVICE, Step.STOP, "generation 1 ends"),
        (FaultClass.CHECKPOINT, Step.RESUME, "fence, and the newest checkpoint before step 40"),
        (FaultClass.CRASH, Step.RESUME, "fence, and the newest checkpoint"),
    ],
)
def test_a_row_of_the_timeline_says_what_its_step_is_about(
    cls: FaultClass, step: Step, text: str
) -> None:
    job = running(nodes=4)
    job.saves(40)
    job.see(sighting(cls))
    at = replace(recovery.begin(job.plan), index=job.plan.remedy.steps.index(step))
    order = recovery.next_step(at)
    assert isinstance(order, StepOrder)
    assert summary(order) == text


def test_the_page_of_a_job_has_a_row_for_each_restart() -> None:
    job = running(nodes=4)
    job.saves(40)
    job.see(sighting(FaultClass.CRASH, node="n2"))
    job.succeeds(resume=Checkpoint(step=40, path="out"))
    head, _, row, _, why = views.page(job.state, job.chronicle).splitlines()[2:]
    assert why == f"- **1** main: {job.records[-1].decision.reason}"
    cells = dict(zip(head.split("|"), row.split("|"), strict=True))
    cell_by_column = {
        " ".join(key.split()): " ".join(value.split()) for key, value in cells.items()
    }
    assert (cell_by_column["n"], cell_by_column["level"], cell_by_column["result"]) == (
        "1",
        "in_place",
        "started",
    )
    assert cell_by_column["took"].endswith(" s")
    assert cell_by_column["step"] == "40"
    assert cell_by_column["at (UTC)"].count(":") == 2
    assert all(cell.endswith("\u00a0 ") for cell in row.strip("|").split("|"))


def test_the_page_of_a_job_without_restarts_has_no_table() -> None:
    job = running(nodes=4)
    assert views.page(job.state, job.chronicle) == "**main** running · generation 1"


def test_a_reason_that_is_cut_on_the_page_of_a_job_says_so() -> None:
    job = running(nodes=4)
    job.see(sighting(FaultClass.CRASH, node="n2"))
    (record,) = job.chronicle.records
    reason = replace(record.decision, reason="x long" * 40)
    chronicle = replace(job.chronicle, records=(replace(record, decision=reason),))
    assert views.page(job.state, chronicle).endswith("longx l…")


def test_on_the_page_of_a_job_texts_of_others_are_nothing_but_text() -> None:
    evil = "![i](http://e.example/i) <img src=x> [a](b) | c\n| d |"
    job = running(nodes=4)
    job.see(sighting(FaultClass.DEVICE, node="n2", device=1, code=evil))
    (record,) = job.chronicle.records
    reason = replace(record.decision, reason=evil)
    chronicle = replace(job.chronicle, records=(replace(record, decision=reason),))
    page = views.page(replace(job.state, waiting=Wait(what=evil)), chronicle)
    parts = MarkdownIt("commonmark", {"html": True}).enable("table").parse(page)
    inside = [part for block in parts for part in block.children or ()]
    assert not {part.type for part in inside} & {"link_open", "image", "html_inline"}
    assert not [part for part in parts if part.type == "html_block"]
    assert page.count("\n|") == 3  # the headings, the line below them, one restart


@pytest.mark.parametrize(
    ("kinds", "failed", "text"),
    [
        (["node.down"], None, "node.down on n1"),
        (
            ["node.down", "node.down", "node.down"],
            None,
            "node.down on n1, node.down on n1 and 1 more",
        ),
        ([], Step.HEAL, "heal failed"),
        ([], None, "how to go on"),
    ],
)
def test_a_decision_says_what_it_is_about(kinds: list[str], failed: Step | None, text: str) -> None:
    facts = tuple(Fact(id=str(n), kind=kind, at=1.0, node="n1") for n, kind in enumerate(kinds))
    outcome = None
    if failed is not None:
        outcome = Outcome(result="failed", now=1, cursor="1", generation=1, active=(), step=failed)
    inputs = decision_input(running().state, now=1.0, facts=facts, outcome=outcome)
    assert views.occasion(inputs) == text


def test_a_line_of_the_timeline_stays_short_enough_for_the_server() -> None:
    assert line("watch generation 2", "") == "watch generation 2"
    assert len(line("watch", "ü" * 500).encode()) < 400


def test_many_long_names_of_nodes_fit_into_one_value() -> None:
    nodes = [f"{number:03d}-{'x' * 200}" for number in range(100)]
    state = replace(running(nodes=4).state, isolated=dict.fromkeys(nodes, "why"))
    value = attributes.of_job(state, Chronicle())["IsolatedNodes"]
    assert value
    assert len(json.dumps(value).encode()) <= LIMIT_BYTES


def test_how_a_type_is_read_is_found_out_once_for_all_workflows() -> None:
    """Each workflow has a converter of its own; what is behind it is shared."""
    first, second = (DATA_CONVERTER.payload_converter_class() for _ in range(2))
    assert first.converters[b"json/plain"] is second.converters[b"json/plain"]  # type: ignore[attr-defined]
