"""Jobs on the cluster as a user submits them and looks at them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.kubernetes.jobs import STORAGE, TRAINER
from tests.support.machine import EVERSTEP
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Site:
    """The command line of a user whose jobs run on the cluster, and the volume of their pods."""

    env: dict[str, str]
    storage: Path

    @classmethod
    def make(cls, folder: Path, *, address: str, namespace: str) -> Site:
        """`address` and `namespace` are those of the Temporal server."""
        storage = folder / "storage"
        (storage / "control").mkdir(parents=True)
        for one in (storage, storage / "control"):
            one.chmod(0o777)  # ranks are another user
        shutil.copy(TRAINER, storage)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("EVERSTEP_", "TEMPORAL_"))}
        env |= {
            "TEMPORAL_ADDRESS": address,
            "TEMPORAL_NAMESPACE": namespace,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "EVERSTEP_HOME": str(folder / "home"),
        }
        return cls(env, storage)

    def everstep(self, *words: str, code: int = 0) -> str:
        """What a command prints, which ends with this exit code."""
        ended = subprocess.run(
            [*EVERSTEP, *words],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HUNG_S,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout if code == 0 else ended.stdout + ended.stderr

    def status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.everstep("status", job, "--json"))
        return status

    def saved(self, job: str) -> int:
        """The newest step of which there is a checkpoint; 0: there is none."""
        names = (self.storage / job / "checkpoints").glob("step-*.json")
        return max((int(name.stem.removeprefix("step-")) for name in names), default=0)

    def submit(
        self,
        name: str,
        *,
        train: Mapping[str, Any] = NOTHING,
        labels: Mapping[str, str] = NOTHING,
        annotations: Mapping[str, str] = NOTHING,
        pod: Mapping[str, Any] = NOTHING,
        more: Mapping[str, Any] = NOTHING,
        sidecars: Sequence[Mapping[str, Any]] = (),
        **env: str,
    ) -> None:
        """Submit a job of two pods. `more` adds to its spec, `pod` to that of its pods.

        `train` adds to the container that the ranks run in, `sidecars` are others. `labels` and `annotations`
        are those of the pods.
        """
        document = {
            "apiVersion": "everstep/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "cluster": "pods",
                "nodes": 2,
                "image": "machine",
                "command": ["/bin/sh", "-c", f"exec /usr/bin/env python3 {STORAGE}/trainer.py"],
                "env": {
                    "CONTROL": f"{STORAGE}/control",
                    "CHECKPOINTS": f"{STORAGE}/{name}/checkpoints",
                    **env,
                },
                "model_dir": f"{STORAGE}/{name}",
                "checkpoints": {"path": f"{STORAGE}/{name}/checkpoints"},
                "pod_template": {
                    "metadata": {"labels": dict(labels), "annotations": dict(annotations)},
                    "spec": {
                        **pod,
                        "volumes": [{"name": "storage", "hostPath": {"path": str(self.storage)}}],
                        "containers": [
                            {
                                "name": "train",
                                "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
                                **train,
                            },
                            *sidecars,
                        ],
                    },
                },
                **more,
            },
        }
        path = self.storage.parent / f"{name}.json"
        path.write_text(json.dumps(document))
        self.everstep("submit", str(path))
