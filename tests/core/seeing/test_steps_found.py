"""From what steps are taken is an event once for a job, whatever restarts."""

from __future__ import annotations

from typing import Any

from everstep.chronicle import happenings, views
from everstep.core.seeing.hang import learn
from everstep.core.state import Learned
from everstep.core.world import PodState, PodView
from everstep.protocol.wire import RunProgress
from tests.support.builders import ScriptedJob, running


def pod(slot: int, text: str) -> PodView:
    return PodView(
        slot=slot,
        node="n",
        uid=f"u{slot}",
        state=PodState.RUNNING,
        run=RunProgress(steps_from=text),
    )


def report(job: ScriptedJob, *texts: str) -> None:
    pods = [pod(slot, text) for slot, text in enumerate(texts)]
    learned: Any = learn(job.state.learned, pods, checkpoint_seen=False)
    job.report("refresh", learned=learned)


def sayings(job: ScriptedJob) -> list[str]:
    messages = (event["message"] for event in happenings.events(job.chronicle))
    return [message for message in messages if message.startswith("steps: ")]


def test_there_is_one_event_although_each_run_begins_with_another_step() -> None:
    job = running()
    for texts in (("", ""), ("", "step=120"), ("step=121", "step=120"), ("", ""), ("step=7", "")):
        report(job, *texts)
    assert sayings(job) == ["steps: taken from 'step=120'"]
    assert views.status(job.state)["steps_from"] == "step=120"


def test_there_is_another_event_when_they_are_taken_from_something_else() -> None:
    job = running()
    report(job, "Training: 1% 1/90")
    report(job, "step=3")
    assert sayings(job) == [
        "steps: taken from 'Training: 1% 1/90'",
        "steps: taken from 'step=3'",
    ]


def test_a_job_with_a_pattern_says_nothing() -> None:
    job = running()
    report(job, "", "")
    assert sayings(job) == []
    assert views.status(job.state)["steps_from"] is None
    assert job.state.learned == Learned()
