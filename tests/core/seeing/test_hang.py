"""When silence of a running rank means that it hangs (design §7): learned, between floor and ceiling."""

from __future__ import annotations

import pytest

from everstep.core.seeing import watching
from everstep.core.seeing.hang import learn, start_limit_s, step_limit_s, suspects
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.seeing.watching import Watch
from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import JobRef, Observation, RankExit
from tests.support.builders import pod

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


def due(*pods: object, learned: Learned = PROVEN, limits: Limits = AUTO) -> list[tuple[int, float]]:
    found = suspects(pods, limits, learned, now=100.0, time_scale=1.0)  # type: ignore[arg-type]  # pods
    return [(slot, one.due) for one in found for slot in one.slots]


def test_who_stands_still_longest_is_suspected_first() -> None:
    pods = (pod(0, step=5, step_at=90.0), pod(1, step=5, step_at=80.0))
    assert due(*pods) == [(1, 140.0), (0, 150.0)]


def test_where_steps_are_seen_other_movement_is_no_life() -> None:
    assert due(pod(0, step=5, step_at=80.0, moved_at=99.0)) == [(0, 140.0)]


def test_where_no_step_was_ever_seen_any_movement_is_life() -> None:
    assert due(pod(0, moved_at=99.0), learned=Learned()) == [(0, 399.0)]


def test_before_its_first_step_a_start_is_given_its_own_time() -> None:
    assert due(pod(0, started_at=50.0, moved_at=99.0)) == [(0, 350.0)]


@pytest.mark.parametrize(
    "pods", [(pod(0, started_at=None),), (pod(0, exits=(RankExit(rank=0, at=9.0, code=0),)),)]
)
def test_what_does_not_run_does_not_hang(pods: tuple[object, ...]) -> None:
    assert due(*pods) == []


def test_after_the_first_end_the_others_are_given_four_times_the_grace() -> None:
    ended = pod(0, exits=(RankExit(rank=0, at=90.0, code=0),))
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
    ("steps_at", "slot", "says"), [row[1:] for row in BLAMED], ids=[row[0] for row in BLAMED]
)
def test_nobody_is_blamed_alone_where_several_stopped_at_once(
    steps_at: tuple[float, ...], slot: int | None, says: str
) -> None:
    pods = tuple(pod(number, step=5, step_at=at) for number, at in enumerate(steps_at))
    order = WatchOrder(
        job=JobRef(id="demo", run="r1"),
        cluster="local",
        generation=1,
        cursor=0,
        since=0.0,
        limits=AUTO,
        living=(0, 1, 2),
        learned=PROVEN,
    )
    seen = Observation(now=140.0, cursor=1, pods=pods, generation=1)
    _, found = watching.look(order, Watch(learned=PROVEN, has_asked=True), seen)
    assert isinstance(found, WatchReport)
    (hang,) = found.facts
    assert (hang.slot, says in hang.message) == (slot, True)
