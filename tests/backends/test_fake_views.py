"""Pods that tell the same are asked once for all: nobody sees a difference."""

from __future__ import annotations

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.fake.views import pod_view
from everstep.core.world import JobRef, Observation, PodView
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.stage import document

NODES = 4
FAULTS = (
    "kill job 1 exit 1",
    "hang job 2",
    "node-down n1",
    "node-down n1 partition",
    "kill-agent job 1",
    "device n0 1 80E01801 heals",
    "metric n1 0 vary",
    "metric n2 0 37",
)


class Watched(FakeBackend):
    """Whatever it tells of its pods is compared with what each of them says for itself."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(nodes=NODES + 2))
        self.kinds: set[tuple[object, ...]] = set()

    async def observe(
        self, job: JobRef, *, cursor: int, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        seen = await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)
        pods = sorted(self.cluster.state.job(job.id).pods.items())
        assert seen.pods == tuple(pod_view(pod, seen.now) for _, pod in pods)
        self.kinds |= {_without_place(pod) for pod in seen.pods}
        return seen


def _without_place(pod: PodView) -> tuple[object, ...]:
    return tuple(pod)[3:]


@pytest.mark.parametrize("accelerators", [0, 2])
@pytest.mark.parametrize("line", FAULTS)
async def test_each_pod_tells_of_itself(line: str, accelerators: int) -> None:
    backend = Watched()
    await backend.admin.fault(f"at step 7 of job {line}")
    await backend.admin.fault("at step 25 of job kill job 0 exit 1")
    asked = document(nodes=NODES, accelerators_per_node=accelerators, env={"STEPS": "40"})
    end = await Simulation(backend=backend, spec=compile_document(asked)).run()
    assert end.status == "Completed", end.reason
    assert len(backend.kinds) > NODES
