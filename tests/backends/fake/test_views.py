"""Pods with equal reports are evaluated once for all: the result is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.cluster_views import pod_view
from everstep.backends.fake.settings import FakeSettings
from everstep.core.world import PodView
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.stage import document

NODES = 4
FAULTS = (
    "kill job 1 exit 1",
    "hang job 2",
    "silence n1",
    "node-down n1",
    "node-down n1 partition",
    "kill-agent job 1",
    "device n0 1 80E01801 heals",
    "metric n1 0 vary",
    "metric n2 0 37",
)


class Watched(FakeBackend):
    """Compares each view of the pods with a separate view of every pod."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(nodes=NODES + 2))
        self.kinds: set[str] = set()
        self.at_once: list[str] = []  # faults, each between two looks at one moment
        self.once: Callable[[PodView, float], object] = lambda pod, _now: pod.run.step

    async def call(self, verb: str, /, **args: object) -> Any:
        answer = await super().call(verb, **args)
        self._compare()
        now = self.cluster.state.now
        while self.at_once and any(self.once(pod, now) for pod in self._pod_views()):
            await self.admin.fault(self.at_once.pop())
            self._compare()
        return answer

    def _pod_views(self) -> tuple[PodView, ...]:
        return self.cluster.observation("job", 0).pods

    def _compare(self) -> None:
        state = self.cluster.state
        pods = sorted(state.job("job").pods.items())
        assert self._pod_views() == tuple(pod_view(pod, state.now) for _, pod in pods)
        self.kinds |= {_without_place(pod) for pod in self._pod_views()}


def _without_place(pod: PodView) -> str:
    return repr(pod[3:])


@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize("accelerators", [0, 2])
@pytest.mark.parametrize("line", FAULTS)
async def test_each_pod_tells_of_itself(line: str, accelerators: int, is_at_once: bool) -> None:
    backend = Watched()
    if is_at_once:
        backend.at_once.append(line)
    else:
        await backend.admin.fault(f"at step 7 of job {line}")
    await backend.admin.fault("at step 25 of job kill job 0 exit 1")
    body = document(nodes=NODES, accelerators_per_node=accelerators, env={"STEPS": "40"})
    end = await Simulation(backend=backend, spec=compile_document(body)).run()
    assert end.status == "Completed", end.reason
    assert not backend.at_once
    assert len(backend.kinds) > NODES


@pytest.mark.parametrize("line", ["metric n1 0 vary", "metric n1 0 37"])
async def test_use_that_is_told_of_a_still_device_is_seen_at_once(line: str) -> None:
    backend = Watched()
    await backend.admin.fault("at step 7 of job hang job 2")
    backend.at_once.append(line)
    backend.once = lambda pod, now: pod.run.busy_at is not None and pod.run.busy_at < now
    body = document(nodes=NODES, accelerators_per_node=2, env={"STEPS": "40"})
    end = await Simulation(backend=backend, spec=compile_document(body)).run()
    assert end.status == "Completed", end.reason
    assert not backend.at_once
