"""A watch that awaits the first step of its generation reports it at the next look."""

from __future__ import annotations

from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import POLL_AGAIN_S, WatchOrder, WatchReport
from everstep.core.seeing.watching import PollAll, WaitFor, Watch
from everstep.core.world import Observation, PodView
from tests.support.builders import pod, watch_order


def look(order: WatchOrder, *pods: PodView, now: float) -> WaitFor | PollAll | WatchReport:
    observation = Observation(now=now, cursor="1", pods=pods, generation=1)
    return watching.check(order, Watch(learned=order.learned), observation)[1]


AWAITS = watch_order(0, 1, awaits_first_step=True)
TRAINS = pod(0, step=1, step_at=8.0, first_step_at=8.0)


def test_it_is_reported_once_every_slot_made_one() -> None:
    assert look(AWAITS, TRAINS, pod(1), now=9.0) == WaitFor(until=9.0 + POLL_AGAIN_S)
    report = look(AWAITS, TRAINS, pod(1, step=1, step_at=9.5, first_step_at=9.5), now=10.0)
    assert isinstance(report, WatchReport)
    assert (report.news, report.first_step_at) == ("refresh", 9.5)


def test_where_rank_0_alone_prints_its_first_step_is_the_job_s_once_it_made_another() -> None:
    """A job of two nodes had none, and a training ratio of 99 % where 17 of 36 s were down."""
    again = pod(0, step=2, step_at=8.5, first_step_at=8.0)
    report = look(AWAITS, again, pod(1), now=9.0)
    assert isinstance(report, WatchReport)
    assert (report.news, report.first_step_at, report.step) == ("refresh", 8.0, 2)


def test_one_that_the_job_knows_is_no_news() -> None:
    order = watch_order(0)
    assert look(order, TRAINS, now=10.0) == WaitFor(until=order.since + order.refresh_s)
