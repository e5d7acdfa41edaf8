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
    """The status of a job whose document was not read yet: unknown fields are null."""
    return {**dict.fromkeys(STATUS), **NOTHING_YET, "id": job_id, "state": "pending"}


STATUS = (
    "id",
    "state",
    "as_of",
    "created_at",
    "started_at",
    "ended_at",
    "duration_s",
    "phase",
    "phases",
    "generation",
    "step",
    "steps_from",
    "last_step",
    "step_at",
    "step_age_s",
    "seen_age_s",
    "unseen_why",
    "still_s",
    "still_limit_s",
    "checkpoint_step",
    "checkpoint_path",
    "resumed_from",
    "waiting_for",
    "waiting_reason",
    "waiting_since",
    "waiting_until",
    "recovery",
    "pods",
    "device_use",
    "incarnations",
    "budgets",
    "series",
    "restarts",
    "reschedules",
    "failed_levels",
    "lost_steps",
    "isolated_nodes",
    "avoided_nodes",
    "sizes",
    "links",
    "ui",
    "time_scale",
    "reason",
    "warnings",
)
NOTHING_YET: Mapping[str, Any] = {
    **{key: [] for key in ("phases", "pods", "isolated_nodes", "avoided_nodes", "warnings")},
    **{key: {} for key in ("budgets", "series", "sizes", "links")},
    **dict.fromkeys(("restarts", "reschedules", "failed_levels", "lost_steps"), 0),
}


FRESH = (
    "generation",
    "step",
    "still_s",
    "still_limit_s",
    "checkpoint_step",
    "checkpoint_path",
    "prewarm_bytes",
    "prewarm_modules",
    "snapshot_step",
    "device_use",
    "spares",
)
"""What a heartbeat has under the names of a status."""


def with_glance(status: Mapping[str, Any], glance: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a job that runs, with what the newest heartbeat of its watch shows.

    The heartbeat is read before the status. One of another generation shows nothing of this one.
    """
    generation = status.get("generation")
    if generation is not None and glance.get("generation", generation) != generation:
        return {**status}
    newer = {key: glance[key] for key in FRESH if glance.get(key) is not None}
    now = glance.get("now")
    if not isinstance(now, int | float):
        return {**status, **newer}
    times: dict[str, Any] = {"as_of": moment(now), "step_at": moment(glance.get("step_at"))}
    if created_at := status.get("created_at"):
        times["duration_s"] = round(max(0.0, now - seconds(created_at)), 3)
    return {**status, **newer, **times}


CLOCKS_DIFFER_S = 86_400.0
"""A cluster whose clock is further from the server's has a virtual one."""


def is_virtual(cluster_time: float, now: float, *, run_began: float) -> bool:
    """Whether the time that a cluster showed last is of a virtual clock; `now` is the server's time.

    A job that waits for days gets no newer time, but the one that it has is not much older than its run.
    """
    return not run_began - CLOCKS_DIFFER_S <= cluster_time <= now + CLOCKS_DIFFER_S


def with_age(status: Mapping[str, Any], now: float, *, run_began: float) -> dict[str, Any]:
    """The status of a job that has not ended, with its duration and ages until now, by the server's clock.

    A job that waits for its places reads no newer time of its cluster. While a job runs, what is shown of it
    is as old as the newest look of its monitor, and its step older than that.
    """
    as_of, created_at = status.get("as_of"), status.get("created_at")
    if not as_of or not created_at:
        return {**status}
    if is_virtual(seconds(as_of), now, run_began=run_began):
        return {**status}
    aged = {**status, "duration_s": _age_s(created_at, now)}
    if status.get("state") not in SEEN_STATES:
        return aged
    step_at = status.get("step_at")
    return {
        **aged,
        "step_age_s": _age_s(step_at, now) if step_at else None,
        "seen_age_s": _age_s(as_of, now),
    }


SEEN_STATES = frozenset({"running", "unreachable"})
"""States in which a monitor looks at the job every few seconds."""


def _age_s(at: str, now: float) -> float:
    return round(max(0.0, now - seconds(at)), 3)


def with_failing(status: Mapping[str, Any], *failing: str) -> dict[str, Any]:
    """The status with a warning for each activity that fails again and again."""
    rows = [{"kind": "failing", "since": None, "message": text} for text in failing if text]
    return {**status, "warnings": [*(status.get("warnings") or ()), *rows]} if rows else {**status}


def wait_lines(status: Mapping[str, Any]) -> list[str]:
    """What a job waits for by its status, since when, and what follows if that does not come."""
    if not status.get("waiting_for"):
        return []
    since, until = status.get("waiting_since"), status.get("waiting_until")
    lines = [f"waits for {status['waiting_for']}"]
    lines += [f"  since    {since}"] if since else []
    lines += [f"  until    {until} at most: {AFTER_THE_LIMIT}"] if until else []
    return lines


def avoided_lines(status: Mapping[str, Any]) -> list[str]:
    """A line for each node that the job avoids by its status: why, since when and until when."""
    return [
        f"avoids {node['node']} since {node['since']} ({node['why']}), until {node['until']}"
        for node in status.get("avoided_nodes") or ()
    ]


def present_lines(status: Mapping[str, Any]) -> list[str]:
    """What a job waits for now, and which nodes it avoids."""
    return [*wait_lines(status), *avoided_lines(status)]


AFTER_THE_LIMIT = "then this try fails, and the job decides what follows"


def seconds(at: str) -> float:
    """The inverse of `moment`."""
    return datetime.fromisoformat(at).timestamp()
