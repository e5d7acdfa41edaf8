"""The control plane of the test bed: what it serves, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.api import Api, ApiError
from tests.testbed.build import kubernetes_version
from tests.testbed.controlplane import ClusterAccess, ControlPlane
from tests.testbed.shared import ROOT, joined

JOIN = """
import asyncio, sys
from pathlib import Path
from tests.testbed.shared import joined

async def main() -> None:
    async with joined(Path(sys.argv[1])) as access:
        print(access.to_json(), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
"""A process of a test session, which is killed."""


async def test_it_is_the_version_that_go_mod_requires(api: Api) -> None:
    assert (await api.get("/version"))["gitVersion"] == kubernetes_version()


async def test_a_pod_without_a_node_stays_pending_and_says_why(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(pods, pod("lonely"))
    async with asyncio.timeout(HUNG_S):
        while not (scheduled := condition(await api.get(f"{pods}/lonely"), "PodScheduled")):
            await asyncio.sleep(0.02)
    assert scheduled["reason"] == "Unschedulable"


async def test_pod_groups_are_served_and_can_be_deleted(api: Api, namespace: str) -> None:
    """The group's finalizer would stay for ever with the gate off in the controller manager."""
    groups = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    group = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    await api.create(groups, group)
    await api.delete(f"{groups}/gang")
    async with asyncio.timeout(HUNG_S):
        while (await api.get(groups))["items"]:
            await asyncio.sleep(0.02)


async def test_a_request_without_a_token_is_refused(cluster: ClusterAccess) -> None:
    async with Api(url=cluster.url, ca_file=Path(cluster.ca_file), token="") as stranger:
        with pytest.raises(ApiError) as refused:
            await stranger.get("/api/v1/nodes")
    assert refused.value.status in {401, 403}


async def test_processes_share_one_until_the_last_is_killed(tmp_path: Path) -> None:
    """Each process of a parallel test session may be the one that starts it and the one that is killed."""
    first, second = (join(tmp_path, number) for number in (1, 2))
    pids: set[int] = set()
    try:
        accesses = [await joined_access(process) for process in (first, second)]
        assert accesses[0] == accesses[1]
        pids = working_below(tmp_path)
        assert len(pids) == 4
        first.kill()
        async with joined(tmp_path) as access, access.api() as client:
            assert access == accesses[1]
            assert (await client.get("/api/v1/nodes"))["items"] == []
        second.kill()
    finally:
        first.kill()
        second.kill()
        async with asyncio.timeout(HUNG_S):
            while working_below(tmp_path) or any(is_alive(pid) for pid in pids):
                await asyncio.sleep(0.02)


async def test_a_killed_server_takes_its_control_plane_along(tmp_path: Path) -> None:
    process = join(tmp_path, 1)
    try:
        await joined_access(process)
        (server,) = [pid for pid in working_below(tmp_path, child=False) if pid != process.pid]
        os.kill(server, signal.SIGKILL)
        async with asyncio.timeout(HUNG_S):
            while working_below(tmp_path):
                await asyncio.sleep(0.02)
    finally:
        process.kill()


async def test_objects_outlive_a_killed_api_server_and_etcd(tmp_path: Path) -> None:
    control_plane = await ControlPlane.start(tmp_path)
    try:
        async with control_plane.access.api() as client:
            body = {"metadata": {"name": "kept"}, "data": {"answer": "42"}}
            await client.create("/api/v1/namespaces/default/configmaps", body)
            control_plane.child("kube-apiserver").kill()
            control_plane.child("etcd").kill()
            await control_plane.start_etcd()
            await control_plane.start_api_server()
            config_map = await client.get("/api/v1/namespaces/default/configmaps/kept")
            assert config_map["data"] == body["data"]
    finally:
        control_plane.kill()


def pod(name: str) -> dict[str, dict[str, object]]:
    container = {"name": "main", "image": "none", "command": ["true"]}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def condition(obj: dict[str, dict[str, list[dict[str, str]]]], kind: str) -> dict[str, str]:
    """The condition of that type, empty if there is none."""
    conditions = obj["status"].get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def join(folder: Path, number: int) -> Child:
    log = folder / f"process-{number}.log"
    return Child(
        [sys.executable, "-c", JOIN, str(folder)], name=f"process {number}", log=log, cwd=ROOT
    )


async def joined_access(process: Child) -> ClusterAccess:
    async def has_printed() -> bool:
        return process.output().endswith("\n")

    await process.until(has_printed, within_s=HUNG_S)
    return ClusterAccess(**json.loads(process.output()))


def working_below(folder: Path, *, child: bool = True) -> set[int]:
    """Processes of the control plane of this folder, or (not `child`) those that use or serve it."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_component = (entry / "cwd").readlink() == folder / "control-plane"
            is_python = str(folder).encode() in words
            if is_component if child else is_python:
                pids.add(int(entry.name))
    return pids


def is_alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()
