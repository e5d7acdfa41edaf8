"""What scripts that were written for other systems look for in their environment: every rank has it."""

from __future__ import annotations

from everstep.dialects.dialect import RankPlace
from everstep.dialects.modelarts.variables import VARIABLES

NAMES = tuple(VARIABLES)


def variables(place: RankPlace) -> dict[str, object]:
    """The variables of every dialect that has some, for a rank at this place."""
    return {name: value(place) for name, value in VARIABLES.items()}
