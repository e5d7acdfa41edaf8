"""The pod of one slot, as the API server gets it: the job's template, and what an agent needs. Pure.

The pod passes the *restricted* Pod Security level unless the template needs more.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.backends.kubernetes import images, names
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.avoided_nodes import NodesToAvoid, keep_off, prefer_others
from everstep.backends.kubernetes.credentials import OF_AGENTS
from everstep.backends.kubernetes.rights import SERVICE_ACCOUNT
from everstep.core.errors import InvalidSpec
from everstep.core.world import JobRef, PlaceOrder
from everstep.protocol import wire

CONTAINER = "train"
"""The container that our agent runs in, and the job's ranks with it. A template adds to it by this name."""
ROOT = "/everstep"
HOME = f"{ROOT}/home"  # of the agent: its socket, logs, state
AGENT = f"{ROOT}/agent"
AGENT_FILE = "agent.pyz"
CREDENTIALS = f"{ROOT}/credentials"
TMP = "/tmp"  # of the container, a volume of its own
PORT = 7070
VOLUMES = {"agent": AGENT, "credentials": CREDENTIALS, "home": HOME, "tmp": TMP}
"""Ours, by their names without `everstep-`, and where they are mounted."""

RESOURCES: Mapping[str, str] = {"nvidia": "nvidia.com/gpu", "ascend": "huawei.com/Ascend910"}
"""What device plugins call an accelerator where the worker's settings do not say otherwise."""
TOPOLOGY = ("topology.kubernetes.io/zone",)

WORKERS_ACCOUNT = (
    f"is {SERVICE_ACCOUNT}, whose rights reach the Secrets of all jobs: give the job one of its own"
)
_SILENCE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_USER = 1000
_GRACE_S = 10
_FIELD = "spec.pod_template"
_RESTART_ALL = "RestartAllContainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What all pods of a cluster have in common."""

    books: str
    agent: str  # the ConfigMap with the agent
    orphan_s: float = wire.ORPHAN_S
    log_mb: float = wire.LOG_MB
    python: str = "python3"  # of the job's image
    namespace: str = ""  # of all pods
    workers_in: str | None = (
        None  # the namespace of the workers' pods; None: they run outside the cluster
    )
    resources: Mapping[str, str] = field(default_factory=lambda: RESOURCES)
    """What the device plugins of this cluster call an accelerator."""
    has_pod_groups: bool = False  # of the API server, for pods that start together
    topology: Sequence[str] = TOPOLOGY
    """Labels of nodes, the closest domain first: pods of a job prefer to share each."""
    priority_classes: Mapping[int, str] = field(default_factory=dict)
    """The PriorityClass of jobs of this priority or a higher one, up to the next."""

    @property
    def agent_command(self) -> list[str]:
        """The command of the agent. It leaves out `site`: the agent imports nothing of the image."""
        return [self.python, "-I", "-S", f"{AGENT}/{AGENT_FILE}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start together or not at all: those of a job that one generation creates."""

    name: str  # of the group that stands for them in the cluster
    size: int

    @property
    def needs_group(self) -> bool:
        """One pod starts together with no other one."""
        return self.size > 1


KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_SIZE = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_ROLE = "kueue.x-k8s.io/role-hash"
KUEUE_FINALIZER = "kueue.x-k8s.io/managed"
_DEFAULT_SCHEDULER = "default-scheduler"


def is_grouped_by_us(order: PlaceOrder, settings: PodSettings) -> bool:
    """Whether the pods join a PodGroup of ours: no queue or scheduler of the template groups them."""
    labels = (order.pod_template.get("metadata") or {}).get("labels") or {}
    spec = order.pod_template.get("spec") or {}
    is_grouped = (
        KUEUE_QUEUE in labels
        or "schedulingGroup" in spec
        or spec.get("schedulerName", _DEFAULT_SCHEDULER) != _DEFAULT_SCHEDULER
    )
    return settings.has_pod_groups and not is_grouped


def pod(
    order: PlaceOrder,
    slot: int,
    *,
    owner: Mapping[str, str],
    settings: PodSettings,
    nodes_to_avoid: NodesToAvoid | None = None,
    gang: Gang | None = None,
) -> Json:
    """Raises InvalidSpec where the template contradicts what a pod of ours is.

    `owner`: name and uid of the ConfigMap that holds the job's record; the pods go with it.
    """
    try:
        made = _pod(order, slot, owner=owner, settings=settings, nodes_to_avoid=nodes_to_avoid)
        if gang is not None:
            _join(made, gang, is_grouped=is_grouped_by_us(order, settings))
        return made
    except (AttributeError, KeyError, TypeError) as error:  # a list where an object belongs
        raise InvalidSpec([(_FIELD, f"a value of the wrong kind: {error}")]) from None


def _pod(
    order: PlaceOrder,
    slot: int,
    *,
    owner: Mapping[str, str],
    settings: PodSettings,
    nodes_to_avoid: NodesToAvoid | None,
) -> Json:
    if what := images.problem_of_job(order.image):
        raise InvalidSpec([("spec.image", what)])
    template = _without_nulls(order.pod_template)
    _refuse_reserved(template, settings.namespace)
    job = order.job.id
    metadata = {
        "name": names.pod(job, slot=slot, generation=order.generation),
        "labels": {
            **names.labels(settings.books, job),
            names.SLOT: str(slot),
            names.GENERATION: str(order.generation),
            names.PHASE: names.phase_label(order.phase),
        },
        "annotations": {
            names.JOB: job,
            # An autoscaler that removes a node for its convenience would cost the job a restart.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **owner},
        ],
    }
    made: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": merged(metadata, _mapping(template.get("metadata", {}), "metadata")),
        "spec": merged(_spec(order, slot, settings), _mapping(template.get("spec", {}), "spec")),
    }
    _refuse_duplicates(made["spec"])
    _keep_last_words(made["spec"])
    _keep_apart(made["spec"], job, slot)
    _keep_close(made["spec"], job, settings.topology)
    prefer_others(made["spec"], order.last_choice)
    if nodes_to_avoid:
        keep_off(made["spec"], nodes_to_avoid)
        made["metadata"]["annotations"][names.KEEPS_OFF] = nodes_to_avoid.fingerprint
    return made


def _spec(order: PlaceOrder, slot: int, settings: PodSettings) -> Json:
    return {
        **_priority(order.priority, settings.priority_classes),
        "restartPolicy": "Never",  # another container under the name of this one would have lost its ranks
        "terminationGracePeriodSeconds": _GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A node that falls silent may train on: the fence decides what becomes of its pod, not a time.
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _SILENCE
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # By default the kubelet would change the group of every file of a volume at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(order, slot, settings)],
        "volumes": [
            {"name": _volume("agent"), "configMap": {"name": settings.agent}},
            {
                "name": _volume("credentials"),
                "secret": {
                    "secretName": names.secret(order.job.id),
                    "items": [{"key": name, "path": name} for name in OF_AGENTS],
                    "defaultMode": 0o444,
                },
            },
            {"name": _volume("home"), "emptyDir": {}},
            {"name": _volume("tmp"), "emptyDir": {}},
        ],
    }


def _priority(priority: int, classes: Mapping[int, str]) -> Json:
    """The priority class by the worker's settings; a template that names one wins."""
    reached = [least for least in classes if least <= priority]
    return {"priorityClassName": classes[max(reached)]} if reached else {}


def _container(order: PlaceOrder, slot: int, settings: PodSettings) -> Json:
    words = ["--home", HOME, "--job", order.job.id.replace("$", "$$"), "--slot", str(slot)]
    words += ["--node", "$(EVERSTEP_NODE)", "--uid", "$(EVERSTEP_POD_UID)"]
    words += ["--orphan-s", f"{settings.orphan_s:g}", "--log-mb", f"{settings.log_mb:g}"]
    words += ["--listen", f"tcp:$(EVERSTEP_POD_IP):{PORT}", "--credentials", CREDENTIALS]
    words += ["--inherit", "--copy-output"]
    read_only = {"agent", "credentials"}
    container: Json = {
        "name": CONTAINER,
        "image": order.image,
        "command": [*settings.agent_command, *words],
        "env": [
            _from_field("EVERSTEP_NODE", "spec.nodeName"),
            _from_field("EVERSTEP_POD_UID", "metadata.uid"),
            _from_field("EVERSTEP_POD_IP", "status.podIP"),
            {"name": "HOME", "value": TMP},  # that of the image is read-only, and another user's
        ],
        # With `hostNetwork` it is a port of the node: the scheduler keeps another agent off it.
        "ports": [{"name": "everstep", "containerPort": PORT}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {
                "name": _volume(name),
                "mountPath": path,
                **({"readOnly": True} if name in read_only else {}),
            }
            for name, path in VOLUMES.items()
        ],
    }
    if devices := devices_of(order):
        container["resources"] = {"limits": {settings.resources[order.accelerator]: str(devices)}}
    return container


def releaser(
    image: str,
    template: Mapping[str, Any],
    command: wire.ReleaseCommand,
    *,
    owner: Mapping[str, str],
    settings: PodSettings,
) -> Json:
    """A pod with the volumes of the job and nothing else of it: it releases the folders, and ends."""
    order = PlaceOrder(
        job=JobRef(id=command["job"], run=""),
        phase="",
        generation=command["generation"],
        slots=(0,),
        recreate=(0,),
        image=image,
        pod_template=template,
    )
    made = pod(order, 0, owner=owner, settings=settings)
    metadata, spec = made["metadata"], made["spec"]
    metadata["name"] = names.releaser(command["job"], generation=command["generation"])
    labels = names.labels(settings.books, command["job"])
    metadata["labels"] = {**labels, names.ROLE: names.RELEASER}
    container = spec["containers"][0]
    agent_volumes = {_volume("credentials"), _volume("home")}  # of an agent
    words = ["release", json.dumps(command).replace("$", "$$")]
    same = ("name", "image", "imagePullPolicy", "securityContext")
    spec["containers"] = [
        {
            **{name: container[name] for name in same if name in container},
            "command": [*settings.agent_command, *words],
            "volumeMounts": [
                m for m in container["volumeMounts"] if m["name"] not in agent_volumes
            ],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    ]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in agent_volumes]
    for name in ("initContainers", "affinity", "schedulingGroup", "resourceClaims"):
        spec.pop(name, None)
    return made


def devices_of(order: PlaceOrder) -> int:
    """How many devices each pod gets. Raises InvalidSpec where the number is open."""
    if order.accelerator not in RESOURCES or order.accelerators_per_node == 0:
        return 0
    if order.accelerators_per_node == "all":
        what = "on Kubernetes a pod asks for a number of devices: say how many"
        raise InvalidSpec([("spec.accelerators_per_node", what)])
    return order.accelerators_per_node


def made_as(order: PlaceOrder) -> str:
    """A short form of what the order's pods are made from: pods of the same one replace each other."""
    parts = (order.phase, order.image, order.pod_template, order.accelerator, devices_of(order))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _from_field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _volume(name: str) -> str:
    return f"everstep-{name}"


# -- The template ---------------------------------------------------------------------------------

_NAMED_BY: Mapping[str, str] = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists of which two elements are one where this field of them is the same."""


def merged(base: Any, added: Any, key: str = "") -> Any:
    """`added` over `base`: objects key by key, lists of `_NAMED_BY` by that field, other lists appended."""
    if isinstance(base, Mapping) and isinstance(added, Mapping):
        both = {**base, **added}
        return {name: _merged_field(base, added, name) for name in both}
    if isinstance(base, list) and isinstance(added, list):
        return _merged_lists(base, added, _NAMED_BY.get(key))
    if added is None:
        return base
    if isinstance(base, list | Mapping) or isinstance(added, list | Mapping):
        raise TypeError(f"{key} is no {'list' if isinstance(base, list) else 'object'}")
    return added


def _merged_field(base: Mapping[str, Any], added: Mapping[str, Any], name: str) -> Any:
    if name in base and name in added:
        return merged(base[name], added[name], name)
    return base[name] if name in base else added[name]


def _merged_lists(base: list[Any], added: list[Any], field: str | None) -> list[Any]:
    if field is None:
        return [*base, *added]
    rest = [one for one in added if not isinstance(one, Mapping) or field not in one]
    keyed = [one for one in added if one not in rest]
    places = {one[field]: n for n, one in enumerate(base)}
    both = list(base)
    for one in keyed:
        if one[field] in places:
            both[places[one[field]]] = merged(both[places[one[field]]], one)
        else:
            both.append(one)
    return [*both, *rest]


def _without_nulls(value: Any) -> Any:
    """A copy in which a field that is null is absent, as it is for the API server."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _refuse_reserved(template: Mapping[str, Any], namespace: str) -> None:
    """What a template must not say, as the backend could not work with it."""
    what = "a pod has metadata and spec, nothing else"
    problems = [(f"{_FIELD}.{key}", what) for key in template.keys() - {"metadata", "spec"}]
    metadata = dict(_mapping(template.get("metadata", {}), "metadata"))
    spec = _mapping(template.get("spec", {}), "spec")
    if (other := metadata.pop("namespace", namespace)) != namespace:
        what = f"is {other}, and the workers of this cluster make pods in {namespace}"
        problems.append((f"{_FIELD}.metadata.namespace", what))
    problems += [
        (f"{_FIELD}.metadata.{key}", "must be left to Everstep")
        for key in metadata.keys() - {"labels", "annotations"}
    ]
    problems += [
        (f"{_FIELD}.metadata.{kind}.{name}", "is reserved for Everstep")
        for kind in ("labels", "annotations")
        for name in _mapping(metadata.get(kind, {}), f"metadata.{kind}")
        if name.startswith(names.PREFIX) or name == names.MANAGED_BY
    ]
    problems += [
        (f"{_FIELD}.spec.{name}", "must be left to Everstep")
        for name in spec.keys() & {"restartPolicy", "nodeName", "hostPID", "shareProcessNamespace"}
    ]
    problems += [
        (f"{_FIELD}.spec.{name}", WORKERS_ACCOUNT)
        for name in ("serviceAccountName", "serviceAccount")
        if spec.get(name) == SERVICE_ACCOUNT
    ]
    problems += _of_elements(spec, "containers", _container_problems)
    problems += _of_elements(spec, "initContainers", _init_container_problems)
    problems += _of_elements(spec, "volumes", _volume_problems)
    if problems:
        raise InvalidSpec(sorted(problems))


Problems = list[tuple[str, str]]


def _of_elements(
    spec: Mapping[str, Any], key: str, problems: Callable[[Json, str], Problems]
) -> Problems:
    elements = spec.get(key, [])
    if not isinstance(elements, list):
        return [(f"{_FIELD}.spec.{key}", "a list is needed")]
    problems_found: Problems = []
    element_names: set[str] = set()
    for number, one in enumerate(elements):
        where = f"{_FIELD}.spec.{key}.{number}"
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            problems_found.append((where, "an object with a name is needed"))
        elif one["name"] in element_names:
            problems_found.append((f"{where}.name", f"there are two {key} called {one['name']}"))
        else:
            element_names.add(one["name"])
            problems_found += problems(one, where)
    return problems_found


def _container_problems(container: Json, where: str) -> Problems:
    if container["name"] != CONTAINER:
        return _other_container_problems(container, where)
    what = f"of container `{CONTAINER}` is set by Everstep: write `command` and `image` in spec"
    problems = [
        (f"{where}.{name}", what) for name in ("command", "args", "image") if name in container
    ]
    what = "must be left to Everstep: an agent that is started again has lost its ranks"
    problems += [
        (f"{where}.{name}", what)
        for name in ("restartPolicy", "restartPolicyRules")
        if name in container
    ]
    mounts = container.get("volumeMounts")
    for number, mount in enumerate(mounts if isinstance(mounts, list) else ()):
        place = f"{where}.volumeMounts.{number}"
        if isinstance(mount, dict) and "mountPath" not in mount:
            problems.append((place, "a mountPath is needed"))
        elif isinstance(mount, dict) and _is_of_agent(path := str(mount["mountPath"])):
            what = f"nothing can be mounted at {path}: the agent lives there"
            problems.append((f"{place}.mountPath", what))
    return problems


def _is_of_agent(path: str) -> bool:
    """Whether a mount at the path would hide files of the agent."""
    parts = posixpath.normpath(path).strip("/").split("/")
    return parts[0] == ROOT.strip("/")


def _init_container_problems(container: Json, where: str) -> Problems:
    if container["name"] != CONTAINER:
        return _other_container_problems(container, where)
    return [(f"{where}.name", f"`{CONTAINER}` is the container of the agent")]


def _other_container_problems(container: Json, where: str) -> Problems:
    """It may be restarted alone, but no rule of it may restart the agent's container."""
    rules = container.get("restartPolicyRules")
    what = (
        f"is {_RESTART_ALL}, which would start `{CONTAINER}` again without the ranks that ran in it"
    )
    problems = [
        (f"{where}.restartPolicyRules.{number}.action", what)
        for number, rule in enumerate(rules if isinstance(rules, list) else ())
        if isinstance(rule, dict) and rule.get("action") == _RESTART_ALL
    ]
    return problems + _image_problems(container.get("image"), f"{where}.image")


def _volume_problems(volume: Json, where: str) -> Problems:
    if volume["name"] in map(_volume, VOLUMES):
        return [(f"{where}.name", "is reserved for Everstep")]
    source = volume.get("image")
    reference = source.get("reference") if isinstance(source, dict) else None
    return _image_problems(reference, f"{where}.image.reference")


def _image_problems(image: Any, where: str) -> Problems:
    """No problem where the image is missing or empty: the API server refuses that, or fills it in."""
    what = images.problem(image) if isinstance(image, str) and image else ""
    return [(where, what)] if what else []


def _refuse_duplicates(spec: Json) -> None:
    """The API server does it too; a field of the document is easier to find than one of the pod."""
    mounted = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    if len(mounted) != len(set(mounted)):
        raise InvalidSpec([(_FIELD, "two volumes are mounted at one path")])


def _keep_last_words(spec: Json) -> None:
    """Have the kubelet report the end of the log of a container that lets its pod fail, which goes soon."""
    agent_container, *_ = spec["containers"]
    for container in (*spec.get("initContainers", ()), agent_container):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSpec([(f"{_FIELD}.{where}", "an object is needed")])
    return value


def _keep_apart(spec: Json, job: str, slot: int) -> None:
    """Give each slot of the job a node of its own. A pod may replace the one of its own slot."""
    other_slots = [
        {"key": names.JOB, "operator": "In", "values": [names.job_label(job)]},
        {"key": names.SLOT, "operator": "NotIn", "values": [str(slot)]},
    ]
    term = {
        "labelSelector": {"matchExpressions": other_slots},
        "topologyKey": "kubernetes.io/hostname",
    }
    rules = spec.setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    required = rules.setdefault("requiredDuringSchedulingIgnoredDuringExecution", [])
    rules["requiredDuringSchedulingIgnoredDuringExecution"] = [*required, term]


def _join(made: Json, gang: Gang, *, is_grouped: bool) -> None:
    """Let the pod start together with those of its gang."""
    labels, annotations = made["metadata"]["labels"], made["metadata"]["annotations"]
    if KUEUE_QUEUE in labels and KUEUE_GROUP not in labels:
        labels[KUEUE_GROUP], annotations[KUEUE_SIZE] = gang.name, str(gang.size)
        # By itself Kueue takes pods whose affinity differs for ones of different roles, of which a group
        # may have 18; a pod that replaces another one has to be of the same role.
        annotations.setdefault(KUEUE_ROLE, names.EVERSTEP)
    elif is_grouped and gang.needs_group:
        made["spec"]["schedulingGroup"] = {"podGroupName": gang.name}


def _keep_close(spec: Json, job: str, topology: Sequence[str]) -> None:
    """Let pods of the job prefer nodes that share a domain with those of its others."""
    of_job = {"matchLabels": {names.JOB: names.job_label(job)}}
    terms = [
        {
            "weight": max(1, 100 >> n),
            "podAffinityTerm": {"labelSelector": of_job, "topologyKey": key},
        }
        for n, key in enumerate(topology)
    ]
    if terms:
        rules = spec.setdefault("affinity", {}).setdefault("podAffinity", {})
        preferred = rules.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
        rules["preferredDuringSchedulingIgnoredDuringExecution"] = [*preferred, *terms]
