"""Pods that wait for what cannot come: they are removed, and created again.

Those of one gang that hold places while others of it have none, after a time; and those that keep off other
nodes than they should by now, which cannot be changed of a pod.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.agent_client.watch import Agents
from everstep.backends.kubernetes import gangs, manifest, names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.books import ConfigMapBooks, JobSession, Stored
from everstep.backends.kubernetes.placing.entries import members
from everstep.backends.kubernetes.pod_facts import is_gated
from everstep.backends.kubernetes.watch import ClusterWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawals:
    """Of the jobs of one namespace."""

    books: ConfigMapBooks
    watch: ClusterWatch
    agents: Agents
    gang_s: float  # as in KubernetesSettings

    def are_bound(self, gang: manifest.Gang, stored: Stored) -> bool:
        """Whether every pod of the gang has a node."""
        pods = self._pods_of(gang, stored)
        return len(pods) == gang.size and all(pod["spec"].get("nodeName") for pod in pods)

    def stuck_at(self, gang: manifest.Gang, stored: Stored) -> float | None:
        """When pods of the gang give back the places that they hold for nothing; None: they need not."""
        if self.are_bound(gang, stored):
            return None
        return gangs.stuck_at(self._pods_of(gang, stored), patience_s=self.gang_s)

    async def withdraw(self, gang: manifest.Gang, stored: Stored) -> None:
        """Have all pods of the gang removed and, after a while, created again."""
        again_at = gangs.again_at(self.agents.clock(), patience_s=self.gang_s)
        uids = {entry.uid for entry in members(stored, gang) if entry.uid}
        why = f"places for all {gang.size} pods at once: those that were found were given back"

        def mark(session: JobSession) -> None:
            for entry in session.entries:
                if entry.uid in uids and not entry.is_leaving and not entry.is_withdrawn:
                    # In a queue, a group that was ended cannot begin again: the next one is another.
                    change = replace(
                        entry,
                        is_withdrawn=True,
                        failed_at=again_at,
                        failure=why,
                        group=entry.group + 1,
                    )
                    session.update(change)

        await self.books.transact(stored.document.record.id, mark)

    async def renew(self, gang: manifest.Gang, stored: Stored, *, mark: str) -> Stored:
        """Have all pods of the gang created again if one of them waits and keeps off other nodes.

        `mark`: of the nodes that it should keep off. A pod that has a node stays, and its gang with it.
        """
        pods = self._pods_of(gang, stored)
        if not pods or any(pod["spec"].get("nodeName") or is_gated(pod) for pod in pods):
            return stored
        if all(_mark_of(pod) == mark or "deletionTimestamp" in pod["metadata"] for pod in pods):
            return stored
        uids = {entry.uid for entry in members(stored, gang) if entry.uid}

        def renew(session: JobSession) -> None:
            for entry in session.entries:
                if entry.uid in uids and not entry.is_leaving and not entry.is_withdrawn:
                    session.update(replace(entry, is_withdrawn=True, group=entry.group + 1))

        _, stored = await self.books.transacted(stored.document.record.id, renew, start=stored)
        return stored

    def _pods_of(self, gang: manifest.Gang, stored: Stored) -> list[Json]:
        pods = (self.watch.pod(entry.uid) for entry in members(stored, gang))
        return [pod for pod in pods if pod is not None]


def _mark_of(pod: Json) -> str:
    return str(pod["metadata"].get("annotations", {}).get(names.KEEPS_OFF, ""))
