"""What the loop says of itself: each kind of event where it happens, and a chronicle made of nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from pydantic import TypeAdapter

from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.fold import folded
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import job_events
from everstep.core.loop.job_events import DocumentChanged, JobEvent, RequestRefused, WorkerChanged
from everstep.core.loop.lifecycle import PlanEnded
from everstep.core.seeing.job_warnings import JobWarning
from everstep.core.spec import Budget, Policy
from everstep.dialects.modelarts.policy import modelarts
from tests.support.builders import Told, fact, job_spec, outcome, running, sighting

BILLED = Policy(budgets=(Budget(name="successes", limit=None, when="succeeded"),))


def eventful() -> Told:
    """A job to which everything happens."""
    told = Told(spec=job_spec(BILLED))
    ended = outcome(told.plan, "success", None, None)
    told._advance(PlanEnded(outcome=replace(ended, prechecked=(1_001.0, 1_003.0))))
    told.report("warned", warnings=(JobWarning(kind="disk", at=1_010.0, text="little room"),))
    told.report("refresh", first_step_at=1_020.0)
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    told.saves(10)
    told.see(sighting(FaultClass.SUBHEALTH))
    told.see(sighting(FaultClass.NODE))
    told.fails("place.none", at=Step.PLACE)
    told.succeeds()
    told.command("pause", reason="a look")
    told.interrupted()
    told.succeeds()
    told.command("resume")
    told.interrupted()
    told.succeeds()
    return told


def refused() -> Told:
    """A job whose second restart is one too many for a budget."""
    told = running(modelarts(job_retry=8, pod_retry=1))
    for node in ("n1", "n2"):
        told.see(sighting(FaultClass.NODE, node=node))
        told.succeeds()
    return told


def test_every_kind_of_event_happens_to_some_job() -> None:
    done, failed = eventful(), eventful()
    done.report("done")
    failed.see(fact("limit.run"))
    seen = {type(event) for told in (done, failed, refused()) for event in told.events}
    # Of the workflow, which receives commands and signals.
    others = {DocumentChanged, RequestRefused, WorkerChanged}
    assert {*get_args(JobEvent)} - others == seen


def test_every_event_of_the_module_is_in_the_union() -> None:
    kinds = {k for k in vars(job_events).values() if isinstance(k, type)}
    own = {k for k in kinds if k.__module__ == job_events.__name__}
    assert {k for k in own if not k.__name__.startswith("_")} == {*get_args(JobEvent)}


def test_a_turn_keeps_no_event_for_the_next_and_the_chronicle_is_made_of_them_alone() -> None:
    told = eventful()
    assert told.state.events == ()
    assert folded(Chronicle(), told.events) == told.chronicle


def test_a_chronicle_is_read_back_as_it_was_written() -> None:
    known, form = eventful().chronicle, TypeAdapter(Chronicle)
    assert form.validate_json(form.dump_json(known)) == known


def test_an_end_that_comes_with_a_start_belongs_to_the_start_of_its_generation() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH, slot=1))
    older = told.state.generation
    ends = [fact("process.exit", slot=n, exit_code=n, generation=older + n - 2) for n in (2, 3)]
    told.succeeds(facts=tuple(ends))
    assert dict(told.chronicle.exits) == {3: 3}
    assert [record.generation_to for record in told.records[:1]] == [older + 1]
