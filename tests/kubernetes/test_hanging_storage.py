"""Storage of pods that hangs: what writes to it waits in the kernel, and no signal ends it.

Only here the ranks of a pod cannot be killed, and with them neither its container nor the pod.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from tests.testbed import disk as disks
from tests.testbed.disk import Disk
from tests.testbed.machines import Machines

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with disks.mounted(tmp_path_factory.mktemp("disk")) as one:
        one.folder.chmod(0o755)
        yield one


@pytest.fixture(scope="module")
async def machines(disk: Disk, machines: Machines) -> Machines:
    """Kubelets have only the mounts that were there when they began."""
    assert disk.folder.is_mount()
    return machines


@pytest.fixture
async def site(disk: Disk, server: DevServer, namespace: str, tmp_path: Path) -> Site:
    """The volume of its pods is on the disk; all else of it is not."""
    volume = disk.folder / secrets.token_hex(4)
    volume.mkdir()
    (tmp_path / "storage").symlink_to(volume)
    temporal = await server.new_namespace(f"{namespace}-{volume.name}")
    return Site.make(tmp_path, address=server.address, namespace=temporal)


async def test_a_job_whose_storage_hangs_goes_on_once_it_answers(
    site: Site, worker: WorkerProcess, disk: Disk
) -> None:
    assert worker.pid
    site.submit("hangs", more={"limits": {"hang_s": 3}}, STEPS="400", STEP_S="0.05")
    await until(lambda: site.saved("hangs") >= 40)
    with disk.hanging():
        await until(lambda: "storage" in str(site.status("hangs")["waiting_for"]))
    await until(lambda: site.status("hangs")["state"] in {"completed", "failed"})
    status = site.status("hangs")
    assert (status["state"], status["isolated_nodes"]) == ("completed", [])
    records = json.loads(site.everstep("restarts", "hangs", "--json"))
    assert {one["fault"]["class"] for one in records} == {"hang"}
    newest = records[-1]
    assert (newest["recover_result"], newest["resume_step"] >= 40) == ("success", True)
    assert "does not answer" in newest["waited"][0]["for"]


async def test_a_job_that_is_stopped_while_its_storage_hangs_ends_once_it_answers(
    site: Site, worker: WorkerProcess, disk: Disk
) -> None:
    assert worker.pid
    site.submit("stopped", STEPS="100000", STEP_S="0.05")
    await until(lambda: site.saved("stopped") >= 20)
    with disk.hanging():
        before = site.saved("stopped")
        site.everstep("stop", "stopped", "--grace-s", "1")
        await until(lambda: site.status("stopped")["state"] == "stopping")
        assert site.saved("stopped") == before
    await until(lambda: site.status("stopped")["state"] not in {"running", "stopping"})
    assert site.status("stopped")["state"] == "stopped"
    word = json.loads((site.storage / "stopped" / ".everstep" / "generation").read_text())
    assert (word["job"], word["released"]) == ("stopped", True)
