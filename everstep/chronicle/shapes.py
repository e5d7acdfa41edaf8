"""The JSON shapes for their readers: times, and a status of which nothing is known yet.

Imports no state, so that a command that only reads JSON starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from everstep.core.bounds import dated


def moment(at: float | None) -> str | None:
    """RFC 3339, in UTC, to the millisecond."""
    if at is None:
        return None
    text = datetime.fromtimestamp(dated(at), tz=UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def status_unread(job_id: str) -> dict[str, Any]:
    """The same shape for a job whose document was not read yet: what is not known is null."""
    return {**dict.fromkeys(STATUS), **NOTHING_YET, "id": job_id, "state": "pending"}


STATUS = (
    *("id", "state", "as_of", "phase", "phases", "generation", "step", "checkpoint_step"),
    *("checkpoint_path", "waiting_for", "recovery", "pods", "incarnations", "budgets", "series"),
    "restarts",
    *("reschedules", "isolated_nodes", "sizes", "ui", "time_scale", "reason", "warnings"),
)
NOTHING_YET: Mapping[str, Any] = {
    **{key: [] for key in ("phases", "pods", "isolated_nodes", "warnings")},
    **{key: {} for key in ("budgets", "series", "sizes")},
    **dict.fromkeys(("restarts", "reschedules"), 0),
}
