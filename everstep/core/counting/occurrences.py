"""How often one device showed the same code: the count behind the rules for repeated faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SHARED_WITHIN_S = 30.0
"""A code that several devices of a job show so close to each other is no device's own: it does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A code seen on a device, remembered for the same-fault rule and as the cause of another code."""

    node: str
    device: int | None  # None: of the node as a whole, which is only ever a cause
    code: str
    at: float
    job: str = ""  # whose device it was, where the faults of several jobs are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCount:
    """How often a device showed a code, counted over all jobs of its cluster."""

    node: str
    device: int
    code: str
    at: float
    times: int


def count(
    occurrences: Iterable[Occurrence],
    *,
    of: Occurrence,
    now: float,
    window_s: float,
    shared_s: float = SHARED_WITHIN_S,
) -> int:
    """Return how often the device of this occurrence showed its code within the window before `now`."""
    since = now - window_s
    recent = [o for o in occurrences if o.code == of.code and o.at > since - SHARED_WITHIN_S]
    same_device = [o for o in recent if (o.node, o.device) == (of.node, of.device) and o.at > since]
    return sum(not _is_shared(one, recent, shared_s) for one in same_device)


def _is_shared(one: Occurrence, recent: Iterable[Occurrence], shared_s: float) -> bool:
    """Whether another device of the same job showed this code at about the same time."""
    return any(
        o.job == one.job
        and (o.node, o.device) != (one.node, one.device)
        and abs(o.at - one.at) < shared_s
        for o in recent
    )
