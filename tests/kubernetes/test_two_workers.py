"""Two workers at one job: what each keeps of it, and what one that is slow may still do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from everstep.backends.kubernetes import names
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.rules.ownership import FolderClaim
from everstep.core.world import PlaceOrder, PlaceState
from tests.backends.lab import left_on
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import Pods, objects_of, until
from tests.kubernetes.test_gangs import pods_of
from tests.testbed.api import Api


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
    first._default.agents.last_words_s = 0.0
    await job.launch()
    await job.step(5)
    lab.backend = other
    await job.gone()
    lab.backend = first
    home = first._default
    await until(
        lambda: not (home.pods.credentials or home.pods.contexts or home.agents.by_uid), within_s=20
    )


async def stands_still(
    worker: KubernetesBackend, order: PlaceOrder, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Task[PlaceState], asyncio.Event]:
    """The call of a worker that has stored the pods it wants, and stands still until the event."""
    books = worker._default.books
    has_stored, goes_on, claim = asyncio.Event(), asyncio.Event(), books.claim

    async def slow_claim(job_id: str, claims: Sequence[FolderClaim]) -> None:
        has_stored.set()
        await goes_on.wait()
        await claim(job_id, claims)

    monkeypatch.setattr(books, "claim", slow_claim)
    late = asyncio.create_task(worker.ensure_placed(order))
    await asyncio.wait_for(has_stored.wait(), 60)
    return late, goes_on


async def test_a_worker_that_was_slow_removes_no_pod_of_a_newer_generation(
    lab: KubernetesLab,
    other: KubernetesBackend,
    pods: Pods,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first stands still after it stored the pods it wants; the other one serves the next restart."""
    first, job = lab.backend, KubernetesRun(lab, id="slow", env=NEVER_ENDS)
    await job.launch()
    await job.step(5)
    await job.new_generation("restart-1")
    late, goes_on = await stands_still(first, job.place_order(recreate=(1,)), monkeypatch)
    lab.backend = other
    await job.new_generation("restart-2")
    placed = await job.place(recreate=(1,))
    await until(lambda: first.watch.pod(placed.pods[1].uid) is not None)
    goes_on.set()
    await asyncio.gather(late, return_exceptions=True)
    pod = await pods.get(names.pod("slow", slot=1, generation=job.generation))
    assert pod["metadata"]["uid"] == placed.pods[1].uid
    assert "deletionTimestamp" not in pod["metadata"]
    lab.backend = first
    await job.gone()


async def test_pods_that_a_slow_worker_creates_after_the_end_of_their_job_are_left_over(
    lab: KubernetesLab,
    other: KubernetesBackend,
    api: Api,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record names them. The janitor ends what is left over, and so them too."""
    first, job = lab.backend, KubernetesRun(lab, id="over", env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    late, goes_on = await stands_still(first, job.place_order(), monkeypatch)
    lab.backend = other
    await job.gone()
    assert await left_on(lab) == []
    goes_on.set()
    await asyncio.gather(late, return_exceptions=True)
    assert len(await pods_of(api, namespace, "over")) == 2

    async def is_left_over() -> bool:
        return await left_on(lab) == [job.ref]

    async def is_gone() -> bool:
        await job.gone()
        return await left_on(lab) == []

    await until(is_left_over)
    await until(is_gone)
    assert await objects_of(api, namespace, "over") == {"configmaps/everstep-job-over"}
    lab.backend = first
