"""Whether a cluster is as workers and jobs need it, for `everstep doctor`. Each check is a sentence."""

from __future__ import annotations

import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from everstep.backends.kubernetes import gangs, rights
from everstep.backends.kubernetes.api import Json, KubernetesApi, Refused, Unreachable
from everstep.backends.kubernetes.identity import CLUSTER, stored_identity
from everstep.backends.kubernetes.node_facts import node_service
from everstep.backends.tools import ClusterCheck
from everstep.core.errors import BackendUnavailable

note = partial(ClusterCheck, state="note")
problem = partial(ClusterCheck, state="problem")

CLOCK_S = 2.0
"""Most seconds that clocks may differ: times of workers and nodes are compared with each other."""

_REVIEWS = "/apis/authorization.k8s.io/v1"
_INSTALL = "`kubectl apply -k` of an overlay over deploy/kubernetes grants it (docs/kubernetes.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """That of the workers, and those of jobs, where the workers' service account needs rights too."""

    of_workers: str
    of_jobs: Sequence[str]  # that of the workers may be one of these

    @property
    def all(self) -> Sequence[str]:
        return tuple(dict.fromkeys((self.of_workers, *self.of_jobs)))

    def without(self, names: Collection[str]) -> Namespaces:
        return replace(self, of_jobs=[name for name in self.of_jobs if name not in names])


async def of_cluster(api: KubernetesApi, namespaces: Namespaces) -> list[ClusterCheck]:
    """All checks; where the API server does not answer, that alone."""
    try:
        version = await api.get("/version")
    except (Refused, Unreachable) as error:
        hint = "look at the kubeconfig: EVERSTEP_KUBECONFIG, else KUBECONFIG"
        return [problem(name="cluster", what=f"{api.address}: {error}", hint=hint)]
    what = f"{api.address} answers, Kubernetes {version['gitVersion']}"
    checks = [ClusterCheck(name="cluster", what=what)]
    doubts = {
        name: doubt for name in namespaces.all if (doubt := await _doubt(api, name)) is not None
    }
    checks += doubts.values()
    missing = [name for name, doubt in doubts.items() if doubt.state == "problem"]
    # Rights are those of the service account in the workers' namespace: without it there are none to check.
    is_missing = namespaces.of_workers in missing
    of_namespaces: tuple[Look, ...] = () if is_missing else (_namespace, _rights)
    present = namespaces.without(missing)
    for look in (*of_namespaces, _nodes, _gangs, _storage, _clock):
        checks += [check async for check in _guarded(look, api, present)]
    return checks


Look = Callable[[KubernetesApi, Namespaces], Awaitable[ClusterCheck]]


async def _doubt(api: KubernetesApi, namespace: str) -> ClusterCheck | None:
    """That the namespace is missing, under deletion, or not to be seen by this user. None: it is there."""
    try:
        answer = await api.get(f"/api/v1/namespaces/{namespace}")
    except (Refused, Unreachable) as error:
        if isinstance(error, Refused) and error.status == 404:
            what = f"there is no namespace {namespace}"
            hint = "EVERSTEP_KUBE_NAMESPACE, _DEFAULT_NAMESPACE and _JOB_NAMESPACES name them"
            return problem(name="namespace", what=what, hint=hint)
        what = f"whether there is a namespace {namespace} cannot be checked: {error}"
        return note(name="namespace", what=what)
    if "deletionTimestamp" in answer["metadata"]:
        what = f"namespace {namespace} is being deleted"
        return problem(
            name="namespace", what=what, hint="`kubectl describe` shows what it waits for"
        )
    return None


async def _guarded(
    look: Look, api: KubernetesApi, namespaces: Namespaces
) -> AsyncIterator[ClusterCheck]:
    """What cannot be looked at with the rights at hand is a note."""
    try:
        yield await look(api, namespaces)
    except (BackendUnavailable, Refused, Unreachable) as error:
        yield note(name=look.__name__.strip("_"), what=f"cannot be checked: {error}")


async def _namespace(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:
    namespace = namespaces.of_workers
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{rights.SERVICE_ACCOUNT}"
    if await api.find(account) is None:
        what = f"{namespace} has no service account {rights.SERVICE_ACCOUNT}"
        hint = "EVERSTEP_KUBE_NAMESPACE names the namespace of the workers"
        return problem(name="namespace", what=what, hint=hint)
    identity = await stored_identity(api, namespace)
    for name in namespaces.of_jobs:
        if identity and (await stored_identity(api, name) or identity) != identity:
            what = f"namespace {name} is that of other workers: its ConfigMap {CLUSTER} names them"
            hint = "take it out of EVERSTEP_KUBE_JOB_NAMESPACES"
            return problem(name="namespace", what=what, hint=hint)
    what = f"{namespace} has the service account {rights.SERVICE_ACCOUNT}"
    return ClusterCheck(name="namespace", what=what)


async def _rights(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:
    namespace = namespaces.of_workers
    account = f"system:serviceaccount:{namespace}:{rights.SERVICE_ACCOUNT}"
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    subject = {"user": account, "groups": [*groups, "system:authenticated"]}
    who, review = f"service account {rights.SERVICE_ACCOUNT}", "subjectaccessreviews"
    missing: list[str] = []
    for resource in _attributes(namespaces):
        try:
            answer = await _review(api, review, {**subject, "resourceAttributes": resource})
        except Refused as error:
            if error.status != 403:
                raise
            who, review, subject = "this user", "selfsubjectaccessreviews", {}
            answer = await _review(api, review, {"resourceAttributes": resource})
        if not answer["status"]["allowed"]:
            where = resource.get("namespace", namespace)
            in_other = f" in {where}" if where != namespace else ""
            missing.append(f"{resource['verb']} {resource['resource']}{in_other}")
    if missing:
        what = f"{who} may not {', '.join(missing)}"
        return problem(name="rights", what=what, hint=_INSTALL)
    return ClusterCheck(name="rights", what=f"{who} may do all that a worker does")


def _attributes(namespaces: Namespaces) -> Iterator[dict[str, str]]:
    """Each right of a worker once, as a request for it names it."""
    rows: list[tuple[dict[str, str], Mapping[str, tuple[str, ...]]]] = [
        ({"namespace": namespaces.of_workers}, rights.IN_WORKERS_NAMESPACE),
        *(({"namespace": name}, rights.IN_JOB_NAMESPACE) for name in namespaces.of_jobs),
        ({}, rights.IN_CLUSTER),
    ]
    rights_given = set[tuple[str, str, str]]()
    for place, granted in rows:
        for name, verbs in granted.items():
            resource, _, group = name.partition(".")
            for verb in verbs:
                if (key := (place.get("namespace", ""), name, verb)) not in rights_given:
                    rights_given.add(key)
                    yield {**place, "group": group, "resource": resource, "verb": verb}


async def _review(api: KubernetesApi, review: str, spec: dict[str, Any]) -> Json:
    return await api.create(f"{_REVIEWS}/{review}", {"spec": spec})


async def _nodes(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:  # noqa: ARG001  # belong to none
    nodes = (await api.get("/api/v1/nodes"))["items"]
    ready = [one for one in nodes if node_service(one)[0] == "ready" and not _is_closed(one)]
    what = f"{len(ready)} of {len(nodes)} are ready and take pods"
    if not ready:
        hint = "`kubectl get nodes` shows why"
        return problem(name="nodes", what=what, hint=hint)
    return ClusterCheck(name="nodes", what=what)


def _is_closed(node: Json) -> bool:
    return bool(node["spec"].get("unschedulable"))


async def _gangs(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:  # noqa: ARG001
    if await gangs.are_served(api):
        what = "PodGroups are served: the pods of a job start together or not at all"
        return ClusterCheck(name="gangs", what=what)
    what = "PodGroups are not served: pods that hold places in vain give them back after a time"
    hint = "Kubernetes 1.37 with the feature gate GenericWorkload, Kueue or Volcano place them together"
    return note(name="gangs", what=what, hint=hint)


async def _storage(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:  # noqa: ARG001
    classes = (await api.get("/apis/storage.k8s.io/v1/storageclasses"))["items"]
    names = [one["metadata"]["name"] for one in classes]
    default = [one["metadata"]["name"] for one in classes if _is_default(one)]
    hint = "checkpoints need a volume that all pods of a job mount: ReadWriteMany"
    if default:
        what = f"{default[0]} is the default StorageClass, of {len(names)}"
        return ClusterCheck(name="storage", what=what, hint=hint)
    what = f"no StorageClass is the default; there are: {', '.join(names) or 'none'}"
    return note(name="storage", what=what, hint=f"name one in each claim; {hint}")


def _is_default(storage_class: Json) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


async def _clock(api: KubernetesApi, namespaces: Namespaces) -> ClusterCheck:  # noqa: ARG001
    before = time.time()
    await api.get("/version")
    server = api.server_time()
    # Its time has no parts of a second, and the answer was on its way.
    off_s = max(0.0, before - (server + 1.0), server - time.time())
    if off_s > CLOCK_S:
        what = f"the API server's clock and the one here differ by {off_s:.0f} s"
        return problem(name="clock", what=what, hint="let both follow one time server")
    return ClusterCheck(name="clock", what="the API server's clock and the one here agree")
