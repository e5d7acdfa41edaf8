"""Warnings about a job that runs on: reported when one begins and withdrawn when it is over. Pure.

Agents measure, the rows of `KINDS` judge. What is not known, of processes that do not run say, neither
begins a warning nor ends one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from everstep.core.bounds import rounded
from everstep.core.world import Observation, PodView
from everstep.protocol.wire import RunProgress

UNMATCHED_S = 60.0
"""Seconds in which lines are printed and none is a step, or files written and none is a checkpoint."""
OVERDUE = 3.0
"""A checkpoint may take this many times the usual interval."""
OVERDUE_S_LEAST = 5.0
"""Checkpoints are noticed up to some seconds late, so shorter intervals are not judged."""
ROOM = 2
"""Room for so many checkpoints ends a warning: it comes and goes with each one that is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarning:
    """A warning that holds, and since when."""

    kind: str
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Whether it is so (None: not known), or when it will be unless something changes."""

    is_so: bool | None = None
    due: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningSigns:
    """What the signs are read off."""

    world: Observation
    pods: tuple[PodView, ...]  # those that run
    save_every_s: float | None
    steps_seen: bool
    slow: tuple[str, ...] = ()  # sentences about ranks that fall behind, the slowest first

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def runs(self) -> list[RunProgress]:
        return [pod.run for pod in self.pods]


def judged(
    open_warnings: tuple[JobWarning, ...], signs: WarningSigns
) -> tuple[tuple[JobWarning, ...], float | None]:
    """The warnings that hold now, and when the next one will."""
    open_ones = {warning.kind: warning for warning in open_warnings}
    by_kind = {kind: sign(signs) for kind, sign in KINDS.items()}
    for kind, sign in by_kind.items():
        if sign.is_so:
            open_ones.setdefault(kind, JobWarning(kind=kind, at=signs.now, text=sign.text))
        elif sign.is_so is False:
            open_ones.pop(kind, None)
    coming = [s.due for k, s in by_kind.items() if s.due is not None and k not in open_ones]
    return tuple(open_ones.values()), min(coming, default=None)


def _unmatched(signs: WarningSigns) -> Sign:
    if signs.steps_seen or any(run.step is not None for run in signs.runs):
        return Sign(is_so=False)
    since = [run.unmatched_since for run in signs.runs if run.unmatched_since is not None]
    if not since:
        return Sign()
    due = min(since) + UNMATCHED_S
    text = f"no line printed in {signs.now - min(since):.0f} s matches progress.log_pattern: no step is seen"
    return Sign(is_so=True, text=text) if signs.now >= due else Sign(due=due)


def _slow(signs: WarningSigns) -> Sign:
    more = f"; and {len(signs.slow) - 1} more" if len(signs.slow) > 1 else ""
    return Sign(is_so=bool(signs.slow), text=f"{signs.slow[0]}{more}" if signs.slow else "")


def _unread(signs: WarningSigns) -> Sign:
    text = "progress.log_pattern is too slow for what is printed: no more steps are read from it"
    return Sign(is_so=any(run.unread for run in signs.runs), text=text)


def _unrecognised(signs: WarningSigns) -> Sign:
    if signs.world.checkpoint is not None:
        return Sign(is_so=False)
    unrecognised = [pod.unrecognised for pod in signs.pods if pod.unrecognised is not None]
    if not unrecognised:
        return Sign()
    first = min(unrecognised)
    if signs.now < first.since + UNMATCHED_S:
        return Sign(due=first.since + UNMATCHED_S)
    files = "1 file" if first.number == 1 else f"{first.number} files"
    text = (
        f"{files} written where checkpoints should be, none recognised as one "
        f"({first.example}, for example): checkpoints.pattern says what they are called"
    )
    return Sign(is_so=True, text=text)


def _no_room(signs: WarningSigns) -> Sign:
    free = [run.free_bytes for run in signs.runs if run.free_bytes is not None]
    size = signs.world.checkpoint.bytes if signs.world.checkpoint is not None else 0
    if not free or not size:
        return Sign()
    if min(free) < size:
        text = f"{_size(min(free))} are free for checkpoints, and the last one took {_size(size)}"
        return Sign(is_so=True, text=text)
    return Sign(is_so=False) if min(free) >= ROOM * size else Sign()


def _overdue(signs: WarningSigns) -> Sign:
    # Before its first step a run imports and compiles, however long that takes.
    begun = [run.first_step_at if signs.steps_seen else run.started_at for run in signs.runs]
    begins = [at for at in begun if at is not None]
    every_s = signs.save_every_s
    if every_s is None or not begins:
        return Sign()
    saved = [run.saved_at for run in signs.runs if run.saved_at is not None]
    last = max((*saved, *begins))
    due = last + max(OVERDUE * every_s, OVERDUE_S_LEAST)
    if signs.now < due:
        return Sign(is_so=False, due=due)
    usual = f"usually one comes every {rounded(every_s)} s"
    return Sign(is_so=True, text=f"no complete checkpoint for {signs.now - last:.0f} s; {usual}")


def _dead_sidecars(signs: WarningSigns) -> Sign:
    """A container beside the ranks that failed: no rank ends with it, and what it does is missing."""
    pods = [pod for pod in signs.world.pods if pod.dead_sidecars]
    if not pods:
        return Sign(is_so=False)
    first = min(pods, key=lambda pod: pod.slot)
    more = f" (and of {len(pods) - 1} other pods)" if len(pods) > 1 else ""
    containers = ", ".join(first.dead_sidecars)
    text = f"beside the ranks of slot {first.slot} on {first.node} failed: {containers}{more}"
    return Sign(is_so=True, text=text)


def _size(count: int) -> str:
    """The size in the unit that leaves a number before the point."""
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{rounded(size)} {unit}"


KINDS: dict[str, Callable[[WarningSigns], Sign]] = {
    "log_pattern": _unmatched,
    "log_unread": _unread,
    "slow_rank": _slow,
    "checkpoint_names": _unrecognised,
    "checkpoint_room": _no_room,
    "checkpoint_overdue": _overdue,
    "sidecar": _dead_sidecars,
}
