"""What a training process is told: the complete environment, the command, its place among the others.

What it is told is a function of the order, of where it runs and of the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.agent import wire
from everstep.agent_client import environment
from everstep.agent_client.watch import Agents
from everstep.core.recovering.placement import ranks_of
from everstep.core.world import StartOrder, StartState
from everstep.dialects.command_files import command_files
from everstep.dialects.dialect import RankPlace
from everstep.dialects.variables import variables


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Where the command is to run."""

    uid: str
    agent: str  # how its ranks reach the agent
    devices: tuple[int, ...]
    accelerator: str  # their kind
    metrics: str | None  # the file in which simulated ones show their use


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ranks of one generation find each other."""

    hosts: tuple[str, ...]  # of the pods, by their node rank
    port: int  # of the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """What a cluster gives to all ranks."""

    cluster: str
    fence_s: float
    environ: Mapping[str, str]  # of the worker
    pass_env: tuple[str, ...]  # what of it they find


def run_command(
    order: StartOrder, slot: int, pod: RunPlace, *, meeting: Meeting, settings: RankSettings
) -> wire.RunCommand:
    """What the agent of this slot is told; the folders of the order are absolute."""
    start = order.slots[slot]
    ranks = ranks_of(
        slot, {s: told.node_rank for s, told in order.slots.items()}, order.processes_per_node
    )
    shared = _shared(order, slot, pod, meeting)
    keep = [rank for rank in ranks if rank in order.kept]
    return {
        "generation": order.generation,
        "phase": order.phase,
        "command": list(order.command),
        "env": {
            **environment.passed(settings.environ, settings.pass_env),
            **order.env,
            **environment.taken(settings.environ, order.env_from),
            **shared,
        },
        "workdir": order.workdir,
        "ranks": [
            {"rank": rank, "local_rank": local, "env": _own(rank, local)}
            for local, rank in enumerate(ranks)
        ],
        "keep": keep,
        "rebuild": dict(shared) if keep else {},
        "stop_siblings": order.stop_siblings,
        "log_pattern": order.log_pattern,
        "log_rules": dict(order.log_rules),
        "checkpoints_path": order.checkpoints_path,
        "checkpoints_format": order.checkpoints_format,
        "model_dir": order.model_dir,
        "run": order.job.run,
        "cluster": settings.cluster,
        "fence_s": settings.fence_s,
        "counts": {
            "schedule_count": start.schedule_count,
            "process_start_count": start.process_start_count,
        },
        "prewarm": list(order.prewarm),
        "devices": list(pod.devices),
        "metrics": pod.metrics,
        "accelerator": pod.accelerator,
        "still_s": order.still_s,
        "files": command_files(order),
    }


async def run_of(
    agents: Agents, uid: str, generation: int, command: Callable[[], wire.RunCommand | str]
) -> wire.RunSeen | str | None:
    """The run of this generation, begun if the agent was not told of it yet, or why there can be none.

    None: nobody there knows of it. A command that cannot be given is a text that says why.
    """
    known = agents.known.get(uid)
    state = known.state if known is not None else None
    if not _is_told(state, generation):
        if isinstance(body := command(), str):
            return body
        state = await agents.command(uid, wire.RUN, body)
    run = state["run"] if state is not None else None
    return run if run is not None and run["generation"] == generation else None


def _is_told(state: wire.AgentState | None, generation: int) -> bool:
    """Ranks that were kept are of the generation before anybody was told to start it."""
    run = state["run"] if state is not None else None
    if state is None or run is None or run["generation"] < generation:
        return False
    return not state["kept"] or run["started_at"] is not None or run["failed"] is not None


def state_of(runs: Mapping[int, wire.RunSeen | str | None]) -> StartState:
    """How far a start is, by what each slot's agent says of its run; a text is why it was told of none."""
    started = [
        s for s, run in runs.items() if isinstance(run, dict) and run["started_at"] is not None
    ]
    failed = {slot: run["failed"] if isinstance(run, dict) else run for slot, run in runs.items()}
    return StartState(
        started=tuple(started),
        pending=tuple(slot for slot in runs if slot not in started),
        failed={slot: why for slot, why in failed.items() if why is not None},
    )


def _own(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _shared(order: StartOrder, slot: int, pod: RunPlace, meeting: Meeting) -> Mapping[str, str]:
    start, nodes = order.slots[slot], len(order.slots)
    place = RankPlace(
        job=order.job.id,
        start=start,
        restarts=order.restarts,
        ranks=order.processes_per_node,
        devices=len(pod.devices),
        hosts=meeting.hosts,
    )
    told: dict[str, Any] = {
        "WORLD_SIZE": nodes * order.processes_per_node,
        "LOCAL_WORLD_SIZE": order.processes_per_node,
        "NODE_RANK": start.node_rank,
        "NNODES": nodes,
        "MASTER_ADDR": meeting.hosts[0],
        "MASTER_PORT": meeting.port,
        "EVERSTEP_JOB": order.job.id,
        "EVERSTEP_PHASE": order.phase,
        "EVERSTEP_GENERATION": order.generation,
        "EVERSTEP_SLOT": slot,
        "EVERSTEP_POD": pod.uid,
        "EVERSTEP_AGENT": pod.agent,
        **variables(place),
    }
    if order.kept:
        told["EVERSTEP_STATE_FROM"] = ",".join(map(str, order.kept))
    if order.resume is not None:
        if order.resume.step is not None:
            told["EVERSTEP_RESUME_STEP"] = order.resume.step
        told["EVERSTEP_RESUME_PATH"] = order.resume.path
    return {name: str(value) for name, value in told.items()}
