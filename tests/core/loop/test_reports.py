"""Faults that operators report: what cannot be is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.core.errors import CommandRejected
from everstep.core.loop import commands
from tests.support.builders import START, running

NOW = START + 30 * 86_400
DOWN: dict[str, Any] = {"kind": "node.down", "node": "n1"}
DEVICE: dict[str, Any] = {"kind": "device.fault", "node": "n1", "device": 0, "code": "XID 79"}

REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"kind": "node.down"}, "node.down needs a node"),
    ({"kind": "subhealth.power", "device": 3}, "subhealth.power needs a node"),
    ({**DOWN, "node": ""}, "node may not be empty"),
    ({**DEVICE, "code": " "}, "code may not be empty"),
    ({**DOWN, "node": "n9"}, "'n9' is no node of this job; its nodes are n0, n1, n2, n3"),
    ({**DOWN, "at": NOW + 2 * 3_600}, "is in the future; leave it out for now"),
    ({**DOWN, "at": "2062-03-01T00:00:00Z"}, "is in the future"),
    ({**DOWN, "at": NOW - 8 * 86_400}, "is more than 7 days ago"),
)


@pytest.mark.parametrize(("report", "why"), REFUSED, ids=[row[1] for row in REFUSED])
def test_a_report_of_what_cannot_be_is_refused(report: dict[str, Any], why: str) -> None:
    job = running()
    job.report("refresh", now=NOW)
    with pytest.raises(CommandRejected, match="report_fault: ") as refused:
        commands.accept(job.state, "report_fault", report)
    assert why in str(refused.value)


@pytest.mark.parametrize("report", [DOWN, DEVICE, {**DOWN, "at": NOW - 60}, {"kind": "user.abort"}])
def test_any_other_report_is_accepted(report: dict[str, Any]) -> None:
    job = running()
    job.report("refresh", now=NOW)
    assert commands.accept(job.state, "report_fault", report).args == report


def test_a_report_that_is_a_little_ahead_of_our_clock_counts_as_of_now() -> None:
    ahead = commands.reported_fact({**DOWN, "at": NOW + 60}, at=NOW, earlier_ids=frozenset())
    assert ahead.at == NOW
    again = commands.reported_fact({**DOWN, "at": NOW + 60}, at=NOW + 30, earlier_ids=frozenset())
    assert again.id == ahead.id
    assert (
        commands.reported_fact({**DOWN, "at": NOW - 60}, at=NOW, earlier_ids=frozenset()).at
        == NOW - 60
    )


def test_a_restart_of_no_level_is_refused() -> None:
    with pytest.raises(CommandRejected, match="restart: level may not be empty"):
        commands.accept(running().state, "restart", {"level": ""})
