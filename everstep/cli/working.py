"""A worker of ours: what of this machine it serves, what it is told, and how it begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.hardware import Devices
from everstep.agent_client.environment import ALL
from everstep.cli.state import home
from everstep.processes import Process, environment

WORKER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What of this machine is to be served, and where."""

    nodes: int
    devices: Devices
    port: int | None = None
    ui_port: int | None = None
    allows_others: bool = False  # to be on a machine whose server lets them in


def guest_log() -> Path:
    """Of a worker that is not the only one of this state directory."""
    return home() / f"worker-{os.getpid()}.log"


async def begun(machine: Machine, server: Mapping[str, str], log: Path) -> Process:
    """A worker that is ready, for the server that these `TEMPORAL_*` variables name."""
    worker = Process(
        # Relative paths of documents begin here; a worker.py that lies here is not ours.
        [sys.executable, "-P", "-m", "worker"],
        name="worker",
        log=log,
        env=environment(**_settings(machine), **server),
    )
    await worker.says("everstep worker ready", within_s=WORKER_S)
    return worker


def _settings(machine: Machine) -> dict[str, str]:
    """What we were told a worker is told too, except what is settled here."""
    ours = {name: text for name, text in os.environ.items() if name.startswith("EVERSTEP_")}
    return {
        "EVERSTEP_PASS_ENV": ALL,  # who runs a script here expects their shell
        **ours,
        "EVERSTEP_BACKEND": "local",
        "EVERSTEP_HOME": str(home()),
        "EVERSTEP_NODES": str(machine.nodes),
        "EVERSTEP_DEVICES": str(machine.devices.count),
        "EVERSTEP_ACCELERATOR": machine.devices.kind,
    }
