"""Which processes a level keeps, and when those that hold can go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import record_rows
from everstep.core.deciding.decision import Decision, Plan
from everstep.core.facts import Fact
from everstep.core.levels import CAPABILITIES, FaultClass, Level, Step
from everstep.core.recovering import survivors
from everstep.core.spec import Policy
from everstep.core.world import RankPosition
from everstep.dialects import responses
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, fact, levels, running, sighting

_C = FaultClass


def of_four_ranks(**spec: Any) -> ScriptedJob:
    """A job that trains in two slots with two ranks each."""
    return running(nodes=2, processes_per_node=2, **spec)


def see(job: ScriptedJob, *facts: Fact) -> Decision:
    """The decision about these facts, where every rank runs the train library."""
    return job.see(*facts, can=CAPABILITIES)


def plan_after(cls: FaultClass, **places: Any) -> Plan:
    job = of_four_ranks()
    see(job, sighting(cls, **places))
    return job.plan


def test_after_a_crash_only_processes_that_ended_are_new() -> None:
    plan = plan_after(_C.CRASH)
    assert (plan.level, plan.keep) == (Level.PROCESS, (0, 1, 2, 3))
    assert plan.remedy.recreate == ()
    assert not {Step.PLACE, Step.ISOLATE, Step.WRITABLE} & {*plan.remedy.steps}


def test_a_lost_node_costs_only_its_ranks() -> None:
    plan = plan_after(_C.NODE, node="n1")
    assert (plan.level, plan.keep, plan.remedy.recreate) == (Level.PROCESS, (0, 1), (1,))
    assert {Step.PLACE, Step.ISOLATE} <= {*plan.remedy.steps}


def test_a_device_heals_under_its_processes_or_is_freed_of_them() -> None:
    job = of_four_ranks()
    see(job, sighting(_C.DEVICE, node="n1", device=0))
    assert (job.plan.level, job.plan.keep) == (Level.PROCESS_ONLINE, (0, 1, 2, 3))
    assert Step.HEAL in job.plan.remedy.steps
    job.fails("process.not_kept", Step.STOP)
    assert (job.plan.level, job.plan.keep) == (Level.PROCESS, (0, 1))
    assert Step.HEAL in job.plan.remedy.steps


def test_a_failed_connection_ends_no_process() -> None:
    job = of_four_ranks()
    see(job, fact("network.collective", slot=1, node="n1", rank=2))
    assert (job.plan.level, job.plan.keep) == (Level.OPERATOR_ONLINE, (0, 1, 2, 3))
    assert [*job.plan.remedy.steps] == [Step.STOP, Step.RESUME, Step.START]


def test_what_cannot_be_kept_leads_down_the_ladder_with_its_reason() -> None:
    job = of_four_ranks()
    see(job, fact("network.collective", slot=1, node="n1", rank=2))
    decision = job.fails("process.not_kept", Step.STOP, message="rank 3 did not answer")
    assert levels(job)[-2:] == [Level.OPERATOR_ONLINE, Level.PROCESS_ONLINE]
    assert "rank 3 did not answer" in decision.reason
    for level in (Level.PROCESS, Level.IN_PLACE):
        assert job.fails("process.not_kept", Step.STOP).level is level
    assert job.plan.keep == ()


def test_a_level_that_ended_all_processes_is_followed_by_none_that_keeps_some() -> None:
    job = of_four_ranks()
    assert job.see(sighting(_C.CRASH)).level is Level.IN_PLACE
    job.state = replace(job.state, can=CAPABILITIES)
    decision = job.fails("node.down", Step.START, node="n1")
    assert decision.level is Level.POD


def test_a_job_of_one_rank_has_nobody_to_keep() -> None:
    job = running(nodes=1)
    decision = see(job, sighting(_C.CRASH, node="n0", slot=0))
    assert decision.level is Level.IN_PLACE
    assert "process: there is no other rank that could keep its process" in decision.passed_over


POSITIONS = (RankPosition(0, 7), RankPosition(1, 8), RankPosition(3, None))


@pytest.mark.parametrize(
    ("level", "kept_ranks", "positions", "why"),
    [
        (Level.PROCESS, (0, 1, 3), POSITIONS, None),
        (Level.PROCESS, (), (), "no rank is left that answers"),
        (
            Level.PROCESS,
            (3,),
            POSITIONS,
            "no rank that is left has the state after a completed step",
        ),
        (Level.PROCESS_ONLINE, (0, 1, 2, 3), POSITIONS, None),
        (
            Level.PROCESS_ONLINE,
            (0, 1, 3),
            POSITIONS,
            "rank 2 did not answer within 10 s, or has ended",
        ),
    ],
)
def test_ranks_go_on_if_one_has_the_state(
    level: Level, kept_ranks: tuple[int, ...], positions: tuple[RankPosition, ...], why: str | None
) -> None:
    plan = replace(plan_after(_C.CRASH), level=level)
    assert survivors.why_not(plan, kept_ranks, positions) == why


@pytest.mark.parametrize(
    ("completed", "why"),
    [
        ({0: 8, 1: 8, 2: 8}, None),
        ({0: 8, 1: 8}, None),
        ({0: 8, 2: 8}, "no rank that is left has the state of rank 1,3 after step 8"),
        (
            {0: 8, 1: 7, 2: None},
            "no rank that is left has the state of rank 1,3 after step 8",
        ),
        ({1: 7}, "no rank that is left has the state of rank 0,2 after step 7"),
    ],
)
def test_where_states_differ_each_is_needed_of_the_same_step(
    completed: dict[int, int | None], why: str | None
) -> None:
    copies = {0: (0, 2), 1: (1, 3)}
    positions = [RankPosition(rank, step, copies[rank % 2]) for rank, step in completed.items()]
    assert survivors.why_not(plan_after(_C.CRASH), completed.keys(), positions) == why


@pytest.mark.parametrize(("gap_s", "limit_s"), [(0.0, 10.0), (0.05, 5.0), (2.5, 7.5), (60.0, 10.0)])
def test_a_rank_has_the_time_of_some_steps_to_report(gap_s: float, limit_s: float) -> None:
    assert survivors.hold_s(gap_s) == limit_s


def test_the_newest_step_is_that_of_a_rank_that_goes_on() -> None:
    assert survivors.newest_step((0, 1, 3), POSITIONS) == 8
    assert survivors.newest_step((0, 3), POSITIONS) == 7
    assert survivors.newest_step((3,), POSITIONS) is None


def test_processes_that_go_on_are_not_counted_as_started() -> None:
    plan = plan_after(_C.CRASH)
    assert {n: one.process_start for n, one in plan.slots.items()} == {0: 2, 1: 2}
    counts = survivors.counts(plan, {0: 0, 1: 1}, (0, 1, 2))
    assert {n: one.process_start for n, one in counts.items()} == {0: 1, 1: 2}


def test_the_state_counts_only_the_starts_that_were() -> None:
    job = of_four_ranks()
    see(job, sighting(_C.CRASH))
    job.succeeds(kept_ranks=(0, 1, 2))
    assert {n: slot.process_start_count for n, slot in job.state.slots.items()} == {0: 1, 1: 2}
    assert job.state.older_ranks.keys() == {0, 1, 2}


def test_the_record_names_the_ranks_that_kept_their_process() -> None:
    job = of_four_ranks()
    see(job, sighting(_C.CRASH))
    job.succeeds(kept_ranks=(0, 1, 3))
    (record,) = responses.restarts(job.chronicle)
    assert record["kept_ranks"] == "0-1,3"
    assert "  kept     the processes of ranks 0-1,3" in record_rows.story(record).splitlines()


def test_the_story_calls_the_stages_of_ranks_that_stay_hold_and_rebuild() -> None:
    job = of_four_ranks()
    see(job, sighting(_C.CRASH))
    job.succeeds(kept_ranks=(0, 1, 3), stages_s={"stop": 0.25, "place": 1.5, "start": 0.5})
    (record,) = responses.restarts(job.chronicle)
    assert "hold 0.25 s, place 1.5 s, rebuild 0.5 s" in record_rows.story(record)
    assert record["stages_s"]["stop"] == 0.25


@pytest.mark.parametrize(
    ("policy", "cls", "expected"),
    [
        (modelarts(job_retry=2, hang_retry=True), _C.HANG, "process suspension"),
        (
            mindcluster(
                fault_scheduling="force", fault_retry_times=2, recover_strategy=["recover"]
            ),
            _C.CRASH,
            "process job",
        ),
    ],
    ids=["modelarts", "mindcluster"],
)
def test_without_progress_no_document_keeps_processes_twice(
    policy: Policy, cls: FaultClass, expected: str
) -> None:
    """Budgets and series say nothing of these levels, so that they would have no end."""
    job = running(policy, nodes=2, processes_per_node=2)
    for _ in range(2):
        see(job, sighting(cls, at=job.state.now + 1))
        job.succeeds()
    assert " ".join(levels(job)) == expected
