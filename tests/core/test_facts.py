"""Facts of several sources in one sequence."""

from __future__ import annotations

from everstep.core.facts import distinct
from tests.support.builders import fact


def test_of_facts_with_one_id_the_first_stays_where_it_was() -> None:
    """The first of two facts with the same weight names the fault."""
    first, other = fact("rank.exited", id="a", at=1.0), fact("rank.exited", id="b", at=2.0)
    repeated = fact("rank.exited", id="a", at=3.0)
    assert distinct((first, other, repeated)) == (first, other)
