"""Which spans a job queues, when, and what is left of them."""

from __future__ import annotations

from everstep.chronicle import spans
from everstep.chronicle.chronicle import Chronicle
from everstep.core.levels import FaultClass
from tests.support.builders import running, sighting


def keys(known: Chronicle) -> list[str]:
    return [span.key for span in known.spans]


def test_an_incident_ends_with_the_first_step_of_what_was_started() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    assert keys(told.chronicle) == ["phase/main/generation/1"]
    told.succeeds()
    assert keys(told.chronicle)[1:] == ["phase/main/restart/1"]
    told.report(first_step_at=told.state.now + 7.0)
    incident = told.chronicle.spans[-1]
    assert incident.key == "phase/main/incident/1"
    assert incident.ended - incident.began >= 7.0


def test_a_job_that_ends_closes_everything_once() -> None:
    told = running()
    told.report("done")
    assert keys(told.chronicle) == ["phase/main/generation/1", "phase/main", "job"]


def test_what_was_sent_is_gone_and_what_came_since_is_not() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    newest = told.chronicle.spans[-1].number
    told.succeeds()
    left = spans.sent(told.chronicle, newest)
    assert keys(left) == ["phase/main/restart/1"]
    assert keys(spans.sent(left, newest)) == keys(left)
