"""What a job carries from run to run stays below 256 KB at 1,000 pods and 50 records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest
from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload

from everstep.chronicle import views
from everstep.chronicle.chronicle import CHANGES_KEPT, RECORDS_KEPT
from everstep.converter import DATA_CONVERTER
from everstep.core.counting.occurrences import Occurrence
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.facts import MESSAGE_MOST
from everstep.core.levels import FaultClass
from everstep.core.loop.next_actions import Decide, RunPlan, next_action
from everstep.core.spec import Budget, Policy
from everstep.core.state import COMMAND_IDS_KEPT, FACT_IDS_KEPT, OCCURRENCES_KEPT, Mode
from everstep.core.world import NewerCheckpoints, PassedOver, PodRef
from everstep.dialects import job_memo, responses
from tests.support.builders import ScriptedJob, fact, outcome, running, sighting
from workflows.opening import Carried

LIMIT = 256 * 1024
PODS = 1_000
LONG = "NCCL watchdog: the collective ALLREDUCE timed out after 600000 ms on rank 17. " * 2
LONGEST = (LONG * 4)[:MESSAGE_MOST]
INPUT = TypeAdapter(DecisionInput)
PASSED_OVER = tuple(
    PassedOver(f"step {number}", "changed less than 1 s before its writer ended")
    for number in (1_000_030, 1_000_020, 1_000_010)
)
PAYLOADS = DATA_CONVERTER.payload_converter


def worn(restarts: int) -> ScriptedJob:
    """A large job with a long life, for one test to go on with."""
    return copy.copy(_worn(restarts))


@cache
def _worn(restarts: int) -> ScriptedJob:
    """A large job with a long life: every pod has a UID as Kubernetes makes them, records are full."""
    policy = Policy(no_progress_restarts=None, budgets=(Budget(name="hardware", limit=None),))
    job = running(policy, nodes=PODS)
    for number in range(restarts):
        node = job.state.slots[number].node
        job.see(
            *(sighting(FaultClass.NODE, node=node, slot=number, message=LONGEST) for _ in range(5)),
        )
        job.succeeds(
            evidence="out/demo/evidence/recovery-3",
            notes=("isolate: deferred for n1",),
            newer_saved=NewerCheckpoints(count=9, newest=PASSED_OVER),
        )
        job.saves(number)
    slots = {n: s._replace(uid=f"{n:036d}") for n, s in job.state.slots.items()}
    facts = tuple(f"agent/{n:036d}/17/{n}" for n in range(FACT_IDS_KEPT))
    updates = tuple(f"{n:036d}" for n in range(COMMAND_IDS_KEPT))
    job.state = replace(job.state, slots=slots, seen_ids=facts, applied_ids=updates)
    return job


def size(job: ScriptedJob) -> int:
    return len(carried(job).data)


def carried(job: ScriptedJob) -> Payload:
    """As a history has it."""
    input_of_run = Carried(document=None, state=job.state, chronicle=job.chronicle)
    (payload,) = PAYLOADS.to_payloads([input_of_run])
    return payload


def test_what_is_left_out_of_a_history_is_read_again() -> None:
    job = worn(RECORDS_KEPT)
    (read,) = PAYLOADS.from_payloads([carried(job)], [Carried])
    assert (read.state, read.chronicle) == (job.state, job.chronicle)


def test_a_large_job_stays_small_between_incidents() -> None:
    job = worn(RECORDS_KEPT)
    assert len(job.chronicle.records) == RECORDS_KEPT
    assert size(job) < LIMIT


def test_records_name_changed_places_only_as_long_as_there_are_few() -> None:
    job = worn(5)
    for number in range(6):
        job.see(fact("job.preempted"))
        moved = {n: r._replace(node=f"m{number}-{n}") for n, r in _pods(job).items()}
        job.succeeds(pods=moved)
    assert sum(len(record.after) for record in job.chronicle.records) <= CHANGES_KEPT
    assert len(job.record.after) == PODS
    assert "changed their place" in job.chronicle.records[-4].notes[-1]
    assert size(job) < LIMIT


def _pods(job: ScriptedJob) -> dict[int, PodRef]:
    return dict(outcome(job.plan, "success", None, None).pods)


def test_what_a_decision_is_made_from_does_not_grow_with_the_job() -> None:
    job = worn(RECORDS_KEPT)
    job.state = replace(job.state, occurrences=(_OCCURRENCE,) * OCCURRENCES_KEPT)
    assert size_of_input(job) < 12 * 1024  # 4 KB of them say which slots live


def size_of_input(job: ScriptedJob) -> int:
    facts = (sighting(FaultClass.NODE, node=job.state.slots[7].node, message=LONG),)
    state = replace(job.state, mode=Mode.DECIDING, pending_facts=facts)
    action = next_action(state)
    assert isinstance(action, Decide)
    assert {*action.inputs.nodes_by_slot} == {0, 7}
    return len(INPUT.dump_json(action.inputs))


_OCCURRENCE = Occurrence(node="n999", device=0, code="80E01801", at=0.0)


def test_a_plan_for_all_pods_stays_small() -> None:
    job = worn(1)
    job.see(sighting(FaultClass.PREEMPTED))
    assert isinstance(job.action, RunPlan)
    assert len(TypeAdapter(type(job.plan)).dump_json(job.plan)) < LIMIT


VIEWS: Mapping[str, Callable[[ScriptedJob], object]] = {
    "status": lambda job: views.status(job.state),
    "restarts": lambda job: responses.restarts(job.chronicle),
    "page": lambda job: views.page(job.state, job.chronicle),
    "memo": lambda job: responses.closing_memo(job.state, job.chronicle),
}


def test_what_a_job_of_10000_pods_leaves_fits_in_a_memo() -> None:
    job = running(nodes=10_000)
    slots = {n: s._replace(uid=f"{n:036d}") for n, s in job.state.slots.items()}
    left = responses.closing_memo(replace(job.state, slots=slots), job.chronicle)
    assert max(len(TypeAdapter(object).dump_json(value)) for value in left.values()) < 1024 * 1024
    assert job_memo.read("status", left["status"], left["report"]) == views.status(
        replace(job.state, slots=slots), job.chronicle
    )


def test_the_status_of_10000_pods_of_16_ranks_is_below_two_megabytes() -> None:
    job = running(nodes=10_000, processes_per_node=16)
    slots = {
        n: s._replace(uid=f"{n:036d}", node=f"gpu-{n:05d}") for n, s in job.state.slots.items()
    }
    state = replace(job.state, slots=slots, generation=12_345, older_ranks={17: 12_344})
    payload = TypeAdapter(object).dump_json(views.status(state))
    assert len(payload) < 2 * 1024 * 1024


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_shown_of_a_large_job_is_below_two_megabytes(name: str) -> None:
    payload = TypeAdapter(object).dump_json(VIEWS[name](worn(RECORDS_KEPT)))
    assert len(payload) < 2 * 1024 * 1024
