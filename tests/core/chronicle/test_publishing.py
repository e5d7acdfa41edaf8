"""When events are due to be published, and what counts as more than was tried."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle.publishing import Publication, PublishedUpTo, after_publishing, due_now
from everstep.core.levels import FaultClass
from tests.support.builders import ScriptedJob, running, sighting


def now_due(job: ScriptedJob) -> Publication:
    return due_now(job.chronicle, job.state)


def quiet() -> ScriptedJob:
    """It runs, and everything that happened is published."""
    job = running()
    newest = job.unpublished.newest
    job.publishes(entry=newest.entry, notice=newest.notice)
    return job


def test_a_restart_under_way_is_not_disturbed_for_lines_of_a_log() -> None:
    job = quiet()
    job.see(sighting(FaultClass.CRASH))
    assert (now_due(job).is_empty, len(job.unpublished.entries)) == (True, 1)
    job.succeeds()
    assert now_due(job) == job.unpublished
    assert [notice.event for notice in now_due(job).notices] == ["JobRestarted"]


def test_lines_go_out_before_a_restart_takes_away_all_who_could_write_them() -> None:
    job = quiet()
    job.see(sighting(FaultClass.PREEMPTED))
    assert [entry.text[:9] for entry in now_due(job).entries] == ["restart 1"]


def test_at_the_end_lines_are_written_before_the_notices_are_told() -> None:
    job = quiet()
    job.report("done")
    assert (len(now_due(job).entries), now_due(job).notices) == (1, ())
    job.publishes(entry=job.unpublished.newest.entry)
    assert [notice.event for notice in now_due(job).notices] == ["JobCompleted"]


def test_the_end_is_due_though_no_notice_tells_it() -> None:
    job = quiet()
    job.chronicle = replace(job.chronicle, wanted_events=("JobHanged",))
    job.report("done")
    lines = now_due(job)
    assert (len(lines.entries), lines.notices, lines.is_end_due) == (1, (), True)
    assert lines.totals.ended == "Completed"
    newest = lines.newest
    job.chronicle = after_publishing(job.chronicle, lines, replace(newest, is_end_left=True))
    left = now_due(job)
    assert (left.entries, left.is_empty, left.is_end_due) == ((), False, True)
    job.chronicle = after_publishing(job.chronicle, left, PublishedUpTo())
    assert now_due(job).is_empty


def test_what_was_sent_before_the_end_does_not_acknowledge_it() -> None:
    job = running()
    early = now_due(job)
    job.report("done")
    job.chronicle = after_publishing(job.chronicle, early, early.newest)
    assert now_due(job).is_end_due
    assert now_due(job).has_more_than(early)


def test_who_wants_to_hear_of_a_hang_hears_of_it_at_once() -> None:
    job = quiet()
    job.chronicle = replace(job.chronicle, wanted_events=("JobHanged",))
    job.see(sighting(FaultClass.HANG))
    assert [notice.event for notice in now_due(job).notices] == ["JobHanged"]


def test_only_what_came_since_is_more_than_what_was_tried() -> None:
    job = running()
    tried = now_due(job)
    assert tried.has_more_than(None)
    assert not now_due(job).has_more_than(tried)
    job.publishes(entry=tried.newest.entry)
    assert not now_due(job).has_more_than(tried), "part of it was published"
    job.see(sighting(FaultClass.SUBHEALTH))
    assert now_due(job).has_more_than(tried)


def test_what_was_tried_in_other_books_is_tried_again() -> None:
    job = running()
    tried = now_due(job)
    job.state = replace(job.state, job=replace(job.state.job, books="new"))
    assert now_due(job).has_more_than(tried)


def exported() -> ScriptedJob:
    """It runs, and a worker that exports totals and spans has published everything."""
    job = running()
    newest = job.unpublished.newest
    job.chronicle = after_publishing(job.chronicle, job.unpublished, replace(newest, first_step=0))
    return job


def restarted(job: ScriptedJob) -> ScriptedJob:
    """A restart whose end is published; its first step was not seen yet."""
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    publication = job.unpublished
    acknowledged = replace(publication.newest, first_step=publication.first_step)
    job.chronicle = after_publishing(job.chronicle, publication, acknowledged)
    assert now_due(job).is_empty
    return job


def test_a_first_step_is_due_where_a_worker_exports_it() -> None:
    job = restarted(exported())
    tried = now_due(job)
    job.report(first_step_at=job.state.now + 7.0)
    publication = now_due(job)
    assert publication.is_first_step_due
    assert publication.has_more_than(tried)
    assert publication.has_more_than(None)
    assert not now_due(job).has_more_than(publication)
    done = PublishedUpTo(first_step=publication.first_step)
    job.chronicle = after_publishing(job.chronicle, publication, done)
    assert now_due(job).is_empty


def test_a_first_step_alone_is_not_published_where_nothing_exports_it() -> None:
    job = quiet()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    newest = job.unpublished.newest
    job.publishes(entry=newest.entry, notice=newest.notice)
    job.report(first_step_at=job.state.now + 7.0)
    assert now_due(job).is_empty


def test_a_publication_of_an_earlier_first_step_does_not_acknowledge_the_next() -> None:
    job = restarted(exported())
    job.report(first_step_at=job.state.now + 7.0)
    early = now_due(job)
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    job.report(first_step_at=job.state.now + 7.0)
    job.chronicle = after_publishing(
        job.chronicle, early, PublishedUpTo(first_step=early.first_step)
    )
    assert now_due(job).is_first_step_due


def test_a_restart_under_way_is_not_disturbed_for_a_first_step() -> None:
    job = restarted(exported())
    job.report("facts", first_step_at=job.state.now + 1.0, facts=(sighting(FaultClass.CRASH),))
    assert now_due(job).is_empty
    job.succeeds()
    assert now_due(job).is_first_step_due


def test_nothing_is_never_more() -> None:
    job = quiet()
    assert now_due(job).is_empty
    assert not now_due(job).has_more_than(None)
