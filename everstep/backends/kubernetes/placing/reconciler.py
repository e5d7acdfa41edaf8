"""Bring the pods of a job and its record in line: remove pods that leave, store what became of the others.

`sync` first computes everything: what becomes of each entry of the record and of its pod (`EntryChange`), the
pods without an entry, and the facts to report. Then it stores the changes, deletes pods, and polls the agents
of the others. Any worker may do it at any time, and again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from everstep.backends.agents import observing
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.kubernetes import kueue, listed_faults, names, node_facts
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.books import (
    ConfigMapBooks,
    JobSession,
    PodEntry,
    Stored,
    wait_after,
)
from everstep.backends.kubernetes.listed_faults import Ended
from everstep.backends.kubernetes.placing.entries import standby_entries, wanted_entries
from everstep.backends.kubernetes.pod_facts import (
    PodReport,
    created_at,
    end_of,
    generation_of,
    is_failed_start,
    is_owned,
    trouble,
)
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import all_at_once, allowing, both, reached
from everstep.backends.kubernetes.watch import ClusterWatch, job_of
from everstep.core.errors import WrongCluster
from everstep.core.facts import Fact

logger = logging.getLogger(__name__)

_DELETED = "it was deleted"
_LEAST_GRACE_S = 1
"""0 would remove the object at once, and with it the proof that its processes ended."""


class PodDeletion(NamedTuple):
    """A pod to be removed, and the time that its processes have to end."""

    name: str
    uid: str
    grace_s: int


class EntryChange(NamedTuple):
    """What becomes of one entry of the record, and of its pod."""

    entry: PodEntry | None  # None: nothing is left of the pod, and the record drops it
    deletion: PodDeletion | None = None  # None: the pod stays, or is being deleted already


class PodsBeforeRecord(NamedTuple):
    """The pods of a job, and its record, which was read after them.

    A pod is created after its entry was stored. So one without an entry is a stray, and not a new one.
    """

    pods: Collection[Json]
    stored: Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReconciler:
    """The pods of the jobs of one namespace."""

    api: KubernetesApi
    namespace: str
    books: ConfigMapBooks
    watch: ClusterWatch
    pods: KubernetesPods
    agents: Agents
    not_ready_s: float  # as in KubernetesSettings

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    async def find_pods(self, job_id: str) -> PodsBeforeRecord:
        pods = self.watch.of_job(job_id, self.namespace)
        return PodsBeforeRecord(pods, await reached(self.books.read(job_id)))

    async def sync(self, job_id: str, sight: PodsBeforeRecord | None = None) -> Stored:
        """Remove the pods that are not wanted, and store what the API server reports of the rest.

        `sight`: a look of a moment ago, where the caller has one; its record may be newer than its pods.
        """
        pods, stored = await self.find_pods(job_id) if sight is None else sight
        _refuse_older(stored, pods)
        deletions = self._strays(stored, pods)
        for stray in deletions:
            self.agents.forget(stray.uid)
        changes: dict[str, PodEntry | None] = {}
        uids = {entry.name: entry.uid for entry in stored.document.pods}
        for entry in stored.document.pods:
            change = await self._change_of(entry, stored)
            if change.entry != entry:
                changes[entry.name] = change.entry
            if change.deletion is not None:
                deletions.append(change.deletion)
        faults = [*self._pod_ends(stored), *self._node_faults(stored)]
        ends = self._ends_of_faults(stored)

        def note(session: JobSession) -> None:
            for entry in session.entries:
                # Another worker may have given the entry a new pod meanwhile.
                if entry.name in changes and entry.uid == uids[entry.name]:
                    _store_change(session, entry, changes[entry.name])
            session.add_faults(faults, ends)

        deletion = all_at_once(map(self._delete, deletions))
        if changes or faults or ends:
            storing = self.books.transacted(job_id, note, start=stored)
            (_, newest), _ = await both(storing, deletion)
            stored = newest
        else:
            await deletion
        # Not earlier: a released object disappears, and the end that it proves is stored only now.
        held = (pod for pod in pods if kueue.is_held(pod) and self._is_over(pod))
        await all_at_once(map(self._release, held))
        self.watch_agents(stored)
        return stored

    async def _change_of(self, entry: PodEntry, stored: Stored) -> EntryChange:
        """What becomes of the entry, by what the API server reports of its pod now."""
        pod = self.watch.pod(entry.uid)
        if pod is None and (entry.uid or entry.is_leaving or entry.is_withdrawn):
            pod = await self._pod_on_server(entry, stored)
        if pod is not None:
            await self._mend_labels(pod, stored.document.record.id)
            await self._mend_slot(pod, entry)
        if pod is not None and not entry.uid:
            entry = replace(entry, uid=pod["metadata"]["uid"])
        if entry.is_withdrawn:
            return self._change_of_withdrawn(entry, pod)
        if self._has_failed(entry, stored):
            last = self.watch.removed.get(entry.uid) if pod is None else pod
            return self._change_of_failed(entry if last is None else _judged(entry, last), pod)
        if pod is None and self._was_deleted_unused(entry, stored):
            return self._change_of_failed(replace(entry, failure=_DELETED), pod)
        return self._change_of_other(entry, pod)

    def _change_of_withdrawn(self, entry: PodEntry, pod: Json | None) -> EntryChange:
        """Remove the pod. Once it is gone, its name is free and the pod is created again."""
        self.agents.forget(entry.uid)
        if pod is None:
            free = replace(entry, uid="", node="", has_answered=False, is_withdrawn=False)
            return EntryChange(free)
        return EntryChange(entry, _first_deletion(entry, pod, _LEAST_GRACE_S))

    def _change_of_failed(self, entry: PodEntry, pod: Json | None) -> EntryChange:
        """Remove the pod once its successor is due: until then its log can be read.

        Once it is gone, its name is free and the failure counts. The successor needs the name: by it a worker
        finds the pod that a killed one created.
        """
        self.agents.forget(entry.uid)
        now, wait_s = self.agents.clock(), wait_after(entry.failures + 1)
        if pod is None:
            starts = entry.start_failures + (entry.is_failed_start or self._was_deleted(entry))
            ended_at = min(now, self.watch.ended.get(entry.uid, now))
            return EntryChange(
                replace(
                    entry,
                    uid="",
                    node="",
                    failures=entry.failures + 1,
                    start_failures=starts,
                    is_failed_start=False,
                    failed_at=ended_at,
                )
            )
        is_due = now >= self.watch.ended.get(entry.uid, now) + wait_s
        return EntryChange(entry, _first_deletion(entry, pod, _LEAST_GRACE_S) if is_due else None)

    def _was_deleted(self, entry: PodEntry) -> bool:
        """Whether others deleted the pod, whose object is gone, and the cluster did not take its place."""
        removed = self.watch.removed.get(entry.uid)
        return entry.failure == _DELETED and (removed is None or is_failed_start(removed))

    def _change_of_other(self, entry: PodEntry, pod: Json | None) -> EntryChange:
        """Store the pod's node; remove the pod if it leaves.

        An object that is gone proves no end: a deletion by force does not wait for the kubelet. Such a pod
        leaves the job, and the next fence waits for what may run there.
        """
        node = entry.node if pod is None else pod["spec"].get("nodeName", entry.node)
        is_proven_dead = self._is_proven_dead(entry, node)
        has_vanished = pod is None and not is_proven_dead
        is_leaving = entry.is_leaving or has_vanished
        entry = replace(entry, node=node, is_leaving=is_leaving, has_vanished=has_vanished)
        if not is_leaving:
            return EntryChange(entry)
        if pod is None:
            self.agents.forget(entry.uid)
            return EntryChange(entry if has_vanished else None)
        if entry.dead_at is None and is_proven_dead:
            entry = replace(entry, dead_at=self.agents.clock())
        grace_s = max(_LEAST_GRACE_S, math.ceil(entry.grace_s))
        deletion = _first_deletion(entry, pod, grace_s)
        # No kubelet will ever confirm it.
        if deletion is None and self.watch.service(node)[0] == "down":
            deletion = PodDeletion(entry.name, entry.uid, 0)
        return EntryChange(entry, deletion)

    def _has_failed(self, entry: PodEntry, stored: Stored) -> bool:
        """Whether the pod of a wanted entry ended before its agent answered: no rank ever ran in it."""
        return (
            self.pods.is_gone(entry.uid)
            and not entry.is_leaving
            and not self._may_have_ranks(entry, stored.document.record)
        )

    def _was_deleted_unused(self, entry: PodEntry, stored: Stored) -> bool:
        """Whether a wanted pod, whose object is gone, is dead and no rank ever ran in it."""
        is_wanted = bool(entry.uid) and not entry.is_leaving
        is_unused = is_wanted and not self._may_have_ranks(entry, stored.document.record)
        return is_unused and self._is_proven_dead(entry, entry.node)

    def _is_proven_dead(self, entry: PodEntry, node: str) -> bool:
        """Whether no process of the pod runs. A pod without a node never had one."""
        return not node or self.pods.is_gone(entry.uid) or self.watch.service(node)[0] == "down"

    def _may_have_ranks(self, entry: PodEntry, record: JobRecord) -> bool:
        agent = self.agents.by_uid.get(entry.uid)
        has_answered = entry.has_answered or (agent is not None and agent.state is not None)
        return has_answered or record.started >= entry.generation

    def _strays(self, stored: Stored, pods: Collection[Json]) -> list[PodDeletion]:
        """The pods that the books no longer name: the fence dropped them, or their job is gone."""
        entries = {entry.name for entry in stored.document.pods}
        deletions: list[PodDeletion] = []
        for pod in pods:
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
            is_leaving = "deletionTimestamp" in pod["metadata"]
            is_out_of_service = self.watch.service(node)[0] != "ready"
            if name not in entries and (is_out_of_service or not is_leaving):
                uid = pod["metadata"]["uid"]
                grace_s = 0 if is_out_of_service else _LEAST_GRACE_S
                deletions.append(PodDeletion(name, uid, grace_s))
        return deletions

    async def _pod_on_server(self, entry: PodEntry, stored: Stored) -> Json | None:
        """The pod as the API server itself has it: a watch may be behind. None: the job has none."""
        pod = await reached(self.api.find(f"{self._path}/pods/{entry.name}"))
        if pod is None or not is_owned(pod, stored.uid):
            return None
        return pod if entry.uid in {"", pod["metadata"]["uid"]} else None

    async def _mend_labels(self, pod: Json, job_id: str) -> None:
        """Put back the labels and the annotation by which a watch finds the pod and its job.

        Another person's tool may take them away. The pod itself is known by its uid.
        """
        metadata = pod["metadata"]
        labels = names.labels(self.books.identity, job_id)
        # The copy of a watch has the annotation, and no label that the watch selects by.
        is_selected = self.watch.pod(metadata["uid"]) is not None
        has_labels = is_selected or labels.items() <= (metadata.get("labels") or {}).items()
        if has_labels and job_of(pod) == job_id:
            return
        logger.warning("pod %s of job %s lacks marks of ours: put back", metadata["name"], job_id)
        changes = {"uid": metadata["uid"], "labels": labels, "annotations": {names.JOB: job_id}}
        path = f"{self._path}/pods/{metadata['name']}"
        await allowing(self.api.patch(path, {"metadata": changes}), 404, 409)

    async def _mend_slot(self, pod: Json, entry: PodEntry) -> None:
        """Label the pod with its slot, if it stood by before: then it was for another one, or for any."""
        metadata = pod["metadata"]
        label = (metadata.get("labels") or {}).get(names.SLOT)
        if not entry.made_as or label == str(entry.slot):
            return
        changes = {"uid": metadata["uid"], "labels": {names.SLOT: str(entry.slot)}}
        path = f"{self._path}/pods/{metadata['name']}"
        await allowing(self.api.patch(path, {"metadata": changes}), 404, 409)

    async def _delete(self, pod: PodDeletion) -> None:
        options = {"gracePeriodSeconds": pod.grace_s, "preconditions": {"uid": pod.uid}}
        deletion = self.api.delete(f"{self._path}/pods/{pod.name}", options)
        await allowing(deletion, 404, 409)

    def _is_over(self, pod: Json) -> bool:
        """Whether nothing of this deleted pod runs any more, so that its object may go."""
        node, uid = pod["spec"].get("nodeName", ""), pod["metadata"]["uid"]
        return not node or self.pods.is_gone(uid) or self.watch.service(node)[0] == "down"

    async def _release(self, pod: Json) -> None:
        """Let the object of a pod go that Kueue keeps until another pod of its group replaces it.

        Only the job's record has whether there is to be another one.
        """
        path = f"{self._path}/pods/{pod['metadata']['name']}"
        await allowing(self.api.patch(path, kueue.released(pod)), 404, 409)

    def _pod_ends(self, stored: Stored) -> list[Fact]:
        """Why pods of the job end or are about to, as far as that was not reported to it yet."""
        reported = {fact.id for _, fact in stored.document.facts}
        record, entries = stored.document.record, wanted_entries(stored).values()
        facts = (self.end_of(entry, record) for entry in entries)
        return [fact for fact in facts if fact is not None and fact.id not in reported]

    def end_of(self, entry: PodEntry, record: JobRecord) -> Fact | None:
        """Why a pod in which ranks may run ended, or is about to; None: nothing shows that."""
        pod = self.watch.pod(entry.uid) or self.watch.removed.get(entry.uid)
        if pod is None or entry.is_withdrawn or not self._may_have_ranks(entry, record):
            return None
        row = end_of(report := PodReport(pod=pod, node=self.watch.node(entry.node)))
        if row is None:
            return None
        return Fact(
            id=f"{entry.uid}/end",  # a pod ends once: what comes later is a consequence
            kind=row.kind,
            at=self.agents.clock(),
            generation=self._generation_of_end(entry, record),
            node=entry.node or None,
            slot=entry.slot,
            message=row.message(report),
        )

    def _generation_of_end(self, entry: PodEntry, record: JobRecord) -> int:
        """The generation that the end of a wanted pod concerns: the newest, once its placement keeps the pod.

        Before that it is the one of the ranks in the pod, as only the placement shows which pods a restart
        keeps: by the newest one, the late end of a pod that it replaces would restart the job once more. The
        step that stops the older ranks has the plan, and takes the end of a kept pod as news (`StepRun`).
        """
        agent = self.agents.by_uid.get(entry.uid)
        if record.placed == record.newest:
            return record.newest
        return observing.run_generation(
            None if agent is None else agent.state,
            newest=record.newest,
            created_in=entry.generation,
        )

    def _node_faults(self, stored: Stored) -> list[Fact]:
        """Faults of the job's nodes that were not reported to it yet."""
        reported = {fact.id for _, fact in stored.document.facts}
        faults: list[Fact] = []
        for entry in wanted_entries(stored).values():
            if entry.node:
                pod = self.watch.pod(entry.uid)
                since = math.inf if pod is None else created_at(pod)
                # What the API server shows of the node and its lease.
                faults += (f for f in self.watch.faults_of(entry.node) if self._counts(f, entry))
                # What observers report of it: from before the pod only what is still there.
                reports = self.watch.reported_on(entry.node, since=since)
                faults += listed_faults.occurrences(reports, stored.document.ends)
        return [fault for fault in faults if fault.id not in reported]

    def _ends_of_faults(self, stored: Stored) -> list[Ended]:
        recorded = (fact for _, fact in stored.document.facts)
        ends = stored.document.ends
        lists, now = self.watch.fault_lists, self.agents.clock()
        return [*listed_faults.ended(recorded, lists, ends, now=now)]

    def _counts(self, fault: Fact, entry: PodEntry) -> bool:
        """Whether the fault is to be reported to the job.

        A node that is not ready is reported only after `not_ready_s`, if the agent there answers: after each
        outage of the API server nodes are not ready for a moment, while training goes on.
        """
        agent = self.agents.by_uid.get(entry.uid)
        answers = agent is not None and agent.state is not None and agent.silent_since is None
        is_young = self.agents.clock() < fault.at + self.not_ready_s
        return not (fault.kind == node_facts.NOT_READY and answers and is_young)

    def watch_agents(self, stored: Stored) -> None:
        for entry in (*wanted_entries(stored).values(), *standby_entries(stored).values()):
            has_address = self.watch.address(entry.uid) and not self._has_failed(entry, stored)
            is_there = entry.uid and not entry.is_withdrawn
            if is_there and (entry.has_answered or has_address):
                self.agents.watch(entry.uid, has_answered=entry.has_answered)


def _refuse_older(stored: Stored, pods: Collection[Json]) -> None:
    """Raise WrongCluster where a pod of the job is newer than its record: that is an old copy of it.

    A generation is in the record before a pod of it is made. By an older record the pod would be a stray. Of
    a pod that the record names the generation is known, whatever its label says.
    """
    record = stored.document.record
    own_uids = {entry.uid for entry in stored.document.pods}
    strays = (
        pod for pod in pods if is_owned(pod, stored.uid) and pod["metadata"]["uid"] not in own_uids
    )
    newest = max(map(generation_of, strays), default=0)
    if newest > record.newest:
        where = f"ConfigMap {names.record(record.id)}"
        what = f"{where} is an old copy: it ends at generation {record.newest}, and pods of {newest} live"
        raise WrongCluster(record.id, what)


def _judged(entry: PodEntry, pod: Json) -> PodEntry:
    """The entry with why its pod failed. `pod`: as it is, or as it was when its object went."""
    is_deleted, is_failed = PodReport(pod=pod).is_deleted, is_failed_start(pod)
    if not is_deleted:
        return replace(entry, failure=trouble(pod), is_failed_start=is_failed)
    if not entry.is_failed_start and entry.failure != trouble(pod):  # others deleted it
        why = _DELETED if is_failed else trouble(pod)
        return replace(entry, failure=why, is_failed_start=is_failed)
    return entry


def _first_deletion(entry: PodEntry, pod: Json, grace_s: int) -> PodDeletion | None:
    """The deletion of the entry's pod; None: it is being deleted already."""
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return None if is_deleted else PodDeletion(entry.name, entry.uid, grace_s)


def _store_change(session: JobSession, entry: PodEntry, change: PodEntry | None) -> None:
    """Store only what the API server reports: another worker may have changed the rest meanwhile."""
    if change is None:
        if entry.is_leaving:
            session.remove(entry.name)
        return
    session.update(
        replace(
            entry,
            uid=change.uid,
            node=change.node,
            failures=change.failures,
            failed_at=change.failed_at,
            failure=change.failure,
            start_failures=change.start_failures,
            is_failed_start=change.is_failed_start,
            is_withdrawn=change.is_withdrawn,
            has_answered=entry.has_answered and bool(change.uid),
            dead_at=change.dead_at if entry.dead_at is None else entry.dead_at,
            is_leaving=entry.is_leaving or change.has_vanished,
            has_vanished=change.has_vanished,
        )
    )
