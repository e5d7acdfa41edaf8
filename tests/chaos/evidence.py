"""What a course of chaos leaves: lines of the script's own journal, injections, Recoveries of the histories.

Plain values, read and judged elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a journal. `spoiled` is written by the chaos itself, all others by a rank."""

    what: str  # start, step, save, saved, end, spoiled
    at: float
    step: int
    generation: int = 0
    rank: int = -1
    process: str = ""
    pid: int = 0
    weights: str = ""  # the digest, of a step


def lines_of(text: str) -> list[Line]:
    """The lines of a journal. One that was cut off raises ValueError: the script writes whole lines."""
    return [Line(**json.loads(line)) for line in text.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault or an operation that took effect, and the restarts of one job that it may cause."""

    action: str
    at: float
    may_cost: Mapping[str, int] = field(
        default_factory=dict
    )  # class of a Recovery: how many at most
    must_restart: bool = False  # a rank of the newest generation ended by it
    forgets: bool = False  # what histories held of a while before is lost

    def __str__(self) -> str:
        return self.action


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A Recovery that a history has started."""

    id: str
    at: float
    level: str
    cls: str
    is_in_last_run: bool = (
        True  # false: of a run that a reset replaced, after the point of the reset
    )
    is_cut_short: bool = False  # it was cancelled, terminated, or gave way to another fault
    opens_incident: bool = (
        True  # else it goes on with one, by the class of that, whatever happened since
    )
    is_repeat: bool = False  # its decision tries again what the one before could not end
    billed: int = 0  # what its decision bills to the budget of all restarts

    def __str__(self) -> str:
        marks = {"cut short": self.is_cut_short, "again": self.is_repeat, "free": not self.billed}
        return ", ".join([self.id, *(mark for mark, holds in marks.items() if holds)])


BUDGET_NAME = "all"
"""Of the budget that every restart is billed to."""

FREE = frozenset({"planned", "preempted", "maintenance"})
"""Classes that spend no budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that there is to judge about one job."""

    job: str
    ranks: int
    lines: Sequence[Line]
    injections: Sequence[Injection]
    recoveries: Sequence[Recovery]
    expected: Sequence[str]  # digest of each step in an undisturbed run; step 1 first
    final: Mapping[str, object] | None  # final.json
    expected_final: Mapping[str, object]
    spent: (
        int | None
    )  # of the budget that every restart but a planned one is billed to; None: not known
    lives: int = 1  # how often the job was started under its ID
    status: str = "Completed"
    stuck: Sequence[str] = ()  # failed workflow tasks, Recoveries that never ended
    left: Sequence[str] = ()  # processes, files, sockets, reservations, pods, claims
