"""Settings of a local cluster: where its files are, and how large it pretends to be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.observing import hardware
from everstep.agent.storage import permissions
from everstep.backends.agents.commands import environment
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.liveness import Life
from everstep.core.spec import Accelerator
from everstep.protocol import wire

HOST = "127.0.0.1"
"""Where all pods are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """One machine as a cluster. Virtual nodes are names: what runs on them shares the machine."""

    home: Path
    server: str = ""  # whose jobs are begun through this
    nodes: int = 1
    devices: int = 8  # on each node
    accelerator: Accelerator = "simulated"  # the kind of them
    jobs: Path | None = None  # where jobs that name no model_dir have theirs; None: they have none
    slots: int = 1_000  # pods without devices that a node takes
    heal_s: float = 2.0  # how long a simulated device takes to repair itself
    fence_s: float = wire.FENCE_S
    orphan_s: float = wire.ORPHAN_S  # an agent that no worker polls for so long ends
    log_mb: float = wire.LOG_MB  # what of a rank's log stays
    has_namespace: bool = (
        True  # each pod has a PID namespace of its own, where the kernel allows it
    )
    fence_margin_s: float = 5.0
    thresholds: wire.Thresholds = wire.THRESHOLDS  # of the checks before a start
    environ: Mapping[str, str] = field(default_factory=os.environ.copy, repr=False)  # of the worker
    pass_env: tuple[str, ...] = environment.FOR_RANKS  # what of it ranks find

    @property
    def database(self) -> Path:
        return self.home / "local.db"

    @property
    def agents(self) -> Path:
        return self.home / "agents"

    def make_folders(self) -> None:
        """Create the folders of agents and of jobs, readable by this user alone."""
        for folder in filter(None, (self.agents, self.jobs)):
            folder.mkdir(mode=permissions.FOLDER, exist_ok=True)

    def folder(self, uid: str) -> AgentFolder:
        """The folder of this pod's agent."""
        return AgentFolder(path=self.agents / uid)

    def living(self) -> set[str]:
        """The pods whose agents live, of any job and any books."""
        paths = self.agents.iterdir() if self.agents.is_dir() else ()
        return {path.name for path in paths if AgentFolder(path=path).life() is Life.ALIVE}

    def metrics(self, node: str) -> Path:
        """The file with the metrics of this node's simulated devices."""
        return self.home / "sim" / f"{node}.json"

    def kind(self, accelerator: str) -> str:
        """What devices are: the machine's, unless a document names others that are there too."""
        device_kind = hardware.KINDS.get(accelerator)
        return (
            accelerator
            if device_kind is not None and hardware.find(device_kind.tool)
            else self.accelerator
        )

    @property
    def agent(self) -> Path:
        """The agent itself, as one file."""
        return self.home / "agent.pyz"
