"""What of a chronicle is still to be published: lines of run.log, notices, totals, spans.

The workflow takes the publication that is `due_now`, runs the activity `publish` with it, and puts the
result into the chronicle with `after_publishing`. That activity may be killed or run twice: entries, notices
and spans are numbered, and what the chronicle has as published is not sent again. The queues are part of the
chronicle, so they outlive a run of the workflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from everstep.chronicle import happenings, journal, spans, views
from everstep.chronicle.chronicle import Chronicle, Entry, JobTotals, QueuedSpan
from everstep.chronicle.happenings import Notice
from everstep.core.state import JobState, Mode
from everstep.core.world import JobRef

AT_REST = frozenset({Mode.WATCHING, Mode.PAUSED, Mode.CLOSING, Mode.ENDED})
"""Modes in which no step of the loop is waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The order of the activity `publish`. Entries, notices and spans are the oldest first."""

    job: JobRef
    first_run: str = ""  # ID of the workflow's first run: job, run and number identify a notice
    topic: str = ""
    entries: tuple[Entry, ...] = ()
    notices: tuple[Notice, ...] = ()
    totals: JobTotals = field(default_factory=JobTotals)  # sent only if they changed
    totals_sent: str = ""  # fingerprint of the totals that were sent last
    at: float = 0.0
    spans: tuple[QueuedSpan, ...] = ()  # no reason to publish by themselves
    is_end_due: bool = False  # whether the totals still have to show that the job has ended
    first_step: int = 0  # number of first steps in the totals
    is_first_step_due: bool = False  # whether the newest first step still has to be exported

    @property
    def is_empty(self) -> bool:
        is_due = self.is_end_due or self.is_first_step_due
        return not self.entries and not self.notices and not is_due

    @property
    def newest(self) -> PublishedUpTo:
        """The numbers of the newest entry and notice here."""
        return PublishedUpTo(
            entry=self.entries[-1].number if self.entries else 0,
            notice=self.notices[-1].number if self.notices else 0,
        )

    @property
    def newest_span(self) -> int:
        return self.spans[-1].number if self.spans else 0

    def has_more_than(self, other: Publication | None) -> bool:
        """Whether something came after the other was put together, or its job has other books now."""
        if other is None or self.job != other.job:
            return not self.is_empty
        newest, before = self.newest, other.newest
        is_newer = newest.entry > before.entry or newest.notice > before.notice
        is_step_newer = self.is_first_step_due and self.first_step > other.first_step
        return is_newer or is_step_newer or (self.is_end_due and not other.is_end_due)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedUpTo:
    """The result of the activity: the numbers of the newest entry, notice and span that were published."""

    entry: int = 0
    notice: int = 0
    span: int = 0
    is_end_left: bool = False  # whether the end was due and could not be sent
    # Number of the newest first step that was sent. None: the worker exports neither metrics nor traces.
    first_step: int | None = None
    totals_sent: str = ""  # fingerprint of the totals; empty: none were sent


def all_unpublished(chronicle: Chronicle, state: JobState) -> Publication:
    """All that the chronicle has and that was not published yet."""
    return Publication(
        job=state.job,
        first_run=chronicle.first_run,
        topic=state.spec.topic,
        entries=chronicle.entries,
        notices=happenings.unsent_notices(chronicle),
        totals=replace(chronicle.totals, budgets=views.units_used(state)),
        totals_sent=chronicle.totals_sent,
        at=state.now,
        spans=chronicle.spans,
        is_end_due=bool(chronicle.totals.ended) and not chronicle.is_end_counted,
        first_step=chronicle.first_steps,
        is_first_step_due=chronicle.is_exported
        and chronicle.first_steps > chronicle.first_steps_sent,
    )


def due_now(chronicle: Chronicle, state: JobState) -> Publication:
    """What to publish now. Lines of a log and a first step wait until a restart is over.

    An agent writes the lines, so they are published before the job's last pod ends.
    """
    publication = all_unpublished(chronicle, state)
    if state.mode is Mode.CLOSING and publication.entries:  # the lines must not wait for a listener
        return replace(publication, notices=())
    if state.mode in AT_REST or publication.notices or _leaves_all_pods(state):
        return publication
    return replace(publication, entries=(), is_first_step_due=False)


def _leaves_all_pods(state: JobState) -> bool:
    plan = state.plan
    return state.mode is Mode.RECOVERING and plan is not None and not plan.keeps_places


def after_publishing(
    chronicle: Chronicle, publication: Publication, done: PublishedUpTo
) -> Chronicle:
    """The chronicle once this much of a publication was written and sent."""
    chronicle = happenings.sent(journal.written(chronicle, done.entry), done.notice)
    chronicle = spans.sent(chronicle, done.span)
    is_counted = publication.is_end_due and not done.is_end_left
    return replace(
        chronicle,
        is_end_counted=chronicle.is_end_counted or is_counted,
        totals_sent=done.totals_sent or chronicle.totals_sent,
        first_steps_sent=max(chronicle.first_steps_sent, done.first_step or 0),
        is_exported=done.first_step is not None,
    )
