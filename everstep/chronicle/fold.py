"""Adds job events to the chronicle, topic by topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.chronicle import happenings, journal, records, spans, starts, totals
from everstep.chronicle.chronicle import CHANGES_OF_DOCUMENT_KEPT, Chronicle, DocumentChange
from everstep.core.loop.job_events import DocumentChanged, JobEvent


def folded(chronicle: Chronicle, events: Iterable[JobEvent]) -> Chronicle:
    """The chronicle with these events, in their order."""
    for event in events:
        chronicle = _with_change(chronicle, event)
        for topic in (records, journal, happenings, starts, totals, spans):
            chronicle = topic.with_event(chronicle, event)
    return chronicle


def _with_change(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """Add what changed in the document, when, and who changed it."""
    if not isinstance(event, DocumentChanged):
        return chronicle
    change = DocumentChange(event.at, event.what, event.is_now, event.by)
    return replace(chronicle, changes=(*chronicle.changes, change)[-CHANGES_OF_DOCUMENT_KEPT:])
