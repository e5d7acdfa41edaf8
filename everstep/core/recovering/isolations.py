"""Entries of the quarantine, and the room that they have. No rule of who is isolated belongs here.

The quarantine hands all entries from run to run in one payload, and a cluster stores their reasons together:
both have a limit, and whatever exceeds it is refused for ever. So entries are bounded in number and in size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.core.bounds import text_bytes

ENTRIES_MOST = 1_250
"""Nodes and devices that are isolated, with the suspicions that are held back. Fewer than the activities, one
for each node, that a server lets a workflow have pending: 2,000."""
ENTRY_BYTES_MOST = 700
"""Bytes of an entry as JSON: all with the rest of the quarantine fit into a payload of Temporal, 2 MiB, and
their names and reasons into a ConfigMap of Kubernetes, 1 MiB."""
_FIELDS_BYTES = 160
"""Bytes of an entry without its texts: names of fields, times, punctuation."""
_SENDER_BYTES_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedNode:
    """One isolated node."""

    node: str  # or a device, as `n0/3`
    reason: str
    by: str  # a job's ID, OPERATOR, COUNTS, DURATION, UNFOLLOWED or "cluster"
    since: float
    until: float | None = None  # None: until it is released
    proven: bool = True  # False: on suspicion, which the brake counts


Entries = Mapping[str, IsolatedNode]


def bounded(entry: IsolatedNode) -> IsolatedNode:
    """The entry with its sender and its reason shortened to their room."""
    bytes_of_name = 2 * text_bytes(entry.node)  # it is the key as well
    room = ENTRY_BYTES_MOST - _FIELDS_BYTES - bytes_of_name
    by = _shortened(entry.by, min(room, _SENDER_BYTES_MOST))
    return replace(entry, by=by, reason=_shortened(entry.reason, room - text_bytes(by)))


def _shortened(text: str, most: int) -> str:
    """The longest start of the text that takes at most so many bytes, with a mark if it is not all of it."""
    if text_bytes(text) <= most:
        return text
    room = most - text_bytes("…")
    for length, character in enumerate(text):
        room -= text_bytes(character) - text_bytes("")
        if room < 0:
            return f"{text[:length]}…"
    return text


def newest(held: Entries, *, most: int) -> dict[str, IsolatedNode]:
    """The newest of the entries, at most so many."""
    by_age = sorted(held.values(), key=lambda entry: entry.since)
    return {entry.node: entry for entry in by_age[max(len(by_age) - most, 0) :]}
