"""Pods of jobs in queues of Kueue: which groups they join, when they may, and why they are not admitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.backends.kubernetes import kueue
from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.avoided_nodes import NodesToAvoid, patch_of_held
from everstep.backends.kubernetes.books import PodEntry, Stored
from everstep.backends.kubernetes.manifest import Gang
from everstep.backends.kubernetes.placing.entries import joined_group, wanted_entries
from everstep.backends.kubernetes.pod_facts import is_gated
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import all_at_once, allowing
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.core.errors import BackendUnavailable
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import PlaceOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueues:
    """Groups that pods of the jobs of one namespace join in Kueue's queues, and why they wait there."""

    api: KubernetesApi
    namespace: str
    watch: ClusterWatch
    pods: KubernetesPods

    def free_places(self, order: PlaceOrder, entries: Sequence[PodEntry]) -> list[Gang]:
        """The groups with places that ended pods left, each group once for every such place.

        Only groups that still have a pod of the job which does not leave.
        """
        if not kueue.queue_of(order):
            return []
        staying = [self._group(entry) for entry in entries if not entry.is_leaving]
        stuck = [self._group(entry) for entry in entries if self._is_stuck(entry)]
        members = Counter(group for group in (*staying, *stuck) if group is not None)
        return [
            group
            for group in members
            if group in staying
            for _ in range(group.size - members[group])
        ]

    def _group(self, entry: PodEntry) -> Gang | None:
        pod = self.watch.pod(entry.uid)
        return joined_group(entry) if pod is None else kueue.group_of(pod)

    def _is_stuck(self, entry: PodEntry) -> bool:
        """Whether a pod that leaves keeps its place until its end is reported, which may be never."""
        is_silent = self.watch.service(entry.node)[0] not in {"ready", "down"}
        return entry.is_leaving and is_silent and not self.pods.is_gone(entry.uid)

    def with_room(self, missing: Sequence[PodEntry], stored: Stored) -> Iterator[PodEntry]:
        """Those of these pods whose group has a place by now.

        Kueue deletes the newest pods of a group that is too large.
        """
        job_pods = self.watch.of_job(stored.document.record.id, self.namespace)
        members = Counter(group.name for pod in job_pods if (group := kueue.group_of(pod)))
        watched = {pod["metadata"]["uid"] for pod in job_pods}
        created = (entry for entry in stored.document.pods if entry.uid and entry.joins)
        # The watch may not have seen all of them yet.
        members.update(entry.joins for entry in created if entry.uid not in watched)
        for entry in missing:
            if not entry.joins or members[entry.joins] < entry.joins_size:
                members[entry.joins] += 1
                yield entry

    async def keep_off(self, stored: Stored, avoided: NodesToAvoid) -> None:
        """Let pods that a queue holds back land on none of these nodes either.

        They stay where they are in the queue. That they keep off fewer nodes cannot be changed.
        """
        pods = (self.watch.pod(entry.uid) for entry in wanted_entries(stored).values())
        held = [pod for pod in pods if pod is not None and is_gated(pod)]
        patches = ((pod, patch_of_held(pod, avoided)) for pod in held)
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        # 409, 422: it changed, or is no longer held back. 404: it is gone.
        await all_at_once(
            allowing(self.api.patch(f"{path}/{pod['metadata']['name']}", patch), 404, 409, 422)
            for pod, patch in patches
            if patch is not None
        )

    async def problem(self, order: PlaceOrder, stored: Stored) -> WaitCause | None:
        """Why Kueue holds pods of the order back. None: it does not."""
        if not (queue := kueue.queue_of(order)):
            return None
        pods = (self.watch.pod(entry.uid) for entry in wanted_entries(stored).values())
        gated = (pod for pod in pods if pod is not None and is_gated(pod))
        group = next((group for pod in gated if (group := kueue.group_of(pod))), None)
        if group is None:
            return None
        words = await self._reason(group)
        return WaitKind.QUEUED.of(group.name, queue, f": {words}" if words else "")

    async def _reason(self, group: Gang) -> str:
        """Kueue's words on the group; empty: it has none yet, or is of another version."""
        path = f"{kueue.API}/namespaces/{self.namespace}/workloads/{group.name}"
        try:
            return kueue.reason(await self.api.get(path))
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:  # without the right to read them the user has to know that
            return "" if error.status == 404 else str(error)
