"""The ladder table: how each class is answered in each dialect, from the first level to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision_input import decision_input
from everstep.core.levels import CAPABILITIES, LIBRARY_LEVELS, FaultClass, Level, Owner, Step
from everstep.core.spec import DEFAULT_ROWS, Exclusion, LadderRow, Policy
from everstep.dialects import responses
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import (
    COLUMNS,
    SIGHTINGS,
    ScriptedJob,
    fact,
    running,
    sighting,
    with_ladder,
)

_C = FaultClass

# The levels that are executed in a job without library and with `min` nodes below `wanted`, each
# failing, until nothing is left, and the classes that go down them. `note` stands alone: nothing is
# stopped and nothing can fail.
TABLE: Mapping[str, Mapping[str, str]] = {
    "native": {
        "in_place pod job fail": "crash network unknown",
        "suspension job fail": "hang",
        "in_place pod elastic job fail": "device",
        "in_place job fail": "device_user",
        "pod elastic job fail": "device_fatal node",
        "note": "unreachable subhealth slow",
        "pod fail": "precheck",
        "rollback fail": "numeric checkpoint",
        "in_place fail": "storage",
        "job fail": "preempted maintenance planned",
    },
    "modelarts": {
        "fail": "crash numeric unknown",
        "note": "hang unreachable subhealth slow",
        "in_place job fail": "device device_user network",
        "job fail": "device_fatal node precheck preempted maintenance planned",
        "rollback fail": "checkpoint",
        "in_place fail": "storage",
    },
    "modelarts with all": {
        "job fail": "crash precheck numeric unknown",
        "suspension fail": "hang",
        "in_place pod job fail": "device",
        "in_place job fail": "device_user network",
        "pod job fail": "device_fatal node",
    },
    "mindcluster": {
        "fail": "crash numeric unknown",
        "note": "hang unreachable subhealth slow",
        "job fail": "device device_user device_fatal node precheck network preempted maintenance planned",
        "rollback fail": "checkpoint",
        "in_place fail": "storage",
    },
    "mindcluster with all": {
        "pod job fail": "subhealth slow",
        "note": "hang",
        "in_place pod elastic job fail": "device device_user",
        "pod elastic job fail": "device_fatal node",
        "in_place pod job fail": "crash network numeric unknown",
    },
    "mindcluster pod only": {
        "pod fail": "crash device node precheck",
        "job fail": "preempted maintenance planned",
    },
    "mindcluster off": {
        "fail": "crash node numeric unknown",
        "note": "hang device device_user device_fatal unreachable network subhealth slow",
        "job fail": "preempted planned",
    },
    "mindcluster off, retried": {
        "job fail": "crash node unknown",
        "note": "device",
    },
    "cerebras": {
        "job fail": "crash device device_user device_fatal node precheck network numeric"
        " preempted maintenance planned unknown",
        "fail": "hang",
        "note": "unreachable subhealth slow",
        "rollback fail": "checkpoint",
        "in_place fail": "storage",
    },
    "modelarts off": {
        "fail": "crash node precheck numeric checkpoint storage unknown",
        "note": "hang device device_user device_fatal unreachable network subhealth slow",
        "job fail": "preempted maintenance planned",
    },
}

ROWS = [
    (name, FaultClass(cls), ladder_text)
    for name, column in TABLE.items()
    for ladder_text, classes in column.items()
    for cls in classes.split()
]


def walked_down(job: ScriptedJob) -> str:
    """The levels as every one of them fails at its first step."""
    while job.decisions[-1].is_executed:
        job.fails("test.failed", at=job.plan.remedy.steps[0])
    return " ".join(decision.level for decision in job.decisions)


@pytest.mark.parametrize(
    ("column", "cls", "ladder_text"), ROWS, ids=[f"{name}: {cls}" for name, cls, _ in ROWS]
)
def test_every_class_goes_down_the_ladder_of_its_dialect(
    column: str, cls: FaultClass, ladder_text: str
) -> None:
    job = running(COLUMNS[column], nodes_min=2)
    job.see(sighting(cls))
    assert walked_down(job) == ladder_text


@pytest.mark.parametrize(
    ("cls", "code_level", "levels"),
    [
        (_C.DEVICE, "RestartRequest", (Level.IN_PLACE, Level.POD, Level.ELASTIC, Level.JOB)),
        (_C.DEVICE, "RestartBusiness", (Level.IN_PLACE, Level.POD, Level.ELASTIC, Level.JOB)),
        (_C.DEVICE, "FreeRestartNPU", (Level.POD, Level.ELASTIC, Level.JOB)),
        (_C.DEVICE_USER, "RestartNPU", (Level.POD, Level.ELASTIC, Level.JOB)),
        (_C.DEVICE_FATAL, "SeparateNPU", (Level.POD, Level.ELASTIC, Level.JOB)),
        (_C.SUBHEALTH, "SubHealthFault", (Level.POD, Level.JOB)),
        (_C.SUBHEALTH, "PreSeparateNPU", (Level.NOTE,)),
    ],
)
def test_mindcluster_answers_a_device_by_the_level_of_its_code(
    cls: FaultClass, code_level: str, levels: tuple[Level, ...]
) -> None:
    policy = COLUMNS["mindcluster with all"]
    answer = policy.answer(cls, code_level=code_level).levels
    assert tuple(level for level in answer if level not in LIBRARY_LEVELS) == levels


@pytest.mark.parametrize("column", COLUMNS)
def test_every_dialect_has_a_ladder_for_every_class(column: str) -> None:
    rows = (row for row in COLUMNS[column].ladders if not row.code_levels)
    answered = [{*row.classes} for row in rows if not row.needs_library]
    assert set().union(*answered) == set(FaultClass)
    assert sum(map(len, answered)) == len(FaultClass)


def test_there_is_a_sighting_of_every_class() -> None:
    job = running()
    classes = {cls: running().see(report).fault.cls for cls, report in SIGHTINGS.items()}
    assert classes == {cls: cls for cls in FaultClass}
    assert job.decisions == []


def test_elastic_is_passed_over_where_the_number_of_nodes_is_fixed() -> None:
    job = running()
    job.see(sighting(_C.NODE))
    assert walked_down(job) == "pod job fail"
    assert job.decisions[1].passed_over == (
        "elastic: the document asks for a fixed number of nodes",
    )


def test_a_level_passed_over_bills_nothing_and_leaves_no_record() -> None:
    job = running()
    job.see(sighting(_C.NETWORK))
    assert job.decisions[-1].passed_over[0].startswith("operator_online: ")
    assert [record.decision.level for record in job.records] == [Level.IN_PLACE]


@pytest.mark.parametrize("cls", FaultClass)
@pytest.mark.parametrize("name", ["modelarts off", "mindcluster off"])
def test_switched_off_nothing_is_checked_before_the_start(name: str, cls: FaultClass) -> None:
    job = running(COLUMNS[name])
    assert Step.PRECHECK not in job.see(sighting(cls)).remedy.steps


def test_switched_off_a_crash_beside_a_fault_that_is_noted_ends_the_job() -> None:
    job = running(COLUMNS["modelarts off"])
    decision = job.see(sighting(_C.DEVICE), sighting(_C.CRASH))
    assert (decision.level, decision.fault.cls) == (Level.FAIL, _C.CRASH)


def test_the_library_levels_come_before_the_first_container_level_of_a_default_ladder() -> None:
    policy = Policy()
    assert policy.answer(_C.CRASH, library=True).levels[:3] == (
        Level.PROCESS_ONLINE,
        Level.PROCESS,
        Level.IN_PLACE,
    )
    assert policy.answer(_C.HANG, library=True).levels == (
        Level.PROCESS_ONLINE,
        Level.PROCESS,
        Level.SUSPENSION,
        Level.JOB,
    )
    assert not policy.answer(_C.CRASH).needs_library


def test_a_ladder_of_the_document_is_taken_literally() -> None:
    policy = with_ladder(Policy(), _C.CRASH, Level.POD, is_literal=True)
    assert policy.answer(_C.CRASH, library=True).levels == (Level.POD,)
    job = running(policy)
    job.state = replace(job.state, can=CAPABILITIES)
    for _ in range(2):  # nor does it escalate
        assert job.see(sighting(_C.CRASH)).level is Level.POD
        job.succeeds()


ASKING = (
    LadderRow((Level.NOTE,), (_C.DEVICE,), code_levels=("RestartRequest",)),
    LadderRow((Level.JOB,), (_C.DEVICE,), owners=(Owner.USER,)),
    LadderRow((Level.PROCESS,), (_C.DEVICE,), needs_library=True),
    LadderRow((Level.POD,), (_C.DEVICE,)),
    LadderRow((Level.ROLLBACK,), owners=(Owner.OPERATOR,)),
)


@pytest.mark.parametrize(
    ("fault", "level"),
    [
        ({"code_level": "RestartRequest", "owner": Owner.USER}, Level.NOTE),
        ({"code_level": "SeparateNPU", "owner": Owner.USER}, Level.JOB),
        ({"owner": Owner.INFRA, "library": True}, Level.PROCESS),
        ({"owner": Owner.INFRA}, Level.POD),
        ({"cls": _C.HANG, "owner": Owner.OPERATOR}, Level.ROLLBACK),
        ({"cls": _C.HANG, "owner": Owner.INFRA, "library": True}, Level.FAIL),
    ],
)
def test_the_first_row_that_fits_answers(fault: dict[str, Any], level: Level) -> None:
    assert Policy(ladders=ASKING).answer(**{"cls": _C.DEVICE, **fault}).levels == (level,)


def test_a_row_may_ask_how_grave_the_reporter_calls_the_code() -> None:
    grave = LadderRow((Level.NOTE,), code_levels=("NotToday",))
    job = running(Policy(ladders=(grave, *DEFAULT_ROWS)))
    for level, answer in (("NotToday", Level.NOTE), ("Now", Level.IN_PLACE)):
        device_fault = fact("device.fault", node="n1", device=0, code="77", level=level)
        assert job.see(device_fault).level is answer


def test_what_a_document_rules_out_is_passed_over_with_its_sentence() -> None:
    policy = Policy(exclusions=(Exclusion((Level.IN_PLACE,), "not on Sundays"),))
    decision = running(policy).see(sighting(_C.CRASH))
    assert (decision.level, decision.passed_over) == (Level.POD, ("in_place: not on Sundays",))


@pytest.mark.parametrize(("slot", "level"), [(0, Level.POD), (1, Level.IN_PLACE)])
def test_it_may_be_ruled_out_under_rank_0_alone(slot: int, level: Level) -> None:
    policy = Policy(exclusions=(Exclusion((Level.IN_PLACE,), "rank 0", under_rank0=True),))
    assert running(policy).see(fact("process.exit", slot=slot, exit_code=1)).level is level


def test_a_kind_never_heard_of_is_answered_like_a_crash() -> None:
    for column, policy in COLUMNS.items():
        crash, unknown = running(policy), running(policy)
        crash.see(fact("process.exit", slot=1, exit_code=1))
        unknown.see(fact("martians.landed", slot=1))
        assert walked_down(crash) == walked_down(unknown), column


@pytest.mark.parametrize(
    ("job_retry", "kind", "is_reported"),
    [
        (None, "process.exit", True),
        (None, "node.down", True),
        (None, "limit.run", False),
        (1, "process.exit", False),
    ],
)
def test_who_asked_for_no_restarts_reads_that_where_a_fault_ends_the_job(
    job_retry: int | None, kind: str, is_reported: bool
) -> None:
    job = running(modelarts(job_retry=job_retry))
    decision = job.see(fact(kind, slot=1, node="n1", exit_code=1))
    assert decision.level is Level.FAIL
    key = "fault-tolerance/job-retry-num"
    assert (key in responses.report(job.state, job.chronicle)["reason"]) is is_reported


@pytest.mark.parametrize(
    ("can", "why"),
    [
        ((), "operator_online: needs the train library in every rank"),
        (
            ("pause",),
            "operator_online: not every rank declares guard and rebuild",
        ),
        (("guard", "pause"), "operator_online: not every rank declares rebuild"),
    ],
)
def test_a_level_is_passed_over_until_every_rank_can_do_what_it_needs(
    can: tuple[str, ...], why: str
) -> None:
    job = running(with_ladder(Policy(), _C.NETWORK, Level.OPERATOR_ONLINE, Level.JOB))
    inputs = decision_input(job.state, now=job.state.now, facts=(sighting(_C.NETWORK),))
    assert decide(replace(inputs, can=can)).passed_over == (why,)


def test_a_ladder_without_new_containers_that_was_tried_already_still_has_an_answer() -> None:
    """Where a container is gone the ladder of storage, `in_place` alone, is replaced by levels not on it."""
    job = running()
    job.see(fact("storage.unwritable", at=job.state.now + 1))
    job.succeeds()
    decision = job.see(fact("storage.unwritable", at=job.state.now + 5), lost_containers=(0,))
    assert decision.level is Level.JOB
    assert decision.passed_over == (
        "in_place: the container of slot 0 is gone",
        "pod: after 1 restart for storage without progress the ladder starts further down",
    )
