"""Whole AscendJobs of MindCluster on the control plane: a device is unwell, and its pod moves.

The device plugin's ConfigMap says so, the job's label says what is done. Only here a backup pod is one that
a scheduler and a kubelet have to make ready, while the ranks of the job go on.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kubernetes import rights
from tests.kubernetes.conftest import OWN_NODES, worker_process
from tests.kubernetes.jobs import STORAGE, TRAINER, ranks_of
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_device_info import fault, info
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, Json
from tests.testbed.machines import Machines

pytestmark = pytest.mark.long

UNWELL = "80818C06"
BACKUP = re.compile(r"s\d+$")
"""The end of the name of a pod that stands by."""
DEVICES = "huawei.com/Ascend910"
HAS = {"cpu": "8", "memory": "32Gi", "pods": "110", DEVICES: "8"}


def ascend_job(name: str, *, strategy: str, site: Site, **env: str) -> Json:
    """A Master and a Worker with all devices of a node each."""
    env = {
        "CONTROL": f"{STORAGE}/control",
        "CHECKPOINTS": f"{STORAGE}/{name}/checkpoints",
        "STEPS": "1000000",
        **env,
    }
    container = {
        "name": "ascend",
        "image": "machine",
        "command": ["/bin/sh", "-c"],
        "args": [f"exec /usr/bin/env python3 {STORAGE}/{TRAINER.name}"],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "resources": {"limits": {DEVICES: 8}},
        "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
    }
    volume = {"name": "storage", "hostPath": {"path": str(site.storage)}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    role = {"replicas": 1, "restartPolicy": "Never", "template": template}
    labels = {"fault-scheduling": "force", "pod-rescheduling": "on", "subHealthyStrategy": strategy}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": name, "labels": labels},
        "spec": {"replicaSpecs": {"Master": role, "Worker": role}},
        "everstep": {
            "cluster": "pods",
            "model_dir": f"{STORAGE}/{name}",
            "checkpoints": {"path": f"{STORAGE}/{name}/checkpoints"},
            "progress": {"log_pattern": r"^step (?P<step>\d+)"},
        },
    }


@dataclass
class Scene:
    """Three nodes with devices, a worker that reads what their device plugins write, and one job."""

    worker: WorkerProcess
    api: Api
    machines: Machines
    site: Site
    namespace: str
    nodes: frozenset[str]
    job: str = ""

    def submit(self, job: str, **words: Any) -> None:
        self.job = job
        path = self.site.storage.parent / f"{job}.json"
        path.write_text(json.dumps(ascend_job(job, site=self.site, **words)))
        self.site.everstep("submit", str(path))

    def status(self) -> dict[str, Any]:
        return self.site.status(self.job)

    async def until_running(self, generation: int) -> dict[str, Any]:
        """The status once both pods make steps in this generation."""

        def runs() -> bool:
            status = self.status()
            steps = status["generation"] == generation and (status["step"] or 0) > 0
            return bool(status["state"] == "running" and steps)

        await until(runs)
        return self.status()

    async def unwell(self, node: str) -> None:
        report = info(fault(UNWELL, level="SubHealthFault"))
        await self.machines.fault("device-config-map", node=node, device_info=report)

    async def hold_pods(self, held: bool) -> None:
        for node in self.nodes:
            await self.machines.fault("hold-pods", node=node, held=held)

    async def pods(self) -> dict[str, Json]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        items = (await self.api.get(path, labelSelector=f"everstep.dev/job={self.job}"))["items"]
        return {one["metadata"]["name"]: one for one in items}

    async def standbys(self) -> list[Json]:
        """The pods that were made to stand by."""
        return [pod for name, pod in (await self.pods()).items() if BACKUP.search(name)]

    def saved(self) -> int:
        """The step of the newest checkpoint: what the ranks report while no worker observes the job."""
        return self.site.saved(self.job)

    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = json.loads(
            self.site.everstep("restarts", self.job, "--json")
        )
        return records

    async def stop(self) -> None:
        self.site.everstep("stop", self.job)
        await until(lambda: self.status()["state"] == "stopped")


@pytest.fixture
async def observing(
    site: Site, worker_kubeconfig: str, namespace: str, api: Api
) -> AsyncIterator[WorkerProcess]:
    device_info = {"EVERSTEP_KUBE_DEVICE_INFO": "true"}
    async with (
        rights.to_read_device_info(api, namespace),
        worker_process(site, worker_kubeconfig, namespace, **device_info) as worker,
    ):
        yield worker
        assert worker.stuck_tasks() == []


@pytest.fixture
async def scene(
    observing: WorkerProcess, api: Api, machines: Machines, site: Site, namespace: str
) -> AsyncIterator[Scene]:
    assert observing.pid
    # Of names that no other test has: what a device plugin reported of a node stays.
    token = secrets.token_hex(3)
    nodes = frozenset(f"{namespace}-{token}-{number}" for number in range(3))
    for node in nodes:
        await machines.add_node(node, labels={OWN_NODES: namespace}, resources=HAS)
    yield Scene(observing, api, machines, site, namespace, nodes)
    for node in nodes:
        await machines.remove_node(node)


async def test_a_backup_pod_is_ready_before_the_job_pauses(scene: Scene) -> None:
    scene.submit("hot-switch", strategy="hotSwitch")
    before = (await scene.until_running(1))["pods"]
    await scene.hold_pods(True)
    await scene.unwell(before[1]["node"])

    await until(scene.standbys)
    [backup] = await scene.standbys()
    ranks = ranks_of("hot-switch", slot=1, generation=1)
    assert ranks
    saved = scene.saved()
    await until(lambda: scene.saved() >= saved + 20)
    assert scene.status()["generation"] == 1
    assert ranks_of("hot-switch", slot=1, generation=1) == ranks
    await scene.hold_pods(False)
    after = (await scene.until_running(2))["pods"]
    assert after[0]["uid"] == before[0]["uid"]
    assert after[1]["uid"] == backup["metadata"]["uid"]
    assert {after[1]["node"]} == scene.nodes - {pod["node"] for pod in before}
    [record] = scene.records()
    fields = (record["recover"], record["fault_scenario"], record["recover_result"])
    assert fields == ("pod_reschedule", "job_subhealth", "success")
    assert record["fault"]["code"] == UNWELL
    await scene.stop()


async def test_a_worker_that_is_killed_while_a_backup_pod_starts_makes_no_other_one(
    scene: Scene,
) -> None:
    scene.submit("killed-switch", strategy="hotSwitch")
    before = (await scene.until_running(1))["pods"]
    await scene.hold_pods(True)
    await scene.unwell(before[1]["node"])
    await until(scene.standbys)
    await scene.worker.restart()
    # It watches the backup pod, and the ranks go on.
    await until(lambda: "its agent to answer" in str(scene.status()["waiting_for"]))
    [backup] = await scene.standbys()
    assert scene.status()["generation"] == 1
    await scene.hold_pods(False)
    after = (await scene.until_running(2))["pods"]
    assert after[0]["uid"] == before[0]["uid"]
    assert after[1]["uid"] == backup["metadata"]["uid"]
    [record] = scene.records()
    assert (record["recover"], record["recover_result"]) == ("pod_reschedule", "success")
    await scene.stop()


async def test_a_job_that_leaves_gracefully_saves_first(scene: Scene) -> None:
    """It makes no checkpoint by itself: that of its last words is the one it goes on from."""
    scene.submit("grace-exit", strategy="graceExit", CHECKPOINT_EVERY="1000000")
    before = (await scene.until_running(1))["pods"]
    await scene.unwell(before[1]["node"])
    after = (await scene.until_running(2))["pods"]
    assert after[0]["uid"] == before[0]["uid"]
    assert after[1]["node"] not in {pod["node"] for pod in before}
    [record] = scene.records()
    assert (record["recover"], record["recover_result"]) == ("pod_reschedule", "success")
    assert record["resume_step"] > 0
    names = {path.name for path in (scene.site.storage / "grace-exit" / "checkpoints").iterdir()}
    assert f"step-{record['resume_step']}.json" in names
    await scene.stop()
