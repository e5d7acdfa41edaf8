"""A pod that a restart keeps is evicted while the restart stops the older ranks in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.facts import Fact
from everstep.core.levels import Step
from everstep.core.world import Observation, StopOrder, StopState
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.steps.test_keeping_ranks import cluster
from tests.steps.test_silent_slots import order_of


class Evicting:
    """A cluster whose ranks end a look late, and whose next look shows this fact too."""

    def __init__(self, backend: FakeBackend, fact: Fact) -> None:
        self._backend, self._facts = backend, [fact]
        self._pending = [(1,)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def ensure_stopped(self, order: StopOrder) -> StopState:
        state = await self._backend.ensure_stopped(order)
        return replace(state, pending=self._pending.pop()) if self._pending else state

    async def observe(self, *words: Any, **options: Any) -> Observation:
        observation = await self._backend.observe(*words, **options)
        facts, self._facts = self._facts, []
        return replace(observation, facts=(*observation.facts, *facts))


@pytest.mark.parametrize(
    ("recreate", "after_s", "is_news"),
    [((), 0.5, True), ((1,), 0.5, False), ((), -0.5, False)],
    ids=["kept", "replaced anyway", "of a pod before"],
)
async def test_its_eviction_is_news_of_the_new_generation(
    *, recreate: tuple[int, ...], after_s: float, is_news: bool
) -> None:
    """Otherwise the missing container counts as a crash, which spends a budget."""
    backend = cluster()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    order = await order_of(Step.STOP, backend, context)
    plan = replace(order.plan, remedy=replace(order.plan.remedy, recreate=recreate))
    at = plan.since + after_s
    fact = Fact(
        id="u1/end", kind="pod.evicted", at=at, generation=order.generation, node="n1", slot=1
    )
    evicting: Any = Evicting(backend, fact)
    result = await perform(replace(context, backend=evicting), replace(order, plan=plan))
    news = [(one.id, one.generation) for one in result.facts]
    assert news == ([("u1/end", result.generation)] if is_news else [])
