"""The image of deploy/Dockerfile, built and started as deploy/kubernetes does: `make test-image`."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import __version__
from tests.kubernetes.conftest import worker_process
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.patience import HUNG_S
from tests.testbed import worker_image
from tests.testbed.worker_image import Container, Image

pytestmark = [pytest.mark.image, pytest.mark.timeout(1_800)]  # building it takes minutes

KUBECONFIG = "/etc/everstep/kubeconfig"
LOOK = """
import os, worker
print(os.getuid(), os.getgid())
open("/tmp/scratch", "w").close()
try:
    open("/scratch", "w")
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with worker_image.built() as one:
        yield one


def printed(image: Image, folder: Path, *args: str) -> str:
    bundle = image.bundle(folder, Container(args=args))
    command = ["runc", "run", "--bundle", str(bundle), f"everstep-{folder.parent.name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_line_is_in_the_image(image: Image, tmp_path: Path) -> None:
    assert printed(image, tmp_path / "one", "everstep", "--version") == f"everstep {__version__}\n"


def test_a_container_is_not_root_and_writes_to_tmp_alone(image: Image, tmp_path: Path) -> None:
    out = printed(image, tmp_path / "one", "python", "-c", LOOK)
    assert out == "10001 10001\nRead-only file system\n"


@pytest.mark.usefixtures("machines")
async def test_a_worker_in_the_image_runs_a_job_by_the_agent_that_it_brings(
    image: Image, site: Site, worker_kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(with_authority(json.loads(Path(worker_kubeconfig).read_text())))
    kubeconfig.chmod(0o644)
    worker = worker_process(site, KUBECONFIG, namespace, EVERSTEP_HOME="/tmp/everstep")
    files = {KUBECONFIG: kubeconfig}
    bundle = image.bundle(tmp_path / "one", Container(env=worker.settings, files=files))
    worker.command = ["runc", "run", "--bundle", str(bundle), namespace]
    try:
        await worker.start()
        site.submit("in-image", STEPS="20", CRASH_AT_STEP="1:12:3")
        await until(lambda: site.status("in-image")["state"] == "completed")
        assert site.status("in-image")["restarts"] == 1
        assert worker.stuck_tasks() == []
    finally:
        subprocess.run(["runc", "delete", "--force", namespace], check=False)
        worker.kill9()


def with_authority(kubeconfig: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    """The file without paths of this machine."""
    cluster = kubeconfig["clusters"][0]["cluster"]
    if path := cluster.pop("certificate-authority", None):
        cluster["certificate-authority-data"] = base64.b64encode(Path(path).read_bytes()).decode()
    return json.dumps(kubeconfig)
