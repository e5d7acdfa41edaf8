"""Case 57: a link that is down for long, the device that it takes away, and when it comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.counting import fault_spans
from everstep.core.counting.reports import CountOrder, FaultReport, SoundReport, sound_of
from everstep.core.recovering import quarantine
from everstep.core.recovering.quarantine import (
    COUNTS,
    DURATION,
    UNFOLLOWED,
    DeviceReport,
    Quarantine,
)
from everstep.core.world import DeviceView, NodeView
from everstep.faults.rules import duration_rules, frequency_rules
from tests.support.builders import fact

CODE = "81078603"
((_, LONGER_THAN_S, SOUND_FOR_S, LEVEL),) = duration_rules()
RULE = frequency_rules()[CODE]
DOWN = FaultReport(
    node="n2",
    device=3,
    code=CODE,
    at=1_000.0,
    job="a",
    times=RULE.times,
    window_s=RULE.window_s,
    release_s=RULE.release_s,
    longer_than_s=LONGER_THAN_S,
    sound_for_s=SOUND_FOR_S,
)
PLACE, DAY_S = "n2/3", 86_400.0


def down(book: Quarantine, at: float) -> Quarantine:
    book, _ = quarantine.count_faults(book, [replace(DOWN, at=at)], now=at, cluster_size=8)
    return quarantine.pass_time(book, at)


def up(book: Quarantine, at: float) -> Quarantine:
    return quarantine.pass_time(
        quarantine.end_faults(book, [SoundReport(node="n2", device=3, at=at)]), at
    )


def isolated_by(book: Quarantine) -> str | None:
    entry = book.nodes.get(PLACE)
    return None if entry is None else entry.by


def spell(book: Quarantine, at: float, lasts_s: float) -> Quarantine:
    """The link is down from then on for so long."""
    return up(down(book, at), at + lasts_s)


EMPTY = Quarantine(cluster="local")


def test_the_rule_is_that_of_the_source() -> None:
    assert (LONGER_THAN_S, SOUND_FOR_S, LEVEL) == (20.0, 60.0, "PreSeparateNPU")
    assert (RULE.times, RULE.window_s, RULE.release_s) == (5, DAY_S, 2 * DAY_S)


@pytest.mark.parametrize(("lasts_s", "by"), [(19, None), (20, None), (21, DURATION)])
def test_a_device_is_left_once_its_fault_lasted_longer_than_20_s(
    lasts_s: float, by: str | None
) -> None:
    assert isolated_by(spell(EMPTY, 1_000, lasts_s)) == by


def test_it_is_left_while_the_fault_lasts_and_comes_back_60_s_after_its_end() -> None:
    book = down(EMPTY, 1_000)
    assert quarantine.next_change_at(book) == 1_020
    book = quarantine.pass_time(book, 1_020)
    assert isolated_by(book) == DURATION
    assert quarantine.next_change_at(book) is None
    book = up(book, 5_000)
    assert quarantine.next_change_at(book) == 5_060
    assert isolated_by(quarantine.pass_time(book, 5_059)) == DURATION
    book = quarantine.pass_time(book, 5_060)
    assert isolated_by(book) is None
    assert quarantine.next_change_at(book) is None


def test_one_that_is_down_again_within_60_s_is_not_sound() -> None:
    book = spell(EMPTY, 1_000, 30)
    book = spell(book, 1_050, 5)  # too short by itself
    assert isolated_by(quarantine.pass_time(book, 1_100)) == DURATION
    assert isolated_by(quarantine.pass_time(book, 1_115)) is None


def test_the_fifth_within_a_day_isolates_until_it_was_quiet_for_two_days() -> None:
    book = EMPTY
    for n in range(5):
        assert isolated_by(book) is None
        book = quarantine.pass_time(spell(book, 1_000.0 + n * 10_000, 30), 2_000.0 + n * 10_000)
    assert isolated_by(book) == COUNTS
    ends_at = 41_020.0 + 2 * DAY_S
    assert book.nodes[PLACE].until == ends_at
    assert quarantine.expired_nodes(book, ends_at - 1) == ()
    assert quarantine.expired_nodes(book, ends_at) == (PLACE,)


def test_short_ones_and_those_of_other_days_are_not_among_the_five() -> None:
    book = EMPTY
    for n in range(20):
        book = quarantine.pass_time(spell(book, 1_000.0 + n * 500, 15), 1_400.0 + n * 500)
    for day in range(8):
        book = quarantine.pass_time(spell(book, day * DAY_S / 3.9 + 20_000, 30), 1e6)
    assert isolated_by(book) is None


def test_a_device_that_still_shows_the_fault_is_not_released_by_time() -> None:
    book = EMPTY
    for n in range(4):
        book = spell(book, 1_000.0 + n * 1_000, 30)
    book = quarantine.pass_time(down(book, 6_000), 6_020)
    assert isolated_by(book) == COUNTS
    assert quarantine.expired_nodes(book, 10 * DAY_S) == ()
    assert quarantine.expired_nodes(up(book, 9 * DAY_S), 10 * DAY_S) == (PLACE,)


def test_reports_that_come_again_or_late_change_nothing() -> None:
    book = spell(EMPTY, 1_000, 30)
    assert down(book, 1_000) == book
    assert up(book, 1_030) == book
    assert down(down(book, 2_000), 1_000) == down(book, 2_000)
    assert up(down(book, 2_000), 1_030).spans == down(book, 2_000).spans


def test_what_an_operator_isolated_is_not_released_by_a_sound_link() -> None:
    book, _ = quarantine.isolate(
        EMPTY, quarantine.Request(node=PLACE, reason="fan", by="operator", at=1.0)
    )
    book = quarantine.pass_time(spell(book, 1_000, 30), 9_000)
    assert isolated_by(book) == "operator"


def test_an_earlier_code_of_the_device_that_is_over_does_not_release_it() -> None:
    earlier = replace(DOWN, code="80CB8009", at=100.0)
    book, _ = quarantine.count_faults(EMPTY, [earlier], now=100.0, cluster_size=8)
    book = down(up(book, 105), 1_000)
    assert quarantine.next_change_at(book) == 1_020
    book = quarantine.pass_time(book, 1_020)
    assert isolated_by(book) == DURATION
    assert quarantine.next_change_at(book) is None
    assert isolated_by(quarantine.pass_time(up(book, 2_000), 2_060)) is None


def test_a_device_is_not_sound_while_it_shows_another_code_that_may_last() -> None:
    book = up(quarantine.pass_time(down(EMPTY, 1_000), 1_020), 1_100)
    another = replace(DOWN, code="80CB8009", at=1_110.0)
    book, _ = quarantine.count_faults(book, [another], now=1_110.0, cluster_size=8)
    book = quarantine.pass_time(book, 1_160)
    assert isolated_by(book) == DURATION
    assert quarantine.next_change_at(book) is None
    assert isolated_by(quarantine.pass_time(up(book, 1_200), 1_260)) is None


@pytest.mark.parametrize("first", ["duration", "count that ends"])
def test_a_full_count_of_another_code_outlasts_what_isolates_its_device_already(first: str) -> None:
    """Case 56: it is isolated until it is released by hand, whatever becomes of its link."""
    book = EMPTY
    for n in range(1 if first == "duration" else 5):
        book = spell(book, 1_000.0 + n * 200, 30)
    ecc = replace(DOWN, code="80E01801", times=2, release_s=None, longer_than_s=None)
    reports = [replace(ecc, at=1_841.0), replace(ecc, at=1_842.0)]
    book = quarantine.pass_time(down(book, 1_810), 1_840) if first == "duration" else book
    book, answer = quarantine.count_faults(book, reports, now=1_842.0, cluster_size=8)
    assert answer.isolated == (PLACE,)
    book = quarantine.pass_time(up(book, 1_850), 9_000)
    assert (isolated_by(book), quarantine.expired_nodes(book, 10 * DAY_S)) == (COUNTS, ())
    assert book.nodes[PLACE].reason.startswith("80E01801 came 2 times")


def test_what_a_job_proves_of_a_device_is_not_released_by_a_sound_link() -> None:
    book = quarantine.pass_time(down(EMPTY, 1_000), 1_020)
    request = quarantine.Request(node=PLACE, reason="80E18402 on n2/3", by="demo", at=1_030.0)
    book, _ = quarantine.isolate(book, request)
    assert isolated_by(quarantine.pass_time(up(book, 1_100), 9_000)) == "demo"


def test_a_code_that_is_over_ends_no_other_code_of_its_device() -> None:
    """Two links of one device fail, and come back one after the other."""
    second = replace(DOWN, code="81078604")
    book, _ = quarantine.count_faults(
        EMPTY, [DOWN, replace(second, at=1_001.0)], now=1_001.0, cluster_size=8
    )
    book = quarantine.pass_time(book, 1_021)
    assert isolated_by(book) == DURATION
    first_sound = SoundReport(node="n2", device=3, at=1_100.0, code=CODE)
    book = quarantine.pass_time(quarantine.end_faults(book, [first_sound]), 1_160)
    assert isolated_by(book) == DURATION
    assert quarantine.next_change_at(book) is None
    second_sound = replace(first_sound, code=second.code, at=2_000.0)
    book = quarantine.pass_time(quarantine.end_faults(book, [second_sound]), 2_000)
    assert quarantine.next_change_at(book) == 2_060
    assert isolated_by(quarantine.pass_time(book, 2_060)) is None


def test_the_code_that_is_over_goes_along_with_a_report() -> None:
    healed = fact("device.healed", node="n2", device=3, code=CODE)
    order = CountOrder(
        cluster="local", job="a", facts=(healed,), repeats=(), durations=duration_rules()
    )
    sound = sound_of(order)
    assert [(one.place, one.code) for one in sound] == [(PLACE, CODE)]
    raw = [{"node": "n2", "device": 3, "at": 5.0, "code": code} for code in (CODE, None)]
    report = quarantine.device_report_from({"faults": [], "sound": raw}, now=9.0)
    assert [one.code for one in report.sound] == [CODE, None]


def test_each_span_is_read_once_for_the_next_change_however_many_devices_are_isolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A workflow computes it after each event: a look at all spans for each device is too slow there."""
    reports = [replace(DOWN, device=device) for device in range(50)]
    book, _ = quarantine.count_faults(EMPTY, reports, now=1_000.0, cluster_size=8)
    sound = [SoundReport(node="n2", device=device, at=1_100.0) for device in range(50)]
    book = quarantine.end_faults(quarantine.pass_time(book, 1_020), sound)
    reads: list[FaultReport] = []

    def place(report: FaultReport) -> str:
        reads.append(report)
        return f"{report.node}/{report.device}"

    monkeypatch.setattr(FaultReport, "place", property(place))
    assert quarantine.next_change_at(book) == 1_160
    assert len(reads) == len(book.spans) == 50


def test_a_code_that_is_there_again_before_its_end_is_reported_is_a_new_span() -> None:
    """The look that saw no code is from before the code came back; its report is late."""
    book = down(quarantine.pass_time(down(EMPTY, 1_000), 1_020), 1_200)
    book = up(book, 1_100)
    assert [(span.report.at, span.ended) for span in book.spans] == [(1_000, 1_100), (1_200, None)]
    book = quarantine.pass_time(book, 9_000)
    assert isolated_by(book) == DURATION
    assert [fault.times for fault in book.faults] == [1, 2]
    book = up(book, 9_100)
    assert len(down(book, 9_500).spans) == 1
    assert isolated_by(quarantine.pass_time(book, 9_160)) is None


def test_a_code_reported_again_while_it_lasts_has_one_end() -> None:
    """Two jobs on one device report the same code, each as of its own time."""
    book = up(down(down(EMPTY, 1_000), 1_001), 1_030)
    assert [(span.report.at, span.ended) for span in book.spans] == [(1_000, 1_030)]
    assert [fault.times for fault in book.faults] == [1]


LISTED = replace(DOWN, cluster_shows=True)
N2 = NodeView(name="n2", lists_codes=True, devices=(DeviceView(index=3),))
STILL_THERE = replace(N2, devices=(DeviceView(index=3, health="faulty", codes=(CODE,)),))


@pytest.mark.parametrize(
    ("report", "nodes", "is_over"),
    [
        (LISTED, (N2,), True),
        (LISTED, (replace(N2, devices=()),), True),  # the list of the node's codes lacks it
        (LISTED, (STILL_THERE,), False),
        (LISTED, (), False),
        (LISTED, (replace(N2, lists_codes=False),), False),
        (LISTED, (replace(N2, ready=False),), False),
        (
            DOWN,
            (N2,),
            False,
        ),  # an agent or an operator reported it, and the cluster never showed it
    ],
)
def test_a_code_is_over_only_where_the_cluster_had_shown_it_and_lists_it_no_more(
    report: FaultReport, nodes: tuple[NodeView, ...], is_over: bool
) -> None:
    """Unknown is not sound."""
    book, _ = quarantine.count_faults(EMPTY, [report], now=1_000.0, cluster_size=8)
    assert fault_spans.ended_on(book.spans, nodes, at=1_010.0) == ()  # too short to isolate
    book = quarantine.pass_time(book, 1_020)
    sound = fault_spans.ended_on(book.spans, nodes, at=1_100.0)
    assert [(one.place, one.code, one.at) for one in sound] == [(PLACE, CODE, 1_100.0)][:is_over]
    for _twice in range(2):
        book = quarantine.end_faults(book, sound)
    assert fault_spans.ended_on(book.spans, nodes, at=1_200.0) == ()
    assert isolated_by(quarantine.pass_time(book, 1_160)) == (None if is_over else DURATION)


def test_the_reason_names_who_can_release_a_device_whose_codes_the_cluster_does_not_show() -> None:
    reasons = []
    for report in (LISTED, DOWN):
        book, _ = quarantine.count_faults(EMPTY, [report], now=1_000.0, cluster_size=8)
        reasons.append(quarantine.pass_time(book, 1_020).nodes[PLACE].reason)
    assert reasons == [
        f"{CODE} lasts longer than 20 s",
        f"{CODE} lasts longer than 20 s; unless a job reports its end, an operator releases it",
    ]


def reported(
    book: Quarantine, *faults: FaultReport, sound: int | None = None, now: float
) -> Quarantine:
    """The quarantine after a report of these faults, and of the device that shows none any more."""
    sound_devices = () if sound is None else (SoundReport(node="n2", device=sound, at=now),)
    report = DeviceReport(faults=faults, sound=sound_devices, now=now, cluster_size=8)
    return quarantine.take_report(book, report)[0]


def test_the_span_of_an_isolated_device_outlives_those_that_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fault_spans, "SPANS_KEPT", 3)
    book = quarantine.pass_time(reported(EMPTY, DOWN, now=1_000), 1_020)
    for device in range(4, 9):
        at = 1_100.0 + device
        book = reported(book, replace(DOWN, device=device, at=at), now=at)
        book = reported(book, sound=device, now=at + 1)
    assert (isolated_by(book), len(book.spans)) == (DURATION, 3)
    book = reported(book, sound=3, now=2_000)
    book = reported(book, replace(DOWN, device=9, at=2_001.0), now=2_001)
    assert isolated_by(quarantine.pass_time(book, 2_059)) == DURATION
    assert isolated_by(quarantine.pass_time(book, 2_060)) is None


def test_a_device_of_which_a_code_is_no_longer_followed_is_left_to_an_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its code may last, whatever becomes of its other ones."""
    monkeypatch.setattr(fault_spans, "SPANS_KEPT", 3)
    links = [replace(DOWN, device=device, at=1_000.0 + device) for device in range(3, 7)]
    book = EMPTY
    for link in links:
        book = quarantine.pass_time(reported(book, link, now=1_010), 1_040)
    by = {entry.node: entry.by for entry in book.nodes.values()}
    assert by == {PLACE: UNFOLLOWED, "n2/4": DURATION, "n2/5": DURATION, "n2/6": DURATION}
    assert book.nodes[PLACE].reason == (
        f"{CODE} lasts longer than 20 s; too many codes last to follow its end: an operator releases it"
    )
    another = replace(DOWN, code="80CB8009", at=1_200.0)
    book = quarantine.pass_time(reported(book, another, now=1_200), 1_230)
    book = reported(book, sound=3, now=1_240)
    assert isolated_by(quarantine.pass_time(book, 9_000)) == UNFOLLOWED
