"""Rule 8: the third same code on one device within a day, and heals that fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.levels import FaultClass, Level, Step
from everstep.core.state import OCCURRENCES_KEPT
from everstep.dialects import responses
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, running, sighting

_C = FaultClass
DAY_S = 86_400.0
MODELARTS = modelarts(job_retry=8)


def third(
    job: ScriptedJob, *changes: dict[str, object], cls: FaultClass = _C.DEVICE, gap_s: float = 10.0
) -> Level:
    """Three sightings of a device fault, each with its changes, each answered successfully."""
    for change in changes:
        at = job.state.now + gap_s
        job.see(sighting(cls, at=at, **change), now=at)
        if job.decisions[-1].is_executed:
            job.succeeds()
    return job.decisions[-1].level


def test_the_third_same_code_isolates_the_node_and_in_place_is_not_executed() -> None:
    job = running(MODELARTS)
    assert third(job, {}, {}, {}) is Level.JOB
    decision, record = job.decisions[-1], responses.record(job.record)
    assert decision.fault.cls is _C.DEVICE_FATAL
    assert [i.node for i in decision.remedy.isolate] == ["n1"]
    assert record["recover_before_downgrade"] == "npu_proc_restart"
    assert record["recover"] == "job_reschedule_with_taint"
    assert record["bills"] == {"job": 1}


ROWS: tuple[tuple[str, list[dict[str, object]], float, Level], ...] = (
    ("another code in between does not matter", [{}, {}, {"code": "other"}, {}], 10.0, Level.JOB),
    ("different devices do", [{"device": 1}, {"device": 2}, {"device": 3}], 10.0, Level.IN_PLACE),
    ("different nodes do", [{"node": "n1"}, {"node": "n2"}, {"node": "n3"}], 10.0, Level.IN_PLACE),
    ("different codes do", [{"code": "a"}, {"code": "b"}, {"code": "c"}], 10.0, Level.IN_PLACE),
    ("more than a day does", [{}, {}, {}], DAY_S / 2, Level.IN_PLACE),
    ("just within a day does not", [{}, {}, {}], DAY_S / 2 - 10, Level.JOB),
)


@pytest.mark.parametrize(
    ("changes", "gap_s", "level"), [r[1:] for r in ROWS], ids=[f"8 {r[0]}" for r in ROWS]
)
def test_what_counts_as_the_same_fault(
    changes: list[dict[str, object]], gap_s: float, level: Level
) -> None:
    assert third(running(MODELARTS), *changes, gap_s=gap_s) is level


IN_PLACE_FIRST = mindcluster(
    fault_scheduling="force", fault_retry_times=3, recover_strategy=("recover-in-place",)
)
BY_CODE: tuple[tuple[str, int, float, Level], ...] = (
    ("80E01801", 1, 10.0, Level.IN_PLACE),
    ("80E01801", 2, 10.0, Level.JOB),
    ("80E01801", 2, DAY_S - 10, Level.JOB),
    ("80E01801", 2, DAY_S + 10, Level.IN_PLACE),
    ("80E18005", 2, 10.0, Level.IN_PLACE),
    ("80E18005", 3, 10.0, Level.JOB),
    ("80C98009", 2, 10.0, Level.IN_PLACE),
    ("80C98009", 3, 10.0, Level.JOB),
)


@pytest.mark.parametrize(("code", "times", "gap_s", "level"), BY_CODE)
def test_case_56_each_code_has_its_own_number_of_times(
    code: str, times: int, gap_s: float, level: Level
) -> None:
    job = running(IN_PLACE_FIRST)
    changes: list[dict[str, object]] = [{"code": code}] * times
    assert third(job, *changes, gap_s=gap_s) is level
    assert [i.node for i in job.decisions[-1].remedy.isolate] == (
        ["n1"] if level is Level.JOB else []
    )


@pytest.mark.parametrize(
    ("other", "gap_s", "level"),
    [
        ({"device": 5}, 15.0, Level.IN_PLACE),
        ({"node": "n2"}, 15.0, Level.IN_PLACE),
        ({"device": 5}, 31.0, Level.JOB),
        ({"device": 5, "code": "80E18008"}, 15.0, Level.JOB),
    ],
    ids=str,
)
def test_case_58_a_code_that_two_chips_show_at_once_counts_for_neither(
    other: dict[str, object], gap_s: float, level: Level
) -> None:
    job = running(IN_PLACE_FIRST)
    third(job, {"code": "80E01801"}, {"code": "80E01801", **other}, gap_s=gap_s)
    assert third(job, {"code": "80E01801"}, gap_s=3600.0) is level


@pytest.mark.parametrize(("gap_s", "level"), [(400.0, Level.JOB), (500.0, Level.IN_PLACE)])
def test_a_rehearsal_divides_the_day(gap_s: float, level: Level) -> None:
    job = running(MODELARTS)
    job.state = replace(job.state, spec=replace(job.state.spec, time_scale=100.0))
    assert third(job, {}, {}, {}, gap_s=gap_s) is level  # a day became 864 seconds
    is_repeat = level is Level.JOB
    assert ("came 3 times within 864 s" in job.decisions[-1].reason) == is_repeat


def test_a_user_induced_code_is_rescheduled_without_isolation() -> None:
    job = running(MODELARTS)
    assert third(job, {}, {}, {}, cls=_C.DEVICE_USER) is Level.JOB
    assert job.decisions[-1].remedy.isolate == ()
    assert job.decisions[-1].remedy.heal, "its node can be used again only once the device is sound"
    assert job.record.decision.instead_of is Level.IN_PLACE
    assert responses.record(job.record)["recover"] == "job_reschedule"


@pytest.mark.parametrize("cls", [_C.DEVICE, _C.DEVICE_USER])
def test_a_heal_that_fails_isolates_whoever_owns_the_code(cls: FaultClass) -> None:
    job = running(MODELARTS)
    job.see(sighting(cls))
    decision = job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3)
    assert (decision.level, [i.node for i in decision.remedy.isolate]) == (Level.JOB, ["n1"])


def test_a_chip_that_did_not_heal_ends_a_series_of_restarts_for_users_faults() -> None:
    """It is the hardware's fault from then on: three such chips in a row say nothing of the script."""
    job = running(MODELARTS)
    for node in ("n0", "n1", "n2", "n3"):
        job.see(sighting(_C.DEVICE_USER, node=node))
        decision = job.fails("device.heal_failed", at=Step.HEAL, node=node, device=3)
        assert (decision.level, [i.node for i in decision.remedy.isolate]) == (Level.JOB, [node])
        assert decision.counts == ()
        job.succeeds()
        assert job.state.ledger.series == {}


def test_only_the_node_whose_device_did_not_heal_is_isolated() -> None:
    job = running()
    job.see(sighting(_C.DEVICE, node="n0"), sighting(_C.DEVICE, node="n1"))
    assert [ref.node for ref in job.decisions[-1].remedy.heal] == ["n0", "n1"]
    healed = replace(sighting(_C.DEVICE, node="n0"), kind="device.healed")
    decision = job.fails("device.heal_failed", at=Step.HEAL, node="n1", device=3, facts=(healed,))
    assert [i.node for i in decision.remedy.isolate] == ["n1"]
    assert decision.remedy.recreate == (1,)


def test_the_same_sighting_told_twice_is_one() -> None:
    job = running(MODELARTS)
    device_fault = sighting(_C.DEVICE)
    for _ in range(3):
        job.see(device_fault)
        if job.decisions[-1].is_executed:
            job.succeeds()
    assert len(job.state.occurrences) == 1


def test_a_level_that_runs_again_does_not_count_its_fault_again() -> None:
    job = running(MODELARTS)
    job.see(sighting(_C.DEVICE))
    for generation in (2, 3, 4):
        job.loses_outcome()
        job.finds(started=False, generation=generation)
    assert len(job.state.occurrences) == 1


def test_a_code_that_is_answered_later_is_counted_when_it_is_answered() -> None:
    """While a pod of another node is replaced once more, the device waits for its own decision."""
    job = running(MODELARTS)
    job.see(sighting(_C.NODE, node="n3"))
    report = {"kind": "device.fault", "node": "n1", "device": 3, "code": "80E01801", "id": "x1"}
    job.command("report_fault", **report)
    job.loses_outcome()
    job.finds(started=False, generation=job.state.generation)
    assert (job.decisions[-1].facts_for_later, job.state.occurrences) == (("report/x1",), ())
    job.succeeds()
    assert [o.code for o in job.state.occurrences] == ["80E01801"]
    job.succeeds()
    assert third(job, {}) is Level.IN_PLACE, "the second sighting is not the third"
    assert third(job, {}) is Level.JOB


def test_a_code_seen_while_something_else_went_on_is_counted() -> None:
    job = running(MODELARTS)
    job.see(sighting(_C.DEVICE))
    job.fails("start.timeout", facts=(sighting(_C.DEVICE, code="other"),))
    assert [o.code for o in job.state.occurrences] == ["80E01801", "other"]


def test_what_is_remembered_has_a_bound() -> None:
    job = running()
    for number in range(OCCURRENCES_KEPT + 50):
        job.see(sighting(_C.DEVICE, code=f"code-{number}"))
        job.succeeds()
        job.saves(number)
    assert len(job.state.occurrences) == OCCURRENCES_KEPT


# -- Several devices at once --------------------------------------------------------------------


def twice(
    node: str, device: int, code: str = "80E01801", cls: FaultClass = _C.DEVICE
) -> ScriptedJob:
    """A job whose device showed the code twice, and healed."""
    job = running()
    for _ in range(2):
        at = job.state.now + 100.0
        job.see(sighting(cls, node=node, device=device, code=code, at=at), now=at)
        job.succeeds()
        job.saves(int(at))
    return job


@pytest.mark.parametrize("is_first", [True, False])
def test_a_device_that_shows_its_code_too_often_is_left_whatever_breaks_with_it(
    *, is_first: bool
) -> None:
    job = twice("n2", 0)
    at = job.state.now + 100.0
    other_at = at + 1.0 if is_first else at - 1.0
    repeated = sighting(_C.DEVICE, node="n2", device=0, at=at)
    other = sighting(_C.DEVICE, node="n1", device=3, code="80E18005", at=other_at)
    decision = job.see(repeated, other, now=at + 2.0)
    assert (decision.fault.cls, decision.fault.where) == (_C.DEVICE_FATAL, "n2/0")
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n2"]
    assert decision.remedy.recreate == (2,)
    assert [(ref.node, ref.device) for ref in decision.remedy.heal] == [("n1", 3)]


def test_all_devices_that_show_their_codes_too_often_are_left() -> None:
    job = twice("n2", 0)
    for _ in range(2):
        at = job.state.now + 100.0
        job.see(sighting(_C.DEVICE, node="n1", device=3, code="80E18005", at=at), now=at)
        job.succeeds()
        job.saves(int(at))
    at = job.state.now + 100.0
    repeated = sighting(_C.DEVICE, node="n2", device=0, at=at)
    other = sighting(_C.DEVICE, node="n1", device=3, code="80E18005", at=at)
    decision = job.see(repeated, other, now=at)
    assert {isolation.node for isolation in decision.remedy.isolate} == {"n1", "n2"}
    assert (decision.remedy.recreate, decision.remedy.heal) == ((1, 2), ())


def test_a_code_of_the_user_that_comes_too_often_moves_the_job_whatever_breaks_before_it() -> None:
    job = twice("n2", 0, "80C98002", _C.DEVICE_USER)
    at = job.state.now + 100.0
    other = sighting(_C.DEVICE_USER, node="n1", device=3, code="80CB8002", at=at - 1.0)
    repeated = sighting(_C.DEVICE_USER, node="n2", device=0, at=at)
    decision = job.see(other, repeated, now=at)
    assert (decision.level, decision.remedy.isolate) == (Level.JOB, ())
    assert "80C98002 came 3 times" in decision.reason
