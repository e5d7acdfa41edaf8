"""docs/kubernetes.md as a reader follows it: the job that it shows, and the commands that look at it."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests.backends.lab import order_end
from tests.kubernetes.conftest import OWN_NODES, worker_process
from tests.kubernetes.jobs import TRAINER
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.operator import Kubectl
from tests.testbed.shared import ROOT

PAGE = ROOT / "docs" / "kubernetes.md"
GPUS = {"nvidia.com/gpu": "8"}
NODE = {"cpu": "8", "memory": "32Gi", "pods": "110", **GPUS}
RANKS = 16
"""The most that two nodes of eight devices have."""
FOLLOW = "-f"
"""With this word a command goes on until Ctrl-C."""


def block(heading: str, number: int = 0) -> str:
    """The nth indented block below this heading."""
    _, _, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    section, _, _ = rest.partition("\n## ")
    return dedent(re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.MULTILINE)[number])


def commands(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def of_page(folder: str = "/models/llama") -> dict[str, Any]:
    """The job of the page, with a script that is on its volume and prints its steps."""
    document: dict[str, Any] = yaml.safe_load(block("A job"))
    document["spec"] |= {
        "command": ["python3", "/models/train.py"],
        "env": {"CONTROL": "/models/control", "CHECKPOINTS": f"{folder}/checkpoints"},
    }
    assert document["spec"]["checkpoints"]["path"] == f"{folder}/checkpoints"
    return document


@pytest.fixture
async def volume(
    request: pytest.FixtureRequest, api: Api, namespace: str, tmp_path: Path
) -> AsyncIterator[Path]:
    """The folder behind the claim that the page's job mounts."""
    folder = tmp_path / "models"
    (folder / "control").mkdir(parents=True)
    for one in (folder, folder / "control"):
        one.chmod(0o777)  # ranks are another user
    shutil.copy(TRAINER, folder / "train.py")
    size, access = {"storage": "1Gi"}, ["ReadWriteMany"]
    name = f"{namespace}-models"
    volume = {"capacity": size, "accessModes": access, "hostPath": {"path": str(folder)}}
    volumes = "/api/v1/persistentvolumes"
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    await api.create(volumes, {"metadata": {"name": name}, "spec": volume})
    claim = {
        "accessModes": access,
        "resources": {"requests": size},
        "volumeName": name,
        "storageClassName": "",
    }
    await api.create(claims, {"metadata": {"name": "models"}, "spec": claim})
    yield folder
    await api.delete(f"{claims}/models")
    await api.delete(f"{volumes}/{name}")


@pytest.fixture
async def gpu_nodes(machines: Machines, namespace: str) -> AsyncIterator[None]:
    labels = {f"{namespace}-gpu-{number}": {OWN_NODES: namespace} for number in range(2)}
    async with machines.nodes(labels, resources=NODE):
        yield


@pytest.fixture
async def gpu_worker(
    site: Site, worker_kubeconfig: str, namespace: str, gpu_nodes: None
) -> AsyncIterator[WorkerProcess]:
    one = worker_process(site, worker_kubeconfig, namespace, EVERSTEP_CLUSTER="gpu")
    await one.start()
    try:
        yield one
    finally:
        one.kill9()


class Reader:
    """Types what the page shows, where `job.yaml` is."""

    def __init__(self, site: Site, kubectl: Kubectl, folder: Path) -> None:
        self.site, self.kubectl, self.folder = site, kubectl, folder

    async def types(self, words: list[str]) -> str:
        program, *rest = words
        if program == "kubectl":
            return await self.kubectl(*rest)
        assert program == "everstep"
        rest = [str(self.folder / word) if word == "job.yaml" else word for word in rest]
        return await asyncio.to_thread(self.site.everstep, *rest)


@pytest.fixture
def reader(site: Site, cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Reader:
    site.env |= {"EVERSTEP_KUBECONFIG": cluster.kubeconfig, "EVERSTEP_KUBE_NAMESPACE": namespace}
    return Reader(site, Kubectl(cluster, namespace, tmp_path), tmp_path)


async def test_each_command_of_the_page_shows_the_job_of_the_page(
    reader: Reader, gpu_worker: WorkerProcess, volume: Path
) -> None:
    assert gpu_worker.pid
    site, document = reader.site, of_page()
    document["spec"]["env"] |= {"STEPS": "100000", "STEP_S": "0.05"}
    (reader.folder / "job.yaml").write_text(yaml.safe_dump(document))
    await reader.types(["everstep", "submit", "job.yaml"])
    await until(lambda: site.status("llama")["checkpoint_step"])
    order_end(volume / "control", "llama", 1, 3)
    await until(lambda: _has_recovered(site.status("llama")))
    looks = [[word for word in words if word != FOLLOW] for words in commands(block("Look"))]
    (watch,) = (words for words in looks if "watch" in words)
    watching = asyncio.create_task(reader.types(watch))
    printed = {shlex.join(words): await reader.types(words) for words in looks if words != watch}
    assert all(text.strip() for text in printed.values()), printed
    [nodes] = [text for command, text in printed.items() if command.startswith("everstep nodes")]
    assert nodes.count("8 of 8 used") == 2
    for rank in range(RANKS):
        order_end(volume / "control", "llama", rank, 0)
    assert "completed" in (await watching).lower()


def _has_recovered(status: Mapping[str, Any]) -> bool:
    return bool(status["restarts"] == 1 and status["state"] == "running")


async def test_the_overlay_of_the_page_sets_image_cluster_and_server(
    cluster: ClusterAccess, tmp_path: Path
) -> None:
    """The overlay stands beside a clone, as its paths say."""
    (tmp_path / "everstep").mkdir()
    shutil.copytree(ROOT / "deploy", tmp_path / "everstep" / "deploy")
    folder = tmp_path / "gpu"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(block("Install", 1))
    printed = await Kubectl(cluster, "everstep", tmp_path)("kustomize", str(folder))
    objects = list(yaml.safe_load_all(printed))
    images = set(re.findall(r"image: (\S+)", printed))
    assert images == {"registry.example.com/everstep:1"}
    made = {one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"}
    assert (
        made
        == {"everstep", "everstep-jobs"}
        == {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]}
    )
    (settings,) = (one["data"] for one in objects if one["kind"] == "ConfigMap")
    assert settings["EVERSTEP_CLUSTER"] == of_page()["spec"]["cluster"]
    assert settings["TEMPORAL_ADDRESS"] == "temporal-frontend.temporal.svc:7233"
