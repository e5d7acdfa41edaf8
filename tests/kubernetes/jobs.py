"""Jobs on the real control plane, driven verb by verb as the contract suite of backends drives them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.core.world import PlaceOrder
from tests.backends.lab import Run

STORAGE = "/storage"
"""The shared volume in every pod."""
FENCE_S, MARGIN_S = 1.0, 0.5
TRAINER = Path(__file__).parents[1] / "backends" / "trainer.py"


@dataclass
class KubernetesLab:
    """A worker's view of one namespace, and a folder of this machine as the volume of its pods."""

    backend: KubernetesBackend
    settings: KubernetesSettings
    folder: Path
    storage: str = STORAGE
    steps_together: bool = False
    fence_s: float = FENCE_S + MARGIN_S
    command: tuple[str, ...] = field(
        default=(
            "/bin/sh",
            "-c",
            f"CONTROL={STORAGE}/control CHECKPOINTS={STORAGE}/$EVERSTEP_JOB/checkpoints"
            f" exec /usr/bin/env python3 {STORAGE}/trainer.py",
        )
    )

    @classmethod
    async def open(cls, kubeconfig: str, namespace: str, folder: Path) -> KubernetesLab:
        folder.joinpath("control").mkdir(parents=True)
        folder.joinpath("control").chmod(0o777)  # ranks of another user find their orders there
        folder.chmod(0o777)
        shutil.copy(TRAINER, folder)
        settings = KubernetesSettings(
            kubeconfig=kubeconfig, namespace=namespace, fence_s=FENCE_S, fence_margin_s=MARGIN_S
        )
        return cls(await KubernetesBackend.open(settings), settings, folder)

    async def another_worker(self) -> None:
        """The worker is gone in the middle of everything; another one serves the same cluster."""
        await self.backend.close()
        self.backend = await KubernetesBackend.open(self.settings)

    def end_rank(self, job: str, rank: int, code: int) -> None:
        """Let a rank end now, with this exit code."""
        (self.folder / "control" / f"{job}-{rank}").write_text(str(code))

    async def fault(self, line: str) -> None:
        raise NotImplementedError(line)  # no fault is rehearsed on a real cluster

    async def unavailable(self, on: bool) -> None:
        raise NotImplementedError  # the API server of the tests stays up

    async def recorded(self, job: str) -> list[str]:
        return (self.folder / job / "run.log").read_text().splitlines()

    async def effects(self) -> list[str] | None:
        return None


@dataclass
class KubernetesRun(Run):
    """A job whose pods mount the lab's folder."""

    slots: tuple[int, ...] = (0, 1)

    def place_order(self, **changes: Any) -> PlaceOrder:
        assert isinstance(self.lab, KubernetesLab)
        template = {
            "spec": {
                "volumes": [{"name": "storage", "hostPath": {"path": str(self.lab.folder)}}],
                "containers": [
                    {
                        "name": "train",
                        "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
                    }
                ],
            }
        }
        usual = {"image": "machine", "pod_template": template, "accelerators_per_node": 0}
        return super().place_order(**{**usual, **changes})


def ranks_of(job: str, *, slot: int, generation: int) -> list[int]:
    """Processes of a slot's ranks, wherever they run."""
    marks = {
        f"EVERSTEP_JOB={job}".encode(),
        f"EVERSTEP_SLOT={slot}".encode(),
        f"EVERSTEP_GENERATION={generation}".encode(),
    }
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = set((entry / "environ").read_bytes().split(b"\0"))
            is_trainer = b"trainer.py" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if marks <= environ and is_trainer:
            pids.append(int(entry.name))
    return pids
