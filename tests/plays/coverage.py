"""Which plays on real processes are needed: those that together show all that any of them shows.

A play is a scenario or a case on one cluster. What it shows is computed from the play itself, as short texts:
each verb for each class of fault, each fault at each moment of a job, each kind of record and of end. A play
all of whose texts others show as well adds an order of events alone, which the loop answers alike on every
cluster; it is played in virtual time by `make test`, and here with `--all-plays`.

`python -m tests.plays` prints what is played and what is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pytest


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The plays of one table on one cluster: what each shows, and about what it costs."""

    title: str
    shows: Mapping[str, frozenset[str]]
    costs: Mapping[str, float]
    always: frozenset[str] = frozenset()
    """Played by the quick tests anyway."""

    @cached_property
    def needed(self) -> frozenset[str]:
        return fewest(self.shows, self.costs, always=self.always)

    @property
    def features(self) -> frozenset[str]:
        return self.features_of(self.shows)

    def marks(self, name: str) -> Sequence[pytest.MarkDecorator]:
        """The marks of this play's test: `covered` where others show all that it shows."""
        if name in self.always:
            return ()
        return [pytest.mark.long, *([] if name in self.needed else [pytest.mark.covered])]

    def missing_from(self, names: Iterable[str]) -> frozenset[str]:
        """What some play shows and none of these."""
        return self.features - self.features_of(names)

    def features_of(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset[str]().union(*(self.shows[name] for name in names))

    def lines(self) -> Iterator[str]:
        """The table as text: what only one needed play shows, and which plays are left out."""
        yield f"{self.title}: {len(self.needed)} of {len(self.shows)} plays show {len(self.features)}"
        times = Counter(text for name in self.needed for text in self.shows[name])
        for name in sorted(self.needed):
            alone = sorted(text for text in self.shows[name] if times[text] == 1)
            yield f"  played    {name}: {'; '.join(alone) or 'a quick test'}"
        for name in sorted(self.shows.keys() - self.needed):
            yield f"  left out  {name}"


def fewest(
    shows: Mapping[str, frozenset[str]],
    costs: Mapping[str, float],
    *,
    always: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Names of plays that together show all there is; none but those of `always` could be left out.

    The costly ones are left out first.
    """
    chosen = set(shows)
    times = Counter(text for name in shows for text in shows[name])
    for name in sorted(shows.keys() - always, key=lambda name: (-costs[name], name)):
        if all(times[text] > 1 for text in shows[name]):
            chosen.remove(name)
            times.subtract(shows[name])
    return frozenset(chosen)
