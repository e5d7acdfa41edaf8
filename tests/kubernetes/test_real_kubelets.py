"""The core scenarios under three real kubelets with containerd: `make test-kubelet`.

The process kubelet of the other tests says what a kubelet does; here a real one does it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import condition, until, until_node
from tests.kubernetes.test_lost_pods import old_ranks, replace_last_pod, trained
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.kubelets.machines import RealMachines

pytestmark = pytest.mark.kubelet


@dataclass
class LabOfContainers(KubernetesLab):
    """Its pods have an image without programs, and mount those of this machine."""

    @property
    def pod(self) -> Mapping[str, Any]:
        words = dict(super().pod)
        spec = words["pod_template"]["spec"]
        spec["volumes"].append({"name": "usr", "hostPath": {"path": "/usr"}})
        mount = {"name": "usr", "mountPath": "/usr", "readOnly": True}
        spec["containers"][0]["volumeMounts"].append(mount)
        return {**words, "image": "machine:1"}


@pytest.fixture(scope="module")
async def kubelets(cluster: ClusterAccess, api: Api, namespace: str) -> AsyncIterator[RealMachines]:
    with tempfile.TemporaryDirectory(prefix="kubelets-", dir="/var/tmp") as folder:
        machines = RealMachines.at(cluster, Path(folder, "k"))
        try:
            for number in range(3):
                name = f"{namespace}-{number}"
                await machines.add_node(name, labels={OWN_NODES: namespace})
                await until_node(
                    api, name, lambda node: condition(node, "Ready")["status"] == "True"
                )
            yield machines
        finally:
            machines.stop()
            await api.delete_all("/api/v1/nodes", labelSelector=f"{OWN_NODES}={namespace}")


@pytest.fixture
async def containers(
    worker_kubeconfig: str, namespace: str, kubelets: RealMachines, tmp_path: Path
) -> AsyncIterator[LabOfContainers]:
    assert kubelets.nodes
    lab = await LabOfContainers.open(worker_kubeconfig, namespace, tmp_path / "storage")
    try:
        yield lab
    finally:
        await lab.backend.close()


async def test_a_job_trains_to_its_end(containers: LabOfContainers) -> None:
    job = KubernetesRun(containers, id="ends", env={"STEPS": "20"})
    await job.launch()
    await job.step(20)
    await job.gone()


async def test_a_killed_container_is_told_and_its_pod_alone_is_replaced(
    containers: LabOfContainers, kubelets: RealMachines
) -> None:
    job = KubernetesRun(containers, id="killed", env=NEVER_ENDS)
    before = await trained(job)
    kubelets.kill_container(next(pod.uid for pod in before.pods if pod.slot == 1))
    await job.fact("agent.gone")
    await replace_last_pod(job)
    after = await job.step(30)
    assert uids_of(after, [0]) == uids_of(before, [0])
    assert uids_of(after, [1]) != uids_of(before, [1])
    await job.gone()


async def test_an_image_that_cannot_be_pulled_is_named_within_ten_seconds(
    containers: LabOfContainers,
) -> None:
    """The words are those of a real kubelet: nothing listens at that registry."""
    job = KubernetesRun(containers, id="no-image", slots=(0,))
    await job.new_generation("launch")
    order = job.place_order(image="127.0.0.1:1/trainer:1")
    began = await containers.backend.clock()

    async def is_named() -> bool:
        waiting_for = (await containers.backend.ensure_placed(order)).waiting_for
        return "ImagePull" in waiting_for and "127.0.0.1:1/trainer:1" in waiting_for

    await until(is_named)
    assert await containers.backend.clock() - began < 10.0
    await job.gone()


async def test_ranks_whose_kubelet_died_are_over_before_others_train(
    containers: LabOfContainers, kubelets: RealMachines
) -> None:
    job = KubernetesRun(containers, id="orphaned", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    kubelets.kill_kubelet(node)
    await job.fact("node.not_ready")
    assert old_ranks("orphaned"), "they train on"
    await replace_last_pod(job, avoid=(node,))
    assert not old_ranks("orphaned")
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    await job.gone()
