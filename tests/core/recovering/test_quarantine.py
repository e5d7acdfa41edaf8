"""Updates of the quarantine: a wrong one is refused with a sentence, every other can be kept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from everstep.core.bounds import FIRST_SECOND, LAST_SECOND
from everstep.core.errors import CommandRejected
from everstep.core.recovering import quarantine
from everstep.core.recovering.isolations import ENTRIES_MOST, IsolatedNode
from everstep.core.recovering.quarantine import Quarantine, Request

NOW = 1_767_225_600.0

NO_NAMES = (
    "bad name!",
    "N1",
    "n_1",
    "-n1",
    "n1.",
    "n1..a",
    "n2/",
    "n2/x",
    "n2/3/4",
    "/3",
    "n\u0661",
)
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("milliseconds", {"until": 1_795_295_905_000}, "until is a time .* are these milliseconds?"),
    ("before the year 1", {"until": "0001-01-01T00:00:00+23:00"}, "until is a time from 1970"),
    ("for ever, as a number", {"until": math.inf}, "until is a time from 1970 to 9999"),
    ("no number", {"until": math.nan}, "until is a time from 1970 to 9999"),
    ("over already", {"until": NOW - 1}, "until is over already .*leave it out to keep n3"),
    ("a long reason", {"reason": "x" * 2_001}, "reason has more than 2000 characters"),
    ("a long node", {"node": "n" * 254}, "node has more than 253 characters"),
    *((name, {"node": name}, "is no name of a node") for name in NO_NAMES),
    ("over when it was asked", {"at": NOW - 50, "until": NOW - 60}, "until is over already"),
    ("asked at no time", {"at": math.inf}, "at is a time from 1970 to 9999"),
    ("words", {"until": "noon"}, "'noon' is no time"),
    ("a claim", {"until": True}, "True is no time"),
)


@pytest.mark.parametrize(("arguments", "error"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_time_that_nobody_can_go_by_is_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(CommandRejected, match=error):
        quarantine.checked_request({"node": "n3", **arguments}, now=NOW)


FINE: tuple[dict[str, Any], ...] = (
    {},
    {"until": None},
    {"until": NOW + 1},
    {"until": "2026-01-01T00:00:01Z"},
    {"at": NOW - 60, "until": NOW - 50},  # by the clock of a cluster that is behind ours
    *({"node": name} for name in ("gpu-07", "10.0.0.7", "n2/3", "a" * 253, "a" * 253 + "/0")),
)


@pytest.mark.parametrize("arguments", FINE, ids=str)
def test_any_other_is_not(arguments: dict[str, Any]) -> None:
    quarantine.checked_request({"node": "n3", **arguments}, now=NOW)


@pytest.mark.parametrize("until", [math.inf, -math.inf, math.nan, 1e300, 1_795_295_905_000])
def test_what_an_earlier_version_let_in_is_read_for_ever(until: float) -> None:
    request = quarantine.request_from({"node": "n3", "until": until}, now=NOW)
    assert request.until is not None
    assert FIRST_SECOND <= request.until <= LAST_SECOND


def full_book(**until: float) -> Quarantine:
    """A book with the most isolations, with these ends; the others last."""
    nodes = {
        node: IsolatedNode(node=node, reason="it smokes", by="operator", since=NOW, until=end)
        for node, end in ((f"n{n}", until.get(f"n{n}")) for n in range(ENTRIES_MOST))
    }
    return Quarantine(cluster="demo", nodes=nodes)


def request(node: str, at: float) -> Request:
    return Request(node=node, reason="it smokes too", by="operator", at=at)


def test_a_full_book_drops_the_isolation_that_was_over_first() -> None:
    """Their time is over, but the janitor has not released them yet."""
    book = full_book(n7=NOW + 20, n8=NOW + 10, n9=NOW + 50)
    book, answer = quarantine.isolate(book, request("new", NOW + 30))
    assert answer.verdict == "isolated"
    assert (len(book.nodes), "new" in book.nodes) == (ENTRIES_MOST, True)
    assert {"n7", "n8", "n9"} & book.nodes.keys() == {"n7", "n9"}


def test_a_full_book_drops_no_isolation_that_lasts() -> None:
    book = full_book(n7=NOW + 20)
    dropped, answer = quarantine.isolate(book, request("new", NOW + 10))
    assert (answer.verdict, dropped) == ("full", book)


def test_an_isolation_that_is_over_stays_while_there_is_room() -> None:
    """Its node is released by the janitor, whose request settles its mark on the cluster."""
    book = full_book(n7=NOW + 20)
    book, _ = quarantine.release(book, "n0")
    book, answer = quarantine.isolate(book, request("new", NOW + 30))
    assert (answer.verdict, "n7" in book.nodes) == ("isolated", True)
    assert f"{ENTRIES_MOST} nodes and devices are isolated, of at most" in answer.note


@pytest.mark.parametrize(("more", "reason"), [({}, "XID 79"), ({"reason": "fan"}, "fan")])
def test_an_isolation_that_an_operator_repeats_keeps_its_reason_unless_another_is_given(
    more: dict[str, Any], reason: str
) -> None:
    first = quarantine.request_from({"node": "n3", "by": "job-a", "reason": "XID 79"}, now=NOW)
    book, _ = quarantine.isolate(Quarantine(cluster="local"), first)
    again = quarantine.request_from({"node": "n3", **more}, now=NOW + 1)
    book, answer = quarantine.isolate(book, again)
    entry = book.nodes["n3"]
    assert (answer.verdict, entry.reason, entry.since) == ("isolated", reason, NOW)
    assert entry.by == "operator"
