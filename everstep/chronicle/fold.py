"""Adds job events to the chronicle, topic by topic."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.chronicle import changes, happenings, journal, records, spans, starts, totals
from everstep.chronicle.chronicle import Chronicle
from everstep.core.loop.job_events import JobEvent


def folded(chronicle: Chronicle, events: Iterable[JobEvent]) -> Chronicle:
    """The chronicle with these events, in their order."""
    for event in events:
        for topic in (changes, records, journal, happenings, starts, totals, spans):
            chronicle = topic.with_event(chronicle, event)
    return chronicle
