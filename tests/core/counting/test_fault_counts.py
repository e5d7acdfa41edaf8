"""Faults are counted over all jobs of a cluster: each once, within a window, and the count isolates."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.counting import fault_counts
from everstep.core.counting.fault_counts import FAULTS_KEPT, FAULTS_OF_ONE_KEPT
from everstep.core.counting.reports import FaultReport, reports_from
from everstep.core.errors import CommandRejected
from everstep.core.recovering import quarantine
from everstep.core.recovering.quarantine import COUNTS, Quarantine

DAY_S = 86_400.0
HBM = FaultReport(node="n2", device=3, code="80E01801", at=100.0, job="a", times=2, window_s=DAY_S)
EMPTY = Quarantine(cluster="local")


def note(
    book: Quarantine, *reports: FaultReport, now: float | None = None, cluster_size: int = 8
) -> tuple[Quarantine, list[int], list[str]]:
    """The book afterwards, the count of each report, what was isolated."""
    latest = max(report.at for report in reports) if now is None else now
    book, changes = quarantine.count_faults(book, reports, now=latest, cluster_size=cluster_size)
    return book, [count.times for count in changes.counts], list(changes.isolated)


def at(*times: float, **changes: object) -> list[FaultReport]:
    return [replace(HBM, at=time, **changes) for time in times]  # type: ignore[arg-type]


def test_two_jobs_that_had_the_device_one_after_the_other_isolate_it_together() -> None:
    book, times, isolated = note(EMPTY, *at(100.0))
    assert (times, isolated) == ([1], [])
    book, times, isolated = note(book, *at(100.0 + DAY_S - 1, job="b"))
    assert (times, isolated) == ([2], ["n2/3"])
    entry = book.nodes["n2/3"]
    assert (entry.by, entry.until, entry.proven) == (COUNTS, None, False)
    assert entry.reason == "80E01801 came 2 times within 86400 s"


@pytest.mark.parametrize(
    ("name", "second", "is_isolated"),
    [
        ("at the end of the window", replace(HBM, at=100.0 + DAY_S - 1), True),
        ("after the window", replace(HBM, at=100.0 + DAY_S), False),
        ("another device", replace(HBM, at=200.0, device=4), False),
        ("another node", replace(HBM, at=200.0, node="n3"), False),
        ("another code", replace(HBM, at=200.0, code="80E18005"), False),
        ("the same fault from another job", replace(HBM, job="b"), False),
    ],
)
def test_what_counts_as_once_more(name: str, second: FaultReport, *, is_isolated: bool) -> None:
    book, _, isolated = note(EMPTY, HBM, second)
    assert bool(isolated) is is_isolated, name
    assert (HBM.place in book.nodes) is is_isolated


def test_a_code_on_two_devices_of_a_job_within_30_s_counts_for_neither() -> None:
    """Case 58; devices of different jobs are no one program's doing."""
    other = replace(HBM, device=4, at=120.0)
    assert note(EMPTY, HBM, other, *at(5_000.0))[1:] == ([1, 0, 1], [])
    book = note(EMPTY, HBM, replace(other, job="b"), *at(5_000.0))
    assert book[1:] == ([1, 1, 2], ["n2/3"])


def test_a_count_begins_again_once_its_device_was_isolated_and_released() -> None:
    book, _, _ = note(EMPTY, *at(100.0, 200.0))
    book, _ = quarantine.release(book, "n2/3")
    book, times, isolated = note(book, *at(300.0))
    assert (times, isolated) == ([1], [])
    assert note(book, *at(400.0))[1:] == ([2], ["n2/3"])


def test_a_report_that_comes_again_is_answered_as_before_and_isolates_nothing_again() -> None:
    book, times, isolated = note(EMPTY, *at(100.0, 200.0))
    assert (times, isolated) == ([1, 2], ["n2/3"])
    book, _ = quarantine.release(book, "n2/3")
    again, times, isolated = note(book, *at(100.0, 200.0), now=9_000.0)
    assert (times, isolated) == ([1, 2], [])
    assert again == book


def test_a_time_to_come_counts_as_of_its_report() -> None:
    """A mistyped year neither keeps its own count for ever nor hides the one that follows."""
    book, times, _ = note(EMPTY, *at(1e9), now=50.0)
    assert times == [1]
    assert note(book, *at(1e9), now=60.0)[1] == [1]
    assert note(book, *at(50.0 + 2 * DAY_S))[1:] == ([1], [])


def test_a_device_is_released_once_its_code_was_quiet_for_as_long_as_the_rule_says() -> None:
    rule = {"times": 5, "release_s": 2 * DAY_S, "code": "81078603"}
    book, _, isolated = note(EMPTY, *at(1.0, 101.0, 201.0, 301.0, 401.0, **rule))
    assert isolated == ["n2/3"]
    assert quarantine.expired_nodes(book, 400.0 + 2 * DAY_S) == ()
    assert quarantine.expired_nodes(book, 401.0 + 2 * DAY_S) == ("n2/3",)
    book, times, _ = note(book, *at(1_000.0, **rule))  # it was seen once more
    assert times == [1]
    assert quarantine.expired_nodes(book, 401.0 + 2 * DAY_S) == ()
    assert quarantine.expired_nodes(book, 1_000.0 + 2 * DAY_S) == ("n2/3",)


def test_what_an_operator_isolated_has_the_end_that_the_operator_gave_it() -> None:
    request = quarantine.Request(node="n2/3", reason="fan", by="operator", until=500.0)
    book, _ = quarantine.isolate(EMPTY, request)
    book, _, _ = note(book, *at(100.0, 200.0, release_s=DAY_S))
    assert book.nodes["n2/3"].until == 500.0


def test_the_only_node_keeps_its_device_and_its_count() -> None:
    book, times, isolated = note(EMPTY, *at(100.0, 200.0, 300.0), cluster_size=1)
    assert (times, isolated, dict(book.nodes)) == ([1, 2, 3], [], {})


def test_a_code_of_the_users_own_is_counted_and_isolates_nothing() -> None:
    assert note(EMPTY, *at(100.0, 200.0, isolates=False))[1:] == ([1, 2], [])


def test_devices_of_one_node_are_one_suspicion() -> None:
    """The brake counts nodes: a job that isolates the node too does not use up its share."""
    book = EMPTY
    for n in range(4):
        node = quarantine.Request(
            node=f"n{n}", reason="", by="a", proven=False, cluster_size=20, at=1.0
        )
        book, _, isolated = note(book, *at(1.0, 1.5, node=f"n{n}", job=f"j{n}"), cluster_size=20)
        assert isolated == [f"n{n}/3"]
        book, answer = quarantine.isolate(book, node)
        assert answer.verdict == "isolated"
    book, times, isolated = note(book, *at(1.0, 1.5, node="n9", job="j9"), cluster_size=20)
    assert (times, isolated) == ([1, 2], [])
    assert [*book.held] == ["n9/3"]


def test_the_book_stays_small() -> None:
    many = [replace(HBM, at=float(n), device=n % 7, code=f"{n % 50:08X}") for n in range(1_500)]
    assert len(note(EMPTY, *many)[0].faults) <= FAULTS_KEPT
    one = [replace(HBM, at=100.0 * n, times=9_999) for n in range(300)]
    assert len(note(EMPTY, *one)[0].faults) == FAULTS_OF_ONE_KEPT


reports = st.builds(
    FaultReport,
    node=st.sampled_from(["n0", "n1"]),
    device=st.sampled_from([0, 1]),
    code=st.sampled_from(["80E01801", "80E18005"]),
    at=st.sampled_from([0.0, 10.0, 40.0, 500.0, DAY_S, DAY_S + 20, 2 * DAY_S]),
    job=st.sampled_from(["a", "b"]),
    times=st.just(2),
    window_s=st.just(DAY_S),
)


@given(st.lists(reports, max_size=12), st.randoms(use_true_random=False))
def test_reports_that_are_repeated_change_neither_counts_nor_isolations(
    faults: list[FaultReport], chance: random.Random
) -> None:
    """Each report comes up to three times, as after the loss of its answer."""
    once, repeated = EMPTY, EMPTY
    for n, fault in enumerate(faults):
        once, _, _ = note(once, fault)
        again = [fault, *chance.sample(faults[: n + 1], k=min(n, 2))]
        repeated, _, _ = note(repeated, *again, now=fault.at)
    assert repeated == once


# -- What a report has to say -------------------------------------------------------------------------


def raw(**changes: object) -> dict[str, object]:
    return {"faults": [{**asdict(HBM), **changes}]}


def test_a_report_is_read_as_it_was_sent() -> None:
    assert reports_from(raw()) == (HBM,)
    assert reports_from(raw(release_s=60)) == (replace(HBM, release_s=60),)


def test_a_key_of_a_later_version_is_left_out() -> None:
    """During an upgrade its workers report to a quarantine that an earlier version still serves."""
    assert reports_from(raw(color="red")) == reports_from(raw())


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (None, "note_faults takes {faults}"),
        ({"faults": [3]}, "faults[0] is a fault"),
        (raw(node=""), "faults[0].node is a name"),
        (raw(node=["n2"]), "faults[0].node is a name"),
        (raw(device=-1), "faults[0].device is a whole number"),
        (raw(device=True), "faults[0].device is a whole number"),
        (raw(at=float("nan")), "faults[0].at is a time"),
        (raw(at=None), "faults[0].at is a time"),
        (raw(window_s="1 day"), "faults[0].window_s is seconds"),
        ({"faults": [asdict(HBM)] * 201}, "at most 200"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(argument: object, sentence: str) -> None:
    with pytest.raises(CommandRejected) as refusal:
        reports_from(argument)
    assert sentence in str(refusal.value)


def test_a_count_stands_until_its_window_is_over_or_it_has_isolated_the_device() -> None:
    book, _, _ = note(EMPTY, *at(100.0), *at(300.0, device=4))
    counts = fault_counts.standing(book.faults, 100.0 + DAY_S - 1)
    assert [(f.device, f.times, f.limit) for f in counts] == [(3, 1, 2), (4, 1, 2)]
    assert [f.device for f in fault_counts.standing(book.faults, 100.0 + DAY_S)] == [4]
    book, _, _ = note(book, *at(400.0))
    assert [f.device for f in fault_counts.standing(book.faults, 400.0)] == [4]
