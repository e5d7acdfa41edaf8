"""Jobs on hollow nodes: a worker sees all of a job, and no process runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun, ranks_of
from tests.testbed.machines import Machines

HOLLOW = {"testbed.everstep.dev/kind": "hollow"}


@dataclass
class HollowLab(KubernetesLab):
    """Its pods land on hollow nodes."""

    @property
    def pod(self) -> Mapping[str, Any]:
        usual = super().pod
        template = usual["pod_template"]
        spec = {**template["spec"], "nodeSelector": HOLLOW}
        return {**usual, "pod_template": {**template, "spec": spec}}


@pytest.fixture
async def hollow(
    worker_kubeconfig: str, namespace: str, machines: Machines, tmp_path: Path
) -> AsyncIterator[HollowLab]:
    for number in range(2):
        labels = {OWN_NODES: namespace, **HOLLOW}
        await machines.add_node(f"{namespace}-h{number}", labels=labels, is_hollow=True)
    lab = await HollowLab.open(worker_kubeconfig, namespace, tmp_path / "storage")
    try:
        yield lab
    finally:
        await lab.backend.close()


async def test_a_job_of_hollow_pods_starts_steps_and_ends_without_a_process(
    hollow: HollowLab,
) -> None:
    job = KubernetesRun(hollow, id="hollow", env=NEVER_ENDS)
    await job.launch()
    await job.step(2)
    assert ranks_of("hollow", slot=0, generation=1) == []
    await job.gone()
