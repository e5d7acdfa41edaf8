"""When silence of a running rank means that it hangs (design §7): learned, between floor and ceiling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.deciding.naming import ends_at_hang
from everstep.core.levels import FaultClass
from everstep.core.seeing import watching
from everstep.core.seeing.hang import learn, start_limit_s, step_limit_s, suspects
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.seeing.watching import Watch
from everstep.core.spec import Limits, Match, Policy, Rule
from everstep.core.state import Learned
from everstep.core.world import DeviceUse, Observation, PodView
from everstep.dialects.cerebras.policy import WITHOUT_RESTARTS, cerebras
from everstep.protocol.exits import Exit, RankExit
from tests.support.builders import pod, pod_with, watch_order

AUTO = Limits()
PROVEN = Learned(longest_gap_s=1.0, first_step_at=0.0, checkpoint_seen=True, steps_seen=True)

# limits, learned, now, how long a step may take
STEP_LIMITS = (
    ("five times the longest gap", AUTO, Learned(longest_gap_s=90.0), 10.0, 450.0),
    ("not below 300 s before anything is proven", AUTO, Learned(longest_gap_s=1.0), 10.0, 300.0),
    ("not below 60 s after a checkpoint", AUTO, PROVEN, 10.0, 60.0),
    (
        "nor after 30 minutes of steps",
        AUTO,
        Learned(longest_gap_s=1.0, first_step_at=0.0),
        1_800.0,
        60.0,
    ),
    ("never above 30 minutes", AUTO, Learned(longest_gap_s=9_000.0), 10.0, 1_800.0),
    ("the document's own word counts", Limits(hang_s=7.0), PROVEN, 10.0, 7.0),
)


@pytest.mark.parametrize(
    ("limits", "learned", "now", "limit"),
    [row[1:] for row in STEP_LIMITS],
    ids=[row[0] for row in STEP_LIMITS],
)
def test_a_step_may_take(limits: Limits, learned: Learned, now: float, limit: float) -> None:
    assert step_limit_s(limits, learned, now=now, time_scale=1.0) == limit


def test_a_rehearsal_divides_what_is_learned_by_time_and_not_the_gaps() -> None:
    assert step_limit_s(AUTO, Learned(), now=0.0, time_scale=10.0) == 30.0
    assert step_limit_s(AUTO, PROVEN, now=0.0, time_scale=10.0) == 6.0


def test_a_start_has_a_limit_of_its_own() -> None:
    slow = Learned(longest_start_s=200.0, steps_seen=True)
    assert start_limit_s(AUTO, slow, time_scale=1.0) == 1_000.0
    assert start_limit_s(AUTO, Learned(), time_scale=1.0) == 300.0


def test_the_longest_gap_is_remembered() -> None:
    learned = learn(
        Learned(), [pod(0, step=5, step_at=9.0, longest_gap_s=3.0)], checkpoint_seen=False
    )
    assert (learned.longest_gap_s, learned.first_step_at, learned.steps_seen) == (3.0, 9.0, True)
    again = learn(learned, [pod(0, step=6, step_at=10.0, longest_gap_s=1.0)], checkpoint_seen=True)
    assert (again.longest_gap_s, again.first_step_at, again.checkpoint_seen) == (3.0, 9.0, True)


def test_the_first_step_is_the_earliest_of_all_pods_however_late_they_are_seen() -> None:
    pods = [
        pod(0, step=700, step_at=2_000.0, first_step_at=110.0),
        pod(1, step=700, step_at=2_001.0, first_step_at=100.0),
    ]
    assert learn(Learned(), pods, checkpoint_seen=False).first_step_at == 100.0


def due(
    *pods: PodView, learned: Learned = PROVEN, limits: Limits = AUTO, ends_job: bool = False
) -> list[tuple[int, float]]:
    suspect_slots = suspects(pods, limits, learned, now=100.0, time_scale=1.0, ends_job=ends_job)
    return [(slot, one.due) for one in suspect_slots for slot in one.slots]


def test_who_stands_still_longest_is_suspected_first() -> None:
    pods = (pod(0, step=5, step_at=90.0), pod(1, step=5, step_at=80.0))
    assert due(*pods) == [(1, 140.0), (0, 150.0)]


def test_where_steps_are_seen_other_movement_is_no_life() -> None:
    assert due(pod(0, step=5, step_at=80.0, moved_at=99.0)) == [(0, 140.0)]


def test_a_time_that_nothing_watched_is_none_in_which_a_slot_stood_still() -> None:
    """The machine slept for an hour, or all of it was stopped: the next step is still to come."""
    stepped = pod(0, step=5, step_at=-3_600.0, io_at=100.0, watched_since=100.0)
    assert due(stepped) == [(0, 160.0)]
    assert due(pod(0, moved_at=-3_600.0, watched_since=100.0), learned=Learned()) == [(0, 400.0)]
    assert due(pod(0, started_at=-3_600.0, watched_since=100.0)) == [(0, 400.0)]
    assert due(pod(0, step=5, step_at=80.0, watched_since=70.0)) == [(0, 140.0)]


def test_where_no_step_was_ever_seen_any_movement_is_life() -> None:
    assert due(pod(0, moved_at=99.0), learned=Learned()) == [(0, 399.0)]


def test_a_slot_that_prints_no_steps_is_judged_by_its_movement_while_another_one_steps() -> None:
    one_prints = (pod(0, step=5, step_at=290.0), pod(1, moved_at=299.0))
    assert due(*one_prints) == [(0, 350.0), (1, 359.0)]


# what its slots show 20 s after the last step, when it counts as hung, the same where a hang ends the job
BUSY = (
    ("nothing", (pod(0, step=5, step_at=80.0),), 140.0, 140.0),
    ("output", (pod(0, step=5, step_at=80.0, output_at=99.0),), 159.0, 159.0),
    ("I/O", (pod(0, step=5, step_at=80.0, io_at=99.0),), 159.0, 159.0),
    ("output for long", (pod(0, step=5, step_at=80.0, output_at=679.0),), 680.0, 739.0),
    ("use of the processor", (pod(0, step=5, step_at=80.0, moved_at=99.0),), 140.0, 159.0),
    ("that for long", (pod(0, step=5, step_at=80.0, moved_at=9_999.0),), 140.0, 680.0),
    ("use of a device", (pod(0, step=5, step_at=80.0, busy_at=999.0),), 140.0, 1_059.0),
    (
        "output of another slot that stands still too",
        (pod(0, step=5, step_at=80.0, output_at=90.0), pod(1, step=5, step_at=81.0)),
        150.0,
        150.0,
    ),
    (
        "steps of another slot",
        (pod(0, step=5, step_at=80.0), pod(1, step=9, step_at=99.0, output_at=99.0)),
        140.0,
        159.0,
    ),
)


@pytest.mark.parametrize(
    ("pods", "at", "at_its_end"), [row[1:] for row in BUSY], ids=[row[0] for row in BUSY]
)
def test_while_steps_stand_still_it_is_life(
    pods: tuple[PodView, ...], at: float, at_its_end: float
) -> None:
    assert due(*pods)[0][1] == at
    assert due(*pods, ends_job=True)[0][1] == at_its_end


def test_output_never_buys_more_than_half_an_hour_nor_more_than_the_document_says() -> None:
    slow = replace(PROVEN, longest_gap_s=100.0)
    validates = pod(0, step=5, step_at=80.0, output_at=9_999.0)
    assert due(validates, learned=slow) == [(0, 1_880.0)]
    assert due(validates, limits=Limits(hang_s=7.0)) == [(0, 87.0)]
    assert due(validates, limits=Limits(hang_s=7.0), ends_job=True) == [(0, 10_006.0)]


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        (Policy(), False),
        (cerebras(max_num_restarts=3), True),
        (WITHOUT_RESTARTS, False),
        (Policy(rules=(Rule(match=Match(cls=FaultClass.HANG), action="fail"),)), True),
        (Policy(rules=(Rule(match=Match(kind="process.*"), action="fail"),)), False),
        (
            replace(
                cerebras(max_num_restarts=3),
                rules=(Rule(match=Match(cls=FaultClass.HANG), action="note"),),
            ),
            False,
        ),
    ],
)
def test_what_answers_a_hang_with_the_end_of_the_job(policy: Policy, ends: bool) -> None:
    assert ends_at_hang(policy) is ends


def test_before_its_first_step_a_start_is_given_its_own_time() -> None:
    assert due(pod(0, started_at=50.0, moved_at=99.0)) == [(0, 350.0)]


@pytest.mark.parametrize(
    "pods", [(pod(0, started_at=None),), (pod(0, exits=(RankExit(0, 9.0, Exit(code=0)),)),)]
)
def test_what_does_not_run_does_not_hang(pods: tuple[PodView, ...]) -> None:
    assert due(*pods) == []


def test_after_the_first_end_the_others_are_given_four_times_the_grace() -> None:
    ended = pod(0, exits=(RankExit(0, 90.0, Exit(code=0)),))
    late = pod(1, step=5, step_at=80.0)
    assert due(ended, late, limits=Limits(grace_s=15.0)) == [(1, 90.0 + 60.0 + 60.0)]


# when each slot made its newest step, who is blamed, what is said of it
BLAMED = (
    ("all at one time", (80.0, 80.0, 80.0), None, "all 3 running"),
    ("clocks are never quite the same", (80.3, 80.0, 81.4), None, "all 3 running"),
    ("one stopped, the others went on", (80.0, 95.0, 96.0), 0, "slot 0"),
    ("two stopped at once", (95.0, 80.0, 80.7), None, "2 of 3 running"),
)


@pytest.mark.parametrize(
    ("steps_at", "slot", "reason"), [row[1:] for row in BLAMED], ids=[row[0] for row in BLAMED]
)
def test_nobody_is_blamed_alone_where_several_stopped_at_once(
    steps_at: tuple[float, ...], slot: int | None, reason: str
) -> None:
    pods = tuple(pod(number, step=5, step_at=at) for number, at in enumerate(steps_at))
    order = watch_order(0, 1, 2, limits=AUTO, learned=PROVEN)
    observation = Observation(now=140.0, cursor="1", pods=pods, generation=1)
    _, watch_result = watching.check(order, Watch(learned=PROVEN, has_polled=True), observation)
    assert isinstance(watch_result, WatchReport)
    (hang,) = watch_result.facts
    assert (hang.slot, reason in hang.message) == (slot, True)


# percent of use that the devices of each slot show, which slot is blamed
USES = (
    ("one waits for nothing", ((99.0, 100.0), (0.0, 100.0), (100.0, 98.0)), 1),
    ("two do nothing", ((100.0,), (0.0,), (1.0,)), None),
    ("all are busy", ((100.0,), (100.0,), (99.0,)), None),
    ("one works less", ((100.0,), (30.0,), (99.0,)), None),
    ("one slot shows nothing", ((100.0,), (0.0,), ()), None),
    ("one device shows nothing", ((100.0,), (0.0,), (99.0, None)), None),
    ("of two slots either may be the cause", ((100.0,), (0.0,)), None),
)


@pytest.mark.parametrize(("uses", "slot"), [row[1:] for row in USES], ids=[row[0] for row in USES])
def test_of_slots_that_stopped_at_once_the_one_whose_devices_are_idle_is_blamed(
    uses: tuple[tuple[float | None, ...], ...], slot: int | None
) -> None:
    """Ranks that wait in a collective operation keep their devices busy."""
    pods = tuple(
        pod(
            number,
            step=5,
            step_at=80.0,
            device_use=tuple(DeviceUse(n, use, None, None) for n, use in enumerate(percents)),
        )
        for number, percents in enumerate(uses)
    )
    order = watch_order(*range(len(pods)), limits=AUTO, learned=PROVEN)
    observation = Observation(now=140.0, cursor="1", pods=pods, generation=1)
    _, watch_result = watching.check(order, Watch(learned=PROVEN, has_polled=True), observation)
    assert isinstance(watch_result, WatchReport)
    (hang,) = watch_result.facts
    assert (hang.slot, hang.node) == (slot, None if slot is None else f"n{slot}")
    blame = "the devices of slot 1 do nothing, those of the others work"
    assert (blame in hang.message) == (slot == 1)
    assert f"all {len(pods)} running slots have been still for 60 s" in hang.message


@pytest.mark.parametrize(
    "pods",
    [
        (pod(0, moved_at=70.0), pod(0, moved_at=600.0)),
        (pod(0, step=5, step_at=70.0), pod(0, step=6, step_at=600.0)),
    ],
    ids=["without steps", "with steps"],
)
def test_each_hang_of_a_generation_is_a_fact_of_its_own(pods: tuple[PodView, PodView]) -> None:
    """The first one was only noted, and the rank went on."""
    seen_ids: list[str] = []
    for now, still in zip((500.0, 9_000.0), pods, strict=True):
        order = watch_order(0, limits=AUTO, seen_ids=frozenset(seen_ids))
        observation = Observation(now=now, cursor="1", pods=(still,), generation=1)
        _, watch_result = watching.check(
            order, Watch(learned=Learned(), has_polled=True), observation
        )
        assert isinstance(watch_result, WatchReport)
        seen_ids += [fact.id for fact in watch_result.facts]
    assert len(set(seen_ids)) == 2


def _news(order: WatchOrder, *pods: PodView, now: float) -> str | None:
    observation = Observation(now=now, cursor="1", pods=pods, generation=1)
    _, watch_result = watching.check(order, Watch(learned=PROVEN, has_polled=True), observation)
    return watch_result.news if isinstance(watch_result, WatchReport) else None


def test_a_hang_that_was_noted_is_over_once_its_slot_goes_on_and_not_before() -> None:
    order = watch_order(0, 1, limits=AUTO, learned=PROVEN, suspected_at=165.0, since=165.0)
    hangs = pod(1, step=5, step_at=100.0)
    trains = pod(0, step=90, step_at=404.0)
    assert _news(order, trains, hangs, now=405.0) is None
    prints = pod_with(hangs, output_at=404.5)
    assert _news(order, trains, prints, now=405.0) is None
    assert _news(order, trains, pod_with(hangs, step_at=404.5), now=405.0) == "activity_resumed"


def test_output_that_came_with_the_last_step_does_not_go_on() -> None:
    prints = pod(0, step=5, step_at=100.0, output_at=100.4, io_at=101.0)
    (one,) = suspects((prints,), Limits(hang_s=7.0), PROVEN, now=700.0, time_scale=1.0)
    assert one.how == "been still for 7 s"


@pytest.mark.parametrize(
    ("limits", "ends_job", "how"),
    [
        (Limits(hang_s=7.0), False, "made no step for 7 s, though output or I/O goes on"),
        (Limits(hang_s=1_000.0), True, "been still for 1000 s"),
        (AUTO, False, "made no step for 600 s, though output or I/O goes on"),
    ],
)
def test_what_a_hang_is_limited_by_is_said(limits: Limits, how: str, *, ends_job: bool) -> None:
    prints = pod(0, step=5, step_at=100.0, output_at=690.0)
    (one,) = suspects((prints,), limits, PROVEN, now=700.0, time_scale=1.0, ends_job=ends_job)
    assert one.how == how
