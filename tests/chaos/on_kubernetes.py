"""Chaos on a Kubernetes cluster: a real control plane, with nodes and pods that can be hit one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from everstep.backends.kubernetes import folder_claims
from everstep.core import names
from tests.chaos.ground import LOOK_S, Folder, Ground, document
from tests.chaos.on_machine import held_fences, processes_of
from tests.chaos.plan import JOBS, Event
from tests.kubernetes import rights
from tests.kubernetes.jobs import STORAGE, processes_marked
from tests.kubernetes.objects import objects_of
from tests.kubernetes.on_kubernetes import ALWAYS_SOUND
from tests.support.devserver import DevServer
from tests.support.wire import Wire
from tests.support.workerproc import WorkerProcess
from tests.support.world import HAS_COMPILER, LIBRARY, Worlds
from tests.testbed import wire as to_api_server
from tests.testbed.api import UNREACHABLE, Api, ApiError, Json
from tests.testbed.controlplane import ControlPlane, until_pods_can_be_created
from tests.testbed.machines import Machines
from tests.testbed.weather import Weather

NODES = 5
NAMESPACE, CLUSTER = "default", "pods"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{folder_claims.NAME}"
MADE_FOR_ENDED_JOBS = {f"configmaps/everstep-job-{job}" for job in JOBS}
"""The record of an ended job stays until it is pruned."""
WORLDS = "worlds"
NODE = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
OF_ITS_NODE = [
    NODE,
    {"name": "LD_PRELOAD", "value": f"{STORAGE}/{WORLDS}/{LIBRARY}"},
    {"name": "WORLD", "value": f"{STORAGE}/{WORLDS}/$(NODE)"},
]
"""Variables that let all processes of a pod see the world of its node."""
KNOWN_S = 30.0
"""A cluster removes pods and ends processes some time after it was ordered to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a job, as the API server shows it."""

    name: str
    slot: int
    node: str


@dataclass(slots=True, kw_only=True)
class OnKubernetes(Ground):
    """Two jobs on a control plane of their own."""

    plane: ControlPlane
    api: Api
    machines: Machines
    storage: Path  # the volume of all pods
    api_wire: Wire  # between the second worker and the API server
    weather: Weather  # between the first worker and the API server
    worlds: Worlds | None  # of the nodes, in the volume; None without a compiler

    def document(self, job: str) -> dict[str, Any]:
        folder = self.folders[job]
        made = document(
            job,
            folder,
            inside=f"{STORAGE}/{job}",
            python="python3",
            cluster=CLUSTER,
            image="machine",
            pod_template={
                "spec": {
                    "volumes": [{"name": "storage", "hostPath": {"path": str(self.storage)}}],
                    "containers": [
                        {
                            "name": "train",
                            "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
                            "env": OF_ITS_NODE if self.worlds is not None else [],
                        }
                    ],
                }
            },
        )
        for path in (folder.path, *folder.path.iterdir()):
            path.chmod(0o777)  # ranks are another user
        return made

    async def pods(self, event: Event) -> list[Pod]:
        """The pods of the event's job that have a node, beginning with its victim."""
        try:
            items = (await self.api.get(PODS, labelSelector=f"everstep.dev/job={event.job}"))[
                "items"
            ]
        except (ApiError, *UNREACHABLE):
            return []
        pods = sorted((pod_of(item) for item in items if is_there(item)), key=lambda pod: pod.slot)
        first = int(event.share * len(pods))
        return [*pods[first:], *pods[:first]]

    async def jobs_on(self, node: str) -> tuple[str, ...]:
        items = (await self.api.get(PODS, fieldSelector=f"spec.nodeName={node}"))["items"]
        labels = {item["metadata"]["labels"].get("everstep.dev/job") for item in items}
        return tuple(job for job in JOBS if job in labels)

    def ranks(self, event: Event) -> list[int]:
        """The ranks of one of the job's slots that has some."""
        by_slot = [self._ranks(event.job, slot) for slot in (0, 1)]
        first = int(event.share * len(by_slot))
        return by_slot[first] or by_slot[1 - first]

    def _ranks(self, job: str, slot: int) -> list[int]:
        marks = {f"EVERSTEP_JOB={job}".encode(), f"EVERSTEP_SLOT={slot}".encode()}
        return [
            pid for pid in processes_marked(marks, script="trainer.py") if self._sees_volume(pid)
        ]

    def _sees_volume(self, pid: int) -> bool:
        """Whether the process sees our volume: other clusters of this machine may have a job of that name."""
        with suppress(OSError):
            return Path(f"/proc/{pid}/root{STORAGE}").samefile(self.storage)
        return False

    async def heal(self) -> None:
        """Let all nodes be as they were at first, those with pods too."""
        for number in range(NODES):
            await self.machines.fault("node-return", node=f"m{number}")
            await self.uncordon(f"m{number}")
        await self.release()

    async def uncordon(self, node: str) -> None:
        while True:
            with suppress(ApiError, *UNREACHABLE):
                await self.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}})
                return
            await asyncio.sleep(LOOK_S)

    async def release(self) -> None:
        quarantine = self.client.get_workflow_handle(names.quarantine_id(CLUSTER))
        for number in range(NODES):
            with suppress(RPCError, WorkflowUpdateFailedError):
                await quarantine.execute_update("release", {"node": f"m{number}"})

    async def left(self) -> list[str]:
        """Objects of the jobs but their records, and processes."""
        left: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(KNOWN_S):
                while left := await self._left_now():
                    await asyncio.sleep(LOOK_S)
        return left

    async def _left_now(self) -> list[str]:
        objects = [name for job in JOBS for name in await objects_of(self.api, NAMESPACE, job)]
        pods = [pod["metadata"]["name"] for pod in (await self.api.get(PODS))["items"]]
        unexpected = sorted({*objects} - MADE_FOR_ENDED_JOBS)
        fences = held_fences(self.folders.values())
        return [*unexpected, *pods, *processes_of([self.storage]), *await self._claims(), *fences]

    async def _claims(self) -> list[str]:
        """Claims on folders; there is no object for them before the first one."""
        try:
            claims = (await self.api.get(CLAIMS)).get("data") or {}
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        return [f"the claim {claim}" for claim in claims.values()]


def is_there(item: Json) -> bool:
    return bool(item["spec"].get("nodeName")) and "deletionTimestamp" not in item["metadata"]


def pod_of(item: Json) -> Pod:
    labels = item["metadata"]["labels"]
    return Pod(
        name=item["metadata"]["name"],
        slot=int(labels.get("everstep.dev/slot", 0)),
        node=item["spec"]["nodeName"],
    )


def namespace_of(pid: int) -> str:
    """Names the mount namespace of a process, which a container has for itself."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def processes_in(namespace: str) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if namespace and namespace_of(pid) == namespace]


@asynccontextmanager
async def begun(folder: Path) -> AsyncIterator[OnKubernetes]:
    """Two jobs that have saved for the first time. Nothing of it runs any more when it is left."""
    storage = folder / "storage"
    storage.mkdir()
    for path in (folder, storage):
        path.chmod(0o777)
    nodes = [f"m{number}" for number in range(NODES)]
    worlds = Worlds.new(storage / WORLDS, nodes) if HAS_COMPILER else None
    async with AsyncExitStack() as stack:
        server = await DevServer.start(db_file=folder / "temporal.db", log=folder / "temporal.log")
        stack.callback(server.stop)
        plane = await ControlPlane.start(folder / "control-plane")
        stack.callback(plane.kill)
        api = await stack.enter_async_context(plane.access.api())
        machines = await Machines.start(plane.access, folder / "machines")
        stack.callback(machines.stop)
        for node in nodes:
            await machines.add_node(node)
        await until_pods_can_be_created(api, NAMESPACE)
        await rights.grant(api, NAMESPACE)
        kubeconfig = await rights.kubeconfig(plane.access, api, NAMESPACE, folder / "config")
        wire = await stack.enter_async_context(Wire(server.port))
        api_wire = await stack.enter_async_context(to_api_server.Wire(plane.access))
        weather = await stack.enter_async_context(Weather.before(plane.access))
        workers = [
            worker(folder / "worker-0", server.address, weather.kubeconfig(folder, of=kubeconfig)),
            worker(
                folder / "worker-1",
                f"127.0.0.1:{wire.port}",
                api_wire.kubeconfig(folder, of=kubeconfig),
            ),
        ]
        for one in workers:
            await stack.enter_async_context(one)
        ground = OnKubernetes(
            server=server,
            client=await server.connect(),
            folders={job: Folder(path=storage / job) for job in JOBS},
            workers=workers,
            wire=wire,
            plane=plane,
            api=api,
            machines=machines,
            storage=storage,
            api_wire=api_wire,
            weather=weather,
            worlds=worlds,
        )
        await ground.begin()
        yield ground
        assert [line for one in workers for line in one.stuck_tasks()] == []


def worker(home: Path, address: str, kubeconfig: str) -> WorkerProcess:
    return WorkerProcess(
        address=address,
        namespace="default",
        home=home,
        cluster=CLUSTER,
        backend="kubernetes",
        env={
            "EVERSTEP_KUBECONFIG": kubeconfig,
            "EVERSTEP_KUBE_NAMESPACE": NAMESPACE,
            **ALWAYS_SOUND,
        },
    )
