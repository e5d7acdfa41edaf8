"""What one worker keeps of a job that another one ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everstep.backends.kubernetes.backend import KubernetesBackend
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until


@pytest.fixture
async def other(lab: KubernetesLab) -> AsyncIterator[KubernetesBackend]:
    worker = await KubernetesBackend.open(lab.settings)
    yield worker
    await worker.close()


async def test_a_worker_reaches_the_agents_of_a_job_that_another_one_ended_and_began_again(
    lab: KubernetesLab, other: KubernetesBackend
) -> None:
    first, job = lab.backend, KubernetesRun(lab, id="twice", env=NEVER_ENDS)
    await job.launch()
    await job.step(5)
    lab.backend = other
    await job.gone()
    job.run = "run-2"
    await job.new_generation("launch")
    await job.place()
    lab.backend = first
    await job.place()
    await job.gone()


async def test_a_worker_gives_up_what_it_has_for_the_pods_of_a_job_that_another_one_ended(
    lab: KubernetesLab, other: KubernetesBackend
) -> None:
    first, job = lab.backend, KubernetesRun(lab, id="ended", env=NEVER_ENDS)
    first._home.agents.last_words_s = 0.0
    await job.launch()
    await job.step(5)
    lab.backend = other
    await job.gone()
    lab.backend = first
    home = first._home
    await until(
        lambda: not (home.pods.credentials or home.pods.contexts or home.agents.by_uid), within_s=20
    )
