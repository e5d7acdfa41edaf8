"""Ranks of PyTorch for tests: started by hand, or seen as their agent sees them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep.backends.agents.client.link import NoAnswer
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.processes import free_port
from everstep.protocol import wire
from tests.support import marks
from tests.support.machine import ROOT, Machine

PYTHON = ROOT / ".venv-torch" / "bin" / "python3"
WITHIN_S = 300.0
"""As `HUNG_S`; to import PyTorch alone takes longer than a minute where much else is going on."""


def undisturbed(script: Path, env: Mapping[str, str], *, world: int = 2) -> None:
    """Start that many ranks by hand, and wait until they have ended undisturbed."""
    shared = {
        **{k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")},
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "by-hand",
        "OMP_NUM_THREADS": "1",
        **env,
    }
    ranks = [
        subprocess.Popen(
            [PYTHON, script],
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in map(str, range(world))
    ]
    try:
        outputs = [rank.communicate(timeout=WITHIN_S)[0] for rank in ranks]
        assert not any(rank.returncode for rank in ranks), outputs
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def observed(machine: Machine, holds: Callable[[wire.AgentState], object]) -> wire.AgentState:
    """The state of the only agent, once it is so."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        for path in (machine.home / "agents").glob("*"):
            try:
                state: Any = asyncio.run(AgentFolder(path=path).request("GET", wire.STATE))
            except NoAnswer:
                continue
            if holds(state):
                result: wire.AgentState = state
                return result
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def run_of(state: wire.AgentState) -> wire.RunSeen:
    assert state["run"] is not None
    return state["run"]


def process_of(state: wire.AgentState, rank: int) -> int:
    """The process of a living rank, as this process sees it."""
    process = marks.process_of(state["uid"], run_of(state)["ranks"][rank]["pid"])
    assert process is not None, f"rank {rank} does not run"
    return process
