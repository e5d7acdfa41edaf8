"""examples/survivors with the real PyTorch in two pods: a cut connection, then a lost container.

Only pods have addresses of their own, and a container that is gone takes its agent and its memory with it.
"""

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
from tests.support.machine import EXAMPLES, ROOT
from tests.support.workerproc import WorkerProcess
from tests.testbed.machines import Machines
from tests.torch.ranks import PYTHON, WITHIN_S, undisturbed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

EXAMPLE = EXAMPLES / "survivors"
FAULTY = ROOT / "tests" / "torch" / "faulty.py"
ENV = {"STEPS": "90", "SAVE_EVERY": "20", "OMP_NUM_THREADS": "1"}
CUT_AT, KILLED_AT = 15, 40


def in_pods(site: Site) -> dict[str, Any]:
    """The example's document for two pods of one rank each, which mount its folder, PyTorch and Everstep."""
    folders = {"storage": (site.storage, STORAGE)}
    for name, folder in (("pytorch", PYTHON.parents[1]), ("everstep", ROOT / "everstep")):
        folders[name] = (folder, str(folder))
    mounts = [{"name": name, "mountPath": there} for name, (_, there) in folders.items()]
    volumes = [
        {"name": name, "hostPath": {"path": str(here)}} for name, (here, _) in folders.items()
    ]
    as_root = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
    out = f"{STORAGE}/out"
    faulty = {"EXAMPLE": f"{STORAGE}/train.py", "OUT": out, "FAULTS": f"cut:1:{CUT_AT}"}
    return {
        "cluster": "pods",
        "image": "machine",
        "command": [str(PYTHON), "faulty.py"],
        "workdir": STORAGE,
        "nodes": 2,
        "processes_per_node": 1,
        "env": {**ENV, **faulty, "STEP_S": "0.1", "PYTHONPATH": str(ROOT)},
        "pod_template": {
            "spec": {
                "volumes": volumes,
                "securityContext": as_root,
                "containers": [{"name": "train", "volumeMounts": mounts}],
            }
        },
    }


async def test_the_rank_of_a_sound_pod_keeps_its_process(
    site: Site, worker: WorkerProcess, machines: Machines, namespace: str, tmp_path: Path
) -> None:
    assert worker.pid
    out = site.storage / "out"
    out.mkdir()
    for script in (EXAMPLE / "train.py", FAULTY):
        shutil.copy(script, site.storage)
    document = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    path = tmp_path / "job.json"
    path.write_text(json.dumps(merged(document, {"spec": in_pods(site)})))
    site.everstep("submit", str(path))
    await until((out / f"step_{KILLED_AT}.pt").exists, within_s=WITHIN_S)
    await machines.fault(
        "container-kill", namespace=namespace, pod="survivors-1-g1", container="train"
    )
    await until(
        lambda: site.status("survivors")["state"] in {"completed", "failed"}, within_s=WITHIN_S
    )
    assert site.status("survivors")["state"] == "completed", site.everstep("why", "survivors")
    online, lost = json.loads(site.everstep("restarts", "survivors", "--json"))
    assert (online["level"], online["resume_step"]) == ("operator_online", CUT_AT - 1)
    assert (lost["level"], lost["resume_from"]) == ("process", "ranks")
    assert lost["resume_step"] >= KILLED_AT
    assert [len((out / f"pids-{rank}").read_text().split()) for rank in (0, 1)] == [1, 2]
    alone = tmp_path / "alone"
    undisturbed(EXAMPLE / "train.py", {**ENV, "OUT": str(alone), "PYTHONPATH": str(ROOT)})
    final = json.loads((out / "final.json").read_text())
    assert final == json.loads((alone / "final.json").read_text())
