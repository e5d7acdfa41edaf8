"""Pods as the protocol shows them, from what the books and their agents say. Reads, never changes."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.agent import wire
from everstep.agent_client.watch import Watched
from everstep.backends.local.pods import Pod
from everstep.core.world import Checkpoint, PodState, PodView, RankExit


def pod_view(pod: Pod, watched: Watched | None) -> PodView:
    """The pod as its agent tells it; of a silent one, what was last heard."""
    state = watched.state if watched is not None else None
    run = state["run"] if state is not None else None
    silent_since = _silent_since(pod, watched)
    plain = PodView(
        slot=pod.slot,
        node=pod.node,
        uid=pod.uid,
        state=_state(pod, state, silent=silent_since is not None),
        silent_since=silent_since,
        prewarm_bytes=_prewarm_bytes(state),
    )
    return plain if run is None else _with_run(plain, run)


def _prewarm_bytes(state: wire.State | None) -> int | None:
    helper = state["helper"] if state is not None else None
    return helper["rss_bytes"] if helper is not None and helper["ready"] else None


def _silent_since(pod: Pod, watched: Watched | None) -> float | None:
    if pod.service == "cut_off":
        return pod.since
    return watched.silent_since if watched is not None and not watched.is_gone else None


def _state(pod: Pod, state: wire.State | None, *, silent: bool) -> PodState:
    if pod.is_out:
        return PodState.LOST
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


def _with_run(plain: PodView, run: wire.RunSeen) -> PodView:
    exits = tuple(sorted(_exits(run), key=lambda exit: (exit.at, exit.rank)))
    return PodView(
        slot=plain.slot,
        node=plain.node,
        uid=plain.uid,
        state=plain.state,
        silent_since=plain.silent_since,
        generation=run["generation"],
        started_at=run["started_at"],
        exits=exits,
        ranks=max(1, len(run["ranks"])),
        step=run["step"],
        step_at=run["step_at"],
        first_step_at=run["first_step_at"],
        longest_gap_s=run["longest_gap_s"],
        moved_at=run["moved_at"],
        io_at=run.get("io_at"),  # an agent of an earlier version does not tell
        busy_at=run.get("busy_at"),
        unmatched_since=run.get("unmatched_since"),
        free_bytes=run.get("free_bytes"),
        saved_at=run.get("saved_at"),
        save_every_s=run.get("save_every_s"),
        schedule_count=run["counts"].get("schedule_count", 1),
        process_start_count=run["counts"].get("process_start_count", 0),
        prewarm_bytes=plain.prewarm_bytes,
    )


def _exits(run: wire.RunSeen) -> Iterable[RankExit]:
    for rank in run["ranks"]:
        if rank["exited_at"] is not None and not run["stopped"]:
            yield RankExit(
                rank=rank["rank"], at=rank["exited_at"], code=rank["code"], signal=rank["signal"]
            )


def newest_checkpoint(agents: Iterable[Watched]) -> Checkpoint | None:
    """The newest good one that any agent of the job has seen."""
    runs = [a.state["run"] for a in agents if a.state is not None and a.state["run"] is not None]
    saved = [run["checkpoint"] for run in runs if run["checkpoint"] is not None]
    found = [checkpoint(one) for one in saved if one["good"]]
    return max(found, key=_newness, default=None)


def _newness(saved: Checkpoint) -> tuple[bool, int, float]:
    """What counts up is newer than what does not."""
    return saved.step is not None, saved.counts or 0, saved.at


def checkpoint(saved: wire.SavedState) -> Checkpoint:
    return Checkpoint(**saved)
