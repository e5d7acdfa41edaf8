"""Withdraw pods that wait in vain: they are removed, and created again.

There are two kinds. Pods of a gang hold places for some time while others of the gang have none: they give
the places back. And pods avoid other nodes than those to avoid by now, as the affinity of a pod cannot be
changed. Here they are only marked in the record (`is_withdrawn`); `PodReconciler` removes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.backends.agents.client.watch import Agents
from everstep.backends.kubernetes import gangs, kueue, manifest, names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.books import ConfigMapBooks, JobSession, Stored
from everstep.backends.kubernetes.placing.entries import members, wanted_entries
from everstep.backends.kubernetes.pod_facts import is_gated
from everstep.backends.kubernetes.watch import ClusterWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawals:
    """Withdraws pods of the jobs of one namespace."""

    books: ConfigMapBooks
    watch: ClusterWatch
    agents: Agents
    gang_s: float  # as in KubernetesSettings

    def are_bound(self, gang: manifest.Gang, stored: Stored) -> bool:
        """Whether every pod of the gang has a node."""
        pods = self._pods_of(gang, stored)
        return len(pods) == gang.size and all(pod["spec"].get("nodeName") for pod in pods)

    def stuck_at(self, gang: manifest.Gang, stored: Stored) -> float | None:
        """When the gang has to give back the places that some of its pods hold in vain.

        None: never so far.
        """
        if self.are_bound(gang, stored):
            return None
        return gangs.stuck_at(self._pods_of(gang, stored), patience_s=self.gang_s)

    async def withdraw(self, gang: manifest.Gang, stored: Stored) -> None:
        """Have all pods of the gang removed and, after a while, created again."""
        again_at = gangs.again_at(self.agents.clock(), patience_s=self.gang_s)
        uids = {entry.uid for entry in members(stored, gang) if entry.uid}
        why = f"places for all {gang.size} pods at once: those that were found were given back"

        def withdraw(session: JobSession) -> None:
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

        await self.books.transact(stored.document.record.id, withdraw)

    async def withdraw_outdated(
        self, gang: manifest.Gang, stored: Stored, *, fingerprint: str
    ) -> Stored:
        """Have all pods of the gang created again if one of them avoids other nodes than it should.

        `fingerprint`: that of the nodes which pods have to avoid, in their annotation. A gang stays as it is
        if one of its pods has a node, or is held by a queue.
        """
        pods = self._pods_of(gang, stored)
        if not pods or any(pod["spec"].get("nodeName") or is_gated(pod) for pod in pods):
            return stored
        if all(
            _fingerprint_of(pod) == fingerprint or "deletionTimestamp" in pod["metadata"]
            for pod in pods
        ):
            return stored
        uids = {entry.uid for entry in members(stored, gang) if entry.uid}

        def withdraw(session: JobSession) -> None:
            for entry in session.entries:
                if entry.uid in uids and not entry.is_leaving and not entry.is_withdrawn:
                    session.update(replace(entry, is_withdrawn=True, group=entry.group + 1))

        _, stored = await self.books.transacted(stored.document.record.id, withdraw, start=stored)
        return stored

    async def withdraw_outdated_in_queue(self, stored: Stored, *, fingerprint: str) -> Stored:
        """Have pods that Kueue admitted created again if they wait and avoid the wrong nodes.

        Each stays in its group, which keeps its quota as long as one pod of it is there. So one
        is kept until others are created. A pod that is alone in its group stays as it is.
        """
        uids = self._outdated(stored, fingerprint=fingerprint)
        if not uids:
            return stored

        def withdraw(session: JobSession) -> None:
            for entry in session.entries:
                if entry.uid in uids and not entry.is_leaving and not entry.is_withdrawn:
                    session.update(replace(entry, is_withdrawn=True))

        _, stored = await self.books.transacted(stored.document.record.id, withdraw, start=stored)
        return stored

    def _outdated(self, stored: Stored, *, fingerprint: str) -> set[str]:
        """The uids of waiting pods that avoid the wrong nodes. If all of a group do, one is left out."""
        uids: set[str] = set()
        for pods in self._by_group(stored).values():
            outdated = [
                pod
                for pod in pods
                if not (pod["spec"].get("nodeName") or is_gated(pod))
                and _fingerprint_of(pod) != fingerprint
            ]
            first = 1 if len(outdated) == len(pods) else 0
            uids.update(pod["metadata"]["uid"] for pod in outdated[first:])
        return uids

    def _by_group(self, stored: Stored) -> dict[str, list[Json]]:
        """The wanted pods that are there and stay, by the name of their group in a queue."""
        groups: dict[str, list[Json]] = {}
        entries = wanted_entries(stored).values()
        pods = (self.watch.pod(entry.uid) for entry in entries if not entry.is_withdrawn)
        for pod in pods:
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                continue
            if (group := kueue.group_of(pod)) is not None:
                groups.setdefault(group.name, []).append(pod)
        return groups

    def _pods_of(self, gang: manifest.Gang, stored: Stored) -> list[Json]:
        pods = (self.watch.pod(entry.uid) for entry in members(stored, gang))
        return [pod for pod in pods if pod is not None]


def _fingerprint_of(pod: Json) -> str:
    """The newest of its fingerprints."""
    fingerprints: str = pod["metadata"].get("annotations", {}).get(names.KEEPS_OFF, "")
    return fingerprints.partition(" ")[0]
