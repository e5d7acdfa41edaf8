"""The ladder table: how each class is answered in each dialect, from the first level to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from everstep.chronicle import views
from everstep.core import dialects
from everstep.core.decision_input import decision_input
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.naming import ladder_for
from everstep.core.spec import Policy
from tests.support.builders import COLUMNS, SIGHTINGS, Told, fact, running, sighting

_C = FaultClass

# The levels that are executed in a job without library and with `min` nodes below `wanted`, each
# failing, until nothing is left. `note` stands alone: nothing is stopped and nothing can fail.
TABLE: Mapping[str, Mapping[FaultClass, str]] = {
    "native": {
        _C.CRASH: "in_place pod job fail",
        _C.HANG: "suspension job fail",
        _C.DEVICE: "in_place pod elastic job fail",
        _C.DEVICE_USER: "in_place job fail",
        _C.DEVICE_FATAL: "pod elastic job fail",
        _C.NODE: "pod elastic job fail",
        _C.UNREACHABLE: "note",
        _C.PRECHECK: "pod fail",
        _C.NETWORK: "in_place pod job fail",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "rollback fail",
        _C.CHECKPOINT: "rollback fail",
        _C.STORAGE: "in_place fail",
        _C.PREEMPTED: "job fail",
        _C.MAINTENANCE: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "in_place pod job fail",
    },
    "modelarts": {
        _C.CRASH: "fail",
        _C.HANG: "note",
        _C.DEVICE: "in_place job fail",
        _C.DEVICE_USER: "in_place job fail",
        _C.DEVICE_FATAL: "job fail",
        _C.NODE: "job fail",
        _C.UNREACHABLE: "note",
        _C.PRECHECK: "job fail",
        _C.NETWORK: "in_place job fail",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "fail",
        _C.CHECKPOINT: "rollback fail",
        _C.STORAGE: "in_place fail",
        _C.PREEMPTED: "job fail",
        _C.MAINTENANCE: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "fail",
    },
    "modelarts with all": {
        _C.CRASH: "job fail",
        _C.HANG: "suspension fail",
        _C.DEVICE: "in_place pod job fail",
        _C.DEVICE_USER: "in_place job fail",
        _C.DEVICE_FATAL: "pod job fail",
        _C.NODE: "pod job fail",
        _C.PRECHECK: "job fail",
        _C.NETWORK: "in_place job fail",
        _C.NUMERIC: "job fail",
        _C.UNKNOWN: "job fail",
    },
    "mindcluster": {
        _C.CRASH: "fail",
        _C.HANG: "note",
        _C.DEVICE: "job fail",
        _C.DEVICE_USER: "job fail",
        _C.DEVICE_FATAL: "job fail",
        _C.NODE: "job fail",
        _C.UNREACHABLE: "note",
        _C.PRECHECK: "job fail",
        _C.NETWORK: "job fail",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "fail",
        _C.CHECKPOINT: "rollback fail",
        _C.STORAGE: "in_place fail",
        _C.PREEMPTED: "job fail",
        _C.MAINTENANCE: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "fail",
    },
    "mindcluster with all": {
        _C.CRASH: "pod job fail",
        _C.HANG: "note",
        _C.DEVICE: "in_place pod elastic job fail",
        _C.DEVICE_USER: "in_place pod elastic job fail",
        _C.DEVICE_FATAL: "pod elastic job fail",
        _C.NODE: "pod elastic job fail",
        _C.NETWORK: "in_place pod job fail",
        _C.SUBHEALTH: "pod job fail",
        _C.SLOW: "pod job fail",
        _C.NUMERIC: "pod job fail",
        _C.UNKNOWN: "pod job fail",
    },
    "mindcluster pod only": {
        _C.CRASH: "pod fail",
        _C.DEVICE: "pod fail",
        _C.NODE: "pod fail",
        _C.PRECHECK: "fail",
    },
    "mindcluster off": {
        _C.CRASH: "fail",
        _C.HANG: "note",
        _C.DEVICE: "note",
        _C.DEVICE_USER: "note",
        _C.DEVICE_FATAL: "note",
        _C.NODE: "fail",
        _C.UNREACHABLE: "note",
        _C.NETWORK: "note",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "fail",
        _C.PREEMPTED: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "fail",
    },
    "mindcluster off, retried": {
        _C.CRASH: "job fail",
        _C.DEVICE: "note",
        _C.NODE: "job fail",
        _C.UNKNOWN: "job fail",
    },
    "cerebras": {
        _C.CRASH: "job fail",
        _C.HANG: "fail",
        _C.DEVICE: "job fail",
        _C.DEVICE_USER: "job fail",
        _C.DEVICE_FATAL: "job fail",
        _C.NODE: "job fail",
        _C.UNREACHABLE: "note",
        _C.PRECHECK: "job fail",
        _C.NETWORK: "job fail",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "job fail",
        _C.CHECKPOINT: "rollback fail",
        _C.STORAGE: "in_place fail",
        _C.PREEMPTED: "job fail",
        _C.MAINTENANCE: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "job fail",
    },
    "modelarts off": {
        _C.CRASH: "fail",
        _C.HANG: "note",
        _C.DEVICE: "note",
        _C.DEVICE_USER: "note",
        _C.DEVICE_FATAL: "note",
        _C.NODE: "fail",
        _C.UNREACHABLE: "note",
        _C.PRECHECK: "fail",
        _C.NETWORK: "note",
        _C.SUBHEALTH: "note",
        _C.SLOW: "note",
        _C.NUMERIC: "fail",
        _C.CHECKPOINT: "fail",
        _C.STORAGE: "fail",
        _C.PREEMPTED: "job fail",
        _C.MAINTENANCE: "job fail",
        _C.PLANNED: "job fail",
        _C.UNKNOWN: "fail",
    },
}

ROWS = [(name, cls, says) for name, row in TABLE.items() for cls, says in row.items()]


def walked_down(told: Told) -> str:
    """The levels as every one of them fails at its first step."""
    while told.decisions[-1].is_executed:
        told.fails("test.failed", at=told.plan.steps[0])
    return " ".join(decision.level for decision in told.decisions)


@pytest.mark.parametrize(
    ("column", "cls", "says"), ROWS, ids=[f"{name}: {cls}" for name, cls, _ in ROWS]
)
def test_every_class_goes_down_the_ladder_of_its_dialect(
    column: str, cls: FaultClass, says: str
) -> None:
    told = running(COLUMNS[column], nodes_min=2)
    told.see(sighting(cls))
    assert walked_down(told) == says


@pytest.mark.parametrize("column", COLUMNS)
def test_every_dialect_has_a_ladder_for_every_class(column: str) -> None:
    assert set(COLUMNS[column].ladders) == set(FaultClass)


def test_there_is_a_sighting_of_every_class() -> None:
    told = running()
    named = {cls: running().see(seen).fault.cls for cls, seen in SIGHTINGS.items()}
    assert named == {cls: cls for cls in FaultClass}
    assert told.decisions == []


def test_elastic_is_passed_over_where_the_number_of_nodes_is_fixed() -> None:
    told = running()
    told.see(sighting(_C.NODE))
    assert walked_down(told) == "pod job fail"
    assert told.decisions[1].passed_over == (
        "elastic: the document asks for a fixed number of nodes",
    )


def test_a_level_passed_over_bills_nothing_and_leaves_no_record() -> None:
    told = running()
    told.see(sighting(_C.NETWORK))
    assert told.decisions[-1].passed_over[0].startswith("operator_online: ")
    assert [record.decision.level for record in told.records] == [Level.IN_PLACE]


@pytest.mark.parametrize("cls", FaultClass)
@pytest.mark.parametrize("name", ["modelarts off", "mindcluster off"])
def test_switched_off_nothing_is_checked_before_the_start(name: str, cls: FaultClass) -> None:
    told = running(COLUMNS[name])
    assert Step.PRECHECK not in told.see(sighting(cls)).steps


def test_switched_off_a_crash_beside_a_fault_that_is_noted_ends_the_job() -> None:
    told = running(COLUMNS["modelarts off"])
    decision = told.see(sighting(_C.DEVICE), sighting(_C.CRASH))
    assert (decision.level, decision.fault.cls) == (Level.FAIL, _C.CRASH)


def test_the_library_levels_come_before_the_first_container_level_of_a_default_ladder() -> None:
    given = decision_input(replace(running().state, library=True), now=0.0)
    assert ladder_for(given, _C.CRASH)[:3] == (
        Level.PROCESS_ONLINE,
        Level.PROCESS,
        Level.IN_PLACE,
    )
    assert ladder_for(given, _C.HANG) == (Level.SUSPENSION, Level.JOB)


def test_a_ladder_of_the_document_is_taken_literally() -> None:
    policy = Policy(ladders={_C.CRASH: (Level.POD,)}, written=(_C.CRASH,))
    given = decision_input(replace(running(policy).state, library=True), now=0.0)
    assert ladder_for(given, _C.CRASH) == (Level.POD,)


def test_a_kind_never_heard_of_is_answered_like_a_crash() -> None:
    for column, policy in COLUMNS.items():
        crash, unknown = running(policy), running(policy)
        crash.see(fact("process.exit", slot=1, exit_code=1))
        unknown.see(fact("martians.landed", slot=1))
        assert walked_down(crash) == walked_down(unknown), column


@pytest.mark.parametrize(
    ("job_retry", "kind", "is_said"),
    [
        (None, "process.exit", True),
        (None, "node.down", True),
        (None, "limit.run", False),
        (1, "process.exit", False),
    ],
)
def test_who_asked_for_no_restarts_reads_that_where_a_fault_ends_the_job(
    job_retry: int | None, kind: str, is_said: bool
) -> None:
    told = running(dialects.modelarts(job_retry=job_retry))
    decision = told.see(fact(kind, slot=1, node="n1", exit_code=1))
    assert decision.level is Level.FAIL
    key = "fault-tolerance/job-retry-num"
    assert (key in views.report(told.state, told.chronicle)["reason"]) is is_said
