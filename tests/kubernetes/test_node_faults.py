"""What the real controllers make of a fault of a node: recoveries are written against this."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.objects import (
    Pods,
    condition,
    ending,
    is_ready,
    processes_with,
    taints,
    takes_pods,
    until,
    until_node,
)
from tests.testbed.api import Api
from tests.testbed.machines import Machines

UNREACHABLE = "node.kubernetes.io/unreachable"


@pytest.fixture
def mark() -> str:
    """An argument of `sleep` by which a pod's process is found."""
    return f"1000.{secrets.randbelow(10**9)}"


@pytest.fixture
async def node(machines: Machines, api: Api, namespace: str) -> AsyncIterator[str]:
    """A new node for one test, which has it alone."""
    name = f"{namespace}-{secrets.token_hex(3)}"
    await machines.add_node(name, labels={OWN_NODES: namespace})
    await until_node(api, name, takes_pods)
    yield name
    await machines.remove_node(name)


async def test_a_crashed_node_is_noticed_and_its_pod_stays_terminating(
    pods: Pods, api: Api, machines: Machines, node: str, mark: str
) -> None:
    """Nothing but a forced deletion frees the name of the pod, however long one waits."""
    tolerations = [
        {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    ]
    await pods.create("lost", f"exec sleep {mark}", nodeName=node, tolerations=tolerations)
    await until(lambda: processes_with(mark))
    await pods.until_phase("lost", "Running")
    await machines.fault("node-crash", node=node)
    await until(lambda: not processes_with(mark))
    lost = await until_node(api, node, lambda obj: UNREACHABLE in taints(obj))
    assert condition(lost, "Ready")["status"] == "Unknown"
    pod = await pods.until("lost", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert pod["status"]["phase"] == "Running"  # nobody has said otherwise
    assert condition(pod, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    await pods.delete("lost", gracePeriodSeconds=0)
    await pods.until_gone("lost")


async def test_a_node_that_comes_back_is_ready_again_and_reports_its_dead(
    pods: Pods, api: Api, machines: Machines, node: str
) -> None:
    await pods.create("rebooted", nodeName=node)
    await pods.until_phase("rebooted", "Running")
    await machines.fault("node-crash", node=node)
    await until_node(api, node, lambda obj: UNREACHABLE in taints(obj))
    await machines.fault("node-return", node=node)
    await until_node(api, node, takes_pods)
    assert ending(await pods.until_phase("rebooted", "Failed"))["exitCode"] == 137


async def test_processes_outlive_their_kubelet_and_even_their_pod(
    pods: Pods, api: Api, machines: Machines, node: str, mark: str
) -> None:
    """Split brain: the pod is replaced while its process still writes. A fence must stop that one."""
    await pods.create("orphan", f"exec sleep {mark}", nodeName=node)
    await until(lambda: processes_with(mark))
    await machines.fault("kubelet-death", node=node)
    await until_node(api, node, lambda obj: UNREACHABLE in taints(obj))
    await pods.delete("orphan", gracePeriodSeconds=0)
    await pods.until_gone("orphan")
    assert processes_with(mark)
    await machines.fault("node-return", node=node)  # back from the dead
    await until(lambda: not processes_with(mark))


async def test_a_new_kubelet_takes_over_what_runs(
    pods: Pods, machines: Machines, node: str, mark: str
) -> None:
    await pods.create("adopted", f"exec sleep {mark}", nodeName=node)
    await pods.until_phase("adopted", "Running")
    await until(lambda: processes_with(mark))  # `sh` becomes that process after the pod runs
    await machines.fault("kubelet-death", node=node)
    await machines.fault("node-return", node=node)
    await machines.fault("container-kill", namespace=pods.namespace, pod="adopted")
    pod = await pods.until_phase("adopted", "Failed")
    assert ending(pod)["exitCode"] == 137
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_what_happens_behind_a_partition_is_reported_after_it(
    pods: Pods, api: Api, machines: Machines, node: str, mark: str
) -> None:
    await pods.create("cut-off", f"sleep {mark}; exit 9", nodeName=node)
    await until(lambda: processes_with(mark))
    await pods.until_phase("cut-off", "Running")
    await machines.fault("partition", node=node)
    await machines.fault("container-kill", namespace=pods.namespace, pod="cut-off")
    await until(lambda: not processes_with(mark))
    await until_node(api, node, lambda obj: UNREACHABLE in taints(obj))
    assert (await pods.get("cut-off"))["status"]["phase"] == "Running"
    await machines.fault("node-return", node=node)
    assert ending(await pods.until_phase("cut-off", "Failed"))["exitCode"] == 137


async def test_a_node_ends_pods_that_were_deleted_while_it_was_cut_off(
    pods: Pods, api: Api, machines: Machines, node: str, mark: str
) -> None:
    await pods.create("deleted", f"exec sleep {mark}", nodeName=node)
    await until(lambda: processes_with(mark))
    await pods.until_phase("deleted", "Running")
    await machines.fault("partition", node=node)
    await pods.delete("deleted", gracePeriodSeconds=0)
    await pods.until_gone("deleted")
    assert processes_with(mark)
    await machines.fault("node-return", node=node)
    await until(lambda: not processes_with(mark))


async def test_a_device_fault_is_a_condition_a_taint_or_a_config_map(
    api: Api, machines: Machines, node: str
) -> None:
    await machines.fault(
        "node-condition",
        node=node,
        kind="AcceleratedHardwareReady",
        holds=False,
        reason="NvidiaXID79Error",
    )
    await machines.fault("node-taint", node=node, key="example.test/gpu", effect="NoSchedule")
    device_info = {"DeviceInfo": {"DeviceList": {"huawei.com/Ascend910-Fault": "[]"}}}
    await machines.fault("device-config-map", node=node, device_info=device_info)
    faulty = await api.get(f"/api/v1/nodes/{node}")
    assert condition(faulty, "AcceleratedHardwareReady")["reason"] == "NvidiaXID79Error"
    assert is_ready(faulty)  # the kubelet's own conditions stay
    assert "example.test/gpu" in taints(faulty)
    path = f"/api/v1/namespaces/kube-system/configmaps/mindx-dl-deviceinfo-{node}"
    assert "Ascend910-Fault" in (await api.get(path))["data"]["DeviceInfoCfg"]
    await machines.fault("node-taint", node=node, key="example.test/gpu", effect="")
    assert "example.test/gpu" not in taints(await api.get(f"/api/v1/nodes/{node}"))


async def test_a_gang_is_bound_together_or_not_at_all(
    pods: Pods, api: Api, machines: Machines, namespace: str
) -> None:
    """Four pods that take a whole node each, three nodes: none runs. A fourth node: all run."""
    group_path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    policy = {"gang": {"minCount": 4}}
    await api.create(
        group_path, {"metadata": {"name": "four"}, "spec": {"schedulingPolicy": policy}}
    )
    names = [f"gang-{number}" for number in range(4)]
    for name in names:
        await pods.create(
            name,
            schedulingGroup={"podGroupName": "four"},
            main={"resources": {"requests": {"cpu": "8"}}},
        )

    async def is_refused() -> bool:
        scheduled = condition(await api.get(f"{group_path}/four"), "PodGroupInitiallyScheduled")
        return scheduled.get("reason") == "Unschedulable"

    await until(is_refused)
    waiting = [await pods.get(name) for name in names]
    assert not any("nodeName" in pod["spec"] for pod in waiting)
    await machines.add_node(f"{namespace}-fourth", labels={OWN_NODES: namespace})
    for name in names:
        await pods.until_phase(name, "Running")
