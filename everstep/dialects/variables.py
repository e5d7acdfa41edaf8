"""What scripts that were written for other systems look for in their environment: every rank has it."""

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
"""As torchrun tells its workers. PyTorch and Lightning take a process that has the run's ID for one that
somebody else started beside its siblings, which is so. Left out are TORCHELASTIC_MAX_RESTARTS, as there
is more than one budget here, and whatever promises a store of torchrun's own agent.
"""

_ALL = {**modelarts.VARIABLES, **TORCHRUN}
NAMES = tuple(_ALL)


def variables(place: RankPlace) -> dict[str, object]:
    """The variables of every system that has some, for a rank at this place."""
    return {name: value(place) for name, value in _ALL.items()}
