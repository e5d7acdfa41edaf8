"""A rank that falls behind its peers is a fact once, and a warning while it lasts."""

from __future__ import annotations

import pytest

from everstep.chronicle import happenings, views
from everstep.core.deciding.playbook import row_for
from everstep.core.levels import FaultClass, Level
from everstep.core.seeing import watching
from everstep.core.seeing.glance import glance
from everstep.core.seeing.pace import slow_ranks
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.seeing.watching import WaitFor, Watch
from everstep.core.state import Learned
from everstep.core.world import Observation, PodView
from tests.support.builders import fact, pod, running, watch_order

PACE = Learned(steps_seen=True, longest_gap_s=1.0, first_step_at=1.0)
NOW = 600.0
TEXT = "rank 3 on n1 made 12 steps in 300 s; its peers made 25"


def pods(*counts: tuple[int, ...] | None) -> tuple[PodView, ...]:
    """Pods with so many steps of each of their ranks; None: not all of these show any."""
    views_of_pods, rank = [], 0
    for slot, of_pod in enumerate(counts):
        recent = None if of_pod is None else tuple((rank + i, n) for i, n in enumerate(of_pod))
        rank += 2 if of_pod is None else len(of_pod)
        stepping = pod(slot, step=9, step_at=NOW, first_step_at=1.0)
        views_of_pods.append(stepping._replace(recent_steps=recent))
    return tuple(views_of_pods)


ROWS = [
    ("half of the others", ((25, 24), (25, 12)), [3]),
    ("a little more than half", ((25, 24), (25, 13)), []),
    ("the slowest first", ((25, 11), (24, 24), (12, 25)), [1, 4]),
    ("of two the other is the peer", ((24,), (12,)), [1]),
    ("not all show steps", ((25, 12), None), []),
    ("too few to tell", ((5, 5), (5, 2)), []),
    ("one that makes none hangs", ((25, 25), (25, 0)), []),
    ("one rank alone", ((25,),), []),
    ("many", ((25,) * 9, (5,) * 6), [9, 10, 11, 12]),
]


@pytest.mark.parametrize(
    ("counts", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_slow_is_half_of_the_usual(
    counts: tuple[tuple[int, ...] | None, ...], expected: list[int]
) -> None:
    assert [slow.rank for slow in slow_ranks(pods(*counts))] == expected


def look(*counts: tuple[int, ...], **order_fields: object) -> WaitFor | WatchReport:
    of_pods = pods(*counts)
    order = watch_order(*range(len(of_pods)), learned=PACE, **order_fields)
    observation = Observation(now=NOW, cursor="1", pods=of_pods, generation=1)
    watch = Watch(learned=PACE, has_polled=True)
    assert glance(order, watch, observation)["slow_ranks"] == len(slow_ranks(of_pods))
    watch_result = watching.check(order, watch, observation)[1]
    assert isinstance(watch_result, WaitFor | WatchReport)
    return watch_result


def test_it_is_a_fact_once_for_each_rank_and_a_warning_while_it_lasts() -> None:
    first = look((25, 24), (25, 12))
    assert isinstance(first, WatchReport)
    (slow,) = first.facts
    assert (slow.kind, slow.node, slow.slot, slow.rank) == ("slow.rank", "n1", 1, 3)
    assert slow.message == TEXT
    seen_ids = frozenset({slow.id})
    warned = look((25, 24), (25, 12), seen_ids=seen_ids)
    assert isinstance(warned, WatchReport)
    assert (warned.facts, [each.text for each in warned.warnings]) == ((), [TEXT])
    still = look((25, 24), (25, 11), seen_ids=seen_ids, warnings=warned.warnings)
    assert isinstance(still, WaitFor), "the same rank, slower by a step, is no news"
    over = look((25, 24), (25, 24), seen_ids=seen_ids, warnings=warned.warnings)
    assert isinstance(over, WatchReport)
    assert (over.news, over.warnings) == ("warned", ())


def test_it_is_noted_and_nothing_is_restarted() -> None:
    slow = fact("slow.rank", slot=1, rank=3, message=TEXT)
    assert row_for(slow).cls is FaultClass.SLOW
    job = running()
    decision = job.see(slow)
    assert decision.level is Level.NOTE
    assert views.shown_state(job.state) == "running"
    assert any(TEXT in event["message"] for event in happenings.events(job.chronicle))
