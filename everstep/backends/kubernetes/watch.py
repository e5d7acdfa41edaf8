"""What the API server reports of our pods, of the nodes and of faults, followed by one reflector each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.api import Json, KubernetesApi
from everstep.backends.kubernetes.manifest import CONTAINER
from everstep.backends.kubernetes.reflector import Reflector
from everstep.backends.rules.nodes import Service
from everstep.backends.settings import ObserverMessages
from everstep.core.facts import LASTS_UNTIL_HEALED, Fact, ObserverReport

logger = logging.getLogger(__name__)

_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_FINAL = frozenset({"Succeeded", "Failed"})
_ENDS_KEPT = 10_000


@dataclass(slots=True)
class ClusterWatch:
    """A copy of our pods and of all nodes. `add_news` gets the job of a pod that changed; "": all jobs."""

    api: KubernetesApi
    namespace: str
    books: str
    add_news: Callable[[str], None]
    messages: ObserverMessages | None = None
    reflectors: list[Reflector] = field(init=False)
    pods: Reflector = field(init=False)
    nodes: Reflector = field(init=False)
    reported: dict[str, tuple[Fact, ...]] = field(default_factory=dict)  # by the uid of its object
    ended: dict[str, float] = field(default_factory=dict)  # pod uid -> when its end was proven
    _node_names: dict[str, str] = field(default_factory=dict)  # name -> uid
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = Reflector(
            self.api,
            f"/api/v1/namespaces/{self.namespace}/pods",
            query={"labelSelector": names.selector(self.books)},
            on_change=self._pod_changed,
        )
        self.nodes = Reflector(self.api, "/api/v1/nodes", on_change=self._node_changed)
        self.reflectors = [self.pods, self.nodes]
        if self.messages is not None:
            self.reflectors.append(self._reports_reflector(self.messages))

    def _reports_reflector(self, messages: ObserverMessages) -> Reflector:
        """Follows the ConfigMaps of this namespace in which external observers report faults."""

        def changed(config_map: Json | None, old: Json | None) -> None:
            metadata = (config_map or old or {})["metadata"]
            report = ObserverReport() if config_map is None else messages.read(_typed(config_map))
            for sentence in report.dropped:
                logger.warning("ConfigMap %s: %s", metadata["name"], sentence)
            self.reported[metadata["uid"]] = report.facts
            self.add_news("")

        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        query = {"labelSelector": messages.label}
        return Reflector(self.api, path, query=query, on_change=changed)

    async def start(self) -> None:
        """Return when all copies are complete."""
        self._tasks = [asyncio.create_task(each.run()) for each in self.reflectors]
        await asyncio.gather(*(each.synchronized.wait() for each in self.reflectors))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pod_changed(self, pod: Json | None, old: Json | None) -> None:
        newest = pod or old or {}
        if has_ended(newest):
            self.ended.setdefault(newest["metadata"]["uid"], time.time())
            if len(self.ended) > _ENDS_KEPT:
                del self.ended[next(iter(self.ended))]
        self.add_news(job_of(newest))

    def _node_changed(self, node: Json | None, old: Json | None) -> None:
        if node is not None:
            self._node_names[node["metadata"]["name"]] = node["metadata"]["uid"]
        elif (
            old is not None
            and self._node_names.get(old["metadata"]["name"]) == old["metadata"]["uid"]
        ):
            del self._node_names[old["metadata"]["name"]]
        if node is None or old is None or node_service(node) != node_service(old):
            self.add_news("")

    # -- pods ------------------------------------------------------------------------------------

    def pod(self, uid: str) -> Json | None:
        return self.pods.objects.get(uid)

    def of_job(self, job: str) -> list[Json]:
        return [pod for pod in self.pods.objects.values() if job_of(pod) == job]

    def address(self, uid: str) -> str | None:
        """At which the other pods and we reach this one; None: it has none yet."""
        pod = self.pod(uid)
        return None if pod is None else pod.get("status", {}).get("podIP")

    # -- nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> Json | None:
        return self.nodes.objects.get(self._node_names.get(name, ""))

    def all_nodes(self) -> list[Json]:
        return sorted(self.nodes.objects.values(), key=lambda node: str(node["metadata"]["name"]))

    def service(self, name: str) -> tuple[Service, float | None]:
        """Down: the node object is deleted, or an operator marked it as powered off. Both prove the end."""
        if not name:
            return "ready", None  # no pod of it runs anywhere yet
        node = self.node(name)
        return ("down", None) if node is None else node_service(node)

    def faults(self) -> tuple[Fact, ...]:
        """All that are there now, with the same identity for every worker."""
        of_nodes = (node_fault(node) for node in self.all_nodes())
        lasting = (fact for fact in self._reported() if _is_there(fact))
        return (*(fault for fault in of_nodes if fault is not None), *lasting)

    def _reported(self) -> Iterator[Fact]:
        return (fact for facts in self.reported.values() for fact in facts)

    def reported_on(self, name: str, *, since: float) -> list[Fact]:
        """What observers report of this node: since this time, or earlier and still there."""
        facts = (fact for fact in self._reported() if fact.node == name)
        return [fact for fact in facts if fact.at >= since or _is_there(fact)]

    def fault_of(self, name: str) -> Fact | None:
        node = self.node(name)
        if node is not None:
            return node_fault(node)
        message = f"{name} was removed from the cluster"
        return Fact(
            id=f"{name}/deleted", kind="node.down", at=time.time(), node=name, message=message
        )


def created_at(pod: Json) -> float:
    return _seconds(pod["metadata"]["creationTimestamp"])


def _is_there(fact: Fact) -> bool:
    return bool(fact.details.get(LASTS_UNTIL_HEALED))


def _typed(config_map: Json) -> Json:
    """A list names the kind of its items only once, for all of them."""
    return {"kind": "ConfigMap", **config_map}


def job_of(pod: Json) -> str:
    return str(pod["metadata"].get("annotations", {}).get(names.JOB, ""))


def has_ended(pod: Json) -> bool:
    """Whether its kubelet reports that no process of the agent's container is left."""
    status = pod.get("status", {})
    if status.get("phase") in _FINAL:
        return True
    return any(
        one["name"] == CONTAINER and "terminated" in one.get("state", {})
        for one in status.get("containerStatuses", ())
    )


def trouble(pod: Json) -> str:
    """Why it does not run yet, in the words of the scheduler or the kubelet; empty: nothing is wrong."""
    status = pod.get("status", {})
    if status.get("phase") in _FINAL:
        texts = [status.get("reason", ""), status.get("message", ""), _ending(status)]
        return ": ".join(text for text in texts if text) or "it ended"
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason", "").startswith(("Err", "Image", "Create", "Invalid", "CrashLoop")):
            return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message") or one.get("reason") or "not scheduled")
    return ""


def _ending(status: Json) -> str:
    """How the first container ended that did not end well."""
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        ending = one.get("state", {}).get("terminated", {})
        if ending.get("exitCode"):
            words = (f"{one['name']} exit code {ending['exitCode']}", ending.get("message", ""))
            return ", ".join(filter(None, words))
    return ""


def node_service(node: Json) -> tuple[Service, float | None]:
    if any(taint["key"] == _OUT_OF_SERVICE for taint in node["spec"].get("taints", ())):
        return "down", None
    ready = _ready(node)
    if ready is None or ready["status"] == "True":
        return "ready", None
    return "cut_off", _seconds(ready["lastTransitionTime"])


def node_fault(node: Json) -> Fact | None:
    """The fact that a node is out of service; None if it is not."""
    service, since = node_service(node)
    if service == "ready":
        return None
    name, ready = node["metadata"]["name"], _ready(node) or {}
    began = ready.get("lastTransitionTime", "")
    why = ready.get("message") or ready.get("reason") or "it is out of service"
    kind = "node.not_ready" if service == "cut_off" else "node.down"
    return Fact(
        id=f"{name}/{kind}/{began}",
        kind=kind,
        at=time.time() if since is None else since,
        node=name,
        message=f"{name} is not ready: {why}" if service == "cut_off" else f"{name} is down: {why}",
    )


def _ready(node: Json) -> Mapping[str, str] | None:
    conditions = node.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Ready"), None)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
