"""Create and remove the pods of a job. The scheduler of the cluster decides where they run.

The wanted pods are stored before anything is done; what is done may be repeated by any worker.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from everstep.agent_client.watch import Agents
from everstep.backends.agents import observing
from everstep.backends.agents.transactions import owned_record
from everstep.backends.kubernetes import (
    credentials,
    folders,
    gangs,
    manifest,
    names,
    node_facts,
)
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.books import (
    ConfigMapBooks,
    JobSession,
    PodEntry,
    Stored,
    isolated_nodes,
)
from everstep.backends.kubernetes.pod_facts import PodReport, created_at, end_of, trouble
from everstep.backends.kubernetes.pods import KubernetesPods
from everstep.backends.kubernetes.reaching import allowing, reached
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.backends.rules import ownership, placing
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.facts import Fact
from everstep.core.world import PlaceOrder, PlaceState, PodRef

_LEAST_GRACE_S = 1
"""0 would remove the object at once, and with it the proof that its processes ended."""
_CREATED_AT_ONCE = 32
_MOMENT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacer:
    """The hands of one worker on the pods of its jobs."""

    api: KubernetesApi
    namespace: str
    home: str  # the namespace of the workers: isolated nodes are stored there
    books: ConfigMapBooks
    watch: ClusterWatch
    pods: KubernetesPods
    agents: Agents
    settings: manifest.PodSettings
    groups: gangs.PodGroups
    gang_s: float
    not_ready_s: float  # as in KubernetesSettings

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    # -- placing ---------------------------------------------------------------------------------

    async def ensure_placed(self, order: PlaceOrder) -> tuple[PlaceState, float | None]:
        """How far the pods are, and when one that failed is created again, if that has to wait."""
        # A pod requests a number of devices, not some of them: a device is avoided with its node.
        hosts = await self._hosts_to_avoid(_nodes_to_avoid(order))
        no_owner = {"name": "", "uid": ""}
        # Before anything is changed: a document that cannot work.
        example = manifest.pod(
            order, order.slots[0], owner=no_owner, settings=self.settings, hosts_to_avoid=hosts
        )
        may_be_used = await self._usable(order)
        _, stored = await self.books.transacted(
            order.job.id, lambda session: _want(session, order, may_be_used)
        )
        stored = await self.sync(order.job.id, stored)
        missing = [e for e in _wanted(stored).values() if not e.uid and e.slot in order.slots]
        if missing:
            await self.books.claim(order.job.id, self._claims(order, example))
        now = self.agents.clock()
        refusal = ""
        gang = _gang(order, stored)
        is_grouped = manifest.is_grouped_by_us(order, self.settings)
        if is_grouped and gang.size and not self._are_bound(gang, stored):
            refusal = await self.groups.ensure(order.job.id, gang, owner=_owner(stored))
        if due := [entry for entry in missing if entry.created_from <= now]:
            await self._ensure_secret(order.job.id, stored)
            refused, stored = await self._create(order, stored, due, hosts, gang)
            refusal = refused or refusal
        self._watch_agents(stored)
        again = [entry.created_from for entry in missing if entry.created_from > now]
        if not is_grouped and (stuck_at := self._stuck_at(gang, stored)) is not None:
            again.append(max(now, stuck_at) + _MOMENT_S)
            if now >= stuck_at:
                await self._withdraw(gang, stored)
        state = self._answer(order.slots, _wanted(stored), refusal)
        if is_grouped and not state.placed and not self._are_bound(gang, stored):
            state = replace(
                state, places=None
            )  # all of them or none: how many could live shows a try
        return state, min(again, default=None)

    async def ensure_standby(self, order: PlaceOrder) -> tuple[PlaceState, float | None]:
        """How far the pods are that stand by, and when one that failed is created again."""
        may_be_used = await self._usable(order)
        _, stored = await self.books.transacted(
            order.job.id, lambda session: _want_standbys(session, order, may_be_used)
        )
        stored = await self.sync(order.job.id, stored)
        job_nodes = {entry.node for entry in _wanted(stored).values() if entry.node}
        hosts = await self._hosts_to_avoid(_nodes_to_avoid(order) | job_nodes)
        missing = [entry for entry in _standbys(stored).values() if not entry.uid]
        now = self.agents.clock()
        refusal = ""
        if due := [entry for entry in missing if entry.created_from <= now]:
            await self._ensure_secret(order.job.id, stored)
            refusal, stored = await self._create(order, stored, due, hosts)
        self._watch_agents(stored)
        again = (entry.created_from for entry in missing if entry.created_from > now)
        state = self._answer(order.recreate, _standbys(stored), refusal)
        return state, min(again, default=None)

    def _claims(self, order: PlaceOrder, pod: Json) -> list[FolderClaim]:
        spec, namespace = pod["spec"], self.namespace
        return folders.claims(spec, manifest.CONTAINER, order.folders, namespace=namespace)

    async def _usable(self, order: PlaceOrder) -> Callable[[PodEntry], bool]:
        """Whether a pod that stands by may become one of the order's."""
        isolated = await reached(isolated_nodes(self.api, self.home))
        avoided = {*isolated, *_nodes_to_avoid(order)}
        devices = manifest.devices_of(order)

        def may_be_used(entry: PodEntry) -> bool:
            is_sound = not entry.node or self.watch.service(entry.node)[0] == "ready"
            is_gone = entry.is_lost or (bool(entry.uid) and self.pods.is_gone(entry.uid))
            fits = entry.devices == devices and entry.node not in avoided
            return is_sound and fits and not is_gone

        return may_be_used

    def _pods_of(self, gang: manifest.Gang, stored: Stored) -> list[Json]:
        pods = (self.watch.pod(entry.uid) for entry in _members(stored, gang))
        return [pod for pod in pods if pod is not None]

    def _are_bound(self, gang: manifest.Gang, stored: Stored) -> bool:
        """Whether every pod of the gang has a node."""
        pods = self._pods_of(gang, stored)
        return len(pods) == gang.size and all(pod["spec"].get("nodeName") for pod in pods)

    def _stuck_at(self, gang: manifest.Gang, stored: Stored) -> float | None:
        """When pods of the gang give back the places that they hold for nothing; None: they need not."""
        if self._are_bound(gang, stored):
            return None
        return gangs.stuck_at(self._pods_of(gang, stored), patience_s=self.gang_s)

    async def _withdraw(self, gang: manifest.Gang, stored: Stored) -> None:
        """Have all pods of the gang removed and, after a while, created again."""
        again_at = gangs.again_at(self.agents.clock(), patience_s=self.gang_s)
        uids = {entry.uid for entry in _members(stored, gang) if entry.uid}
        why = f"places for all {gang.size} pods at once: those that were found were given back"

        def mark(session: JobSession) -> None:
            for entry in session.document.pods:
                if entry.uid in uids and not entry.is_leaving and not entry.is_withdrawn:
                    change = replace(entry, is_withdrawn=True, failed_at=again_at, failure=why)
                    session.update(change)

        await self.books.transact(stored.document.record.id, mark)

    async def _hosts_to_avoid(self, avoid: Iterable[str]) -> set[str]:
        """The labels of isolated nodes, and of those that the job avoids: by them affinity names nodes."""
        isolated = await reached(isolated_nodes(self.api, self.home))
        nodes = ((name, self.watch.node(name)) for name in {*avoid, *isolated})
        return {
            name if node is None else node["metadata"]["labels"].get("kubernetes.io/hostname", name)
            for name, node in nodes
        }

    async def _ensure_secret(self, job: str, stored: Stored) -> None:
        metadata = {
            "name": names.secret(job),
            "labels": names.labels(self.books.identity, job),
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **_owner(stored)}
            ],
        }
        # Where somebody deleted it, new pods and those that there are still have to know each other.
        entries = self.pods.credentials.get(job) or credentials.make(job)
        body = {"metadata": metadata, "immutable": True, "stringData": entries}
        await allowing(self.api.create(f"{self._path}/secrets", body), 409)

    async def _create(
        self,
        order: PlaceOrder,
        stored: Stored,
        entries: Iterable[PodEntry],
        hosts: Collection[str],
        gang: manifest.Gang | None = None,
    ) -> tuple[str, Stored]:
        """Create the pods and store their uids. Returns why the API server takes none now, if so."""
        at_once = asyncio.Semaphore(_CREATED_AT_ONCE)

        async def create(entry: PodEntry) -> Json | Refused:
            body = manifest.pod(
                order,
                entry.slot,
                owner=_owner(stored),
                settings=self.settings,
                hosts_to_avoid=hosts,
                gang=gang if _is_created_in(entry, order.job.id, order.generation) else None,
            )
            body["metadata"]["name"] = entry.name
            async with at_once:
                return await self._create_one(body)

        results = await asyncio.gather(*(create(entry) for entry in entries))
        created = {one["metadata"]["name"]: one for one in results if not isinstance(one, Refused)}

        def note(session: JobSession) -> None:
            for entry in session.document.pods:
                if not entry.uid and (pod := created.get(entry.name)):
                    session.update(replace(entry, uid=pod["metadata"]["uid"]))

        _, stored = await self.books.transacted(order.job.id, note, start=stored)
        return next((str(one) for one in results if isinstance(one, Refused)), ""), stored

    async def _create_one(self, body: Json) -> Json | Refused:
        """The pod; or the refusal, where it may be taken later. Raises InvalidSpec where it never is."""
        path = f"{self._path}/pods"
        try:
            return await self.api.create(path, body, {"fieldValidation": "Strict"})
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:
            if error.reason == "AlreadyExists":  # a worker was killed after this
                return await reached(self.api.get(f"{path}/{body['metadata']['name']}"))
            if error.status == 403 and "exceeded quota" in str(error):
                return error
            if error.status in {400, 403, 422}:
                what = f"the API server refuses the pod: {error}"
                raise InvalidSpec([("spec.pod_template", what)]) from None
            raise BackendUnavailable(str(error)) from None

    def _answer(
        self, slots: Sequence[int], entries: Mapping[int, PodEntry], refusal: str
    ) -> PlaceState:
        refs: dict[int, PodRef] = {}
        places, problems, waits = 0, [refusal] if refusal else [], list[str]()
        for slot in slots:
            entry = entries.get(slot)
            pod = self.watch.pod(entry.uid) if entry is not None else None
            if entry is None or pod is None:
                if failed := "" if entry is None else _failed(entry):
                    problems.append(failed)
                waits.append(f"a pod for slot {slot} to be created")
                continue
            node, why = pod["spec"].get("nodeName", ""), trouble(pod)
            agent = self.agents.known.get(entry.uid)
            if agent is not None and agent.state is not None:
                refs[slot] = PodRef(node=node, uid=entry.uid)
            else:
                # A pod whose place is given back ends for that reason.
                says_why = why and not entry.is_withdrawn
                if problem := f"pod {entry.name}: {why}" if says_why else _failed(entry):
                    problems.append(problem)
                waits.append(f"pod {entry.name}: its agent to answer")
            places += bool(node and not why)
        if len(refs) == len(slots):
            return PlaceState(placed=True, pods=refs, places=len(refs))
        problems.sort(key=gangs.is_of_group)  # one pod says why, the others that it is one too few
        return PlaceState(placed=False, places=places, waiting_for=[*problems, *waits][0])

    # -- wanted pods and actual pods -------------------------------------------------------------

    async def sync(self, job_id: str, stored: Stored | None = None) -> Stored:
        """Remove the pods that are not wanted, and store what the API server reports of the rest.

        `stored`: the job as it was read a moment ago.
        """
        pods = self.watch.of_job(job_id, self.namespace)
        # Pods before the books: one that is made later has its entry later.
        stored = await reached(self.books.read(job_id)) if stored is None else stored
        await self._remove_strays(stored, pods)
        changes: dict[str, PodEntry | None] = {}
        uids = {entry.name: entry.uid for entry in stored.document.pods}
        for entry in stored.document.pods:
            change = await self._synced(entry, stored)
            if change != entry:
                changes[entry.name] = change
        faults = [*self._pod_ends(stored), *self._node_faults(stored)]
        if changes or faults:

            def note(session: JobSession) -> None:
                for entry in session.document.pods:
                    if entry.name in changes and entry.uid == uids[entry.name]:
                        _update(session, entry, changes[entry.name])
                for fault in faults:
                    session.add_fact(fault)

            _, stored = await self.books.transacted(job_id, note, start=stored)
        self._watch_agents(stored)
        return stored

    async def _synced(self, entry: PodEntry, stored: Stored) -> PodEntry | None:
        """The entry as it is now; None: nothing is left of it.

        An object that is gone proves no end: a deletion by force does not wait for the kubelet. Such a pod
        leaves the job, and the next fence waits for what may run there.
        """
        pod = self.watch.pod(entry.uid)
        if pod is None and (entry.uid or entry.is_leaving):
            pod = await self._confirmed(entry)
        if pod is not None and not entry.uid and pod["metadata"]["name"] == entry.name:
            entry = replace(entry, uid=pod["metadata"]["uid"])
        node = entry.node if pod is None else pod["spec"].get("nodeName", entry.node)
        service, _ = self.watch.service(node)
        if self._has_failed(entry, stored) or entry.is_withdrawn:
            return await self._removed(entry, pod)
        # A pod without a node never had a process.
        is_proven = not node or self.pods.is_gone(entry.uid) or service == "down"
        vanished = pod is None and not is_proven
        is_leaving = entry.is_leaving or vanished
        entry = replace(entry, node=node, is_leaving=is_leaving, has_vanished=vanished)
        if not entry.is_leaving:
            return entry
        if pod is None:
            self.agents.forget(entry.uid)
            return entry if vanished else None
        if entry.dead_at is None and is_proven:
            entry = replace(entry, dead_at=self.agents.clock())
        if "deletionTimestamp" not in pod["metadata"]:
            grace_s = max(_LEAST_GRACE_S, math.ceil(entry.grace_s))
            await self._delete(entry.name, entry.uid, grace_s=grace_s)
        elif service == "down":  # no kubelet will ever confirm it
            await self._delete(entry.name, entry.uid, grace_s=0)
        return entry

    def _has_failed(self, entry: PodEntry, stored: Stored) -> bool:
        """Whether the pod of a wanted entry ended before its agent answered: no rank ever ran in it."""
        return (
            self.pods.is_gone(entry.uid)
            and not entry.is_leaving
            and not self._may_have_ranks(entry, stored)
        )

    def _may_have_ranks(self, entry: PodEntry, stored: Stored) -> bool:
        agent = self.agents.known.get(entry.uid)
        has_answered = entry.has_answered or (agent is not None and agent.state is not None)
        return has_answered or stored.document.record.port_of >= entry.generation

    async def _removed(self, entry: PodEntry, pod: Json | None) -> PodEntry:
        """Remove a pod that failed. The entry without it, once its name is free for another."""
        self.agents.forget(entry.uid)
        if entry.is_withdrawn:
            if pod is None:
                return replace(entry, uid="", node="", has_answered=False, is_withdrawn=False)
            if "deletionTimestamp" not in pod["metadata"]:
                await self._delete(entry.name, entry.uid, grace_s=_LEAST_GRACE_S)
            return entry
        if pod is None:
            now = self.agents.clock()
            return replace(entry, uid="", node="", failures=entry.failures + 1, failed_at=now)
        if "deletionTimestamp" not in pod["metadata"]:
            await self._delete(entry.name, entry.uid, grace_s=_LEAST_GRACE_S)
        return replace(entry, failure=trouble(pod))

    async def _remove_strays(self, stored: Stored, pods: Collection[Json]) -> None:
        """Remove pods that the books no longer name: the fence dropped them, or their job is gone."""
        entries = {entry.name for entry in stored.document.pods}
        for pod in pods:
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
            is_leaving = "deletionTimestamp" in pod["metadata"]
            is_down = self.watch.service(node)[0] != "ready"
            if name not in entries and (is_down or not is_leaving):
                uid = pod["metadata"]["uid"]
                await self._delete(name, uid, grace_s=0 if is_down else _LEAST_GRACE_S)
                self.agents.forget(uid)

    async def _confirmed(self, entry: PodEntry) -> Json | None:
        """The pod as the API server itself has it: a watch may be behind. None: there is none."""
        try:
            pod = await self.api.get(f"{self._path}/pods/{entry.name}")
        except Unreachable as error:
            raise BackendUnavailable(str(error)) from None
        except Refused as error:
            if error.status != 404:
                raise BackendUnavailable(str(error)) from None
            pod = None
        return pod if pod is not None and entry.uid in {"", pod["metadata"]["uid"]} else None

    async def _delete(self, name: str, uid: str, *, grace_s: int) -> None:
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": uid}}
        deletion = self.api.delete(f"{self._path}/pods/{name}", options)
        await allowing(deletion, 404, 409)

    def _pod_ends(self, stored: Stored) -> list[Fact]:
        """Why pods of the job end or are about to, as far as that was not reported to it yet."""
        reported = {fact.id for _, fact in stored.document.facts}
        entries = (
            entry
            for entry in _wanted(stored).values()
            if self._may_have_ranks(entry, stored) and not entry.is_withdrawn
        )
        facts = (self._pod_end(entry, stored) for entry in entries)
        return [fact for fact in facts if fact is not None and fact.id not in reported]

    def _pod_end(self, entry: PodEntry, stored: Stored) -> Fact | None:
        pod = self.watch.pod(entry.uid)
        if pod is None:
            return None
        row = end_of(report := PodReport(pod=pod, node=self.watch.node(entry.node)))
        if row is None:
            return None
        agent = self.agents.known.get(entry.uid)
        generation = observing.run_generation(
            None if agent is None else agent.state,
            newest=stored.document.record.newest,
            created_in=entry.generation,
        )
        return Fact(
            id=f"{entry.uid}/end",  # a pod ends once: what comes later is a consequence
            kind=row.kind,
            at=self.agents.clock(),
            generation=generation,
            node=entry.node or None,
            slot=entry.slot,
            message=row.message(report),
        )

    def _node_faults(self, stored: Stored) -> list[Fact]:
        """Faults of the job's nodes that were not reported to it yet."""
        reported = {fact.id for _, fact in stored.document.facts}
        faults: list[Fact] = []
        for entry in _wanted(stored).values():
            if entry.node:
                pod = self.watch.pod(entry.uid)
                since = math.inf if pod is None else created_at(pod)
                faults += (f for f in self.watch.faults_of(entry.node) if self._counts(f, entry))
                faults += self.watch.reported_on(entry.node, since=since)
        return [fault for fault in faults if fault.id not in reported]

    def _counts(self, fault: Fact, entry: PodEntry) -> bool:
        """Whether the fault is a fact for the job already.

        Nodes are not ready for a moment after each outage of the API server. As long as the agent there
        answers, training goes on.
        """
        agent = self.agents.known.get(entry.uid)
        is_heard = agent is not None and agent.state is not None and agent.silent_since is None
        is_young = self.agents.clock() < fault.at + self.not_ready_s
        return not (fault.kind == node_facts.NOT_READY and is_heard and is_young)

    def _watch_agents(self, stored: Stored) -> None:
        for entry in (*_wanted(stored).values(), *_standbys(stored).values()):
            has_address = self.watch.address(entry.uid) and not self._has_failed(entry, stored)
            is_there = entry.uid and not entry.is_withdrawn
            if is_there and (entry.has_answered or has_address):
                self.agents.watch(entry.uid, has_answered=entry.has_answered)


def _nodes_to_avoid(order: PlaceOrder) -> set[str]:
    """A pod requests a number of devices, not some of them: a device is avoided with its node."""
    return {*order.avoid, *(node for node, _ in order.avoid_devices)}


def _want(session: JobSession, order: PlaceOrder, may_be_used: Callable[[PodEntry], bool]) -> None:
    record = owned_record(session, order.job, order.generation)
    ownership.refuse_ended(record, order.generation)
    entries = _by_slot(session.document.pods, stands_by=False)
    made_in = {slot: entry.generation for slot, entry in entries.items()}
    for slot in placing.outdated(order, made_in):
        session.update(replace(entries.pop(slot), is_leaving=True))
    for slot, entry in _by_slot(session.document.pods, stands_by=True).items():
        if slot in order.slots and slot not in entries and may_be_used(entry):
            entries[slot] = replace(entry, stands_by=False, generation=order.generation)
            session.update(entries[slot])
        else:
            session.update(replace(entry, is_leaving=True))
    devices = manifest.devices_of(order)
    for slot in set(order.slots) - entries.keys():
        name = names.pod(order.job.id, slot=slot, generation=order.generation)
        session.update(PodEntry(name=name, slot=slot, generation=order.generation, devices=devices))
    session.keep_template(order.image or "", order.pod_template)
    session.record = replace(session.record, placed=order.generation)


def _want_standbys(
    session: JobSession, order: PlaceOrder, may_be_used: Callable[[PodEntry], bool]
) -> None:
    record = owned_record(session, order.job, order.generation)
    ownership.refuse_ended(record, order.generation)
    entries = _by_slot(session.document.pods, stands_by=True)
    for slot, entry in tuple(entries.items()):
        if slot not in order.recreate or not may_be_used(entry):
            session.update(replace(entries.pop(slot), is_leaving=True))
    taken_names = {entry.name for entry in session.document.pods}
    for slot in set(order.recreate) - entries.keys():
        numbered = (
            names.standby(order.job.id, slot=slot, generation=order.generation, number=number)
            for number in itertools.count(1)
        )
        entry = PodEntry(
            name=next(name for name in numbered if name not in taken_names),
            slot=slot,
            generation=order.generation,
            devices=manifest.devices_of(order),
            stands_by=True,
        )
        session.update(entry)


def _by_slot(entries: Iterable[PodEntry], *, stands_by: bool) -> dict[int, PodEntry]:
    return {e.slot: e for e in entries if e.stands_by is stands_by and not e.is_leaving}


def _wanted(stored: Stored) -> dict[int, PodEntry]:
    return _by_slot(stored.document.pods, stands_by=False)


def _standbys(stored: Stored) -> dict[int, PodEntry]:
    return _by_slot(stored.document.pods, stands_by=True)


def _gang(order: PlaceOrder, stored: Stored) -> manifest.Gang:
    """The pods of the order that its generation creates: the others run already."""
    name = names.group(order.job.id, generation=order.generation)
    size = len(_members(stored, manifest.Gang(name=name, size=0)))
    return manifest.Gang(name=name, size=size)


def _members(stored: Stored, gang: manifest.Gang) -> list[PodEntry]:
    job = stored.document.record.id
    return [
        entry
        for entry in _wanted(stored).values()
        if names.group(job, generation=entry.generation) == gang.name
        and _is_created_in(entry, job, entry.generation)
    ]


def _is_created_in(entry: PodEntry, job: str, generation: int) -> bool:
    """Whether this generation creates the pod: one that stood by was created before."""
    return entry.name == names.pod(job, slot=entry.slot, generation=generation)


def _failed(entry: PodEntry) -> str:
    """What became of the earlier pods of this entry; empty: there were none."""
    if not entry.failures:
        return entry.failure
    times = "once" if entry.failures == 1 else f"{entry.failures} times"
    return f"pod {entry.name}: failed {times} before its agent answered: {entry.failure}"


def _update(session: JobSession, entry: PodEntry, change: PodEntry | None) -> None:
    """Only what the API server reports: another worker may have changed the rest meanwhile."""
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
            is_withdrawn=change.is_withdrawn,
            has_answered=entry.has_answered and bool(change.uid),
            dead_at=change.dead_at if entry.dead_at is None else entry.dead_at,
            is_leaving=entry.is_leaving or change.has_vanished,
            has_vanished=change.has_vanished,
        )
    )


def _owner(stored: Stored) -> dict[str, str]:
    return {"name": names.record(stored.document.record.id), "uid": stored.uid}
