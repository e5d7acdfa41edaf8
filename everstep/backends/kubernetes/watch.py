"""What the API server reports of our pods, of nodes, their leases and faults: one reflector for each.

Reflectors keep copies of the objects and call `_..._changed`, which keeps what is computed from an object
(its faults, whether it ended) and adds news. All other methods are queries of the copies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeVar

from everstep.backends.kubernetes import (
    listed_faults,
    names,
    node_facts,
    object_fields,
    pod_facts,
)
from everstep.backends.kubernetes.absent_nodes import AbsentNodes
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.listed_faults import FaultList
from everstep.backends.kubernetes.node_facts import node_service
from everstep.backends.kubernetes.pod_facts import PodReport
from everstep.backends.kubernetes.reflector import Reflector
from everstep.backends.rules.nodes import Service
from everstep.backends.settings import ObserverMessages
from everstep.core.facts import LASTS_UNTIL_HEALED, LIST_VERSION, Fact, ObserverReport

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_ENDS_KEPT = 10_000
_REMOVED_KEPT = 1_000


@dataclass(slots=True)
class ClusterWatch:
    """Copies of our pods and of all nodes. `add_news` gets the ID of the job with news; "": all jobs."""

    api: KubernetesApi
    namespaces: Sequence[str]  # of pods
    books: str
    add_news: Callable[[str], None]
    pod_gone: Callable[[Json], None] = lambda _pod: None  # its object left the copy
    messages: Sequence[ObserverMessages] = ()
    home: str = ""  # the namespace of the workers, where observers report; empty: the first of pods
    clock: Callable[[], float] = time.monotonic
    pods: dict[str, Reflector] = field(init=False)  # by namespace
    reports: list[Reflector] = field(init=False)
    nodes: Reflector = field(init=False)
    leases: Reflector = field(init=False)
    absent: AbsentNodes = field(init=False)
    reported: dict[str, ObserverReport] = field(default_factory=dict)  # by the uid of its object
    fault_lists: dict[str, FaultList] = field(default_factory=dict)  # by node
    ended: dict[str, float] = field(default_factory=dict)  # pod uid -> when its end was proven
    # The newest pods of slots whose objects are gone, to read why they ended: perhaps no worker has done so.
    removed: dict[str, Json] = field(default_factory=dict)
    _slot_pods: dict[str, set[str]] = field(default_factory=dict)  # job -> uids of its slots' pods
    _node_uids: dict[str, str] = field(default_factory=dict)  # by name
    _node_faults: dict[str, tuple[Fact, ...]] = field(default_factory=dict)  # by uid
    # By node: the time in its lease, and when that arrived here, by our clock.
    _renewed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = {name: self._pods_reflector(name) for name in self.namespaces}
        self.nodes = Reflector(
            self.api,
            "/api/v1/nodes",
            on_change=self._node_changed,
            trimmed=partial(object_fields.trimmed, fields=object_fields.NODE),
        )
        self.leases = Reflector(
            self.api,
            _LEASES,
            on_change=self._lease_changed,
            trimmed=partial(object_fields.trimmed, fields=object_fields.LEASE),
            clock=self.clock,
        )
        self.absent = AbsentNodes(api=self.api, answered=lambda: self.add_news(""))
        self.reports = [*map(self._reports_reflector, self.messages)]

    def _pods_reflector(self, namespace: str) -> Reflector:
        path = f"/api/v1/namespaces/{namespace}/pods"
        query = {"labelSelector": names.selector(self.books)}
        return Reflector(
            self.api,
            path,
            query=query,
            on_change=self._pod_changed,
            trimmed=partial(object_fields.trimmed, fields=object_fields.POD),
        )

    def _reports_reflector(self, messages: ObserverMessages) -> Reflector:
        """Follows the ConfigMaps in which external observers report faults."""

        def changed(config_map: Json | None, old: Json | None) -> None:
            metadata = (config_map or old or {})["metadata"]
            before = self.reported.pop(metadata["uid"], ObserverReport())
            self.fault_lists.pop(before.lists_all_of or "", None)
            if config_map is not None:
                report = messages.read(_typed(config_map))
                for sentence in report.dropped:
                    logger.warning("ConfigMap %s: %s", metadata["name"], sentence)
                self._store(report, metadata)
            self.add_news("")

        path = (
            f"/api/v1/namespaces/{messages.namespace or self.home or self.namespaces[0]}/configmaps"
        )
        query = {"labelSelector": messages.label}
        return Reflector(self.api, path, query=query, on_change=changed)

    def _store(self, report: ObserverReport, metadata: Json) -> None:
        version = _version(metadata)
        self.reported[metadata["uid"]] = listed_faults.with_version(report, version)
        if report.lists_all_of is not None and not report.dropped and version:
            ids = frozenset(fact.id for fact in report.facts)
            self.fault_lists[report.lists_all_of] = FaultList(version, ids)

    async def start(self, *, without_pods_of: Collection[str] = ()) -> None:
        """Return when all copies are complete. Pods of these namespaces are followed later."""
        pods = [self.pods[name] for name in self.namespaces if name not in without_pods_of]
        reflectors = (*pods, self.nodes, self.leases, *self.reports)
        await asyncio.gather(*map(self._follow, reflectors))

    async def follow_pods(self, namespace: str) -> None:
        """Follow the pods of this namespace too. Returns when their copy is complete."""
        await self._follow(self.pods[namespace])

    async def _follow(self, reflector: Reflector) -> None:
        self._tasks.append(asyncio.create_task(reflector.run()))
        await reflector.synchronized.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.absent.close()

    def _pod_changed(self, pod: Json | None, old: Json | None) -> None:
        newest = pod or old or {}
        if pod is not None and (node := _node_of(pod)) != _node_of(old):
            self.absent.forget(node)
        if pod_facts.has_ended(newest):
            uid = newest["metadata"]["uid"]
            _keep(self.ended, uid, self.ended.get(uid, time.time()), most=_ENDS_KEPT)
        self._track_slot_pod(newest, is_gone=pod is None)
        if pod is None:
            _keep(self.removed, newest["metadata"]["uid"], newest, most=_REMOVED_KEPT)
            self.pod_gone(newest)
        self.add_news(job_of(newest))

    def _track_slot_pod(self, pod: Json, *, is_gone: bool) -> None:
        if names.ROLE in pod["metadata"].get("labels", {}):
            return
        job, uid = job_of(pod), pod["metadata"]["uid"]
        if not is_gone:
            self._slot_pods.setdefault(job, set()).add(uid)
        elif uids := self._slot_pods.get(job):
            uids.discard(uid)
            if not uids:
                del self._slot_pods[job]

    def _node_changed(self, node: Json | None, old: Json | None) -> None:
        if node is None:
            self._node_faults.pop((old or {})["metadata"]["uid"], None)
        else:
            faults = tuple(node_facts.faults_of(node, now=time.time()))
            self._node_faults[node["metadata"]["uid"]] = faults
            self._node_uids[node["metadata"]["name"]] = node["metadata"]["uid"]
            self.absent.forget(node["metadata"]["name"])
        if (
            node is None
            and old is not None
            and self._node_uids.get(old["metadata"]["name"]) == old["metadata"]["uid"]
        ):
            del self._node_uids[old["metadata"]["name"]]
        if node is None or old is None or _news_key(node) != _news_key(old):
            self.add_news("")

    def _lease_changed(self, lease: Json | None, old: Json | None) -> None:
        name = (lease or old or {})["metadata"]["name"]
        if lease is None:
            self._renewed.pop(name, None)
        else:
            self._renewed[name] = (lease["spec"].get("renewTime", ""), self.clock())

    # -- pods ------------------------------------------------------------------------------------

    def pod(self, uid: str) -> Json | None:
        for reflector in self.pods.values():
            if pod := reflector.objects.get(uid):
                return pod
        return None

    def all_pods(self) -> Iterator[Json]:
        return chain.from_iterable(each.objects.values() for each in self.pods.values())

    def of_job(self, job: str, namespace: str) -> list[Json]:
        """The pods of its slots, also those that its record no longer names."""
        return [
            pod
            for pod in self.pods[namespace].objects.values()
            if job_of(pod) == job and names.ROLE not in pod["metadata"]["labels"]
        ]

    def has_pods(self, job: str) -> bool:
        """Whether there is a pod of any slot of it."""
        return job in self._slot_pods

    def address(self, uid: str) -> str | None:
        """The address at which workers and other pods reach this one; None: it has none yet."""
        pod = self.pod(uid)
        return None if pod is None else pod.get("status", {}).get("podIP")

    def is_deleted(self, uid: str) -> bool:
        """Whether this pod is about to be removed, by whatever order."""
        pod = self.pod(uid)
        return pod is not None and PodReport(pod=pod).is_deleted

    def dead_sidecars(self, uid: str) -> tuple[str, ...]:
        """Containers of this pod that failed beside that of the agent."""
        pod = self.pod(uid)
        return () if pod is None else pod_facts.dead_sidecars(pod)

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> Json | None:
        return self.nodes.objects.get(self._node_uids.get(name, ""))

    def all_nodes(self) -> list[Json]:
        return sorted(self.nodes.objects.values(), key=lambda node: str(node["metadata"]["name"]))

    def service(self, name: str) -> tuple[Service, float | None]:
        """The service of this node, and since when.

        Down: the node object is deleted, or an operator marked it as powered off. Both prove that nothing
        runs there. A node that only this copy lacks proves nothing: it may have joined a moment ago.
        """
        if not name:
            return "ready", None  # no pod of it runs anywhere yet
        node = self.node(name)
        if node is not None:
            return node_service(node)
        return "cut_off" if self.absent.removed_at(name) is None else "down", None

    def faults(self) -> tuple[Fact, ...]:
        """All faults that are present now, with the same identity for every worker."""
        of_nodes = (fact for node in self.all_nodes() for fact in self._faults_of(node))
        return (*of_nodes, *(fact for fact in self._reported() if _is_there(fact)))

    def faults_of(self, name: str) -> list[Fact]:
        """What is wrong with this node now."""
        node = self.node(name)
        if node is not None:
            return self._faults_of(node)
        removed_at = self.absent.removed_at(name)
        return [] if removed_at is None else [node_facts.deleted(name, at=removed_at)]

    def _faults_of(self, node: Json) -> list[Fact]:
        faults = list(self._node_faults[node["metadata"]["uid"]])
        silent = self._silence_of(node["metadata"]["name"])
        # Once the node itself is not ready, that is the fact, and not its lease.
        return faults if silent is None or node_service(node)[0] != "ready" else [*faults, silent]

    def _silence_of(self, name: str) -> Fact | None:
        """The fact that this node's lease was not renewed for too long; None if it was.

        The age is by this process's clock, up to the newest event of any lease: if no lease is renewed, the
        stream is broken and no node is silent. After an outage the first kubelet to renew its lease makes no
        other one silent: these could not renew theirs, or their renewal did not arrive here.
        """
        contact_at, unbroken_since = self.leases.contact_at, self.leases.unbroken_since
        renewed, arrived_at = self._renewed.get(name, ("", contact_at))
        if contact_at - max(arrived_at, unbroken_since) < node_facts.LEASE_AGE_S:
            return None
        return node_facts.silent(name, renewed=renewed, at=time.time())

    def _reported(self) -> Iterator[Fact]:
        return (fact for report in self.reported.values() for fact in report.facts)

    def codes_on(self, name: str) -> Mapping[int, tuple[str, ...]] | None:
        """The codes that devices of this node show now; None where no observer lists them all."""
        if name not in self.fault_lists:
            return None
        codes: dict[int, tuple[str, ...]] = {}
        for fact in self._reported():
            if (
                fact.node == name
                and fact.device is not None
                and fact.code
                and LIST_VERSION in fact.details
            ):
                codes[fact.device] = (*codes.get(fact.device, ()), fact.code)
        return codes

    def reported_on(self, name: str, *, since: float) -> list[Fact]:
        """What observers report of this node: since this time, or earlier and still there."""
        facts = (fact for fact in self._reported() if fact.node == name)
        return [fact for fact in facts if fact.at >= since or _is_there(fact)]


def _keep(newest: dict[str, T], uid: str, value: T, *, most: int) -> None:
    newest[uid] = value
    if len(newest) > most:
        del newest[next(iter(newest))]


def _news_key(node: Json) -> tuple[object, str, frozenset[str]]:
    """The part of a node whose change is news to jobs."""
    faults = node_facts.faults_of(node, now=0.0)
    ids = frozenset(fact.id for fact in faults)
    return node_service(node), node_facts.maintenance(node), ids


def _node_of(pod: Json | None) -> str:
    return "" if pod is None else str(pod["spec"].get("nodeName", ""))


def _is_there(fact: Fact) -> bool:
    return bool(fact.details.get(LASTS_UNTIL_HEALED))


def _version(metadata: Json) -> int:
    """The version of an object, which grows with each change; 0: unknown."""
    version = str(metadata.get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0


def _typed(config_map: Json) -> Json:
    """The object with its kind: in a list the API server names it only once, for all items."""
    return {"kind": "ConfigMap", **config_map}


def job_of(pod: Json) -> str:
    return str(pod["metadata"].get("annotations", {}).get(names.JOB, ""))
