"""What the status of a pod and a node says, row by row, read from the fields that a worker stores."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.kubernetes import node_facts, object_fields, pod_facts
from everstep.backends.kubernetes.pod_facts import PodReport
from everstep.core.deciding.playbook import row_for
from everstep.core.facts import Fact
from everstep.core.levels import NEVER_BILLED

Json = dict[str, Any]
MADE, BEGAN = "2026-01-01T00:00:00Z", "2026-01-02T03:04:05Z"


def disrupted(reason: str, message: str = "why") -> Json:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"conditions": [condition]}


def stopped(reason: str) -> Json:
    """The status of a pod that Kueue stopped."""
    condition = {"type": "TerminationTarget", "status": "True", "reason": reason, "message": "why"}
    return {"conditions": [condition]}


def ended(code: int, reason: str) -> Json:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"containerStatuses": [{"name": "train", "state": state}]}


def pod(status: Json, *, is_deleted: bool = False) -> Json:
    metadata = {"name": "demo-1-g1", "creationTimestamp": BEGAN}
    if is_deleted:
        metadata["deletionTimestamp"] = BEGAN
    whole = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}
    return object_fields.trimmed(whole, object_fields.POD)


def node(*conditions: Json, taints: tuple[Json, ...] = (), is_cordoned: bool = False) -> Json:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": BEGAN}
    whole = {
        "metadata": {"name": "n1", "creationTimestamp": MADE},
        "spec": {"taints": list(taints), **({"unschedulable": True} if is_cordoned else {})},
        "status": {"conditions": [ready, *conditions]},
    }
    return object_fields.trimmed(whole, object_fields.NODE)


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    words = {"reason": reason, "message": message, "lastTransitionTime": BEGAN}
    return {"type": kind, "status": status, **words}


def container(name: str, state: str, **details: Any) -> Json:
    return {"name": name, "state": {state: details}}


RAN, FAILED = {"exitCode": 0, "reason": "Completed"}, {"exitCode": 1, "reason": "Error"}
CRASHES = {"reason": "CrashLoopBackOff"}
AGENT = container("train", "running")


@pytest.mark.parametrize(
    ("first", "containers", "dead"),
    [
        ([container("fetch", "terminated", **RAN)], [AGENT], ()),
        ([], [AGENT, container("logger", "running")], ()),
        ([], [AGENT, container("once", "terminated", **RAN)], ()),
        ([], [container("train", "terminated", **FAILED)], ()),
        ([], [AGENT, container("logger", "terminated", **FAILED)], ("logger (exit code 1)",)),
        (
            [],
            [container("a", "terminated", exitCode=137, reason="OOMKilled"), AGENT],
            ("a (exit code 137, OOMKilled)",),
        ),
        (
            [container("proxy", "waiting", **CRASHES)],
            [AGENT],
            ("proxy (its kubelet starts it again and again)",),
        ),
        ([container("proxy", "waiting", reason="PodInitializing")], [AGENT], ()),
        ([], [], ()),
    ],
)
def test_a_container_that_failed_beside_the_agents_is_named(
    first: list[Json], containers: list[Json], dead: tuple[str, ...]
) -> None:
    status = {"initContainerStatuses": first, "containerStatuses": containers}
    assert pod_facts.dead_sidecars(pod(status)) == dead


CORDONED = node(is_cordoned=True)
UNREACHABLE = {
    **node(),
    "status": {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": BEGAN}]},
}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}


@pytest.mark.parametrize(
    ("kind", "status", "on", "is_deleted"),
    [
        (None, {}, node(), False),
        (None, {"phase": "Running"}, CORDONED, False),
        ("pod.preempted", disrupted("PreemptionByScheduler"), node(), True),
        ("pod.preempted", {"phase": "Failed", "reason": "Preempting"}, node(), False),
        ("pod.preempted", stopped("WorkloadEvictedDueToPreempted"), node(), True),
        ("pod.evicted", stopped("WorkloadEvictedDueToClusterQueueStopped"), node(), True),
        ("pod.drained", disrupted("EvictionByEvictionAPI"), CORDONED, True),
        ("pod.drained", {"phase": "Failed", "reason": "Terminated"}, node(), False),
        ("pod.evicted", disrupted("EvictionByEvictionAPI"), node(), True),
        ("pod.evicted", EVICTED | disrupted("TerminationByKubelet"), node(), False),
        ("pod.evicted", disrupted("DeletionByTaintManager"), node(), True),
        ("pod.deleted", disrupted("DeletionByTaintManager"), UNREACHABLE, True),
        ("pod.deleted", disrupted("DeletionByPodGC"), None, True),
        ("pod.oom_killed", ended(137, "OOMKilled"), node(), False),
        ("pod.deleted", ended(143, "Error"), node(), True),
        ("pod.exited", ended(137, "Error"), node(), False),
    ],
)
def test_an_end_of_a_pod_is_read_from_its_status(
    kind: str | None, status: Json, on: Json | None, is_deleted: bool
) -> None:
    report = PodReport(pod=pod(status, is_deleted=is_deleted), node=on)
    row = pod_facts.end_of(report)
    assert (None if row is None else row.kind) == kind
    assert row is None or row.message(report)


@pytest.mark.parametrize("kind", ["pod.preempted", "pod.evicted", "pod.drained"])
def test_what_the_cluster_does_to_a_pod_is_never_billed(kind: str) -> None:
    assert row_for(Fact(id="", kind=kind, at=0.0)).cls in NEVER_BILLED


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", {}),
        ("", {"containerStatuses": [{"name": "train", "state": {"waiting": {"reason": "X"}}}]}),
        ("Evicted: low on memory", EVICTED),
        ("train exit code 3", {"phase": "Failed", **ended(3, "Error")}),
        (
            "ImagePullBackOff: not found",
            {
                "containerStatuses": [
                    {
                        "name": "train",
                        "state": {
                            "waiting": {"reason": "ImagePullBackOff", "message": "not found"}
                        },
                    }
                ]
            },
        ),
        (
            'secret "absent" not found',
            {
                "containerStatuses": [
                    {
                        "name": "train",
                        "state": {
                            "waiting": {
                                "reason": "ContainerCreating",
                                "message": 'secret "absent" not found',
                            }
                        },
                    }
                ]
            },
        ),
        (
            "0/3 nodes are available",
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ]
            },
        ),
    ],
)
def test_a_pod_that_does_not_run_yet_says_why_in_the_words_of_the_cluster(
    words: str, status: Json
) -> None:
    assert pod_facts.trouble(pod(status)) == words


XID = condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error")
NVLINK = condition(
    "SysLogsXIDError", "True", "SysLogsXIDErrorIsNotHealthy", "ErrorCode:79 GPU:3 fell off the bus"
)


@pytest.mark.parametrize(
    ("kind", "code", "device", "node_object"),
    [
        ("device.fault", "XID 79", None, node(XID)),
        ("device.fault", "XID 79", 3, node(NVLINK)),
        (
            "node.unhealthy",
            None,
            None,
            node(condition("AcceleratedHardwareReady", "False", "DCGMDiagnosticFailure")),
        ),
        ("node.unhealthy", None, None, node(condition("GpuNvlinkWatch", "True"))),
        ("node.unhealthy", None, None, node(condition("KernelDeadlock", "True", "DockerHung"))),
        ("node.unhealthy", None, None, node(condition("ReadonlyFilesystem", "True"))),
        ("subhealth.node", None, None, node(condition("FrequentKubeletRestart", "True"))),
        ("subhealth.node", None, None, node(condition("NetworkingReady", "False"))),
        ("subhealth.node", None, None, node(condition("DiskPressure", "True"))),
        ("node.unhealthy", None, None, node(taints=({"key": "nvidia.com/gpu-xid-error"},))),
        ("maintenance.notice", None, None, node(taints=({"key": "karpenter.sh/disrupted"},))),
        ("node.not_ready", None, None, UNREACHABLE),
        (
            "node.down",
            None,
            None,
            node(taints=({"key": "node.kubernetes.io/out-of-service"},)),
        ),
    ],
)
def test_a_fault_of_a_node_is_read_from_its_conditions_and_taints(
    kind: str, code: str | None, device: int | None, node_object: Json
) -> None:
    [fact] = node_facts.faults_of(node_object, now=1.0)
    assert (fact.kind, fact.code, fact.device, fact.node) == (kind, code, device, "n1")


@pytest.mark.parametrize(
    ("node_object", "why"),
    [
        (node(), ""),
        (node(taints=({"key": "nvidia.com/gpu-xid-error"},)), ""),
        (
            node(taints=({"key": "karpenter.sh/disrupted"},)),
            "n1: taint karpenter.sh/disrupted (Karpenter): the node is about to be replaced",
        ),
        ({**node(), "spec": {"unschedulable": True}}, "n1 is cordoned"),
    ],
)
def test_maintenance_lasts_as_long_as_a_cordon_or_its_taint(node_object: Json, why: str) -> None:
    assert node_facts.maintenance(node_object) == why


def test_a_node_marked_as_powered_off_is_down_for_that_though_its_kubelet_still_counts() -> None:
    """The cluster calls a node not ready only after 50 s of silence."""
    ready = condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
    marked = node(taints=({"key": "node.kubernetes.io/out-of-service"},))
    marked = {**marked, "status": {"conditions": [ready]}}
    [fact] = node_facts.faults_of(marked, now=1.0)
    assert fact.message == "n1 is down: an operator marked it as out of service"


@pytest.mark.parametrize("since", [{}, {"lastTransitionTime": None}])
def test_a_node_whose_readiness_has_no_time_is_not_ready_since_it_was_made(since: Json) -> None:
    ready = {"type": "Ready", "status": "False", **since}
    unready = {**node(), "status": {"conditions": [ready]}}
    made_at = pod_facts.created_at(unready)
    assert node_facts.node_service(unready) == ("cut_off", made_at)
    [fact] = node_facts.faults_of(unready, now=1.0)
    assert (fact.kind, fact.at, fact.id) == ("node.not_ready", made_at, f"n1/node.not_ready/{MADE}")


def test_a_fault_of_a_node_began_when_its_condition_changed() -> None:
    [fact] = node_facts.faults_of(node(condition("KernelDeadlock", "True")), now=1.0)
    assert fact.at == pod_facts.created_at({"metadata": {"creationTimestamp": BEGAN}})


@pytest.mark.parametrize(
    "node_object",
    [
        node(),
        node(condition("AcceleratedHardwareReady", "True")),
        node(condition("GpuNvlinkWatch", "False")),
        node(condition("KernelDeadlock", "Unknown")),
        node(condition("SomethingElse", "True")),
        node(taints=({"key": "node.kubernetes.io/unschedulable"},), is_cordoned=True),
    ],
)
def test_a_sound_node_has_no_fault(node_object: Json) -> None:
    assert not list(node_facts.faults_of(node_object, now=1.0))
