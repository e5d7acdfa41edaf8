"""What the verbs of the local cluster are carried out with. Knows none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from everstep.agent_client.watch import Agents
from everstep.backends.local.database.store import Store
from everstep.backends.local.settings import LocalSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """Its books say what is wanted, its agents what is."""

    identity: str  # what tells the books of this state directory from others
    settings: LocalSettings
    store: Store
    agents: Agents
    now: Callable[[], float]
