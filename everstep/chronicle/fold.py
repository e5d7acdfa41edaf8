"""The chronicle once more has happened."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.chronicle import changes, happenings, journal, records, spans, starts, totals
from everstep.chronicle.chronicle import Chronicle
from everstep.core.loop.job_events import JobEvent


def folded(known: Chronicle, events: Iterable[JobEvent]) -> Chronicle:
    """What is known once these events are told, each in its turn."""
    for event in events:
        for topic in (changes, records, journal, happenings, starts, totals, spans):
            known = topic.noted(known, event)
    return known
