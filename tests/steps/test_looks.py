"""What a worker that has just begun sees of a job: its agents are polled first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.errors import WrongCluster
from everstep.core.facts import Fact
from everstep.core.loop import next_actions
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.world import JobRef, Observation, PodState
from everstep.simulation import QuarantineInMemory
from everstep.steps.step_run import StepContext
from everstep.steps.watch import observe_once, watch
from tests.steps.test_keeping_ranks import cluster, launched
from tests.support.builders import pod_with, running


async def left_at_once(context: StepContext, order: WatchOrder) -> WatchReport:
    leave = asyncio.Event()
    leave.set()
    return await watch(context, order, leave)


async def watch_for_ever(context: StepContext, order: WatchOrder) -> WatchReport:
    return await watch(context, order, asyncio.Event())


@pytest.mark.parametrize("observe_job", [observe_once, left_at_once])
async def test_a_pod_whose_agent_has_not_answered_this_worker_yet_is_not_gone(
    observe_job: Callable[[StepContext, WatchOrder], Awaitable[WatchReport]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = cluster()
    plan, past = await launched(backend)
    polled: list[JobRef] = []
    observe, check = FakeBackend.observe, FakeBackend.check

    async def observed(self: FakeBackend, job: JobRef, **how: Any) -> Observation:
        real = await observe(self, job, **how)
        if polled:
            return real
        unheard = [pod_with(pod, state=PodState.PENDING, generation=0) for pod in real.pods]
        return replace(real, pods=tuple(unheard))

    async def checked(self: FakeBackend, job: JobRef) -> tuple[Fact, ...]:
        polled.append(job)
        return await check(self, job)

    monkeypatch.setattr(FakeBackend, "observe", observed)
    monkeypatch.setattr(FakeBackend, "check", checked)
    state = replace(running().state, job=plan.job, generation=past.generation, cursor=past.cursor)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    report = await observe_job(context, next_actions.watch_order(state))
    assert report.lost_containers == ()


@pytest.mark.parametrize("observe_job", [observe_once, watch_for_ever])
async def test_books_that_are_behind_the_job_show_nothing_of_it(
    observe_job: Callable[[StepContext, WatchOrder], Awaitable[WatchReport]],
) -> None:
    """They are an older copy: the pods that they show as lost are not those that train."""
    backend = cluster()
    plan, past = await launched(backend)
    state = replace(running().state, job=plan.job, generation=past.generation + 1)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    behind = f"up to generation {past.generation}, it is at {past.generation + 1}: an older copy"
    with pytest.raises(WrongCluster, match=behind):
        await observe_job(context, next_actions.watch_order(state))
