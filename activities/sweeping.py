"""The janitor's sweep: what is on the cluster, whose workflow still lives, and what goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.acting import until_gone
from activities.failures import translated
from activities.pulse import Pulse, pulse
from everstep.backends.base import Backend
from everstep.core import names
from everstep.core.errors import StaleGeneration
from everstep.core.world import Leftover


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """Needs the cluster and the server: a job is gone only if both say so."""

    backend: Backend
    client: Client
    server: str  # this one, as the cluster knows it

    def all(self) -> list[Any]:
        return [self.sweep]

    @activity.defn(name="sweep")
    async def sweep(self, cluster: str) -> list[str]:
        """Removes the leftovers of every job whose workflow is closed or unknown; their IDs."""
        async with pulse() as mine:
            with translated():
                left = await self.backend.leftovers()
                removed = [each.job.id for each in left if await self._remove(each, mine)]
                await self._expire(cluster)
        return removed

    async def _remove(self, left: Leftover, mine: Pulse) -> bool:
        """Speaks for a run that ended: one that began meanwhile is refused nothing and loses nothing."""
        mine.beat(left.job.id)
        if not await self._is_over(left):
            return False
        try:
            await until_gone(self.backend, left.job, mine.beat)
        except StaleGeneration:
            return False
        return True

    async def _is_over(self, left: Leftover) -> bool:
        """Whether no run lives. Unknown is not dead: only a clear answer of the job's own server counts."""
        newest = await self._status(left.job.id, None)
        if newest is WorkflowExecutionStatus.RUNNING:
            return False
        is_known = newest is not None and await self._status(left.job.id, left.job.run) is not None
        return is_known or left.server in ("", self.server)

    async def _status(self, job: str, run: str | None) -> WorkflowExecutionStatus | None:
        """None if this server knows of no such run."""
        try:
            found = await self.client.get_workflow_handle(job, run_id=run).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return found.status

    async def _expire(self, cluster: str) -> None:
        quarantine = self.client.get_workflow_handle(names.quarantine_id(cluster))
        try:
            await quarantine.execute_update("expire", {"now": await self.backend.clock()})
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
