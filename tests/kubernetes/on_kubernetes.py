"""Plays a case of a document on the real control plane: pods on nodes of the case's own.

Nodes are called as in the case once one of them is part of a deed: `n2` is where slot 2 runs then.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from temporalio.client import Client

from everstep.backends.kubernetes import names
from everstep.documents.merge import merged
from tests.cases.case import FATAL, Case
from tests.cases.manifests import TO_BE_LEFT, UNWELL
from tests.cases.on_fake import DEVICES, JOB, document
from tests.cases.on_processes import WITNESS, OnProcesses
from tests.kubernetes.conftest import OWN_NODES, Ground
from tests.kubernetes.jobs import STORAGE, processes_marked
from tests.kubernetes.test_device_info import fault, info
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import ApiError

LASTING = {FATAL: "SeparateNPU", TO_BE_LEFT: "PreSeparateNPU", UNWELL: "SubHealthFault"}
"""Codes of devices that do not heal by themselves, with the level that a device plugin reports of each."""
CLUSTER, IMAGE = "pods", "machine"
DEVICE = "huawei.com/Ascend910"
NODE = {"cpu": "8", "memory": "32Gi", "pods": "110", DEVICE: str(DEVICES)}
ALWAYS_SOUND = {"EVERSTEP_PRECHECK__ROOT_GB": "0", "EVERSTEP_PRECHECK__SHM_GB": "0"}
"""What a node needs before a start is there whatever is left on this machine's disk."""


class OnKubernetes(OnProcesses):
    """One namespace of the cluster, with nodes for it alone."""

    def __init__(
        self,
        server: DevServer,
        client: Client,
        case: Case,
        *,
        home: Path,
        ground: Ground,
        namespace: str,
        kubeconfig: str,
    ) -> None:
        super().__init__(server, client, home, case)
        self.api, self.machines, self.namespace = ground.api, ground.machines, namespace
        self.nodes: set[str] = set()  # that live
        self.node_of: dict[str, str] = {}  # by their names in the case
        self.worker = WorkerProcess(
            address=server.address,
            namespace=client.namespace,
            home=home.parent / "worker",
            cluster=CLUSTER,
            backend="kubernetes",
            env={
                "EVERSTEP_KUBECONFIG": kubeconfig,
                "EVERSTEP_KUBE_NAMESPACE": namespace,
                "EVERSTEP_KUBE_DEVICE_INFO": "true",
                "EVERSTEP_PRECHECK__CACHE": "/",
                "EVERSTEP_PRECHECK__CACHE_GB": "0",
                "EVERSTEP_JANITOR": "false",
                **ALWAYS_SOUND,
            },
        )

    async def _prepare(self) -> None:
        assert not self.case.before, "faults of this machine's own nodes"
        self.checkpoints.mkdir()
        for folder in (self.home, self.control, self.checkpoints):
            folder.chmod(0o777)  # ranks are another user
        shutil.copy(WITNESS, self.home)
        for number in range(self.case.nodes):
            await self._add_node(f"n{number}")

    async def _add_node(self, name: str) -> None:
        node = f"{self.namespace}-{name}"
        await self.machines.add_node(node, labels={OWN_NODES: self.namespace}, resources=NODE)
        self.nodes.add(node)

    async def end(self) -> None:
        """Remove the nodes, and what runs on them."""
        while self.nodes:
            await self.machines.remove_node(self.nodes.pop())

    def _document(self) -> dict[str, Any]:
        command = f"/usr/bin/env python3 -I -S {STORAGE}/{WITNESS.name}"
        variables = {"CONTROL": f"{STORAGE}/control", "CHECKPOINTS": f"{STORAGE}/ckpt"}
        written = document(
            self.case, command=command, variables=variables, folder=f"{STORAGE}/ckpt"
        )
        if self.case.labels is not None:
            return self._with_its_own_template(written)
        return merged(written, {"everstep": {**self._of_pods(), **_template(self._pod_spec())}})

    def _with_its_own_template(self, written: dict[str, Any]) -> dict[str, Any]:
        """The document of MindCluster, whose pods request devices: their template is in it."""
        for role in written["spec"]["replicaSpecs"].values():
            spec = role["template"]["spec"]
            pod_spec = self._pod_spec()
            spec["volumes"] = pod_spec["volumes"]
            spec["containers"][0] |= {
                "image": IMAGE,
                "volumeMounts": pod_spec["containers"][0]["volumeMounts"],
            }
        return merged(written, {"everstep": self._of_pods()})

    def _pod_spec(self) -> dict[str, Any]:
        """Each pod takes a node, and mounts the case's folder."""
        train = {
            "name": "train",
            "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
            "resources": {"requests": {"cpu": NODE["cpu"]}},
        }
        storage = {"name": "storage", "hostPath": {"path": str(self.home)}}
        return {"volumes": [storage], "containers": [train]}

    def _of_pods(self) -> dict[str, Any]:
        """What a document says for a cluster of pods."""
        words = {"cluster": CLUSTER}
        return (
            words if self.case.trainer is not None else {**words, "model_dir": f"{STORAGE}/model"}
        )

    # -- what happens ----------------------------------------------------------------------------

    async def _fault(self, line: str) -> None:
        match line.split():
            case ["node-down", name]:
                await self._lose(await self._node(name))
            case ["device", name, index, code]:
                one = fault(code, device=f"Ascend910-{index}", level=LASTING[code])
                node = await self._node(name)
                await self.machines.fault("device-config-map", node=node, device_info=info(one))
            case ["add-node", name]:
                await self._add_node(name)
            case ["kill", job, rank, "signal", number]:
                self._signal(job, rank, int(number))
            case _:
                raise NotImplementedError(line)

    async def _lose(self, node: str) -> None:
        """The machine is off, and the cluster's autoscaler removes its object: that proves it."""
        self.nodes.discard(node)
        await self.machines.remove_node(node)

    async def _node(self, name: str) -> str:
        """The node that a case calls so: where the slot of its number runs, else the last one."""
        if name not in self.node_of:
            status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
            living = {pod["slot"]: pod["node"] for pod in status["pods"] if pod["node"]}
            self.node_of[name] = living.get(int(name[1:]), living[max(living)])
        return self.node_of[name]

    def _signal(self, job: str, rank: str, number: int) -> None:
        marks = {f"EVERSTEP_JOB={job}".encode(), f"RANK={rank}".encode()}
        for pid in processes_marked(marks, script=WITNESS.name):
            if self._is_of_this_run(pid):
                os.kill(pid, number)

    def _is_of_this_run(self, pid: int) -> bool:
        """Cases played at the same time have jobs of one name; a rank of theirs may just have ended."""
        try:
            return Path(f"/proc/{pid}/root{STORAGE}").samefile(self.home)
        except FileNotFoundError:
            return False

    # -- what there is ---------------------------------------------------------------------------

    async def _has_checked(self) -> bool:
        return bool((await self._record()).get("checks"))

    async def _newest(self) -> int:
        return int((await self._record())["newest"])

    async def _record(self) -> Mapping[str, Any]:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{names.record(JOB)}"
        try:
            stored = await self.api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return {}
        record: Mapping[str, Any] = json.loads(stored["data"]["job.json"])["record"]
        return record

    async def _isolated(self) -> tuple[str, ...]:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/everstep-books"
        entries = (await self.api.get(path))["data"]
        keys = [key.removeprefix("isolated.") for key in entries if key.startswith("isolated.")]
        return tuple(
            self._names_in_case([key.partition("_")[0] for key in keys])
        )  # a device with its node

    def _status(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**status, "isolated_nodes": self._names_in_case(status["isolated_nodes"])}

    def _names_in_case(self, nodes: list[str]) -> list[str]:
        in_case = {node: name for name, node in self.node_of.items()}
        return sorted(in_case.get(node, node) for node in nodes)

    async def _no_agent_begins(self, generation: int) -> AsyncIterator[None]:  # noqa: ARG002  # of none
        await self._hold_pods(True)
        try:
            yield
        finally:
            await self._hold_pods(False)

    async def _hold_pods(self, held: bool) -> None:
        for node in sorted(self.nodes):
            await self.machines.fault("hold-pods", node=node, held=held)


def _template(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "image": IMAGE,
        "pod_template": {"spec": spec},
        "accelerator": "none",
        "accelerators_per_node": 0,
    }
