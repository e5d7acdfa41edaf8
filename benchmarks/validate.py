"""What `everstep validate` costs: the whole command, in a process of its own, processor time of all of it.

The documents are a native one, a trainer configuration as large as the largest of the Model Zoo, and an
AscendJob with a ConfigMap beside it, larger than any of MindCluster's public samples.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.support.commands import run
from everstep.documents.text import to_yaml

GOAL_S = 0.5
RUNS = 15
SECTIONS = 54
"""With so many transforms it has 23 KB, as the largest has."""
PLACES = 40
"""Variables, mounts and volumes of each pod."""

SCRIPT = Path(sys.executable).with_name("everstep")
NATIVE: dict[str, Any] = {
    "apiVersion": "everstep/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "demo"},
    "spec": {"command": ["true"], "nodes": 4, "limits": {"hang_s": 600}},
}


def trainer() -> dict[str, Any]:
    transform = {
        "name": "random_resized_crop",
        "size": [224, 224],
        "scale": [0.32, 1.0],
        "interpolation": "bicubic",
        "normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        "jitter": [{"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}, 0.8],
    }
    data = {"batch_size": 1024, "transforms": [dict(transform) for _ in range(SECTIONS)]}
    init = {"model_dir": "out", "checkpoint": {"steps": 1000}, "model": {"name": "dino"}}
    return {"trainer": {"init": init, "fit": {"train_dataloader": data}}}


def ascend_job() -> dict[str, Any]:
    container = {
        "name": "ascend",
        "image": "pytorch:latest",
        "command": ["/bin/bash", "-c"],
        "args": ["cd /job; bash train_start.sh /job/code /job/output main.py --epochs=90"],
        "env": [{"name": f"SETTING_{n}", "value": f"value {n}"} for n in range(PLACES)],
        "resources": {"limits": {"huawei.com/Ascend910": 8}},
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/mnt/{n}"} for n in range(PLACES)],
    }
    volumes = [{"name": f"v{n}", "hostPath": {"path": f"/data/{n}"}} for n in range(PLACES)]
    role = {
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container], "volumes": volumes}},
    }
    labels = {"framework": "pytorch", "fault-scheduling": "grace", "fault-retry-times": "3"}
    job = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "large", "labels": labels},
        "spec": {"replicaSpecs": {"Master": role, "Worker": {**role, "replicas": 15}}},
    }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "reset-config-large"},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [config_map, job]}


def cost_s(*words: str) -> float:
    before = os.times()
    run([SCRIPT, *words])
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def main() -> int:
    medians = {}
    with tempfile.TemporaryDirectory() as folder:
        native, zoo = Path(folder, "job.yaml"), Path(folder, "params.yaml")
        manifest = Path(folder, "manifest.yaml")
        native.write_text(to_yaml(NATIVE))
        zoo.write_text(to_yaml(trainer()))
        manifest.write_text(to_yaml(ascend_job()))
        print(f"processor time of the whole command, s, {RUNS} runs")
        print(f"  {'':32}{'median':>8}{'min':>8}{'max':>8}")
        for name, words in {
            "validate, native": ("validate", str(native)),
            f"validate, {zoo.stat().st_size // 1024} KB of a trainer": ("validate", str(zoo)),
            f"validate, {manifest.stat().st_size // 1024} KB of an AscendJob": (
                "validate",
                str(manifest),
            ),
            "explain, native": ("explain", str(native)),
            "--help": ("--help",),
        }.items():
            spent = [cost_s(*words) for _ in range(RUNS)]
            medians[name] = statistics.median(spent)
            print(f"  {name:32}{medians[name]:8.2f}{min(spent):8.2f}{max(spent):8.2f}")
    worst = max(cost for name, cost in medians.items() if name.startswith("validate"))
    is_met = worst <= GOAL_S
    print(f"\ngoal for validate: at most {GOAL_S} s, {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
