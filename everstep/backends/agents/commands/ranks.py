"""Commands to agents about their ranks: stop older generations, start a new one.

`run_command` builds the whole command of one slot (command line, environment, ranks) from the order, the
place of the pod and the settings of the cluster; nothing else goes in. `stop` and `run_of` send commands,
and may be repeated until they are carried out. `state_of` sums up how far a start is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from everstep.agent.observing import npu_hang
from everstep.backends.agents.client.link import REQUEST_S, NoAnswer, Refused
from everstep.backends.agents.client.watch import Agents
from everstep.backends.agents.commands import environment, storage
from everstep.chronicle.spans import run_key
from everstep.core.recovering.placement import ranks_of
from everstep.core.spec import PrefetchOrder
from everstep.core.world import RankPosition, StartOrder, StartState
from everstep.dialects.command_files import command_files
from everstep.dialects.dialect import RankPlace
from everstep.dialects.variables import variables
from everstep.protocol import rank_memory, wire
from everstep.protocol.shapes import run_json
from everstep.telemetry.configuration import traces_protocol
from everstep.telemetry.trace_ids import traceparent

# -- The end --------------------------------------------------------------------------------------


class Stopped(NamedTuple):
    """The progress of a stop: whether everything older has ended, the ranks that go on, and the evidence."""

    is_done: bool
    kept_ranks: Sequence[int] = ()
    positions: Sequence[RankPosition] = ()
    evidence: str | None = None


async def stop(
    agents: Agents,
    uid: str,
    generation: int,
    *,
    keep: Collection[int],
    hold_s: float = 0.0,
    grace_s: float = 0.0,
    evidence: bool = False,
) -> Stopped | None:
    """Order the stop and return its progress. None if the agent does not answer.

    The command names the ranks in `keep` that this agent has, or all of them while its ranks are unknown.
    """
    watched = agents.by_uid.get(uid)
    run = watched.state["run"] if watched is not None and watched.state is not None else None
    ranks = [rank["rank"] for rank in run["ranks"]] if run is not None else keep
    command: wire.StopCommand = {
        "generation": generation,
        "grace_s": grace_s,
        "evidence": evidence,
        "keep": [rank for rank in ranks if rank in keep],
        "hold_s": hold_s,
    }
    state = await agents.command(uid, wire.STOP, command)
    if state is None:
        return None
    is_done = wire.is_stopped(state, command)
    if not is_done:
        return Stopped(is_done=False, evidence=state["evidence"])
    positions = [
        RankPosition(one["rank"], one["completed"], tuple(one.get("copies", ())))
        for one in state.get("positions", ())
    ]
    return Stopped(
        True, kept_ranks=state["kept_ranks"], positions=positions, evidence=state["evidence"]
    )


# -- The start ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """The pod in which the command is to run."""

    uid: str
    agent: str  # how its ranks reach the agent
    devices: tuple[int, ...]
    accelerator: str  # their kind
    metrics: str | None  # the file in which simulated ones show their use


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The address at which the ranks of one generation find each other."""

    hosts: tuple[str, ...]  # of the pods, by their node rank
    port: int  # of the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """Settings of a cluster for all ranks."""

    cluster: str  # identity of its books
    fence_s: float
    environ: Mapping[str, str]  # of the worker
    pass_env: tuple[str, ...]  # what of it they get


class MemoryPeers(NamedTuple):
    """The agents of other pods, as far as they have a part in the snapshots of this one."""

    neighbour: wire.Neighbour | None = None  # gets copies
    fetch: Sequence[wire.Fetch] = ()  # of copies
    leads: bool = False  # it names the step that all pods pin


def run_command(
    order: StartOrder,
    slot: int,
    pod: RunPlace,
    *,
    meeting: Meeting,
    settings: RankSettings,
    peers: MemoryPeers = MemoryPeers(),  # noqa: B008  # it never changes
) -> wire.RunCommand:
    """The command to the agent of this slot; the folders of the order are absolute."""
    start = order.slots[slot]
    ranks = ranks_of(slot, {slot: start.node_rank}, order.processes_per_node)
    shared = _shared(order, slot, pod, meeting)
    keep = [rank for rank in ranks if rank in order.kept_ranks]
    env = {
        **environment.passed(settings.environ, settings.pass_env),
        **_trace(order, settings),
        **order.env,
        **environment.requested(settings.environ, order.env_from),
        **shared,
    }
    return {
        "order": order.run,
        "generation": order.generation,
        "phase": order.phase,
        "env": env,
        "ranks": [
            {"rank": rank, "local_rank": local, "env": _rank_variables(rank, local)}
            for local, rank in enumerate(ranks)
        ],
        "keep": keep,
        "rebuild": dict(shared) if keep else {},
        "snapshot_step": None if order.snapshot is None else order.snapshot.step,
        "neighbour": peers.neighbour,
        "fetch": [*peers.fetch],
        "pods": len(order.slots),
        "leads": peers.leads,
        "run": order.job.run,
        "cluster": settings.cluster,
        "fence_s": settings.fence_s,
        "counts": {
            "schedule_count": start.schedule_count,
            "process_start_count": start.process_start_count,
        },
        "devices": list(pod.devices),
        "metrics": pod.metrics,
        "accelerator": pod.accelerator,
        "pace_s": wire.PACE_S / order.time_scale,
        "npu_look_s": npu_hang.MINUTE_S / order.time_scale,
        "files": command_files(order),
        "prefetch": _prefetch_plans(order, env) if start.node_rank == 0 else [],
    }


def _trace(order: StartOrder, settings: RankSettings) -> dict[str, str]:
    """Where the worker exports traces: the span of this run, as the parent of what a rank traces."""
    if traces_protocol(settings.environ) is None:
        return {}
    key = run_key(order.phase, order.generation)
    return {"TRACEPARENT": traceparent(order.job.id, order.job.first_run, key)}


NOT_FOR_PREFETCH = frozenset({"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "EVERSTEP_AGENT"})
"""Variables that lead to the ranks that train: a prefetch must not join them, nor pass for one of them."""


def _prefetch_plans(order: StartOrder, env: Mapping[str, str]) -> list[wire.PrefetchPlan]:
    """A plan for each smaller number of nodes that the order names. `env`: that of all ranks."""
    prefetch = order.prefetch
    if prefetch is None:
        return []
    return [_prefetch_plan(order, prefetch, nodes, env) for nodes in prefetch.nodes]


def _prefetch_plan(
    order: StartOrder, prefetch: PrefetchOrder, nodes: int, env: Mapping[str, str]
) -> wire.PrefetchPlan:
    fewer = dict(sorted(order.slots.items())[:nodes])
    run = order.run._replace(command=[*prefetch.what.command])
    smaller = replace(order, run=run, slots=fewer)
    ranks = nodes * order.processes_per_node
    plain = {name: value for name, value in env.items() if name not in NOT_FOR_PREFETCH}
    return {
        "nodes": nodes,
        "command": [*prefetch.what.command],
        "env": {**plain, "NNODES": str(nodes), "WORLD_SIZE": str(ranks)},
        "files": command_files(smaller),
        "log": prefetch.what.log.replace("{nodes}", str(nodes)),
        "began": prefetch.began,
        "owner": storage.owner(order.job.id, order.phase, prefetch.began),
    }


RUN_S = wire.STORAGE_S + REQUEST_S
"""Time limit of a run command: the agent reads the fences before it starts a rank."""


async def run_of(
    agents: Agents, uid: str, generation: int, command: Callable[[], wire.RunCommand | str]
) -> wire.RunSeen | str | None:
    """Have the agent run this generation, and return the run as it is now.

    `command` builds the run command, or says why it cannot be built; it is called only if the agent has none
    for this generation yet. None: the agent has not accepted it so far. A text: why there will be no run.
    """
    watched = agents.by_uid.get(uid)
    state = watched.state if watched is not None else None
    if not _has_order(state, generation):
        if isinstance(body := command(), str):
            return body
        answer = await _send_run(agents, uid, body)
        if isinstance(answer, str):
            return answer
        state = answer
    run = state["run"] if state is not None else None
    return run if run is not None and run["generation"] == generation else None


async def _send_run(
    agents: Agents, uid: str, command: wire.RunCommand
) -> wire.AgentState | str | None:
    """Send the command. Returns why the agent will never accept it, or None if it did not accept it now."""
    try:
        answer = await agents.request_patiently(uid, wire.RUN, run_json(command), within_s=RUN_S)
        return agents.add_answer(uid, answer)
    except NoAnswer:
        return None
    except Refused as refused:
        return refused.why if refused.status in wire.NEVER_ACCEPTED else None


def _has_order(state: wire.AgentState | None, generation: int) -> bool:
    """Whether the agent has the run command of this generation.

    Kept ranks have this generation from their stop on, before the command came: their run counts once it was
    started or has failed.
    """
    run = state["run"] if state is not None else None
    if state is None or run is None or run["generation"] < generation:
        return False
    return not state["kept_ranks"] or run["started_at"] is not None or run["failed"] is not None


def state_of(runs: Mapping[int, wire.RunSeen | str | None]) -> StartState:
    """How far a start is, by the run that each slot's agent reports; a text is why it got no command."""
    started = [
        s for s, run in runs.items() if isinstance(run, dict) and run["started_at"] is not None
    ]
    failed = {slot: run["failed"] if isinstance(run, dict) else run for slot, run in runs.items()}
    return StartState(
        started=tuple(started),
        pending=tuple(slot for slot in runs if slot not in started),
        failed={slot: why for slot, why in failed.items() if why is not None},
    )


def _rank_variables(rank: int, local_rank: int) -> dict[str, str]:
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
    env: dict[str, Any] = {
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
    if order.kept_ranks:
        env["EVERSTEP_STATE_FROM"] = ",".join(map(str, order.kept_ranks))
    if order.snapshot is not None:
        env[rank_memory.SNAPSHOT_STEP] = order.snapshot.step
    if order.resume is not None:
        if order.resume.step is not None:
            env["EVERSTEP_RESUME_STEP"] = order.resume.step
        env["EVERSTEP_RESUME_PATH"] = order.resume.path
    return {name: str(value) for name, value in env.items()}
