"""What happened to a job, in three sentences, and numbers as people read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from everstep.report.accounting import Account

Value = Mapping[str, Any]

UNITS = (
    (86_400, "d", 3_600, "h", 60),
    (3_600, "h", 60, "min", 1),
    (60, "min", 1, "s", 1),
)
"""Seconds and name of a unit and of the one below it, and how a time below the unit is rounded."""


def duration(s: float | None) -> str:
    """Seconds in the two largest units that matter: `1 h 12 min`, `2 min 5 s`, `43 s`, `4.31 s`."""
    if s is None:
        return "unknown"
    for size, unit, small_size, small_unit, precision in UNITS:
        if round(s / precision) * precision >= size:  # so that no 60 s or 60 min are left over
            whole, more = divmod(round(s / small_size), size // small_size)
            return f"{whole} {unit}" + (f" {more} {small_unit}" if more else "")
    return f"{s:.3g} s" if s < 10 else f"{s:.0f} s"


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


ENDS: Mapping[str, str] = {
    "completed": "completed",
    "failed": "failed",
    "stopped": "was stopped",
}


def summary(status: Value, report: Value, account: Account) -> list[str]:
    """Three sentences: how it ended, what interrupted it, what that cost."""
    return [_course(status, report, account), _restarts(account), _cost(account)]


def _course(status: Value, report: Value, account: Account) -> str:
    state = status["state"]
    phases = count(len(report.get("phases", ())), "phase")
    step = "" if status.get("step") is None else f", at step {status['step']}"
    took = duration(account.total_s)
    if state not in ENDS:
        waiting = f", waiting for {status['waiting_for']}" if status.get("waiting_for") else ""
        return f"{status['id']} is {state} in phase {status['phase']} after {took}{step}{waiting}."
    why = f": {report['reason']}" if report.get("reason") and state != "completed" else ""
    return f"{status['id']} {ENDS[state]} after {took} in {phases}{step}{why}."


def _restarts(account: Account) -> str:
    causes = Counter(
        str(r.record["fault"]["class"]) for r in account.restarts if not r.record["refused_by"]
    )
    if not causes:
        return "It was never restarted."
    listed = ", ".join(f"{n} × {cause}" for cause, n in causes.most_common())
    total = causes.total()
    levels = Counter(str(r.record["level"]) for r in account.restarts if not r.record["refused_by"])
    by_level = ", ".join(f"{n} × {level}" for level, n in levels.most_common())
    return f"It was restarted {count(total, 'time')} ({listed}), by level: {by_level}."


def _cost(account: Account) -> str:
    if account.ettr is None:
        return f"It has not trained yet; it waited {duration(account.wait_s)} to start."
    if not account.restarts and not account.down_s:
        return f"No training time was lost; it waited {duration(account.wait_s)} to start."
    return f"It trained for {percent(account.ettr)} of the time since its first step: {losses(account)}."


def losses(account: Account) -> str:
    """Down time and work that was done again, as the end of a sentence."""
    unknown = ", and an unknown part of the work" if account.has_unknown_loss else ""
    down, again = duration(account.down_s), duration(account.lost_s)
    return f"{down} were down time, {again} of work was done again{unknown}"
