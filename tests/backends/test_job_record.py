"""The record of a job: what each order changes in it, and what it must not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.agents import job_record
from everstep.backends.agents.job_record import JobRecord
from everstep.core.errors import StaleGeneration
from everstep.core.world import FenceOrder, JobRef, StartOrder
from everstep.protocol.wire import RunOrder

FIRST = JobRef(id="demo", run="run-1")
SECOND = JobRef(id="demo", run="run-2")


def generation(record: JobRecord, ref: JobRef, key: str, above: int = 0) -> tuple[JobRecord, int]:
    return job_record.with_generation(record, ref, key, above=above, server="")


def test_one_key_of_one_run_has_one_generation() -> None:
    record, first = generation(JobRecord(id="demo"), FIRST, "launch")
    record, second = generation(record, SECOND, "launch")
    assert (first, second) == (1, 2)
    assert generation(record, FIRST, "launch") == (record, 1)
    assert (record.newest, record.newest_run) == (2, "run-2")


def test_a_generation_is_above_what_the_job_has_and_what_was_found_on_storage() -> None:
    record, _ = generation(JobRecord(id="demo"), FIRST, "launch")
    record = job_record.with_newer_generation(record, 7, is_held=True)
    assert record.may_have_unknown_pods
    record, new = generation(record, FIRST, "launch", above=1)
    assert new == 8


def test_the_fence_of_a_generation_is_recorded_once() -> None:
    order = FenceOrder(
        job=FIRST, generation=3, lowest_slot=0, run=RunOrder(checkpoints_path="/ckpt")
    )
    record = job_record.with_fence(JobRecord(id="demo"), order, 10.0, ["/real"])
    record = job_record.with_held_fence(record, 3)
    again = job_record.with_fence(record, order, 20.0, ["/other"])
    assert (again.fenced_at, again.fence_holds) == (10.0, True)
    assert again.folders == ("/other", "/real")


def test_a_late_proof_says_nothing_of_a_newer_fence() -> None:
    order = FenceOrder(job=FIRST, generation=3, lowest_slot=0, run=RunOrder())
    record = job_record.with_fence(JobRecord(id="demo"), order, 10.0, [])
    assert job_record.with_held_fence(record, 2) == record


def test_a_fence_without_checkpoints_keeps_where_they_were() -> None:
    record = JobRecord(id="demo", checkpoints=job_record.CheckpointPlace(path="/ckpt"))
    order = FenceOrder(job=FIRST, generation=3, lowest_slot=0, run=RunOrder())
    assert job_record.with_fence(record, order, 1.0, []).checkpoints.path == "/ckpt"


def test_the_ranks_of_a_generation_meet_at_one_port() -> None:
    order = StartOrder(job=FIRST, phase="main", generation=3, run=RunOrder(), slots={})
    record = job_record.with_start(JobRecord(id="demo"), order, port=4000)
    assert job_record.with_start(record, order, port=5000).port == 4000
    later = replace(order, generation=4)
    assert job_record.with_start(record, later, port=5000).port == 5000


def test_an_adopted_job_is_complete_for_later_generations_alone() -> None:
    record = job_record.adopted(JobRecord(id="demo"), FIRST, "ours", 4)
    assert not job_record.is_complete(record, FIRST, "ours", 4)
    record, new = generation(record, FIRST, "launch")
    assert new == 5
    assert job_record.is_complete(record, FIRST, "ours", 5)


def test_a_job_adopted_at_a_newer_generation_than_it_knew_is_complete_once_it_knows_its_books() -> (
    None
):
    """A worker that was killed had taken generation 5 in the other books; the call named 4."""
    before, after = replace(FIRST, books="other"), replace(FIRST, books="ours")
    record = job_record.adopted(JobRecord(id="demo"), before, "ours", 5)
    for number in (4, 5):
        assert not job_record.is_complete(record, before, "ours", number), "a repeat of that call"
        assert job_record.is_complete(record, after, "ours", number)


def test_an_earlier_run_does_not_end_what_a_later_one_began() -> None:
    record, _ = generation(JobRecord(id="demo"), FIRST, "launch")
    record, newest = generation(record, SECOND, "launch")
    with pytest.raises(StaleGeneration):
        job_record.closed(record, FIRST)
    assert job_record.closed(record, SECOND).closed == newest


def test_a_job_that_began_again_is_not_forgotten() -> None:
    record = JobRecord(id="demo", newest=2, placed=2, fenced=2)
    assert job_record.forgotten(record, 1) == record
    assert job_record.forgotten(record, 2).placed is None


def test_a_record_does_not_grow_with_its_restarts_and_its_runs() -> None:
    record = JobRecord(id="demo")
    for n in range(3 * job_record.KEYS_KEPT):
        record, _ = generation(record, FIRST, f"main/{n}")
    assert len(record.generations["run-1"]) == job_record.KEYS_KEPT
    record, newest = generation(record, FIRST, "main/last")
    assert generation(record, FIRST, "main/last") == (record, newest)
    for n in range(2 * job_record.RUNS_KEPT):
        record, newest = generation(record, JobRef(id="demo", run=f"again-{n}"), "launch")
    assert len(record.generations) == job_record.RUNS_KEPT
    assert record.newest == newest


def test_a_run_before_the_newest_keeps_what_refuses_its_late_end() -> None:
    record = JobRecord(id="demo")
    for n in range(10):
        record, _ = generation(record, FIRST, f"main/{n}")
    record, _ = generation(record, SECOND, "launch")
    assert record.generations["run-1"] == {"main/9": 10}
    with pytest.raises(StaleGeneration):
        job_record.closed(record, FIRST)


def test_of_too_many_bad_ends_none_is_lost_and_those_closest_to_each_other_become_one() -> None:
    record, ends = JobRecord(id="demo"), [10_000 + 100 * n for n in range(job_record.ENDS_KEPT)]
    for end in (*ends, 5_000, 5_010):
        record = job_record.with_ends(record, [(end, end)])
    assert len(record.ended_between) == job_record.ENDS_KEPT
    assert record.ended_between[:3] == ((5_000, 5_010), (10_000, 10_100), (10_200, 10_200))
    assert record.ended_between[-1] == (ends[-1], ends[-1])
    assert job_record.with_ends(record, [(10_100, 10_100)]) is record, "it is in the books"


def test_bad_ends_between_which_no_file_fits_are_one_time() -> None:
    record = job_record.with_ends(JobRecord(id="demo"), [(10, 20), (15, 30), (33, 33), (37, 40)])
    assert record.ended_between == ((10, 33), (37, 40))


@pytest.mark.parametrize("ended_well", [True, False])
def test_what_a_job_saved_that_ended_well_is_not_waited_for_by_the_next_one(
    *, ended_well: bool
) -> None:
    """Its files may be moved away; those of a job that was stopped or failed are gone on."""
    first, later = JobRef(id="demo", run="r1"), JobRef(id="demo", run="r2")
    record, _ = job_record.with_generation(
        JobRecord(id="demo"), first, "launch", above=0, server=""
    )
    order = FenceOrder(
        job=first, generation=1, lowest_slot=0, run=RunOrder(checkpoints_path="/ckpt")
    )
    record = job_record.with_saved(job_record.with_fence(record, order, 1.0, ()), first)
    assert not job_record.has_saved_before(record, order)
    record = job_record.closed(replace(record, ended_well=ended_well), first)
    assert job_record.has_saved_before(record, replace(order, job=later)) is not ended_well
