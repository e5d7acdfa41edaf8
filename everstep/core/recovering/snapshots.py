"""Choose the snapshots in memory from which all ranks resume, in place of a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from everstep.core.deciding.decision import Plan
from everstep.core.levels import FaultClass
from everstep.core.recovering.placement import ranks_of
from everstep.core.world import Checkpoint, PodView, Snapshot

STARTS_MOST = 2
"""So many runs in a row begin from the same snapshots. The next one begins from the checkpoint: the state in
memory may be what ends them."""
Written = tuple[int, int]
"""The step of a snapshot, and the generation of the process that wrote it."""
SPOILS_STATE = frozenset({FaultClass.NUMERIC, FaultClass.CHECKPOINT})
"""Classes whose fault may be in the state itself: memory has the newest of it."""


def may_be_used(plan: Plan) -> bool:
    """Whether the ranks of a plan may resume from memory. A rollback and kept ranks have their own state."""
    return plan.restores and not plan.keep and plan.remedy.older_than_step is None


def choose(
    plan: Plan,
    pods: Iterable[PodView],
    node_ranks: Mapping[int, int],
    checkpoint: Checkpoint | None,
) -> Snapshot | None:
    """The newest step of which every rank has a whole snapshot, unless the checkpoint is newer."""
    newest = newest_common(pods, node_ranks, plan.phase.processes_per_node)
    if newest is None or (checkpoint is not None and _is_newer(checkpoint, newest)):
        return None
    before = plan.snapshot
    if before is None or before.step != newest.step:
        return newest
    return newest._replace(starts=before.starts + 1) if before.starts < STARTS_MOST else None


def _is_newer(checkpoint: Checkpoint, snapshot: Snapshot) -> bool:
    """Whether a checkpoint is newer. Where its name has no step its time decides."""
    if checkpoint.step is None:
        return checkpoint.at > snapshot.at
    return checkpoint.step > snapshot.step


def newest_common(
    pods: Iterable[PodView], node_ranks: Mapping[int, int], processes_per_node: int
) -> Snapshot | None:
    """The newest step of which every rank has a whole snapshot in its own pod.

    A rank that gets another number, or is one of another number of ranks, has another part of the state.
    Snapshots of two generations may be of two trainings, of which one was left.
    """
    world = len(node_ranks) * processes_per_node
    by_slot = {pod.slot: pod for pod in pods}
    times = [
        {
            (one.step, one.generation): one.at
            for one in pod.snapshots
            if (one.rank, one.world) == (rank, world)
        }
        for slot in node_ranks
        for pod in [by_slot.get(slot)]
        for rank in ranks_of(slot, node_ranks, processes_per_node)
        if pod is not None
    ]
    if len(times) < world:
        return None
    newest = max(_common(times), default=None)
    return None if newest is None else Snapshot(newest[0], at=max(at[newest] for at in times))


def _common(times: Collection[Mapping[Written, float]]) -> frozenset[Written]:
    sets = [frozenset(steps) for steps in times]
    return sets[0].intersection(*sets[1:]) if sets else frozenset()
