"""The state of an agent as the types of the engine: pods, checkpoints, facts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, Protocol

from everstep.backends.agents.client.watch import WatchedAgent
from everstep.core.facts import Fact, gone_id
from everstep.core.world import (
    AgentWork,
    Checkpoint,
    DeviceUse,
    PodState,
    PodView,
    RankSnapshot,
    Unrecognised,
    common,
    slowest,
)
from everstep.protocol import bounds, wire
from everstep.protocol.exits import Exit, RankExit
from everstep.protocol.shapes import progress_of


class PodPlace(Protocol):
    """A pod, as far as its backend has it."""

    @property
    def uid(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def is_out(self) -> bool:
        """Whether it is certain that its agent answers no more."""

    @property
    def is_deleted(self) -> bool:
        """Whether others than Everstep end it."""

    @property
    def dead_sidecars(self) -> tuple[str, ...]:
        """Containers that failed beside the agent's, each with how."""

    @property
    def cut_off_since(self) -> float | None:
        """When its node went out of reach, if that is known from elsewhere than its agent."""


def pod_view(pod: PodPlace, watched: WatchedAgent | None) -> PodView:
    """The pod as its agent's newest state shows it; the state of a silent agent is an old one."""
    state = watched.state if watched is not None else None
    run = state["run"] if state is not None else None
    helper = _ready_helper(state)
    silent_since = pod.cut_off_since
    if silent_since is None and watched is not None and not watched.is_gone:
        silent_since = watched.silent_since
    plain = PodView(
        slot=pod.slot,
        node=pod.node,
        uid=pod.uid,
        state=_state(pod, state, silent=silent_since is not None),
        silent_since=silent_since,
        prewarm_bytes=None if helper is None else helper["rss_bytes"],
        prewarm_modules=() if helper is None else tuple(helper["modules"]),
        snapshots=_snapshots(state, "snapshots"),
        copies=_snapshots(state, "copies"),
        dead_sidecars=pod.dead_sidecars,
    )
    return plain if run is None else _with_run(plain, run)


def _snapshots(
    state: wire.AgentState | None, name: Literal["snapshots", "copies"]
) -> tuple[RankSnapshot, ...]:
    held = () if state is None else state.get(name, ())  # an earlier version has none
    return tuple(
        RankSnapshot(
            s["step"], s["rank"], s["world"], s["generation"], s["at"], s.get("saves", False)
        )
        for s in held
    )


def _ready_helper(state: wire.AgentState | None) -> wire.HelperSeen | None:
    helper = state["helper"] if state is not None else None
    return helper if helper is not None and helper["ready"] else None


def _state(pod: PodPlace, state: wire.AgentState | None, *, silent: bool) -> PodState:
    if pod.is_out:
        return PodState.LOST
    if pod.is_deleted and state is not None:
        return PodState.LEAVING
    if silent:
        return PodState.UNREACHABLE
    if state is None:
        return PodState.PENDING
    run = state["run"]
    if run is None:
        return PodState.STARTING
    if run["stopped"]:
        return PodState.STOPPED
    if run["ranks"] and all(rank["exited_at"] is not None for rank in run["ranks"]):
        return PodState.EXITED
    return PodState.STARTING if run["started_at"] is None else PodState.RUNNING


def _unrecognised(files: wire.Unrecognised | None) -> Unrecognised | None:
    return None if files is None else Unrecognised(files["since"], files["count"], files["example"])


def _with_run(plain: PodView, run: wire.RunSeen) -> PodView:
    return plain._replace(
        run=progress_of({**run, "step": step(run["step"])}),
        exits=tuple(sorted(_exits(run), key=lambda one: (one.at, one.rank))),
        ranks=max(1, len(run["ranks"])),
        can=common(rank.get("can", ()) for rank in run["ranks"]),
        older_ranks=tuple(
            (rank["rank"], rank["incarnation"])
            for rank in run["ranks"]
            if rank["incarnation"] < run["generation"]
        ),
        unrecognised=_unrecognised(run.get("unrecognised")),
        recent_steps=_recent_steps(run),
        # An agent of an earlier version has none.
        device_use=tuple(
            DeviceUse(one["index"], one["percent"], one["memory_mb"], one["memory_total_mb"])
            for one in run.get("devices", ())
        ),
    )


def _recent_steps(run: wire.RunSeen) -> tuple[tuple[int, int], ...] | None:
    # An agent of an earlier version has none.
    steps = [(rank["rank"], rank.get("recent_steps")) for rank in run["ranks"]]
    by_rank = tuple((rank, count) for rank, count in steps if count is not None)
    return by_rank if steps and len(by_rank) == len(steps) else None


def step(number: int | None) -> int | None:
    """The step, within its bounds: an agent of an earlier version reports what a log has."""
    return None if number is None else bounds.step(number)


def _exits(run: wire.RunSeen) -> Iterator[RankExit]:
    for rank in run["ranks"]:
        if rank["exited_at"] is not None and not run["stopped"]:
            yield RankExit(rank["rank"], rank["exited_at"], Exit(rank["code"], rank["signal"]))


def newest_checkpoint(agents: Iterable[WatchedAgent]) -> Checkpoint | None:
    """The newest good checkpoint in the states of these agents, which are those of one job."""
    runs = [a.state["run"] for a in agents if a.state is not None and a.state["run"] is not None]
    saved = [run["checkpoint"] for run in runs if run["checkpoint"] is not None]
    good = [checkpoint(one) for one in saved if one["good"]]
    return max(good, key=newness, default=None)


def newness(saved: Checkpoint) -> tuple[bool, int, float]:
    """Sort key of checkpoints: one with a step is newer than one without."""
    return saved.step is not None, saved.order_number or 0, saved.at


def checkpoint(saved: wire.SavedState) -> Checkpoint:
    return Checkpoint(**saved)


def works(
    pods: Mapping[int, PodPlace],
    agents: Mapping[str, WatchedAgent],
    generation: int,
    *,
    of: Collection[str],
) -> tuple[AgentWork, ...]:
    """The work of these names that agents did for a generation: what took longest."""
    agent_works = (
        AgentWork(slot, pod.node, work["name"], work["began"], work["ended"])
        for slot, pod in pods.items()
        if (watched := agents.get(pod.uid)) is not None and watched.state is not None
        for work in watched.state.get("works", ())  # an agent of an earlier version has none
        if work["generation"] == generation and work["name"] in of
    )
    return slowest(agent_works)


# -- Facts ----------------------------------------------------------------------------------------


def facts(pod: PodPlace, state: wire.AgentState) -> Iterator[Fact]:
    """The facts of an agent as facts of the job. Each has the same identity whichever worker reads it."""
    return (_fact(pod, agent_fact) for agent_fact in state["facts"] if _is_news(agent_fact))


def _is_news(agent_fact: wire.FactSeen) -> bool:
    """False for an exit with code 0, or one that follows from another end: the pod shows those."""
    details = agent_fact["details"]
    is_well = agent_fact["kind"] == "process.exit" and details.get("code") == 0
    return not is_well and not details.get("consequence")


def _fact(pod: PodPlace, agent_fact: wire.FactSeen) -> Fact:
    kind, details = agent_fact["kind"], agent_fact["details"]
    code, device = details.get("code"), details.get("device")
    return Fact(
        id=f"{pod.uid}/{agent_fact['id']}",
        kind=kind,
        at=agent_fact["at"],
        generation=agent_fact["generation"],
        node=pod.node,
        slot=pod.slot,
        rank=agent_fact["rank"],
        device=device if isinstance(device, int) else None,
        message=agent_fact["message"],
        details={k: v for k, v in details.items() if isinstance(v, str | int | float | None)},
        code=None if code is None or kind.startswith("process.") else str(code),
    )


def agent_gone(pod: PodPlace, *, at: float, generation: int) -> Fact:
    """The fact that the pod's agent ended without an order."""
    return Fact(
        id=gone_id(pod.uid),
        kind="agent.gone",
        at=at,
        generation=generation,
        node=pod.node,
        slot=pod.slot,
        message=f"the container of {pod.job}/{pod.slot} is gone",
    )
