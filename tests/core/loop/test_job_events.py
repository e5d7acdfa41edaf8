"""What the loop says of itself: each kind of event where it happens, and a chronicle made of nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from pydantic import TypeAdapter

from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fold import folded
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import job_events
from everstep.core.loop.job_events import (
    DocumentChanged,
    JobEvent,
    RequestRefused,
    SaveRequested,
    StorageAwaited,
    WorkerChanged,
)
from everstep.core.loop.next_actions import PlanEnded
from everstep.core.seeing.job_warnings import JobWarning
from everstep.core.spec import Budget, Policy
from everstep.core.state import Learned
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import ScriptedJob, fact, job_spec, outcome, running, sighting

BILLED = Policy(budgets=(Budget(name="successes", limit=None, when="succeeded"),))


def eventful() -> ScriptedJob:
    """A job to which everything happens."""
    job = ScriptedJob(spec=job_spec(BILLED))
    ended = outcome(job.plan, "success", None, None)
    job._advance(PlanEnded(outcome=replace(ended, prechecked=(1_001.0, 1_003.0))))
    job.report("warned", warnings=(JobWarning(kind="disk", at=1_010.0, text="little room"),))
    job.report("refresh", first_step_at=1_020.0, learned=Learned(steps_from="step 3"))
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    job.saves(10)
    job.see(sighting(FaultClass.SUBHEALTH))
    job.see(sighting(FaultClass.NODE))
    job.fails("place.none", at=Step.PLACE)
    job.succeeds()
    job.command("pause", reason="a look")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    job.succeeds()
    return job


def refused() -> ScriptedJob:
    """A job whose second restart is one too many for a budget."""
    job = running(modelarts(job_retry=8, pod_retry=1))
    for node in ("n1", "n2"):
        job.see(sighting(FaultClass.NODE, node=node))
        job.succeeds()
    return job


def test_every_kind_of_event_happens_to_some_job() -> None:
    done, failed = eventful(), eventful()
    done.report("done")
    failed.see(fact("limit.run"))
    kinds_seen = {type(event) for job in (done, failed, refused()) for event in job.events}
    # Of the workflow, which receives commands and signals.
    other_kinds = {
        DocumentChanged,
        RequestRefused,
        SaveRequested,
        StorageAwaited,
        WorkerChanged,
    }
    assert {*get_args(JobEvent)} - other_kinds == kinds_seen


def test_every_event_of_the_module_is_in_the_union() -> None:
    kinds = {k for k in vars(job_events).values() if isinstance(k, type)}
    own_kinds = {k for k in kinds if k.__module__ == job_events.__name__}
    assert {k for k in own_kinds if not k.__name__.startswith("_")} == {*get_args(JobEvent)}


def test_a_turn_keeps_no_event_for_the_next_and_the_chronicle_is_made_of_them_alone() -> None:
    job = eventful()
    assert job.state.events == ()
    assert folded(Chronicle(), job.events) == job.chronicle


def test_a_chronicle_is_read_back_as_it_was_written() -> None:
    chronicle, form = eventful().chronicle, TypeAdapter(Chronicle)
    assert form.validate_json(form.dump_json(chronicle)) == chronicle


def test_an_end_that_comes_with_a_start_belongs_to_the_start_of_its_generation() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH, slot=1))
    older = job.state.generation
    ends = [fact("process.exit", slot=n, exit_code=n, generation=older + n - 2) for n in (2, 3)]
    job.succeeds(facts=tuple(ends))
    assert dict(job.chronicle.exits) == {3: 3}
    assert [record.generation_to for record in job.records[:1]] == [older + 1]
