"""Restarts without progress: what counts them, what resets the count, what makes one pointless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from everstep.core.levels import FaultClass, Level
from everstep.core.loop.next_actions import watch_order
from everstep.core.spec import Policy
from everstep.core.world import Checkpoint, Snapshot
from everstep.dialects.cerebras.policy import cerebras
from everstep.protocol import rank_memory
from tests.support.builders import COLUMNS, ScriptedJob, fact, job_spec, running, sighting

_C = FaultClass


def crash(job: ScriptedJob, **details: Any) -> Level:
    level = job.see(sighting(_C.CRASH), **details).level
    if level is not Level.FAIL:
        job.succeeds()
    return level


def log(job: ScriptedJob) -> list[str]:
    return [entry.text for entry in job.chronicle.entries]


# -- Beginning anew -----------------------------------------------------------------------------


def test_the_log_says_when_the_count_begins_anew() -> None:
    job = running(cerebras(max_num_restarts=3))
    job.saves(10)
    crash(job)
    crash(job)
    job.saves(20)
    line = "progress: a newer checkpoint, step 20; restarts without progress were 2, now 0"
    assert log(job)[-1] == line


def test_the_log_says_it_of_steps_and_of_life_too() -> None:
    by_steps, by_life = (running(checkpoints_path=None) for _ in range(2))
    crash(by_steps)
    by_steps.report("refresh", step=7)
    crash(by_life)
    by_life.report("refresh", now=by_life.state.now + 2_000.0)
    assert "progress: step 7; restarts without progress were 1, now 0" in log(by_steps)
    assert any(line.startswith("progress: a long healthy run;") for line in log(by_life))


def test_the_log_says_it_of_a_checkpoint_that_only_the_next_start_found() -> None:
    job = running(cerebras(max_num_restarts=3))
    job.saves(10)
    crash(job)
    job.see(sighting(_C.CRASH))
    job.succeeds(resume=Checkpoint(step=20, path="ckpt/20"))
    line = "progress: a newer checkpoint, step 20; restarts without progress were 2, now 1"
    assert line in log(job)


@pytest.mark.parametrize("step", [5, 10])
def test_progress_that_ends_no_count_and_a_step_saved_again_are_not_told(step: int) -> None:
    job = running(cerebras(max_num_restarts=3))
    job.saves(10)
    crash(job)
    job.saves(step)
    assert job.state.ledger.no_progress == 1
    assert not [line for line in log(job) if line.startswith("progress")]


# -- Leaving the node where it ended again -------------------------------------------------------


def last_choices(job: ScriptedJob, cls: FaultClass = _C.CRASH, **details: Any) -> tuple[str, ...]:
    """The nodes that new pods get only where no other has room, in the plan of the next restart."""
    job.see(sighting(cls, **details))
    assert job.state.plan is not None
    nodes = job.state.plan.remedy.last_choice
    job.succeeds()
    return nodes


def test_new_pods_prefer_other_nodes_than_the_one_where_a_run_ended_again() -> None:
    job = running()
    assert last_choices(job, slot=1, node="n1") == ()
    assert last_choices(job, slot=1, node="n1") == ("n1",)


def test_the_node_stays_the_last_choice_after_progress_and_for_other_faults() -> None:
    job = running()
    for _ in range(2):
        last_choices(job, slot=1, node="n1")
    job.saves(10)
    assert last_choices(job, _C.NODE, slot=2, node="n2") == ("n1",)


def test_a_node_is_no_last_choice_for_the_first_end_nor_for_one_that_the_script_owns() -> None:
    job = running()
    job.saves(10)
    assert last_choices(job, slot=1, node="n1") == ()
    job.saves(20)
    assert last_choices(job, slot=1, node="n1") == ()
    assert last_choices(job, slot=1, node="n1", kind="pod.oom_killed") == ()


def crash_after(job: ScriptedJob, step: int, slot: int = 1) -> Level:
    """The level of a restart once memory alone shows that the job came to this step."""
    can = (rank_memory.RESTORE, rank_memory.SNAPSHOT)
    end = sighting(_C.CRASH, slot=slot, node=f"n{slot}")
    level = job.see(end, can=can, remembered=step).level
    job.succeeds(snapshot=Snapshot(step, at=0.0))
    return level


def test_a_node_where_runs_end_again_and_again_is_left_whatever_memory_shows() -> None:
    job = running(nodes=2)
    restarts = [crash_after(job, step) for step in (10, 20, 30)]
    assert restarts == [Level.IN_PLACE, Level.IN_PLACE, Level.POD]
    assert job.decisions[-1].remedy.last_choice == ("n1",)
    why = "in_place: 2 runs ended on n1 since the last checkpoint"
    assert why in job.decisions[-1].passed_over


def test_a_checkpoint_ends_the_suspicion_of_a_node() -> None:
    job = running(nodes=2)
    crash_after(job, 10)
    crash_after(job, 20)
    job.saves(25)
    assert crash_after(job, 35) is Level.IN_PLACE


def test_runs_that_ended_on_different_nodes_suspect_none() -> None:
    job = running(nodes=4)
    restarts = [crash_after(job, 10 * n, slot=n % 4) for n in range(1, 9)]
    assert restarts == [Level.IN_PLACE] * 8


def test_the_only_node_of_a_job_is_not_left() -> None:
    job = running(nodes=1)
    assert {crash_after(job, step, slot=0) for step in (10, 20, 30, 40)} == {Level.IN_PLACE}


def test_a_document_that_does_not_escalate_leaves_out_only_levels_that_keep_processes() -> None:
    """Its own levels have budgets; those that keep processes have none."""
    job = running(COLUMNS["mindcluster with all"], nodes=2)
    assert {crash_after(job, step) for step in (10, 20, 30, 40)} == {Level.IN_PLACE}


def test_only_the_newest_last_choices_are_kept() -> None:
    job = running(nodes=60, policy=Policy(no_progress_restarts=None, suspects_checkpoints=False))
    for slot in range(60):
        last_choices(job, slot=slot, node=f"n{slot}")
    assert len(job.state.last_choice) == 20
    assert job.state.last_choice[-1] == "n59"


# -- Giving up ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "details"),
    [
        (0, "no progress after 0 restarts, no new checkpoint (the newest is step 10)"),
        (1, "no progress after 1 restart, no new checkpoint (the newest is step 10)"),
        (3, "no progress after 3 restarts, no new checkpoint (the newest is step 10)"),
    ],
)
def test_the_end_says_after_how_many_restarts_there_was_no_new_checkpoint(
    most: int, details: str
) -> None:
    job = running(cerebras(max_num_restarts=most))
    job.saves(10)
    assert [crash(job) for _ in range(most + 1)] == ["job"] * most + ["fail"]
    assert details in job.decisions[-1].reason


def test_the_end_names_the_error_and_where_it_came_each_time() -> None:
    job = running(cerebras(max_num_restarts=43))
    job.report("refresh", step=1_234, checkpoint=1_200)
    end: dict[str, Any] = {
        "exit_code": 1,
        "exception": "RuntimeError: index 50257 is out of bounds",
        "at_step": 1_234,
    }
    levels = []
    for _ in range(44):
        levels.append(job.see(fact("process.exit", slot=0, rank=0, **end)).level)
        if levels[-1] is not Level.FAIL:
            job.succeeds()
            job.report("refresh", step=1_234, checkpoint=1_200)
    assert levels == ["job"] * 43 + ["fail"]
    reason = job.decisions[-1].reason
    assert "no progress after 43 restarts, no new checkpoint (the newest is step 1200)" in reason
    assert "RuntimeError at step 1234, 44 times in a row: probably the code or the data" in reason


def test_the_end_of_a_native_job_speaks_of_progress() -> None:
    job = running(Policy(no_progress_restarts=1))
    crash(job)
    crash(job)
    assert job.decisions[-1].reason.startswith("no progress after 1 restart; the last: ")


@pytest.mark.parametrize("cls", [_C.CRASH, _C.NODE, _C.DEVICE_FATAL])
def test_a_run_that_failed_before_anything_was_saved_is_not_started_again(cls: FaultClass) -> None:
    job = running(cerebras(max_num_restarts=100, save_every=4))
    decision = job.see(sighting(cls))
    assert decision.level is Level.FAIL
    assert "no checkpoint in ckpt yet: nothing to restart from" in decision.reason
    assert job.records == ()


@pytest.mark.parametrize("cls", [_C.PLANNED, _C.PREEMPTED, _C.MAINTENANCE, _C.STORAGE])
def test_what_is_no_failure_starts_it_again_all_the_same(cls: FaultClass) -> None:
    job = running(cerebras(max_num_restarts=3, save_every=4))
    assert job.see(sighting(cls)).is_executed


def test_a_launch_that_never_ran_has_nothing_to_save() -> None:
    job = ScriptedJob(spec=job_spec(cerebras(max_num_restarts=3, save_every=4)))
    assert job.fails("node.down", node="n1").is_executed


def test_once_anything_was_saved_it_is_started_again() -> None:
    job = running(cerebras(max_num_restarts=3, save_every=4))
    job.saves(0)
    assert [crash(job) for _ in range(4)] == ["job", "job", "job", "fail"]


def test_a_checkpoint_that_is_found_with_the_crash_counts() -> None:
    """It was saved a moment before: the watch looks once more before a phase would end."""
    job = running(cerebras(max_num_restarts=1, save_every=4))
    assert watch_order(job.state).is_last_run
    job.saves(10)
    assert not watch_order(job.state).is_last_run
    crash(job)
    assert watch_order(job.state).is_last_run
    assert job.see(sighting(_C.CRASH), checkpoint=20).level is Level.JOB


# -- What is never started again ----------------------------------------------------------------

CANCELLED = "cerebras.appliance.errors.ClusterJobCancelledByCsctl: wsjob-1 was cancelled"
ENDS: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    (
        "compile",
        {"exception": "cerebras.appliance.errors.ApplianceCompilationError: no"},
        "a compile error",
    ),
    ("lowering", {"exception": "LoweringError"}, "a compile error"),
    ("assertion", {"exception": "AssertionError: shapes differ"}, "a failed assertion"),
    ("cancel", {"exception": CANCELLED}, "somebody cancelled the job"),
    ("configuration", {"exception": "modelzoo.ConfigError: no lr"}, "an invalid configuration"),
    ("own class", {"exception": "__main__.ConfigurationError: no lr"}, "an invalid configuration"),
    (
        "usage",
        {"exit_code": 2, "log": "usage: cszoo fit [-h]\ncszoo fit: error: no such option"},
        "the command refuses how it is called",
    ),
)


@pytest.mark.parametrize(
    "exception",
    [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error",
        "torch._dynamo.exc.RecompileLimitExceeded: 8",
        "botocore.exceptions.ConfigError: no region",
        "x.errors.JobCancelled",
    ],
)
def test_names_of_other_packages_end_nothing(exception: str) -> None:
    job = running(cerebras(max_num_restarts=100))
    job.saves(10)
    decision = job.see(fact("process.exit", slot=0, rank=0, exit_code=1, exception=exception))
    assert decision.level is Level.JOB


@pytest.mark.parametrize(
    ("details", "why"), [end[1:] for end in ENDS], ids=[end[0] for end in ENDS]
)
def test_what_comes_again_at_every_start_ends_a_cerebras_job(
    details: Mapping[str, Any], why: str
) -> None:
    job = running(cerebras(max_num_restarts=100))
    job.saves(10)
    decision = job.see(fact("process.exit", slot=0, rank=0, **{"exit_code": 1, **details}))
    assert decision.level is Level.FAIL
    assert "Cerebras' own rule says fail: " in decision.reason
    assert why in decision.reason
    assert job.records == ()


MAY_PASS: tuple[Mapping[str, Any], ...] = (
    {"exception": "cerebras.appliance.errors.ApplianceUnknownError: lost"},
    {"exception": "RuntimeError: torch.compile timed out"},
    {"exception": "torch.compiler.errors.TimeoutError: slow"},
    {"exception": "asyncio.exceptions.CancelledError"},
    {"exception": "OSError: [Errno 125] Operation canceled"},
    {"exit_code": 2, "log": "usage of disk: 99 %"},
    {"exit_code": None, "signal": 9},
)


@pytest.mark.parametrize("details", MAY_PASS, ids=str)
def test_what_may_pass_starts_it_again(details: Mapping[str, Any]) -> None:
    job = running(cerebras(max_num_restarts=3))
    end = fact("process.exit", slot=0, rank=0, **{"exit_code": 1, **details})
    assert job.see(end).level is Level.JOB
