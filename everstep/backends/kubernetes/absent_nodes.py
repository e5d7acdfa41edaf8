"""Nodes that pods are bound to and that this worker's copy does not have: removed from the cluster, or new.

The copy alone does not show which: pods and nodes are followed apart, and nodes may be minutes behind. So a
task in the background requests the node from the API server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable

logger = logging.getLogger(__name__)

RETRY_S = 1.0
"""The API server has the node, or did not answer: the copy has it soon, or the next answer says more."""
_REMOVED_KEPT = 10_000


@dataclass(slots=True, kw_only=True)
class AbsentNodes:
    """Which of these nodes are removed, by the API server's own answer. `answered` is called for each."""

    api: KubernetesApi
    answered: Callable[[], None]
    removed: dict[str, float] = field(default_factory=dict)  # name -> when that was the answer
    questions: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by name

    def removed_at(self, name: str) -> float | None:
        """When the API server answered that there is no such node. None: it has not yet answered that."""
        if name not in self.removed and name not in self.questions:
            self.questions[name] = asyncio.create_task(self._find(name), name=f"node {name}")
        return self.removed.get(name)

    def forget(self, name: str) -> None:
        """The node is there, or a pod was bound to one of this name: earlier answers say nothing now."""
        self.removed.pop(name, None)
        if question := self.questions.pop(name, None):
            question.cancel()

    async def _find(self, name: str) -> None:
        query = {"fieldSelector": f"metadata.name={name}"}
        while True:
            try:
                # A list of one: the worker has no right to `get` nodes.
                reply = await self.api.get("/api/v1/nodes", query)
            except (Refused, Unreachable) as error:
                logger.warning("whether node %s is removed: %s", name, error)
            else:
                if not reply["items"]:
                    break
            await asyncio.sleep(RETRY_S)
        del self.questions[name]
        self.removed[name] = time.time()
        if len(self.removed) > _REMOVED_KEPT:
            del self.removed[next(iter(self.removed))]
        self.answered()

    async def close(self) -> None:
        questions = [*self.questions.values()]
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)
