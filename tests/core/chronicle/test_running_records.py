"""What ModelArts shows of a job's starts and recoveries, for the ways that lead to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.chronicle import views
from everstep.chronicle.chronicle import RECORDS_KEPT, STARTS_KEPT, Chronicle
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import lifecycle
from everstep.core.spec import Origin
from everstep.core.state import Mode
from everstep.dialects import job_memo, responses
from everstep.dialects.modelarts import view as modelarts_view
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import START, Told, fact, job_spec, running, sighting

JOB = modelarts(job_retry=8)
ALL = modelarts(job_retry=8, pod_retry=3, unconditional=True, hang_retry=True)
SCARCE = modelarts(job_retry=8, pod_retry=1)


def records(told: Told) -> list[dict[str, Any]]:
    return modelarts_view.running_records(told.chronicle)


# -- The ways -----------------------------------------------------------------------------------


def no_heal() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.DEVICE))
    told.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    told.succeeds()
    return told


def heals() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.DEVICE))
    told.succeeds()
    return told


def third_same_code() -> Told:
    told = running(JOB)
    for _ in range(3):
        told.see(sighting(FaultClass.DEVICE, at=told.state.now))
        told.succeeds()
    return told


def third_same_code_of_the_user() -> Told:
    told = running(JOB)
    for _ in range(3):
        told.see(sighting(FaultClass.DEVICE_USER, at=told.state.now))
        told.succeeds()
    return told


def node_lost() -> Told:
    told = running(JOB)
    told.see(sighting(FaultClass.NODE))
    told.succeeds()
    return told


def no_spare() -> Told:
    told = running(ALL)
    told.see(sighting(FaultClass.NODE))
    told.fails("place.none", at=Step.PLACE, isolated=("n1",))
    told.succeeds()
    return told


def pod_budget_used_up() -> Told:
    told = running(SCARCE)
    for node in ("n1", "n2"):
        told.see(sighting(FaultClass.NODE, node=node))
        told.succeeds()
    return told


def exits() -> Told:
    told = running(ALL)
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    return told


def hangs() -> Told:
    told = running(ALL)
    told.see(sighting(FaultClass.HANG))
    told.succeeds()
    return told


Row = tuple[str, str | None, str, str, str]
"""Policy, the one before the downgrade, scenario, result, and who caused it."""

WAYS: Mapping[Callable[[], Told], tuple[str, list[Row]]] = {
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
def test_each_way_leaves_its_records(way: Callable[[], Told]) -> None:
    start_type, rows = WAYS[way]
    told = way()
    before, newest = records(told)[-2:]
    assert newest["start_type"] == start_type
    assert newest["end_at"] is None
    recoveries = before["recover_records"]
    found = [
        (r["recover"], r["fault_scenario"], r["recover_result"], r["related_task"])
        for r in recoveries
    ]
    assert found == [(row[0], row[2], row[3], row[4]) for row in rows]
    assert before["end_recover"] == rows[-1][0]
    assert before["end_recover_before_downgrade"] == rows[-1][1]
    assert before["end_related_task"] == rows[0][4]
    shown = responses.restarts(told.chronicle)[-len(rows) :]
    assert [r["recover_before_downgrade"] for r in shown] == [row[1] for row in rows]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_there_is_a_running_record_for_each_start_and_they_follow_each_other(
    way: Callable[[], Told],
) -> None:
    told = way()
    shown = records(told)
    assert len(shown) == told.state.runs
    times = [at for record in shown for at in (record["start_at"], record["end_at"])]
    assert times[:-1] == sorted(times[:-1])
    assert times[-1] is None


def test_a_record_of_a_restart_says_when_the_fault_was_and_when_it_was_overcome() -> None:
    told = heals()
    (record,) = responses.restarts(told.chronicle)
    assert record["recover_start_at"] == int(START)
    assert record["recover_end_at"] == int(told.state.now)
    assert record["related_task"] == "worker-1"
    assert isinstance(record["recover_start_at"], int)


def test_what_still_recovers_has_no_end() -> None:
    told = running(JOB)
    told.see(sighting(FaultClass.DEVICE))
    (record,) = records(told)
    (recovery,) = record["recover_records"]
    assert (recovery["recover_result"], recovery["recover_end_at"]) == ("recovering", None)
    assert record["end_at"] == int(told.state.now)


def test_the_first_step_is_taken_for_the_first_use_of_the_devices() -> None:
    told = heals()
    told.report(first_step_at=told.state.now + 7.0)
    first, second = records(told)
    assert first["xpu_start_at"] is None
    assert second["xpu_start_at"] == second["start_at"] + 7


def test_degradation_over_several_levels_names_the_first_policy() -> None:
    told = running(ALL)
    told.see(sighting(FaultClass.DEVICE))
    told.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    told.fails("place.none", at=Step.PLACE, isolated=("n1",))
    told.succeeds()
    first, _ = records(told)
    assert [r["recover"] for r in first["recover_records"]] == [
        "npu_proc_restart",
        "pod_reschedule",
        "job_reschedule",
    ]
    assert first["end_recover_before_downgrade"] == "npu_proc_restart"


def test_a_launch_that_never_started_shows_its_recoveries_without_a_start() -> None:
    told = Told(spec=job_spec(JOB))
    told.fails("precheck.disk", at=Step.PRECHECK, node="n1", slot=1)
    (only,) = records(told)
    assert (only["start_at"], only["end_at"]) == (None, int(told.state.now))
    assert [r["recover_result"] for r in only["recover_records"]] == ["recovering"]
    told.succeeds()
    launch, started = records(told)
    assert launch["start_at"] is None
    assert launch["recover_records"][0]["fault_scenario"] == "node_fault"
    assert (started["start_at"], started["recover_records"]) == (int(told.state.now), [])


def stops(told: Told) -> None:
    told.command("stop", reason="enough")
    told.interrupted()


ENDS: Mapping[str, tuple[Callable[[Told], object], str, str]] = {
    "completed": (lambda told: told.report("done"), "Completed", "all ranks ended well"),
    "stopped": (
        stops,
        "Terminating",
        "stopped: enough",
    ),
    "failed": (
        lambda told: told.see(sighting(FaultClass.CRASH)),
        "Failed",
        "phase main: ",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_job_ends_its_newest_start(end: str) -> None:
    comes, phase, why = ENDS[end]
    told = running(JOB)
    comes(told)
    (record,) = records(told)
    assert record["end_at"] == int(told.state.now)
    assert record["end_reason"].startswith(why)
    assert record["recover_records"] == []
    status = modelarts_view.details(told.state, told.chronicle)["status"]
    assert status["phase"] == phase
    assert status["duration"] == int(told.state.now * 1000) - status["start_time"]


def test_a_pause_ends_a_start_and_its_resume_is_another_one() -> None:
    told = running(JOB)
    told.command("pause", reason="a look")
    told.interrupted()
    told.succeeds()
    assert modelarts_view.details(told.state, told.chronicle)["status"]["phase"] == "Pending"
    told.command("resume")
    told.interrupted()
    told.succeeds()
    paused, resumed = records(told)
    assert paused["end_reason"] == "paused: a look"
    assert (resumed["start_type"], resumed["end_at"]) == ("restarted", None)


def test_a_recovery_that_told_no_outcome_is_still_one_start() -> None:
    told = running(JOB)
    told.see(sighting(FaultClass.DEVICE))
    told.loses_outcome()
    told.finds(started=True, generation=told.state.generation + 1)
    assert len(records(told)) == 2
    assert records(told)[0]["recover_records"][0]["recover_result"] == "success"


def test_what_is_kept_has_an_end() -> None:
    told = running(replace(ALL, budgets=(), series=()))
    for _ in range(STARTS_KEPT + 5):
        told.see(sighting(FaultClass.CRASH, at=told.state.now))
        told.succeeds()
    shown = records(told)
    assert len(shown) == STARTS_KEPT
    assert all(record["start_at"] is not None for record in shown)
    assert len([r for one in shown for r in one["recover_records"]]) <= RECORDS_KEPT


# -- The whole job ------------------------------------------------------------------------------


def test_restarts_are_counted_as_they_count_them() -> None:
    """Restarts in place are none of theirs; a restart of pod level is one that Maximum Restarts allows
    without being spent on it."""
    assert counted(heals()) == (0, 8)
    assert counted(pod_budget_used_up()) == (2, 8)
    told = node_lost()
    told.command("set_budget", name="job", limit=2)
    assert counted(told) == (1, 2)
    assert counted(running(modelarts(job_retry=None))) == (0, None)


def counted(told: Told) -> tuple[int, int | None]:
    status = modelarts_view.details(told.state, told.chronicle)["status"]
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
    told = Told(spec=replace(job_spec(JOB), origin=origin)).launches()
    shown = modelarts_view.details(told.state, told.chronicle)
    assert shown["kind"] == "hetero_job"
    assert shown["metadata"]["annotations"] == written
    assert shown["metadata"]["create_time"] == int(START * 1000)
    assert shown["spec"]["resource"] == {
        "node_count": 4,
        "pool_id": "pool-1",
        "flavor_id": "npu.8",
    }
    assert shown["status"]["tasks"] == ["worker-0", "worker-1", "worker-2", "worker-3"]


def test_exit_codes_are_those_of_the_newest_start() -> None:
    told = running(JOB)
    told.see(fact("process.exit", slot=2, rank=2, exit_code=None, signal=9))
    (failed,) = modelarts_view.details(told.state, told.chronicle)["status"]["task_statuses"]
    assert failed == {"task": "worker-2", "exit_code": 137, "message": "ended by signal 9"}
    told = exits()
    assert modelarts_view.details(told.state, told.chronicle)["status"]["task_statuses"] == []
    told.report("done")
    codes = modelarts_view.details(told.state, told.chronicle)["status"]["task_statuses"]
    assert [one["exit_code"] for one in codes] == [0, 0, 0, 0]


def test_every_state_has_a_phase_of_theirs() -> None:
    phases = {"Creating", "Pending", "Running", "Failed", "Completed"}
    phases |= {"Terminating", "Terminated", "Abnormal"}
    more = {"Queuing", "CreateFailed", "TerminatedFailed", "Unknown", "Lost"}
    assert {phase for phase, _ in modelarts_view.PHASE.values()} == phases
    assert {second for _, second in modelarts_view.PHASE.values()} <= phases | more
    shown = {*views.SHOWN_STATE.values(), *views.ENDED_STATE.values(), "unreachable"}
    assert shown <= modelarts_view.PHASE.keys()


def test_a_restart_that_waits_for_its_places_is_queuing() -> None:
    told = running(JOB)
    told.see(sighting(FaultClass.NODE))
    shown = modelarts_view.details(told.state, told.chronicle)["status"]
    assert (shown["phase"], shown["secondary_phase"]) == ("Running", "Running")
    waiting = replace(told.state, waiting_for="1 more node")
    shown = modelarts_view.details(waiting, told.chronicle)["status"]
    assert (shown["phase"], shown["secondary_phase"]) == ("Pending", "Queuing")


def test_phases_of_a_job_have_their_own_records() -> None:
    spec = job_spec(JOB)
    second = replace(spec.phases[0], name="second")
    told = Told(spec=replace(spec, phases=(spec.phases[0], second))).launches()
    told.report("done")
    assert told.state.mode is Mode.PENDING
    told.state = lifecycle.enter_phase(told.state, 1)
    told._advance(lifecycle.Begun())
    told.launches()
    told.see(sighting(FaultClass.NODE))
    told.succeeds()
    first, failed, newest = records(told)
    assert first["end_reason"] == "all ranks ended well"
    assert first["recover_records"] == []
    assert failed["end_recover"] == "job_reschedule_with_taint"
    assert newest["end_at"] is None


def test_a_document_that_nobody_read_yet_has_every_field() -> None:
    told = running(JOB)
    known = modelarts_view.details(told.state, told.chronicle)
    blank = responses.status(None, Chronicle(), "demo", {"shape": "modelarts"})
    assert blank.keys() == known.keys()
    for part in ("metadata", "status", "spec"):
        assert blank[part].keys() == known[part].keys()
    assert (blank["metadata"]["id"], blank["status"]["phase"]) == ("demo", "Creating")


def test_a_running_job_grows_older_while_nothing_is_reported() -> None:
    told = running(JOB)
    shown = modelarts_view.details(told.state, told.chronicle)
    later = modelarts_view.aged(shown, told.state.now + 60.0)
    assert later["status"]["duration"] == shown["status"]["duration"] + 60_000
    told.report("done")
    ended = modelarts_view.details(told.state, told.chronicle)
    assert modelarts_view.aged(ended, told.state.now + 60.0) == ended


def test_the_memo_holds_each_record_once() -> None:
    told = no_heal()
    left = responses.left(told.state, told.chronicle)
    assert left["report"]["running_records"] == records(told)
    assert "running_records" not in left["modelarts"]["status"]
    shown = job_memo.read("modelarts", left["modelarts"], left["report"])
    assert shown == modelarts_view.details(told.state, told.chronicle)
    assert job_memo.restarts_of(left["report"]) == responses.restarts(told.chronicle)
    assert left.keys() == {"report", "status", "modelarts"}, "each record once"
