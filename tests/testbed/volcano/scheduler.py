"""Volcano on loopback, beside a control plane of the test bed: one release of its scheduler and controllers.

The definitions of its resources and the settings of its scheduler come out of the Go module that its programs
are built from. Its webhooks are left out: they check annotations that no pod here has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from everstep.processes import free_port
from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.api import UNREACHABLE, Api, ApiError, Json
from tests.testbed.build import VOLCANO
from tests.testbed.controlplane import BinariesMissing, ClusterAccess

MODULE = "volcano.sh/volcano"
API = "/apis/scheduling.volcano.sh/v1beta1"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CONFIG = "installer/helm/chart/volcano/config/volcano-scheduler.conf"
_CONTROLLERS = "pg-controller,queue-controller"
"""Those of pods and queues: jobs here are none of Volcano's own."""


@asynccontextmanager
async def running(cluster: ClusterAccess, folder: Path) -> AsyncIterator[Child]:
    """Volcano's scheduler in this cluster, ready to place pods. `folder`: a new one, for its files."""
    if names := VOLCANO.missing():
        raise BinariesMissing(f"{', '.join(names)} not built; run: make test-volcano")
    folder.mkdir(parents=True)
    source = VOLCANO.module_folder(MODULE)
    async with cluster.api() as api:
        for definition in _definitions(source):
            await api.create(_DEFINITIONS, definition)
        children: list[Child] = []
        try:
            for program, *flags in (
                ("vc-scheduler", "--scheduler-conf", str(source / _CONFIG)),
                ("vc-controller-manager", "--controllers", _CONTROLLERS),
            ):
                children.append(_start(program, *flags, cluster=cluster, folder=folder))
            for child in children:
                await child.until(lambda: _has_an_open_queue(api), within_s=HUNG_S)
            yield children[0]
        finally:
            for child in children:
                child.kill()


def _start(program: str, *flags: str, cluster: ClusterAccess, folder: Path) -> Child:
    common = {
        "kubeconfig": cluster.kubeconfig,
        "leader-elect": "false",
        "listen-address": f"127.0.0.1:{free_port()}",
    }
    return Child(
        [
            str(VOLCANO.binaries_folder() / program),
            *(f"--{name}={value}" for name, value in common.items()),
            *flags,
        ],
        name=program,
        log=folder / f"{program}.log",
        cwd=folder,
    )


def _definitions(source: Path) -> Iterator[Json]:
    for path in sorted((source / "config" / "crd" / "volcano" / "bases").glob("*.yaml")):
        yield yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


async def _has_an_open_queue(api: Api) -> bool:
    """Whether the queue of groups that name none is open: made by the scheduler, opened by its controller."""
    try:
        queue = await api.get(f"{API}/queues/default")
    except (ApiError, *UNREACHABLE):
        return False
    return bool(queue.get("status", {}).get("state") == "Open")
