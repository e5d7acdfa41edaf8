"""Since when an agent is silent, as far as a worker that was not always awake can judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep.backends.agents.client.link import Link, NoAnswer
from everstep.backends.agents.client.watch import Agents, WatchedAgent
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.spec import Limits
from everstep.core.world import PodState
from everstep.simulation import QuarantineInMemory
from everstep.steps.step_run import StepContext
from everstep.steps.watch import watch
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S

UID = "demo-0-g1-c0ffee"


class Slow(Link):
    """An agent that lives and leaves every question unanswered for ten seconds, after two until its turn."""

    async def request(self, *_: object, **__: object) -> dict[str, Any]:
        NOW.append(NOW[-1] + TURN_S + 10.0)
        raise NoAnswer("it is stopped", waited_s=10.0)

    def close(self) -> None:
        """There is no connection."""


NOW = [1_000.0]
TURN_S = 2.0


@pytest.fixture
def agents(was_changed: asyncio.Event) -> Agents:
    return Agents(
        link=lambda _: Slow(),
        is_gone=lambda _: False,
        clock=lambda: NOW[-1],
        changed=lambda _: was_changed.set(),
        is_cut_off=lambda _: False,
    )


@pytest.fixture
def was_changed() -> asyncio.Event:
    return asyncio.Event()


def left_unanswered(
    agents: Agents, *requested_at: float, answered_at: float | None
) -> float | None:
    """Since when it is silent, after these questions."""
    watched_agent = WatchedAgent(
        link=Slow(), answered_at=answered_at, has_answered=answered_at is not None
    )
    for at in requested_at:
        agents.note_silence(UID, watched_agent, requested_at=at)
    return watched_agent.silent_since


def test_silence_begins_with_the_question_and_not_with_the_last_answer(agents: Agents) -> None:
    """The worker did not listen in between: it had no processor, or the machine was suspended."""
    assert left_unanswered(agents, 104.0, answered_at=100.0) == 104.0


def test_the_first_of_the_unanswered_questions_counts(agents: Agents) -> None:
    assert left_unanswered(agents, 104.0, 109.0, 114.0, answered_at=100.0) == 104.0


def test_who_said_something_since_it_was_asked_is_not_silent(agents: Agents) -> None:
    assert left_unanswered(agents, 104.0, answered_at=104.5) is None


async def test_the_time_of_a_question_is_when_it_was_put(
    agents: Agents, was_changed: asyncio.Event
) -> None:
    began = NOW[-1]
    watched_agent = agents.watch(UID, has_answered=True)
    watched_agent.answered_at = began - 4.0
    await asyncio.wait_for(was_changed.wait(), HUNG_S)
    await agents.close()
    assert watched_agent.silent_since == began + TURN_S


def test_who_never_said_anything_has_not_begun(agents: Agents) -> None:
    assert left_unanswered(agents, 104.0, answered_at=None) is None


def test_who_answered_another_worker_is_silent_from_our_first_question_on(agents: Agents) -> None:
    watched_agent = WatchedAgent(link=Slow(), has_answered=True)
    agents.note_silence(UID, watched_agent, requested_at=104.0)
    agents.note_silence(UID, watched_agent, requested_at=109.0)
    assert watched_agent.silent_since == 104.0


async def test_an_agent_that_stopped_before_this_worker_began_is_silent(
    local_lab: LocalLab,
) -> None:
    """Only the worker's books show that the agent ever existed."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.step(2)
    await local_lab.fault("kill-agent demo 0 signal 19")
    await local_lab.another_worker()
    began = await job.backend.clock()
    await job.backend.check(job.ref)
    (pod,) = (await job.observe_now()).pods
    assert pod.state is PodState.UNREACHABLE
    assert pod.silent_since is not None
    assert began - 1.0 < pod.silent_since


async def test_a_crash_is_not_named_before_an_agent_that_just_stopped_was_asked_too(
    local_lab: LocalLab,
) -> None:
    """Its silence was not noticed yet: its last answer was a moment ago."""
    job = Run(local_lab, slots=(0, 1), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.step(2)
    order = WatchOrder(
        job=job.ref,
        cluster="local",
        generation=job.generation,
        cursor=job.cursor,
        since=await job.backend.clock(),
        limits=Limits(unreachable_s=0.5),
        active=job.slots,
    )
    await job.lab.fault("kill-agent demo 1 signal 19")
    await job.lab.fault("kill demo 0 signal 9")
    context = StepContext(backend=job.backend, quarantine=QuarantineInMemory())
    report = await asyncio.wait_for(watch(context, order, asyncio.Event()), HUNG_S)
    assert [fact.kind for fact in report.facts] == ["process.exit", "node.silent"]
    assert report.unreachable == (1,)
