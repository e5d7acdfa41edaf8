"""Nodes that the cluster has removed are isolated too, also where a single other one is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.core.deciding.decision import Isolation, StepOrder
from everstep.core.levels import Step
from everstep.core.recovering import recovery
from everstep.core.world import NodeView
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.steps.test_keeping_ranks import cluster, launched


@pytest.mark.parametrize(
    ("left", "isolated"), [(("n0",), ("n1", "n2")), (("n0", "n1", "n2"), ("n1", "n2"))]
)
async def test_the_nodes_to_isolate_count_as_nodes_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], isolated: tuple[str, ...]
) -> None:
    async def nodes(_backend: FakeBackend) -> tuple[NodeView, ...]:
        return tuple(NodeView(name=name) for name in left)

    backend = cluster()
    plan, _ = await launched(backend)
    monkeypatch.setattr(FakeBackend, "nodes", nodes)
    isolations = tuple(Isolation(node=name, reason="is down") for name in ("n1", "n2"))
    remedy = replace(plan.remedy, steps=(Step.ISOLATE,), isolate=isolations)
    order = recovery.next_step(recovery.begin(replace(plan, remedy=remedy)))
    assert isinstance(order, StepOrder)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    result = await perform(context, order)
    assert (result.isolated, result.notes) == (isolated, ())


async def test_the_only_node_of_a_cluster_is_not_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nodes(_backend: FakeBackend) -> tuple[NodeView, ...]:
        return (NodeView(name="n0"),)

    backend = cluster()
    plan, _ = await launched(backend)
    monkeypatch.setattr(FakeBackend, "nodes", nodes)
    isolations = (Isolation(node="n0/1", reason="is broken"),)
    remedy = replace(plan.remedy, steps=(Step.ISOLATE,), isolate=isolations)
    order = recovery.next_step(recovery.begin(replace(plan, remedy=remedy)))
    assert isinstance(order, StepOrder)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    result = await perform(context, order)
    assert result.isolated == ()
    assert result.notes == ("n0/1 not isolated: the only node is never isolated",)
