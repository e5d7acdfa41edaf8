"""From which snapshots in memory a start resumes, and when from the checkpoint instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from everstep.core.deciding.decision import Plan
from everstep.core.levels import FaultClass, Level
from everstep.core.loop import lifecycle
from everstep.core.recovering import snapshots
from everstep.core.recovering.plans import launch_plan
from everstep.core.world import Checkpoint, CopyPlace, PodState, PodView, RankSnapshot, Snapshot
from tests.support.builders import levels, running, sighting

RANKS = {0: 0, 1: 1}
"""The node rank of each slot."""


def plan(**changes: object) -> Plan:
    changes = {"restores": True, **changes}
    return replace(launch_plan(running(nodes=2).state), **changes)  # type: ignore[arg-type]  # fields of a plan


def pod(
    slot: int, *steps: int, rank: int | None = None, world: int = 2, generation: int = 1
) -> PodView:
    rank = slot if rank is None else rank
    held = tuple(RankSnapshot(step, rank, world, generation, at=step) for step in steps)
    return PodView(slot=slot, node="n0", uid="u", state=PodState.STOPPED, snapshots=held)


def chosen(
    *pods: PodView, checkpoint: Checkpoint | None = None, before: Snapshot | None = None
) -> int | None:
    snapshot = snapshots.choose(plan(snapshot=before), pods, RANKS, checkpoint)
    return None if snapshot is None else snapshot.step


def test_all_ranks_resume_from_the_newest_step_that_each_of_them_has() -> None:
    assert chosen(pod(0, 6, 7), pod(1, 7, 8)) == 7


@pytest.mark.parametrize(
    "pods",
    [
        (pod(0, 6), pod(1, 7, 8)),
        (pod(0, 7),),
        (pod(0, 7), pod(1)),
        (pod(0, 7), pod(1, 7, rank=0)),
        (pod(0, 7), pod(1, 7, world=3)),
        (pod(0, 7), pod(1, 7, generation=2)),
    ],
    ids=["no common step", "gone", "new", "another rank", "another world", "another generation"],
)
def test_a_rank_without_its_part_leaves_the_checkpoint(pods: tuple[PodView, ...]) -> None:
    assert chosen(*pods) is None


@pytest.mark.parametrize(
    ("checkpoint", "step"),
    [
        (Checkpoint(step=6, path="c"), 7),
        (Checkpoint(step=7, path="c"), 7),
        (Checkpoint(step=8, path="c"), None),
        (Checkpoint(step=None, path="last.pt", at=6.0), 7),
        (Checkpoint(step=None, path="last.pt", at=8.0), None),
    ],
)
def test_the_newer_of_snapshot_and_checkpoint_counts(
    checkpoint: Checkpoint, step: int | None
) -> None:
    assert chosen(pod(0, 7), pod(1, 7), checkpoint=checkpoint) == step


def test_the_third_run_in_a_row_does_not_begin_from_the_same_snapshots() -> None:
    pods = pod(0, 7), pod(1, 7)
    first = snapshots.choose(plan(), pods, RANKS, None)
    assert first == Snapshot(7, at=7, starts=1)
    second = snapshots.choose(plan(snapshot=first), pods, RANKS, None)
    assert second == Snapshot(7, at=7, starts=2)
    assert snapshots.choose(plan(snapshot=second), pods, RANKS, None) is None


def test_a_newer_snapshot_counts_anew() -> None:
    before = Snapshot(7, at=7, starts=2)
    snapshot = snapshots.choose(plan(snapshot=before), (pod(0, 8), pod(1, 8)), RANKS, None)
    assert snapshot == Snapshot(8, at=8, starts=1)


@pytest.mark.parametrize("changes", [{"restores": False}, {"keep": (0,)}], ids=str)
def test_ranks_that_do_not_restore_resume_from_the_checkpoint(changes: dict[str, object]) -> None:
    assert snapshots.may_be_used(plan())
    assert not snapshots.may_be_used(plan(**changes))


def test_a_rollback_does_not_resume_from_memory() -> None:
    goes_back = plan()
    goes_back = replace(goes_back, remedy=replace(goes_back.remedy, older_than_step=5))
    assert not snapshots.may_be_used(goes_back)


CAN = ("restore", "snapshot")


@pytest.mark.parametrize(
    ("cls", "restores"), [(FaultClass.CRASH, True), (FaultClass.NUMERIC, False)]
)
def test_a_fault_that_may_be_in_the_state_does_not_resume_from_it(
    cls: FaultClass, restores: bool
) -> None:
    job = running(nodes=2)
    job.see(sighting(cls), can=CAN, remembered=7)
    assert job.plan.restores is restores


def test_a_restart_that_got_the_training_further_is_not_followed_by_a_coarser_level() -> None:
    """Whether a newer checkpoint or memory shows it; without either the next level is tried."""
    further, stuck = running(nodes=4), running(nodes=4)
    for job, steps in ((further, (10, 20, 30, 40)), (stuck, (7, 8, 9))):
        for slot, step in enumerate(steps):
            job.see(sighting(FaultClass.CRASH, slot=slot), can=CAN, remembered=step)
            job.succeeds(snapshot=Snapshot(step, at=0.0))
    assert levels(further) == [Level.IN_PLACE] * 4
    assert levels(stuck) == [Level.IN_PLACE, Level.POD, Level.JOB]


def test_a_phase_does_not_count_what_the_one_before_had_in_memory() -> None:
    job = running(nodes=2)
    job.report(can=CAN, remembered=7)
    entered = lifecycle.enter_phase(job.state, 0)
    assert (entered.remembered, entered.snapshot) == (None, None)


# -- Copies in other pods -------------------------------------------------------------------------


def holding(view: PodView, *steps: int, rank: int, generation: int = 1, world: int = 2) -> PodView:
    """The pod with copies of another one's rank."""
    copies = tuple(RankSnapshot(step, rank, world, generation, at=step) for step in steps)
    return view._replace(copies=copies)


def test_a_copy_stands_in_for_a_snapshot_that_is_gone() -> None:
    pods = holding(pod(0, 6, 7), 5, 6, rank=1), pod(1)
    snapshot = snapshots.choose(plan(), pods, RANKS, None)
    assert snapshot == Snapshot(6, at=6, copies=(CopyPlace(rank=1, slot=0),))


def test_a_rank_with_a_snapshot_of_its_own_needs_no_copy() -> None:
    pods = holding(pod(0, 6, 7), 6, rank=1), pod(1, 6)
    snapshot = snapshots.choose(plan(), pods, RANKS, None)
    assert snapshot == Snapshot(6, at=6)


@pytest.mark.parametrize(
    "pods",
    [
        (holding(pod(0, 7), 6, rank=1), pod(1)),
        (holding(pod(0, 7), 7, rank=1, generation=2), pod(1)),
        (holding(pod(0, 7), 7, rank=1, world=3), pod(1)),
        (holding(pod(0, 7), 7, rank=1)._replace(state=PodState.LOST), pod(1)),
        (pod(0), pod(1)),
    ],
    ids=["another step", "another generation", "another world", "lost too", "both lost"],
)
def test_without_a_copy_the_checkpoint_is_left(pods: tuple[PodView, ...]) -> None:
    assert chosen(*pods) is None


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ((pod(0, 7), pod(1, 7)), ""),
        ((pod(0), pod(1)), ""),
        (
            (holding(pod(0, 9, 10), 3, 4, rank=1), pod(1)),
            "memory holds no step of all ranks: it holds copies of steps 3 and 4 of rank 1,"
            " and steps 9 and 10 of rank 0",
        ),
        (
            (holding(pod(0, 9, 10), 4, rank=1), pod(1)),
            "memory holds no step of all ranks: it holds a copy of step 4 of rank 1,"
            " and steps 9 and 10 of rank 0",
        ),
        ((pod(0, 7), pod(1)), "memory holds neither a snapshot nor a copy of rank 1"),
        (
            (pod(0, 7), pod(1, 7, generation=2)),
            "memory holds no step of all ranks: it holds step 7 of rank 0, and step 7 of rank 1"
            " of another run",
        ),
    ],
    ids=["some", "nothing", "behind", "one copy", "gone", "another training"],
)
def test_what_memory_lacks_is_said(pods: tuple[PodView, ...], why: str) -> None:
    assert snapshots.why_none(pods, RANKS, 1) == why


# -- Before pods are given up ---------------------------------------------------------------------


class CountedCopies(tuple[RankSnapshot, ...]):
    """Copies that count how often they are gone through."""

    __slots__ = ()
    times: ClassVar[int] = 0

    def __iter__(self) -> Iterator[RankSnapshot]:
        CountedCopies.times += 1
        return super().__iter__()


def test_the_copies_of_each_pod_are_gone_through_once_however_many_ranks_there_are() -> None:
    count, CountedCopies.times = 300, 0
    pods = tuple(
        pod(n, 7, world=count)._replace(
            copies=CountedCopies([RankSnapshot(7, (n - 1) % count, count, 1, at=7.0)])
        )
        for n in range(count)
    )
    newest = snapshots.newest_common(pods, {n: n for n in range(count)}, 1)
    assert newest is not None
    assert (newest.step, newest.copies) == (7, ())
    assert CountedCopies.times == count


def saving(view: PodView) -> PodView:
    """The pod with a rank that named a function."""
    return view._replace(snapshots=tuple(one._replace(saves=True) for one in view.snapshots))


def giving_up(*slots: int) -> Plan:
    before = plan()
    return replace(before, remedy=replace(before.remedy, recreate=slots))


def dumped(
    *pods: PodView, gives_up: tuple[int, ...], checkpoint: Checkpoint | None = None
) -> int | None:
    return snapshots.to_dump(giving_up(*gives_up), pods, RANKS, checkpoint)


def test_what_all_pods_take_with_them_is_saved_before() -> None:
    assert dumped(saving(pod(0, 6, 7)), pod(1, 7, 8), gives_up=(0, 1)) == 7


def test_what_other_pods_hold_for_all_ranks_needs_no_saving() -> None:
    pods = holding(saving(pod(0, 6, 7)), 6, 7, rank=1), pod(1, 6, 7)
    assert dumped(*pods, gives_up=(1,)) is None
    assert dumped(*pods, gives_up=(0,)) == 7


def test_an_older_copy_that_stays_is_not_enough() -> None:
    pods = holding(saving(pod(0, 6, 7)), 6, rank=1), pod(1, 6, 7)
    assert dumped(*pods, gives_up=(1,)) == 7


@pytest.mark.parametrize(
    ("checkpoint", "step"),
    [(Checkpoint(step=6, path="c"), 7), (Checkpoint(step=7, path="c"), None), (None, 7)],
)
def test_what_a_checkpoint_has_is_not_saved_again(
    checkpoint: Checkpoint | None, step: int | None
) -> None:
    pods = saving(pod(0, 7)), pod(1, 7)
    assert dumped(*pods, gives_up=(0, 1), checkpoint=checkpoint) == step


def test_without_a_function_nothing_is_saved() -> None:
    assert dumped(pod(0, 7), pod(1, 7), gives_up=(0, 1)) is None


def test_pods_that_stay_keep_their_snapshots() -> None:
    assert dumped(saving(pod(0, 7)), saving(pod(1, 7)), gives_up=()) is None
