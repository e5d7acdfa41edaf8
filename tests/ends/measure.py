"""How well the rows of `end_causes` name real ends: precision and recall of each cause and of each owner.

python -m tests.ends.measure [FILE ...]     all files, unless some are named
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from everstep.core.deciding.end_causes import Cause, cause_of
from everstep.core.facts import Fact
from everstep.core.levels import Owner

FOLDER = Path(__file__).parent
Class = TypeVar("Class", bound=Hashable)
FILES = ("provoked", "reported", "threads", "later", "fresh", "newest", "unseen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """An end with what a person says of it, and what the rows say."""

    name: str
    fact: Fact
    owner: Owner
    cause: Cause | None
    retry: bool | None

    @property
    def by_rows(self) -> tuple[Owner, Cause | None, bool | None]:
        row = cause_of(self.fact)
        return (Owner.UNKNOWN, None, None) if row is None else (row.owner, row.cause, row.retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How many ends the rows put into a class, how many belong there, how many of those are the same."""

    by_rows: int
    real: int
    right: int

    @property
    def precision(self) -> Fraction:
        return Fraction(self.right, self.by_rows) if self.by_rows else Fraction(1)

    @property
    def recall(self) -> Fraction:
        return Fraction(self.right, self.real) if self.real else Fraction(1)

    def __str__(self) -> str:
        return f"precision {self.right}/{self.by_rows}, recall {self.right}/{self.real}"


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


def read_ends(*names: str) -> list[Labelled]:
    """The ends of these files, with their labels."""
    rows = csv.DictReader((FOLDER / "labels.csv").read_text().splitlines())
    labels = {row["id"]: row for row in rows}
    ends = [row for name in names for row in rows_of(name)]
    return [
        Labelled(
            name=row["id"],
            fact=Fact(
                id=row["id"],
                kind="process.exit",
                at=0.0,
                details={key: row[key] for key in ("exit_code", "signal", "exception", "log")},
            ),
            owner=Owner(labels[row["id"]]["owner"]),
            cause=Cause(labels[row["id"]]["cause"]) if labels[row["id"]]["cause"] else None,
            retry={"yes": True, "no": False, "": None}[labels[row["id"]]["retry"]],
        )
        for row in ends
    ]


def by_cause(ends: Iterable[Labelled]) -> dict[Cause, Measure]:
    return _by_class(Cause, [(end.cause, end.by_rows[1]) for end in ends])


def by_owner(ends: Iterable[Labelled]) -> dict[Owner, Measure]:
    """Of the owners that can be wrong: no end is taken for someone's by saying that it is unknown."""
    return _by_class((Owner.INFRA, Owner.USER), [(end.owner, end.by_rows[0]) for end in ends])


def by_retry(ends: Iterable[Labelled]) -> dict[bool, Measure]:
    return _by_class((True, False), [(end.retry, end.by_rows[2]) for end in ends])


def blamed_on_the_user(ends: Iterable[Labelled]) -> list[str]:
    """The ends of infrastructure that the rows take for the user's."""
    return [end.name for end in ends if (end.owner, end.by_rows[0]) == (Owner.INFRA, Owner.USER)]


def _by_class(
    classes: Iterable[Class], pairs: list[tuple[Class | None, Class | None]]
) -> dict[Class, Measure]:
    counts = Counter(pairs)
    measures = {
        cls: Measure(
            by_rows=sum(n for (_, rows), n in counts.items() if rows == cls),
            real=sum(n for (real, _), n in counts.items() if real == cls),
            right=counts[cls, cls],
        )
        for cls in classes
    }
    return {cls: measure for cls, measure in measures.items() if measure.by_rows or measure.real}


def total(measures: Iterable[Measure]) -> Measure:
    """All classes together."""
    parts = [*measures]
    return Measure(
        by_rows=sum(part.by_rows for part in parts),
        real=sum(part.real for part in parts),
        right=sum(part.right for part in parts),
    )


def lines(name: str) -> Iterable[str]:
    """What is printed of one file."""
    ends = read_ends(name)
    yield f"{name}: {len(ends)} ends; of the infrastructure, taken for the user's: {blamed_on_the_user(ends)}"
    yield from _lines_of("cause", by_cause(ends))
    yield from _lines_of("owner", by_owner(ends))
    yield from _lines_of("retry", by_retry(ends))


def _lines_of(title: str, measures: Mapping[Class, Measure]) -> Iterable[str]:
    yield f"  {title + ', all':15} {total(measures.values())}"
    yield from (f"    {cls!s:13} {measure}" for cls, measure in measures.items())


if __name__ == "__main__":
    for each in sys.argv[1:] or FILES:
        print("\n".join(lines(each)))  # noqa: T201
