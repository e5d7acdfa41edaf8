"""A job from `everstep submit` to its end, its ranks in pods of a real control plane."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.jobs import STORAGE, TRAINER
from tests.kubernetes.objects import until
from tests.support.devserver import DevServer
from tests.support.machine import EVERSTEP
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT, WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines


@dataclass
class Site:
    """A worker process of the cluster, and the command line beside it."""

    worker: WorkerProcess
    env: dict[str, str]
    storage: Path

    def everstep(self, *words: str) -> str:
        ended = subprocess.run(
            [*EVERSTEP, *words],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HUNG_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.everstep("status", job, "--json"))
        return status

    def submit(self, name: str, **env: str) -> None:
        document = {
            "apiVersion": "everstep/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "cluster": "pods",
                "nodes": 2,
                "image": "machine",
                "command": ["/bin/sh", "-c", f"exec /usr/bin/env python3 {STORAGE}/trainer.py"],
                "env": {
                    "CONTROL": f"{STORAGE}/control",
                    "CHECKPOINTS": f"{STORAGE}/{name}/checkpoints",
                    **env,
                },
                "model_dir": f"{STORAGE}/{name}",
                "checkpoints": {"path": f"{STORAGE}/{name}/checkpoints"},
                "pod_template": {
                    "spec": {
                        "volumes": [{"name": "storage", "hostPath": {"path": str(self.storage)}}],
                        "containers": [
                            {
                                "name": "train",
                                "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
                            }
                        ],
                    }
                },
            },
        }
        path = self.storage.parent / f"{name}.json"
        path.write_text(json.dumps(document))
        self.everstep("submit", str(path))


@pytest.fixture
async def site(  # everything is real
    cluster: ClusterAccess,
    namespace: str,
    machines: Machines,  # the nodes
    server: DevServer,
    tmp_path: Path,
) -> AsyncIterator[Site]:
    storage = tmp_path / "storage"
    (storage / "control").mkdir(parents=True)
    for folder in (storage, storage / "control"):
        folder.chmod(0o777)  # ranks are another user
    shutil.copy(TRAINER, storage)
    temporal = await server.new_namespace(namespace)
    worker = WorkerProcess(
        address=server.address,
        namespace=temporal,
        home=tmp_path / "worker",
        cluster="pods",
        backend="kubernetes",
        env={"EVERSTEP_KUBECONFIG": cluster.kubeconfig, "EVERSTEP_KUBE_NAMESPACE": namespace},
    )
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("EVERSTEP_", "TEMPORAL_"))
    }
    env = {
        **inherited,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": temporal,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "EVERSTEP_HOME": str(tmp_path / "home"),
    }
    await worker.start()
    try:
        yield Site(worker, env, storage)
        assert worker.wedged() == []
    finally:
        worker.kill9()


async def test_a_submitted_job_survives_a_crash_and_a_killed_worker_and_leaves_no_pod(
    site: Site, api: Api, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    site.submit("survives", STEPS="150", STEP_S="0.05", CRASH_AT_STEP="1:40:3")
    await until((site.storage / "survives" / "checkpoints" / "step-80.json").exists)
    there = {one["metadata"]["name"] for one in (await api.get(pods))["items"]}
    assert there == {"survives-0-g1", "survives-1-g1"}  # restarted in place
    site.worker.kill9()
    await site.worker.start()
    await until(lambda: site.status("survives")["state"] == "completed")
    status = site.status("survives")
    assert status["restarts"] == 1
    assert (site.storage / "survives" / "checkpoints" / "step-150.json").exists()

    async def no_pod_is_left() -> bool:
        return not (await api.get(pods))["items"]

    await until(no_pod_is_left)
    [run_log] = (site.storage / "survives").glob("*/run.log")
    assert run_log.read_text().count("restart 1: success") == 1
