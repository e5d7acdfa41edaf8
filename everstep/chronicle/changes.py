"""Changes of a job's document: what changed, when, and who changed it."""

from __future__ import annotations

from dataclasses import replace

from everstep.chronicle.chronicle import CHANGES_OF_DOCUMENT_KEPT, Chronicle, DocumentChange
from everstep.core.loop.job_events import DocumentChanged, JobEvent


def with_event(chronicle: Chronicle, event: JobEvent) -> Chronicle:
    """The chronicle with what the event says of the document."""
    if not isinstance(event, DocumentChanged):
        return chronicle
    change = DocumentChange(event.at, event.what, event.is_now, event.by)
    return replace(chronicle, changes=(*chronicle.changes, change)[-CHANGES_OF_DOCUMENT_KEPT:])


def text(event: DocumentChanged) -> str:
    """The change as a sentence."""
    by = f" by {event.by}" if event.by else ""
    when = "a restart follows" if event.is_now else "it holds from the next restart on"
    return f"the document was changed{by}: {', '.join(event.what)}; {when}"
