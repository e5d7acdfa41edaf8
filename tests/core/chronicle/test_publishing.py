"""When what happened is due to be written and told, and what counts as more than was tried."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle.publishing import Published, Unpublished, due, published
from everstep.core.levels import FaultClass
from tests.support.builders import Told, running, sighting


def now_due(told: Told) -> Unpublished:
    return due(told.chronicle, told.state)


def quiet() -> Told:
    """It runs, and everything that happened is published."""
    told = running()
    newest = told.unpublished.newest
    told.publishes(entry=newest.entry, notice=newest.notice)
    return told


def test_a_restart_under_way_is_not_disturbed_for_lines_of_a_log() -> None:
    told = quiet()
    told.see(sighting(FaultClass.CRASH))
    assert (now_due(told).is_empty, len(told.unpublished.entries)) == (True, 1)
    told.succeeds()
    assert now_due(told) == told.unpublished
    assert [notice.event for notice in now_due(told).notices] == ["JobRestarted"]


def test_lines_go_out_before_a_restart_takes_away_all_who_could_write_them() -> None:
    told = quiet()
    told.see(sighting(FaultClass.PREEMPTED))
    assert [entry.text[:9] for entry in now_due(told).entries] == ["restart 1"]


def test_at_the_end_lines_are_written_before_the_notices_are_told() -> None:
    told = quiet()
    told.report("done")
    assert (len(now_due(told).entries), now_due(told).notices) == (1, ())
    told.publishes(entry=told.unpublished.newest.entry)
    assert [notice.event for notice in now_due(told).notices] == ["JobCompleted"]


def test_the_end_is_due_though_no_notice_tells_it() -> None:
    told = quiet()
    told.chronicle = replace(told.chronicle, wanted_events=("JobHanged",))
    told.report("done")
    lines = now_due(told)
    assert (len(lines.entries), lines.notices, lines.is_end_due) == (1, (), True)
    assert lines.totals.ended == "Completed"
    newest = lines.newest
    told.chronicle = published(told.chronicle, lines, replace(newest, is_end_left=True))
    left = now_due(told)
    assert (left.entries, left.is_empty, left.is_end_due) == ((), False, True)
    told.chronicle = published(told.chronicle, left, Published())
    assert now_due(told).is_empty


def test_what_was_sent_before_the_end_does_not_acknowledge_it() -> None:
    told = running()
    early = now_due(told)
    told.report("done")
    told.chronicle = published(told.chronicle, early, early.newest)
    assert now_due(told).is_end_due
    assert now_due(told).has_more_than(early)


def test_who_wants_to_hear_of_a_hang_hears_of_it_at_once() -> None:
    told = quiet()
    told.chronicle = replace(told.chronicle, wanted_events=("JobHanged",))
    told.see(sighting(FaultClass.HANG))
    assert [notice.event for notice in now_due(told).notices] == ["JobHanged"]


def test_only_what_came_since_is_more_than_what_was_tried() -> None:
    told = running()
    tried = now_due(told)
    assert tried.has_more_than(None)
    assert not now_due(told).has_more_than(tried)
    told.publishes(entry=tried.newest.entry)
    assert not now_due(told).has_more_than(tried), "part of it was published"
    told.see(sighting(FaultClass.SUBHEALTH))
    assert now_due(told).has_more_than(tried)


def test_what_was_tried_in_other_books_is_tried_again() -> None:
    told = running()
    tried = now_due(told)
    told.state = replace(told.state, job=replace(told.state.job, books="new"))
    assert now_due(told).has_more_than(tried)


def exported() -> Told:
    """It runs, and a worker that exports totals and spans has published everything."""
    told = running()
    newest = told.unpublished.newest
    told.chronicle = published(told.chronicle, told.unpublished, replace(newest, first_step=0))
    return told


def restarted(told: Told) -> Told:
    """A restart whose end is published; its first step was not seen yet."""
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    publication = told.unpublished
    acknowledged = replace(publication.newest, first_step=publication.first_step)
    told.chronicle = published(told.chronicle, publication, acknowledged)
    assert now_due(told).is_empty
    return told


def test_a_first_step_is_due_where_a_worker_exports_it() -> None:
    told = restarted(exported())
    tried = now_due(told)
    told.report(first_step_at=told.state.now + 7.0)
    publication = now_due(told)
    assert publication.is_first_step_due
    assert publication.has_more_than(tried)
    assert publication.has_more_than(None)
    assert not now_due(told).has_more_than(publication)
    done = Published(first_step=publication.first_step)
    told.chronicle = published(told.chronicle, publication, done)
    assert now_due(told).is_empty


def test_a_first_step_alone_is_not_published_where_nothing_exports_it() -> None:
    told = quiet()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    newest = told.unpublished.newest
    told.publishes(entry=newest.entry, notice=newest.notice)
    told.report(first_step_at=told.state.now + 7.0)
    assert now_due(told).is_empty


def test_a_publication_of_an_earlier_first_step_does_not_acknowledge_the_next() -> None:
    told = restarted(exported())
    told.report(first_step_at=told.state.now + 7.0)
    early = now_due(told)
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    told.report(first_step_at=told.state.now + 7.0)
    told.chronicle = published(told.chronicle, early, Published(first_step=early.first_step))
    assert now_due(told).is_first_step_due


def test_a_restart_under_way_is_not_disturbed_for_a_first_step() -> None:
    told = restarted(exported())
    told.report("facts", first_step_at=told.state.now + 1.0, facts=(sighting(FaultClass.CRASH),))
    assert now_due(told).is_empty
    told.succeeds()
    assert now_due(told).is_first_step_due


def test_nothing_is_never_more() -> None:
    told = quiet()
    assert now_due(told).is_empty
    assert not now_due(told).has_more_than(None)
