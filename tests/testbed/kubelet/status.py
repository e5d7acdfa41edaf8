"""What the kubelet writes into `status` of its pods and nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.testbed.api import Json
from tests.testbed.kubelet.container import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One container, as it is reported. Exactly one of waiting, running, terminated is what it is."""

    container_id: str = ""
    started_at: float | None = None
    ending: Ending | None = None
    waiting_reason: str = "ContainerCreating"
    waiting_message: str = ""
    has_started: bool = True  # of one that runs: its startup probe passed, or it has none
    is_ready: bool = True  # likewise: its readiness probe
    restart_count: int = 0
    last_ending: tuple[float | None, Ending] | None = None

    @property
    def is_running(self) -> bool:
        return self.started_at is not None and self.ending is None

    @property
    def serves(self) -> bool:
        return self.is_running and self.has_started and self.is_ready


def is_up(state: ContainerState) -> bool:
    return state.is_running and state.has_started


def is_sidecar(spec: Json) -> bool:
    """Whether this init container runs beside the others for as long as they do."""
    return bool(spec.get("restartPolicy") == "Always")


def timestamp(at: float) -> str:
    """RFC 3339 in whole seconds, as `metav1.Time`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(at: float) -> str:
    """RFC 3339 in microseconds, as `metav1.MicroTime`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def phase_of(pod: Json, states: Mapping[str, ContainerState], *, is_final: bool) -> str:
    """`is_final`: no container will be started again."""
    names = [one["name"] for one in pod["spec"]["containers"]]
    endings = [state.ending for name in names if (state := states.get(name))]
    if is_final and all(endings[: len(names)]):
        codes = [ending.code for ending in endings if ending]
        return "Failed" if any(codes) or len(codes) < len(names) else "Succeeded"
    if any(states[name].started_at is not None for name in names if name in states):
        return "Running"
    return "Pending"


def pod_status(
    pod: Json,
    states: Mapping[str, ContainerState],
    *,
    phase: str,
    started_at: float,
    now: float,
    host_ip: str,
    pod_ip: str,
    reason: str = "",
    message: str = "",
) -> Json:
    """The whole status of a pod on a node. Conditions that others write are not in it."""
    status: Json = {
        "phase": phase,
        "startTime": timestamp(started_at),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "conditions": _pod_conditions(pod, states, phase=phase, now=now),
        "observedGeneration": pod["metadata"].get("generation", 1),
    }
    if pod_ip:
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    if reason:
        status |= {"reason": reason, "message": message}
    creating, initializing = "ContainerCreating", "PodInitializing"
    inits = pod["spec"].get("initContainers", ())
    mains = pod["spec"]["containers"]
    for field, specs, waiting_for in (
        ("initContainerStatuses", inits, creating),
        ("containerStatuses", mains, initializing if inits else creating),
    ):
        unknown = ContainerState(waiting_reason=waiting_for)
        if specs:
            status[field] = [
                _container_status(one, states.get(one["name"], unknown)) for one in specs
            ]
    return status


def _container_status(spec: Json, state: ContainerState) -> Json:
    status: Json = {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": "machine" if state.container_id else "",
        "containerID": f"process://{state.container_id}" if state.container_id else "",
        "ready": state.serves,
        "started": is_up(state),
        "restartCount": state.restart_count,
        "state": _state(state),
        "lastState": {},
    }
    if state.last_ending:
        status["lastState"] = {"terminated": _terminated(*state.last_ending)}
    return status


def _state(state: ContainerState) -> Json:
    if state.ending is not None:
        return {"terminated": _terminated(state.started_at, state.ending)}
    if state.started_at is not None:
        return {"running": {"startedAt": timestamp(state.started_at)}}
    waiting = {"reason": state.waiting_reason}
    if state.waiting_message:
        waiting["message"] = state.waiting_message
    return {"waiting": waiting}


def _terminated(started_at: float | None, ending: Ending) -> Json:
    reason = "Completed" if ending.code == 0 else "Error"
    terminated: Json = {
        "exitCode": ending.code,
        "reason": ending.reason or ("StartError" if ending.error else reason),
        "startedAt": timestamp(ending.at if started_at is None else started_at),
        "finishedAt": timestamp(ending.at),
    }
    if message := ending.error or ending.last_words:
        terminated["message"] = message
    return terminated


def _pod_conditions(
    pod: Json, states: Mapping[str, ContainerState], *, phase: str, now: float
) -> list[Json]:
    is_over = phase in {"Succeeded", "Failed"}
    inits = pod["spec"].get("initContainers", ())
    lasting = [*filter(is_sidecar, inits), *pod["spec"]["containers"]]
    initialized = all(
        (state := states.get(one["name"])) is not None and _is_through(state, is_sidecar(one))
        for one in inits
    )
    ready = not is_over and all(
        (state := states.get(one["name"])) is not None and state.serves for one in lasting
    )
    over = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
    conditions = [
        condition("PodReadyToStartContainers", holds=bool(states) and not is_over, at=now),
        condition("Initialized", holds=initialized, at=now),
        condition("ContainersReady", holds=ready, reason="" if ready else over, at=now),
        condition("Ready", holds=ready, reason="" if ready else over, at=now),
    ]
    before = {
        (one["type"], one["status"]): one["lastTransitionTime"]
        for one in pod.get("status", {}).get("conditions", ())
    }
    for one in conditions:  # a condition that stays as it was keeps its time
        one["lastTransitionTime"] = before.get((one["type"], one["status"]), timestamp(now))
    return conditions


def _is_through(state: ContainerState, may_go_on: bool) -> bool:
    """Whether the next container may begin after this init container."""
    if may_go_on:
        return state.ending is not None or is_up(state)
    return state.ending is not None and state.ending.code == 0


def condition(kind: str, *, holds: bool, at: float, reason: str = "", message: str = "") -> Json:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": timestamp(at),
    }


def node_status(name: str, *, resources: Mapping[str, str], ip: str, port: int, now: float) -> Json:
    """The status of a healthy node. `resources` are both its capacity and what pods may have of it."""
    return {
        "capacity": dict(resources),
        "allocatable": dict(resources),
        "addresses": [
            {"type": "InternalIP", "address": ip},
            {"type": "Hostname", "address": name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}} if port else {},
        "conditions": node_conditions(now),
        "nodeInfo": {
            **dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion"), ""),
            **dict.fromkeys(("osImage", "containerRuntimeVersion", "kubeProxyVersion"), ""),
            "kubeletVersion": "v1.37.1-process",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def node_conditions(now: float) -> list[Json]:
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        condition(kind, holds=False, reason=f"KubeletHasNo{kind}", at=now) for kind in pressures
    ]
    conditions.append(condition("Ready", holds=True, reason="KubeletReady", at=now))
    return [{**one, "lastHeartbeatTime": timestamp(now)} for one in conditions]


def requests_of(pod: Json) -> dict[str, float]:
    """What those containers of a pod request together that run at one time."""
    total: dict[str, float] = {}
    sidecars = filter(is_sidecar, pod["spec"].get("initContainers", ()))
    for container in (*sidecars, *pod["spec"]["containers"]):
        resources = container.get("resources", {})
        amounts = {**resources.get("limits", {}), **resources.get("requests", {})}
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


_SUFFIXES: Sequence[tuple[str, float]] = (
    *((f"{letter}i", 1024.0**power) for power, letter in enumerate("KMGTPE", start=1)),
    *((letter, 1000.0**power) for power, letter in enumerate("kMGTPE", start=1)),
    ("m", 0.001),
)


def quantity(text: str) -> float:
    """A Kubernetes quantity, as `500m` or `4Gi`, as a number."""
    for suffix, factor in _SUFFIXES:
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def shortage(pod: Json, other_pods: Iterable[Json], *, resources: Mapping[str, str]) -> str | None:
    """The resource that a node lacks for this pod beside the others; None if it fits."""
    used: dict[str, float] = {"pods": 0.0}
    for one in (*other_pods, pod):
        used["pods"] += 1
        for name, amount in requests_of(one).items():
            used[name] = used.get(name, 0.0) + amount
    for name, amount in used.items():
        if amount > quantity(resources.get(name, "0")):
            return name
    return None
