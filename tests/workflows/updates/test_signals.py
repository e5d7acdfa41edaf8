"""Signals, which the Temporal UI offers first: they do what the updates of their names do, or say why not."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.api.sdk.v1 import WorkflowMetadata

from everstep.core.loop import commands
from tests.support.patience import HUNG_S
from tests.support.scene import Scene, unreadable, until, until_state
from tests.support.scene import restarts_of as restarts
from tests.support.stage import Handle, document


async def until_event(job: Handle, fragment: str) -> dict[str, Any]:
    async with asyncio.timeout(HUNG_S):
        while True:
            for event in await job.query("events"):
                if fragment in event["message"]:
                    return dict(event)
            await asyncio.sleep(0.02)


REFUSED: list[tuple[str, list[Any], str]] = [
    ("halt", [], "use the update pause, resume, stop, restart"),
    ("halt", [1, unreadable()], "a job does not know the signal 'halt'"),
    ("stop", [{"grace": 3}], "stop: unknown key 'grace'"),
    ("stop", ["now"], "stop takes one JSON object, not str"),
    ("stop", [{}, {}], "stop takes one JSON object, not 2"),
    ("stop", [unreadable()], "not readable JSON"),
    ("resume", [], "resume"),
    ("restart", [{"level": "everything"}], "restart"),
    ("hot_update", [{"patch": {"nods": 3}}], "nods"),
    ("set_budget", [{"name": "none", "limit": 3}], "set_budget"),
]


async def test_a_signal_that_cannot_be_obeyed_is_an_event_with_the_reason(scene: Scene) -> None:
    job = await scene.running(document("refusing"))
    for name, arguments, fragment in REFUSED:
        await job.signal(name, args=arguments)
        event = await until_event(job, fragment)
        assert event["level"] == "Warning", (name, event)
    assert (await scene.end(job))["status"] == "Completed"


async def test_a_signal_of_a_step_that_makes_no_sense_is_no_event_and_stops_nothing(
    scene: Scene,
) -> None:
    """It lacks its text, or its times are no times."""
    job = await scene.running(document("wordless"))
    await job.signal("waiting", {"plan": None, "is_refusal": True})
    await job.signal("unpublished")
    await job.signal("taken_over", {"worker": "a"})
    await job.signal("halt")
    await until_event(job, "does not know the signal")
    messages = [event["message"] for event in await job.query("events")]
    assert [message for message in messages if "None" in message] == []
    assert not (await job.query("status")).get("publication")
    for since in (10**400, 1e300, -1e300):
        times = {"since": since, "until": since}
        await job.signal("waiting", {"plan": None, "what": "a worker", **times})
        await until(job, lambda status: status["waiting_for"] == "a worker")
        await job.signal("waiting", {"plan": None, "what": None})
        await until(job, lambda status: status["waiting_for"] is None)
    assert (await scene.end(job))["status"] == "Completed"


async def test_signals_do_what_the_updates_of_their_names_do_and_each_update_has_one(
    scene: Scene,
) -> None:
    budget = {"any": {"limit": 9, "levels": ["in_place", "pod", "job"]}}
    job = await scene.running(document("obeying", recovery={"budgets": budget}))
    metadata = await job.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    offered = {signal.name for signal in metadata.definition.signal_definitions}
    assert offered >= {*commands.KEYS}
    await job.signal("set_budget", {"name": "any", "limit": 5})
    await until(job, lambda status: status["budgets"]["any"]["limit"] == 5)
    await job.signal("pause", {"reason": "lunch"})
    assert (await until_state(job, "paused"))["reason"] == "lunch"
    await scene.clock.pass_to(50)  # its ranks need time to end
    await job.signal("resume")
    await until_state(job, "recovering")
    await scene.clock.pass_to(80)
    await until_state(job, "running")
    await job.signal("restart", {"level": "pod", "reason": "new firmware"})
    await until_event(job, "new firmware")
    more = {"more": {"limit": 3, "levels": ["pod"]}}
    await job.signal("hot_update", {"patch": {"recovery": {"budgets": more}}})
    await until(job, lambda status: "more" in status["budgets"])
    await job.signal("stop", {"reason": "enough"})
    report = await scene.end(job)
    assert (report["status"], report["reason"]) == ("Terminated", "enough")
    assert restarts(report)[-1][:2] == ("planned", "pod")
