"""Choose the snapshots in memory from which all ranks resume, in place of a checkpoint. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from everstep.core.deciding.decision import Plan
from everstep.core.levels import FaultClass
from everstep.core.recovering.placement import ranks_of
from everstep.core.slots import format_ranges
from everstep.core.state import JobState
from everstep.core.world import Checkpoint, CopyPlace, PodState, PodView, RankSnapshot, Snapshot

STARTS_MOST = 2
"""Runs in a row that begin from the same snapshots. The next one begins from the checkpoint: the state in
memory may be what ends them."""

KEEPS_SNAPSHOTS = frozenset({"restore", "snapshot"})
"""Capabilities of ranks that keep snapshots and begin from them."""
Written = tuple[int, int]
"""The step of a snapshot, and the generation of the process that wrote it."""
NO_COPIES: Mapping[Written, HeldCopy] = {}
SPOILS_STATE = frozenset({FaultClass.NUMERIC, FaultClass.CHECKPOINT})
"""Classes whose fault may be in the state itself: memory has the newest of it."""


def may_be_held(state: JobState) -> bool:
    """Whether there may be snapshots of all ranks.

    What was observed last may lack those of a pod that was just lost, and have an older copy of them.
    """
    return state.remembered is not None or {*state.can} >= KEEPS_SNAPSHOTS


def may_be_sound(state: JobState, cls: FaultClass) -> bool:
    """Whether there may be snapshots that this fault did not spoil."""
    return may_be_held(state) and cls not in SPOILS_STATE


def may_be_used(plan: Plan) -> bool:
    """Whether the ranks of a plan may resume from memory. A rollback and kept ranks have their own state."""
    return plan.restores and not plan.keep and plan.remedy.older_than_step is None


def choose(
    plan: Plan,
    pods: Sequence[PodView],
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
    pods: Sequence[PodView], node_ranks: Mapping[int, int], processes_per_node: int
) -> Snapshot | None:
    """The newest step of which every rank has a whole snapshot in its own pod, or a copy in another one.

    A rank that gets another number, or is one of another number of ranks, has another part of the state.
    Snapshots of two generations may be of two trainings, of which one was left.
    """
    if not {*node_ranks} <= {pod.slot for pod in pods}:
        return None
    held = _held(pods, node_ranks, processes_per_node)
    newest = max(_common([one.written for one in held]), default=None)
    return None if newest is None else _of(newest, held)


def _held(
    pods: Sequence[PodView], node_ranks: Mapping[int, int], processes_per_node: int
) -> list[Held]:
    """What memory holds of each rank. A pod that is missing has nothing."""
    world = len(node_ranks) * processes_per_node
    by_slot = {pod.slot: pod for pod in pods}
    copies = _copies(pods, world)
    return [
        Held(
            rank,
            of_rank=_written(
                one
                for one in (by_slot[slot].snapshots if slot in by_slot else ())
                if (one.rank, one.world) == (rank, world)
            ),
            copies=copies.get(rank, NO_COPIES),
        )
        for slot in node_ranks
        for rank in ranks_of(slot, node_ranks, processes_per_node)
    ]


def why_none(
    pods: Sequence[PodView], node_ranks: Mapping[int, int], processes_per_node: int
) -> str:
    """Why no step is in memory for all ranks, in a sentence; empty if some is, or if nothing is in memory."""
    held = _held(pods, node_ranks, processes_per_node)
    if not any(one.written for one in held) or _common([one.written for one in held]):
        return ""
    if lacking := [one.rank for one in held if not one.written]:
        ranks = f"rank {lacking[0]}" if len(lacking) == 1 else f"ranks {format_ranges(lacking)}"
        return f"memory holds neither a snapshot nor a copy of {ranks}"
    behind = min(held, key=lambda one: max(one.written))
    apart = [one for one in held if not one.written & behind.written]
    ahead = max(
        apart or [one for one in held if one is not behind], key=lambda one: min(one.written)
    )
    of_another = " of another run" if apart and behind.steps & ahead.steps else ""
    return (
        f"memory holds no step of all ranks: it holds {behind.text}, and {ahead.text}{of_another}"
    )


def to_dump(
    plan: Plan,
    pods: Sequence[PodView],
    node_ranks: Mapping[int, int],
    checkpoint: Checkpoint | None,
) -> int | None:
    """The step whose snapshots are lost with the pods that a plan gives up, and can be saved before.

    None: pods stay that hold it for all ranks, the checkpoint is as new, or no rank can save it.
    """
    leaving = frozenset(plan.remedy.recreate)
    if not (leaving and may_be_used(plan)):
        return None
    count = plan.phase.processes_per_node
    newest = newest_common(pods, node_ranks, count)
    if newest is None or (checkpoint is not None and not _is_older(checkpoint, newest)):
        return None
    emptied = [p._replace(snapshots=(), copies=()) if p.slot in leaving else p for p in pods]
    left = newest_common(emptied, node_ranks, count)
    if left is not None and left.step >= newest.step:
        return None
    saves = any(one.saves and one.step == newest.step for pod in pods for one in pod.snapshots)
    return newest.step if saves else None


def _is_older(checkpoint: Checkpoint, snapshot: Snapshot) -> bool:
    """Whether a checkpoint is older. Where its name has no step its time decides."""
    if checkpoint.step is None:
        return checkpoint.at < snapshot.at
    return checkpoint.step < snapshot.step


class Held(NamedTuple):
    """What is held of one rank: when each snapshot was written, and which slot has a copy."""

    rank: int
    of_rank: Mapping[Written, float]
    copies: Mapping[Written, HeldCopy]

    @property
    def written(self) -> frozenset[Written]:
        return frozenset((*self.of_rank, *self.copies))

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(step for step, _ in self.written)

    @property
    def text(self) -> str:
        """`steps 9 and 10 of rank 0`, `copies of steps 3 and 4 of rank 1`."""
        steps = [str(step) for step in sorted(self.steps)]
        several = "s" * (len(steps) > 1)
        what = "" if self.of_rank else "a copy of " if not several else "copies of "
        return f"{what}step{several} {' and '.join(steps)} of rank {self.rank}"


class HeldCopy(NamedTuple):
    """A copy, and the slot whose agent holds it."""

    slot: int
    at: float


def _written(snapshots: Iterable[RankSnapshot]) -> dict[Written, float]:
    return {(one.step, one.generation): one.at for one in snapshots}


def _copies(pods: Sequence[PodView], world: int) -> Mapping[int, dict[Written, HeldCopy]]:
    """The copies of each rank; each pod is looked at once, as there may be thousands."""
    by_rank: defaultdict[int, dict[Written, HeldCopy]] = defaultdict(dict)
    for pod in pods:
        if pod.state is PodState.LOST:
            continue
        for one in pod.copies:
            if one.world == world:
                by_rank[one.rank][one.step, one.generation] = HeldCopy(pod.slot, one.at)
    return by_rank


def _of(newest: Written, held: Iterable[Held]) -> Snapshot:
    """The snapshots of this step: those of the ranks themselves, and copies where these are gone."""
    held = tuple(held)
    copies = {one.rank: one.copies[newest] for one in held if newest not in one.of_rank}
    times = [one.of_rank[newest] for one in held if newest in one.of_rank]
    return Snapshot(
        newest[0],
        at=max([*times, *(copy.at for copy in copies.values())]),
        copies=tuple(CopyPlace(rank, copy.slot) for rank, copy in sorted(copies.items())),
    )


def _common(written: Sequence[Collection[Written]]) -> frozenset[Written]:
    sets = [frozenset(steps) for steps in written]
    return sets[0].intersection(*sets[1:]) if sets else frozenset()
