"""Everstep on this machine: server and worker as processes of their own, the job as a user submits it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.events import Events
from benchmarks.peers.plan import LIMIT_S
from benchmarks.peers.ranks import (
    SCRIPT,
    Running,
    both_step,
    end_ranks,
    environment,
    kill_rank,
    until,
)
from everstep.backends.agents.client.link import NoAnswer
from everstep.protocol import wire
from tests.support.rehearsal import Handle, Rehearsal

JOB = "peers"
NODES = 5
"""Each lost one is gone for good."""


@asynccontextmanager
async def everstep(
    folder: Path,
    *,
    python: Path,
    env: Mapping[str, str],
    nodes: int = 1,
    spec: Mapping[str, Any],
) -> AsyncIterator[Running]:
    """A job of two ranks, on one node or on two."""
    events = Events(folder / "events")
    # Ranks are killed by the numbers that they write down.
    settings = {"EVERSTEP_PID_NAMESPACE": "false"}
    # In another folder than the tests' its worker starts as a user's does, with all its imports.
    async with Rehearsal(folder / "r", nodes=NODES, cwd=folder, env=settings) as stage:
        job = await stage.submit(document(folder, python, environment(folder, **env), nodes, spec))

        async def is_ready() -> None:
            await until(lambda: _runs(job), "the state running")
            if spec.get("prewarm") not in ("off", None):
                await until(lambda: _has_helpers(stage), "helpers that have imported all")

        async def kill_with_controller() -> float:
            before = stage.newest(JOB)
            at = kill_rank(events)
            await stage.until(lambda: stage.newest(JOB) > before, "the Recovery")
            await stage.worker.restart()
            return at

        async def lose_node() -> float:
            node = next(pod.node for pod in stage.pods(JOB) if pod.slot == 1)
            at = time.time()
            await stage.fault(f"node-down {node}")
            return at

        try:
            await both_step(events)
            yield Running(
                folder=folder,
                events=events,
                is_ready=is_ready,
                kill_with_controller=kill_with_controller,
                lose_node=lose_node,
            )
        finally:
            end_ranks(events)
            with contextlib.suppress(Exception):
                await job.terminate()


async def _runs(job: Handle) -> bool:
    return bool((await job.query("status"))["state"] == "running")


async def _has_helpers(stage: Rehearsal) -> bool:
    """Whether each agent that has a helper process has one that is ready."""
    helpers = []
    for pod in stage.pods(JOB):
        with contextlib.suppress(NoAnswer):
            helpers.append((await pod.folder.request("GET", wire.STATE))["helper"])
    return bool(helpers) and all(helper and helper["ready"] for helper in helpers)


def document(
    folder: Path,
    python: Path,
    env: Mapping[str, str],
    nodes: int,
    spec: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "command": [str(python), str(SCRIPT)],
            "workdir": str(folder),
            "nodes": nodes,
            "processes_per_node": 2 // nodes,
            "model_dir": str(folder / "out"),
            "checkpoints": {"path": str(folder / "ckpt")},
            "env": dict(env),
            "limits": {"hang_s": LIMIT_S},
            "recovery": {"no_progress_restarts": None},
            **spec,
        },
    }
