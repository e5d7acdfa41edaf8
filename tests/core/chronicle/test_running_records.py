"""What ModelArts shows of a job's starts and recoveries, for the ways that lead to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import views
from everstep.chronicle.chronicle import RECORDS_KEPT, STARTS_KEPT, Chronicle
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import lifecycle, next_actions
from everstep.core.spec import Origin
from everstep.core.state import Mode, Wait
from everstep.dialects import job_memo, responses
from everstep.dialects.modelarts import view as modelarts_view
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import START, ScriptedJob, fact, job_spec, restarted, running, sighting

JOB = modelarts(job_retry=8)
ALL = modelarts(job_retry=8, pod_retry=3, unconditional=True, hang_retry=True)
SCARCE = modelarts(job_retry=8, pod_retry=1)


def records(job: ScriptedJob) -> list[dict[str, Any]]:
    return modelarts_view.running_records(job.chronicle)


# -- The ways -----------------------------------------------------------------------------------


def no_heal() -> ScriptedJob:
    job = running(JOB)
    job.see(sighting(FaultClass.DEVICE))
    job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    job.succeeds()
    return job


def heals() -> ScriptedJob:
    return restarted(JOB, FaultClass.DEVICE)


def third_same_code() -> ScriptedJob:
    return restarted(JOB, FaultClass.DEVICE, times=3)


def third_same_code_of_the_user() -> ScriptedJob:
    return restarted(JOB, FaultClass.DEVICE_USER, times=3)


def node_lost() -> ScriptedJob:
    return restarted(JOB, FaultClass.NODE)


def no_spare() -> ScriptedJob:
    job = running(ALL)
    job.see(sighting(FaultClass.NODE))
    job.fails("place.none", at=Step.PLACE, isolated=("n1",))
    job.succeeds()
    return job


def pod_budget_used_up() -> ScriptedJob:
    job = running(SCARCE)
    for node in ("n1", "n2"):
        job.see(sighting(FaultClass.NODE, node=node))
        job.succeeds()
    return job


def exits() -> ScriptedJob:
    return restarted(ALL, FaultClass.CRASH)


def hangs() -> ScriptedJob:
    return restarted(ALL, FaultClass.HANG)


Row = tuple[str, str | None, str, str, str]
"""Policy, the one before the downgrade, scenario, result, and who caused it."""

WAYS: Mapping[Callable[[], ScriptedJob], tuple[str, list[Row]]] = {
    heals: ("restarted", [("npu_proc_restart", None, "chip_fault", "success", "worker-1")]),
    no_heal: (
        "init_or_rescheduled",
        [
            ("npu_proc_restart", None, "chip_fault", "downgrade", "worker-1"),
            (
                "job_reschedule_with_taint",
                "npu_proc_restart",
                "chip_fault",
                "success",
                "worker-1",
            ),
        ],
    ),
    third_same_code: (
        "init_or_rescheduled",
        [
            (
                "job_reschedule_with_taint",
                "npu_proc_restart",
                "chip_fault",
                "success",
                "worker-1",
            )
        ],
    ),
    third_same_code_of_the_user: (
        "init_or_rescheduled",
        [("job_reschedule", "npu_proc_restart", "chip_fault", "success", "worker-1")],
    ),
    node_lost: (
        "init_or_rescheduled",
        [("job_reschedule_with_taint", None, "node_fault", "success", "worker-1")],
    ),
    no_spare: (
        "init_or_rescheduled",
        [
            ("pod_reschedule", None, "node_fault", "downgrade", "worker-1"),
            ("job_reschedule", "pod_reschedule", "node_fault", "success", "worker-1"),
        ],
    ),
    pod_budget_used_up: (
        "init_or_rescheduled",
        [
            ("pod_reschedule", None, "node_fault", "quotaExceeded", "worker-2"),
            ("job_reschedule_with_taint", None, "node_fault", "success", "worker-2"),
        ],
    ),
    exits: (
        "init_or_rescheduled",
        [("job_reschedule", None, "job_failed", "success", "worker-1")],
    ),
    hangs: ("restarted", [("proc_restart", None, "job_hanged", "success", "worker-1")]),
}
"""How the newest start came about, and the recoveries that led to it."""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_way_leaves_its_records(way: Callable[[], ScriptedJob]) -> None:
    start_type, rows = WAYS[way]
    job = way()
    before, newest = records(job)[-2:]
    assert newest["start_type"] == start_type
    assert newest["end_at"] is None
    recoveries = before["recover_records"]
    columns = [
        (r["recover"], r["fault_scenario"], r["recover_result"], r["related_task"])
        for r in recoveries
    ]
    assert columns == [(row[0], row[2], row[3], row[4]) for row in rows]
    assert before["end_recover"] == rows[-1][0]
    assert before["end_recover_before_downgrade"] == rows[-1][1]
    assert before["end_related_task"] == rows[0][4]
    restarts = responses.restarts(job.chronicle)[-len(rows) :]
    assert [r["recover_before_downgrade"] for r in restarts] == [row[1] for row in rows]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_there_is_a_running_record_for_each_start_and_they_follow_each_other(
    way: Callable[[], ScriptedJob],
) -> None:
    job = way()
    rows = records(job)
    assert len(rows) == job.state.runs
    times = [at for record in rows for at in (record["start_at"], record["end_at"])]
    assert times[:-1] == sorted(times[:-1])
    assert times[-1] is None


def test_a_record_of_a_restart_says_when_the_fault_was_and_when_it_was_overcome() -> None:
    job = heals()
    (record,) = responses.restarts(job.chronicle)
    assert record["recover_start_at"] == int(START)
    assert record["recover_end_at"] == int(job.state.now)
    assert record["related_task"] == "worker-1"
    assert isinstance(record["recover_start_at"], int)


def test_what_still_recovers_has_no_end() -> None:
    job = running(JOB)
    job.see(sighting(FaultClass.DEVICE))
    (record,) = records(job)
    (recovery,) = record["recover_records"]
    assert (recovery["recover_result"], recovery["recover_end_at"]) == ("recovering", None)
    assert record["end_at"] == int(job.state.now)


def test_the_first_step_is_taken_for_the_first_use_of_the_devices() -> None:
    job = heals()
    job.report(first_step_at=job.state.now + 7.0)
    first, second = records(job)
    assert first["xpu_start_at"] is None
    assert second["xpu_start_at"] == second["start_at"] + 7


def test_degradation_over_several_levels_names_the_first_policy() -> None:
    job = running(ALL)
    job.see(sighting(FaultClass.DEVICE))
    job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    job.fails("place.none", at=Step.PLACE, isolated=("n1",))
    job.succeeds()
    first, _ = records(job)
    assert [r["recover"] for r in first["recover_records"]] == [
        "npu_proc_restart",
        "pod_reschedule",
        "job_reschedule",
    ]
    assert first["end_recover_before_downgrade"] == "npu_proc_restart"


def test_a_launch_that_never_started_shows_its_recoveries_without_a_start() -> None:
    job = ScriptedJob(spec=job_spec(JOB))
    job.fails("precheck.disk", at=Step.PRECHECK, node="n1", slot=1)
    (only,) = records(job)
    assert (only["start_at"], only["end_at"]) == (None, int(job.state.now))
    assert [r["recover_result"] for r in only["recover_records"]] == ["recovering"]
    job.succeeds()
    launch, started = records(job)
    assert launch["start_at"] is None
    assert launch["recover_records"][0]["fault_scenario"] == "node_fault"
    assert (started["start_at"], started["recover_records"]) == (int(job.state.now), [])


def stops(job: ScriptedJob) -> None:
    job.command("stop", reason="enough")
    job.interrupted()


ENDS: Mapping[str, tuple[Callable[[ScriptedJob], object], str, str]] = {
    "completed": (lambda job: job.report("done"), "Completed", "all ranks ended well"),
    "stopped": (
        stops,
        "Terminating",
        "stopped: enough",
    ),
    "failed": (
        lambda job: job.see(sighting(FaultClass.CRASH)),
        "Failed",
        "phase main: ",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_job_ends_its_newest_start(end: str) -> None:
    comes, phase, why = ENDS[end]
    job = running(JOB)
    comes(job)
    (record,) = records(job)
    assert record["end_at"] == int(job.state.now)
    assert record["end_reason"].startswith(why)
    assert record["recover_records"] == []
    status = modelarts_view.details(job.state, job.chronicle)["status"]
    assert status["phase"] == phase
    assert status["duration"] == int(job.state.now * 1000) - status["start_time"]


def test_a_pause_ends_a_start_and_its_resume_is_another_one() -> None:
    job = running(JOB)
    job.command("pause", reason="a look")
    job.interrupted()
    job.succeeds()
    assert modelarts_view.details(job.state, job.chronicle)["status"]["phase"] == "Pending"
    job.command("resume")
    job.interrupted()
    job.succeeds()
    paused, resumed = records(job)
    assert paused["end_reason"] == "paused: a look"
    assert (resumed["start_type"], resumed["end_at"]) == ("restarted", None)


def test_a_recovery_that_told_no_outcome_is_still_one_start() -> None:
    job = running(JOB)
    job.see(sighting(FaultClass.DEVICE))
    job.loses_outcome()
    job.finds(started=True, generation=job.state.generation + 1)
    assert len(records(job)) == 2
    assert records(job)[0]["recover_records"][0]["recover_result"] == "success"


def test_what_is_kept_has_an_end() -> None:
    job = running(replace(ALL, budgets=(), series=()))
    for _ in range(STARTS_KEPT + 5):
        job.see(sighting(FaultClass.CRASH, at=job.state.now))
        job.succeeds()
    rows = records(job)
    assert len(rows) == STARTS_KEPT
    assert all(record["start_at"] is not None for record in rows)
    assert len([r for one in rows for r in one["recover_records"]]) <= RECORDS_KEPT


# -- The whole job ------------------------------------------------------------------------------


def test_restarts_are_counted_as_they_count_them() -> None:
    """Restarts in place are none of theirs; a restart of pod level is one that Maximum Restarts allows
    without being spent on it."""
    assert counted(heals()) == (0, 8)
    assert counted(pod_budget_used_up()) == (2, 8)
    job = node_lost()
    job.command("set_budget", name="job", limit=2)
    assert counted(job) == (1, 2)
    assert counted(running(modelarts(job_retry=None))) == (0, None)


def counted(job: ScriptedJob) -> tuple[int, int | None]:
    status = modelarts_view.details(job.state, job.chronicle)["status"]
    return status["restarts"], status["max_restarts"]


def test_annotations_are_read_back_as_they_were_written() -> None:
    written = {"fault-tolerance/job-retry-num": "8", "jupyter-lab/enable": "true"}
    origin = Origin(
        kind="hetero_job",
        description="nightly",
        workspace_id="7",
        annotations=written,
        pool_id="pool-1",
        flavor_id="npu.8",
    )
    job = ScriptedJob(spec=replace(job_spec(JOB), origin=origin)).launches()
    details = modelarts_view.details(job.state, job.chronicle)
    assert details["kind"] == "hetero_job"
    assert details["metadata"]["annotations"] == written
    assert details["metadata"]["create_time"] == int(START * 1000)
    assert details["spec"]["resource"] == {
        "node_count": 4,
        "pool_id": "pool-1",
        "flavor_id": "npu.8",
    }
    assert details["status"]["tasks"] == ["worker-0", "worker-1", "worker-2", "worker-3"]


def test_exit_codes_are_those_of_the_newest_start() -> None:
    job = running(JOB)
    job.see(fact("process.exit", slot=2, rank=2, exit_code=None, signal=9))
    (failed,) = modelarts_view.details(job.state, job.chronicle)["status"]["task_statuses"]
    assert failed == {"task": "worker-2", "exit_code": 137, "message": "ended by signal 9"}
    job = exits()
    assert modelarts_view.details(job.state, job.chronicle)["status"]["task_statuses"] == []
    job.report("done")
    codes = modelarts_view.details(job.state, job.chronicle)["status"]["task_statuses"]
    assert [one["exit_code"] for one in codes] == [0, 0, 0, 0]


def test_every_state_has_a_phase_of_theirs() -> None:
    phases = {"Creating", "Pending", "Running", "Failed", "Completed"}
    phases |= {"Terminating", "Terminated", "Abnormal"}
    more = {"Queuing", "CreateFailed", "TerminatedFailed", "Unknown", "Lost"}
    assert {phase for phase, _ in modelarts_view.PHASE.values()} == phases
    assert {second for _, second in modelarts_view.PHASE.values()} <= phases | more
    states = {*views.SHOWN_STATE.values(), *views.ENDED_STATE.values(), "unreachable"}
    assert states <= modelarts_view.PHASE.keys()


def test_a_restart_that_waits_for_its_places_is_queuing() -> None:
    job = running(JOB)
    job.see(sighting(FaultClass.NODE))
    status = modelarts_view.details(job.state, job.chronicle)["status"]
    assert (status["phase"], status["secondary_phase"]) == ("Running", "Running")
    waiting = replace(job.state, waiting=Wait(what="1 more node"))
    status = modelarts_view.details(waiting, job.chronicle)["status"]
    assert (status["phase"], status["secondary_phase"]) == ("Pending", "Queuing")


def test_phases_of_a_job_have_their_own_records() -> None:
    spec = job_spec(JOB)
    second = replace(spec.phases[0], name="second")
    job = ScriptedJob(spec=replace(spec, phases=(spec.phases[0], second))).launches()
    job.report("done")
    assert job.state.mode is Mode.PENDING
    job.state = lifecycle.enter_phase(job.state, 1)
    job._advance(next_actions.Begun())
    job.launches()
    job.see(sighting(FaultClass.NODE))
    job.succeeds()
    first, failed, newest = records(job)
    assert first["end_reason"] == "all ranks ended well"
    assert first["recover_records"] == []
    assert failed["end_recover"] == "job_reschedule_with_taint"
    assert newest["end_at"] is None


def test_a_document_that_nobody_read_yet_has_every_field() -> None:
    job = running(JOB)
    details = modelarts_view.details(job.state, job.chronicle)
    blank = responses.status(None, Chronicle(), "demo", {"shape": "modelarts"})
    assert blank.keys() == details.keys()
    for part in ("metadata", "status", "spec"):
        assert blank[part].keys() == details[part].keys()
    assert (blank["metadata"]["id"], blank["status"]["phase"]) == ("demo", "Creating")


def test_a_running_job_grows_older_while_nothing_is_reported() -> None:
    job = running(JOB)
    details = modelarts_view.details(job.state, job.chronicle)
    later = modelarts_view.aged(details, job.state.now + 60.0)
    assert later["status"]["duration"] == details["status"]["duration"] + 60_000
    job.report("done")
    ended = modelarts_view.details(job.state, job.chronicle)
    assert modelarts_view.aged(ended, job.state.now + 60.0) == ended


def test_the_memo_holds_each_record_once() -> None:
    job = no_heal()
    left = responses.closing_memo(job.state, job.chronicle)
    assert left["report"]["running_records"] == records(job)
    assert "running_records" not in left["modelarts"]["status"]
    memo = job_memo.read("modelarts", left["modelarts"], left["report"])
    assert memo == modelarts_view.details(job.state, job.chronicle)
    assert job_memo.restarts_of(left["report"]) == responses.restarts(job.chronicle)
    assert left.keys() == {"report", "status", "modelarts", "changes"}, "each record once"
