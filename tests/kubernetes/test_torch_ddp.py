"""examples/torch_ddp with the real PyTorch in two pods, of which one is killed: not a bit is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.documents.merge import merged
from tests.kubernetes.jobs import STORAGE
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.machine import EXAMPLES
from tests.support.workerproc import WorkerProcess
from tests.testbed.machines import Machines
from tests.torch.ranks import PYTHON, WITHIN_S, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

EXAMPLE = EXAMPLES / "torch_ddp"
STEPS, KILLED_AT = 120, 30


def in_pods(site: Site) -> dict[str, Any]:
    """The example's document for two pods of one rank each, which mount its folder and PyTorch.

    PyTorch is mounted where it is: a pod's own /tmp hides a checkout below that of the machine.
    """
    environment = PYTHON.parents[1]
    mounts = [
        {"name": "storage", "mountPath": STORAGE},
        {"name": "pytorch", "mountPath": str(environment), "readOnly": True},
    ]
    volumes = [
        {"name": "storage", "hostPath": {"path": str(site.storage)}},
        {"name": "pytorch", "hostPath": {"path": str(environment)}},
    ]
    # The interpreter with PyTorch is root's own.
    as_root = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
    train = {"name": "train", "volumeMounts": mounts}
    return {
        "cluster": "pods",
        "image": "machine",
        "command": [str(PYTHON), "train.py"],
        "workdir": STORAGE,
        "nodes": 2,
        "processes_per_node": 1,
        "env": {"STEPS": str(STEPS)},
        "pod_template": {
            "spec": {"volumes": volumes, "securityContext": as_root, "containers": [train]}
        },
    }


async def test_a_pod_is_killed_and_the_weights_are_the_same_to_the_last_bit(
    site: Site, worker: WorkerProcess, machines: Machines, namespace: str, tmp_path: Path
) -> None:
    assert worker.pid
    assert PYTHON.exists(), "there is no PyTorch; try: make torch"
    shutil.copy(EXAMPLE / "train.py", site.storage)
    document = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    path = tmp_path / "job.json"
    path.write_text(json.dumps(merged(document, {"spec": in_pods(site)})))
    site.everstep("submit", str(path))
    out = site.storage / "out"
    await until((out / f"step-{KILLED_AT}" / ".metadata").exists, within_s=WITHIN_S)
    await machines.fault(
        "container-kill", namespace=namespace, pod="torch-ddp-1-g1", container="train"
    )
    await until(
        lambda: site.status("torch-ddp")["state"] in {"completed", "failed"}, within_s=WITHIN_S
    )
    assert site.status("torch-ddp")["state"] == "completed", site.everstep("why", "torch-ddp")
    [record] = json.loads(site.everstep("restarts", "torch-ddp", "--json"))
    assert (record["level"], record["recover_result"]) == ("pod", "success")
    assert record["resume_step"] >= KILLED_AT

    alone = tmp_path / "alone"
    alone.mkdir()
    undisturbed(
        EXAMPLE / "train.py", {"OUT": str(alone), "STEPS": str(STEPS), "SAVE_EVERY": str(STEPS)}
    )
    assert json.loads((out / "final.json").read_text()) == json.loads(
        (alone / "final.json").read_text()
    )
