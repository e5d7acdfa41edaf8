"""Fixtures for tests on a real control plane: one for the whole session, a namespace per test file.

`lab` is the backend alone; `site` and its `worker` run jobs through Temporal; cases and scenarios are played
on `ground`, and those that need all nodes of a cluster on `own_ground`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes import objects, rights
from tests.kubernetes.jobs import FENCE_S, SHORT_FENCE_S, KubernetesLab
from tests.kubernetes.objects import Pods
from tests.kubernetes.site import Site
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess, ControlPlane, until_pods_can_be_created
from tests.testbed.machines import Machines
from tests.testbed.shared import joined

OWN_NODES = "testbed.everstep.dev/nodes-of"
"""Label of a node: the only namespace whose pods it gets."""
PUT_BACK = pytest.StashKey[Callable[[], Awaitable[None]]]()
"""What puts nodes and namespace back as they were, of a test file whose tests share them."""


@pytest.fixture(scope="session")
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ClusterAccess]:
    """A cluster without nodes. A test that kills a part of the control plane starts one of its own."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # the processes of pytest-xdist have this one in common
    async with joined(folder / "kubernetes") as access:
        yield access


@pytest.fixture(scope="session")
async def api(cluster: ClusterAccess) -> AsyncIterator[Api]:
    """A client with all rights."""
    async with cluster.api() as client:
        yield client


@pytest.fixture(scope="module")
async def namespace(api: Api, request: pytest.FixtureRequest) -> str:
    """A new namespace, called after the test file. Its pods get only nodes with its `OWN_NODES` label."""
    return await new_namespace(api, request.path.stem)


async def new_namespace(api: Api, hint: str) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", hint.lower()).strip("-")
    name = f"{stem[:40]}-{secrets.token_hex(4)}"
    await make_namespace(api, name, nodes_of=name)
    return name


async def make_namespace(api: Api, name: str, *, nodes_of: str) -> None:
    """One whose pods get only the nodes with this `OWN_NODES` label."""
    annotations = {"scheduler.alpha.kubernetes.io/node-selector": f"{OWN_NODES}={nodes_of}"}
    body = {"metadata": {"name": name, "annotations": annotations}}
    await api.create("/api/v1/namespaces", body)
    await until_pods_can_be_created(api, name)


@pytest.fixture(scope="module")
async def machines(
    request: pytest.FixtureRequest,
    cluster: ClusterAccess,
    api: Api,
    namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Machines]:
    """Nodes `<namespace>-0` to `-2`, for this file's namespace alone; a test may add more."""
    machines = await Machines.start(cluster, tmp_path_factory.mktemp("machines") / "one")
    labels_of = {f"{namespace}-{number}": {OWN_NODES: namespace} for number in range(3)}

    async def put_back() -> None:
        await objects.delete_jobs(api, namespace)
        await machines.restore(labels_of)

    try:
        await machines.restore(labels_of)
        request.node.stash[PUT_BACK] = put_back
        yield machines
    finally:
        machines.stop()
        await api.delete_all("/api/v1/nodes", labelSelector=f"{OWN_NODES}={namespace}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What cases and scenarios are played on; each has a namespace and nodes of its own."""

    cluster: ClusterAccess
    api: Api
    machines: Machines


class OwnGround:
    """A control plane that is started when it is first needed, used by one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = asyncio.Lock()
        self._control_plane: ControlPlane | None = None

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Ground]:
        """With no node but those that are added here."""
        async with self._turn:
            if self._control_plane is None:
                self._control_plane = await ControlPlane.start(self._folder / "control-plane")
            access = self._control_plane.access
            machines = await Machines.start(access, self._folder / secrets.token_hex(4))
            try:
                async with access.api() as api:
                    yield Ground(cluster=access, api=api, machines=machines)
            finally:
                machines.stop()

    def kill(self) -> None:
        if self._control_plane is not None:
            self._control_plane.kill()


@pytest.fixture(scope="module")
async def ground(
    cluster: ClusterAccess, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Ground]:
    machines = await Machines.start(cluster, tmp_path_factory.mktemp("machines") / "one")
    try:
        yield Ground(cluster=cluster, api=api, machines=machines)
    finally:
        machines.stop()


@pytest.fixture(scope="module")
async def own_ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnGround]:
    """A control plane besides that of the session, for those that need to have all nodes of a cluster."""
    ground = OwnGround(tmp_path_factory.mktemp("own"))
    try:
        yield ground
    finally:
        ground.kill()


@pytest.fixture(autouse=True)
async def _as_found(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Remove the jobs, pods and broken nodes that a test left in its file, also if it failed."""
    yield
    of_file = request.node.getparent(pytest.Module)
    if of_file is not None and (put_back := of_file.stash.get(PUT_BACK, None)):
        await put_back()


@pytest.fixture(scope="module")
async def worker_kubeconfig(
    cluster: ClusterAccess, api: Api, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """With the rights that deploy/kubernetes gives a worker: one that lacks there fails tests here."""
    path = tmp_path_factory.mktemp("rights") / "kubeconfig"
    async with rights.of_workers(cluster, api, namespace, path) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def pods(api: Api, namespace: str, machines: Machines) -> Pods:
    return Pods(api, namespace)


def fence_s_of(request: pytest.FixtureRequest) -> float:
    """The usual time of a fence, where the test does not wait for it."""
    is_short = request.node.get_closest_marker("short_fence") is not None
    return SHORT_FENCE_S if is_short else FENCE_S


@pytest.fixture
async def lab(
    request: pytest.FixtureRequest,
    worker_kubeconfig: str,
    namespace: str,
    machines: Machines,  # the nodes
    tmp_path: Path,
) -> AsyncIterator[KubernetesLab]:
    one = await KubernetesLab.open(
        worker_kubeconfig, namespace, tmp_path / "storage", fence_s=fence_s_of(request)
    )
    try:
        yield one
    finally:
        await one.backend.close()


@pytest.fixture
async def site(server: DevServer, namespace: str, tmp_path: Path) -> Site:
    temporal = await server.new_namespace(namespace)
    return Site.make(tmp_path, address=server.address, namespace=temporal)


@pytest.fixture
async def worker(
    site: Site,
    worker_kubeconfig: str,
    namespace: str,
    machines: Machines,  # the nodes
) -> AsyncIterator[WorkerProcess]:
    one = worker_process(site, worker_kubeconfig, namespace)
    await one.start()
    try:
        yield one
        assert one.stuck_tasks() == []
    finally:
        one.kill9()


def worker_process(
    site: Site, kubeconfig: str, namespace: str, *, home: str = "worker", **settings: str
) -> WorkerProcess:
    """One that runs the jobs of the site, not yet started."""
    return WorkerProcess(
        address=site.env["TEMPORAL_ADDRESS"],
        namespace=site.env["TEMPORAL_NAMESPACE"],
        home=site.storage.parent / home,
        cluster="pods",
        backend="kubernetes",
        env={
            "EVERSTEP_KUBECONFIG": kubeconfig,
            "EVERSTEP_KUBE_NAMESPACE": namespace,
            **settings,
        },
    )
