"""Jobs on the real control plane, driven verb by verb as the contract suite of backends drives them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.settings import KubernetesSettings
from everstep.protocol import wire
from tests.backends.lab import Run, order_end
from tests.testbed import python39

STORAGE = "/storage"
"""The shared volume in every pod."""
PYTHON = "/opt/python"
"""In a pod whose image has another Python than this machine."""
FENCE_S, MARGIN_S = wire.FENCE_S, 0.5
SHORT_FENCE_S = 3.0
"""For a test that waits until the time of a fence has passed. A warden reads the fence once a second: on a
busy machine several readings may take longer, and then the ranks are ended."""
NOT_READY_S = 0.5
RANKS_USER = 1000
"""The user of pods whose template names none."""
TRAINER = Path(__file__).parents[1] / "backends" / "trainer.py"


@dataclass
class KubernetesLab:
    """A worker's view of one namespace, and a folder of this machine as the volume of its pods."""

    backend: KubernetesBackend
    settings: KubernetesSettings
    folder: Path
    storage: str = STORAGE
    steps_together: bool = False
    python: Path | None = None  # the one of the image, as `python39.made`; None: this machine's
    _address: str = ""  # of the API server
    command: tuple[str, ...] = field(
        default=(
            "/bin/sh",
            "-c",
            f"CONTROL={STORAGE}/control CHECKPOINTS={STORAGE}/$EVERSTEP_JOB/checkpoints"
            f" exec /usr/bin/env python3 {STORAGE}/trainer.py",
        )
    )

    @classmethod
    async def open(
        cls,
        kubeconfig: str,
        namespace: str,
        folder: Path,
        *,
        fence_s: float = FENCE_S,
        default_namespace: str = "",
    ) -> Self:
        folder.joinpath("control").mkdir(parents=True)
        folder.joinpath("control").chmod(0o777)  # ranks of another user find their orders there
        folder.chmod(0o777)
        shutil.copy(TRAINER, folder)
        settings = KubernetesSettings(
            kubeconfig=kubeconfig,
            namespace=namespace,
            default_namespace=default_namespace,
            fence_s=fence_s,
            fence_margin_s=MARGIN_S,
            not_ready_s=NOT_READY_S,
        )
        return cls(await KubernetesBackend.open(settings), settings, folder)

    @property
    def fence_s(self) -> float:
        return self.settings.fence_s + MARGIN_S

    async def another_worker(self) -> None:
        """The worker is gone in the middle of everything; another one serves the same cluster."""
        await self.backend.close()
        self.backend = await KubernetesBackend.open(self.settings)

    def end_rank(self, job: str, rank: int, code: int) -> None:
        """Let a rank end now, with this exit code."""
        order_end(self.folder / "control", job, rank, code)

    @property
    def pod(self) -> Mapping[str, Any]:
        """Pods that mount the lab's folder."""
        paths = {"storage": (STORAGE, self.folder)}
        environment: Mapping[str, str] = {}
        if self.python is not None:
            paths["python"] = (PYTHON, self.python)
            environment = python39.environment(PYTHON)
        mounts = [{"name": name, "mountPath": inside} for name, (inside, _) in paths.items()]
        env = [{"name": name, "value": value} for name, value in environment.items()]
        spec = {
            "volumes": [
                {"name": name, "hostPath": {"path": str(path)}} for name, (_, path) in paths.items()
            ],
            "containers": [{"name": "train", "volumeMounts": mounts, "env": env}],
        }
        return {"image": "machine", "pod_template": {"spec": spec}, "accelerators_per_node": 0}

    async def fault(self, line: str) -> None:
        """Only those of ranks and of the volume: nodes and devices of a cluster fail in ways of their own."""
        match line.split():
            case ["kill", job, rank, "exit", code]:
                self.end_rank(job, int(rank), int(code))
            case ["kill", job, rank, "signal", number]:
                self._signal(job, rank, int(number))
            case ["storage", job, *words]:
                folder = self.folder / job
                folder.mkdir(exist_ok=True)
                set_writable(folder, words == ["writable"])
            case ["hang", job, rank]:
                self._signal(job, rank, signal.SIGSTOP)
            case _:
                raise NotImplementedError(line)

    def _signal(self, job: str, rank: str, number: int) -> None:
        folder = f"CHECKPOINTS={self.storage}/{job}/checkpoints"
        marks = {f"EVERSTEP_JOB={job}".encode(), f"RANK={rank}".encode(), folder.encode()}
        for pid in processes_marked(marks):
            if Path(f"/proc/{pid}/root{STORAGE}").samefile(self.folder):
                os.kill(pid, number)

    async def unavailable(self, on: bool) -> None:
        """Requests of the worker fail; what it follows already is not cut off."""
        configuration = self.backend._api._client.configuration
        self._address = self._address or configuration.host
        configuration.host = "https://127.0.0.1:1" if on else self._address

    async def recorded(self, job: str) -> list[str]:
        logs = sorted(self.folder.joinpath(job).glob("*_restartable/run.log"))
        return [line.split(" ", 2)[2] for log in logs for line in log.read_text().splitlines()]

    async def effects(self) -> list[str] | None:
        return None


@dataclass
class KubernetesRun(Run):
    """A job of two pods."""

    slots: tuple[int, ...] = (0, 1)


def set_writable(folder: Path, is_writable: bool) -> None:
    """Whether the user of the pods may change anything in the folder, which is theirs."""
    user, mode = (RANKS_USER, 0o700) if is_writable else (0, 0o500)
    os.chown(folder, user, user)
    folder.chmod(mode | 0o055)
    for path in folder.iterdir() if folder.is_dir() else ():  # closed, so that none comes or goes
        set_writable(path, is_writable)


def processes_marked(marks: Collection[bytes], *, script: str = TRAINER.name) -> list[int]:
    """Processes of this script with all of these in their environment, wherever they run."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = set((entry / "environ").read_bytes().split(b"\0"))
            is_of_script = script.encode() in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if environ.issuperset(marks) and is_of_script:
            pids.append(int(entry.name))
    return pids


def ranks_of(job: str, *, slot: int, generation: int) -> list[int]:
    """Processes of a slot's ranks, wherever they run."""
    marks = (
        f"EVERSTEP_JOB={job}",
        f"EVERSTEP_SLOT={slot}",
        f"EVERSTEP_GENERATION={generation}",
    )
    return processes_marked([mark.encode() for mark in marks])
