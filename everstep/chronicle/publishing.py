"""What of a chronicle is still to be published: lines of run.log, notices, totals, spans.

The workflow takes `due`, runs the activity `publish` with it, and applies its result with `published`. That
activity may be killed or run twice: entries, notices and spans are numbered, and what the chronicle has as
published is not sent again. The queues are part of the chronicle, so they outlive a run of the workflow.
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
class Unpublished:
    """The order of the activity `publish`. Entries, notices and spans are the oldest first."""

    job: JobRef
    first_run: str = ""  # of the workflow: job, run and number are a notice's identity
    topic: str = ""
    entries: tuple[Entry, ...] = ()
    notices: tuple[Notice, ...] = ()
    totals: JobTotals = field(default_factory=JobTotals)  # sent along where they changed
    totals_sent: str = ""  # the fingerprint of those that were sent last
    at: float = 0.0
    spans: tuple[QueuedSpan, ...] = ()  # sent along too
    is_end_due: bool = False  # the job has ended, and its totals with the end were not sent yet
    first_step: int = 0  # the number of the newest first step in the totals
    is_first_step_due: bool = False  # it was not sent yet, and is exported

    @property
    def is_empty(self) -> bool:
        is_due = self.is_end_due or self.is_first_step_due
        return not self.entries and not self.notices and not is_due

    @property
    def newest(self) -> Published:
        """The numbers of the newest entry and notice here."""
        return Published(
            entry=self.entries[-1].number if self.entries else 0,
            notice=self.notices[-1].number if self.notices else 0,
        )

    @property
    def newest_span(self) -> int:
        return self.spans[-1].number if self.spans else 0

    def has_more_than(self, other: Unpublished | None) -> bool:
        """Whether something came after the other was put together, or its job has other books now."""
        if other is None or self.job != other.job:
            return not self.is_empty
        newest, before = self.newest, other.newest
        is_newer = newest.entry > before.entry or newest.notice > before.notice
        is_step_newer = self.is_first_step_due and self.first_step > other.first_step
        return is_newer or is_step_newer or (self.is_end_due and not other.is_end_due)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result of the activity: the numbers of the last entry, notice and span that went out."""

    entry: int = 0
    notice: int = 0
    span: int = 0
    is_end_left: bool = False  # the end was due and could not be sent
    # The newest first step that was sent; None: the worker exports neither metrics nor traces.
    first_step: int | None = None
    totals_sent: str = ""  # a fingerprint; empty: none were sent


def unpublished(chronicle: Chronicle, state: JobState) -> Unpublished:
    """Lines still to be written and notices still to be sent."""
    return Unpublished(
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


def due(chronicle: Chronicle, state: JobState) -> Unpublished:
    """What is to be published now. Lines of a log and a first step wait until a restart is over.

    But an agent writes the lines: they go out before the job's last pod does.
    """
    left = unpublished(chronicle, state)
    if state.mode is Mode.CLOSING and left.entries:  # the lines must not wait for a listener
        return replace(left, notices=())
    if state.mode in AT_REST or left.notices or _leaves_all_pods(state):
        return left
    return replace(left, entries=(), is_first_step_due=False)


def _leaves_all_pods(state: JobState) -> bool:
    plan = state.plan
    return state.mode is Mode.RECOVERING and plan is not None and not plan.keeps_places


def published(chronicle: Chronicle, publication: Unpublished, done: Published) -> Chronicle:
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
