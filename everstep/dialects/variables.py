"""Environment variables of other systems that every rank gets, so that scripts written for them run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from everstep.dialects.dialect import RankPlace
from everstep.dialects.modelarts import variables as modelarts

TORCHRUN: Mapping[str, Callable[[RankPlace], object]] = {
    "GROUP_RANK": lambda at: at.start.node_rank,
    "GROUP_WORLD_SIZE": lambda at: len(at.hosts),
    "ROLE_NAME": lambda _at: "default",
    "ROLE_WORLD_SIZE": lambda at: len(at.hosts) * at.ranks,
    "TORCHELASTIC_RUN_ID": lambda at: at.job,
    "TORCHELASTIC_RESTART_COUNT": lambda at: at.restarts,
}
"""Variables of torchrun. With TORCHELASTIC_RUN_ID, PyTorch and Lightning start no further processes.

TORCHELASTIC_MAX_RESTARTS is missing, as a job has several budgets, and so are variables of the store that
torchrun's agent serves.
"""

_ALL = {**modelarts.VARIABLES, **TORCHRUN}
NAMES = tuple(_ALL)


def variables(place: RankPlace) -> dict[str, object]:
    """The variables of every system that has some, for a rank at this place."""
    return {name: value(place) for name, value in _ALL.items()}
