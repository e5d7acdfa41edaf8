"""The janitor's sweep: one job that cannot be removed keeps it from no other."""

from __future__ import annotations

import asyncio
import logging

import pytest
from temporalio.testing import ActivityEnvironment

from activities.janitor_activities import JanitorActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.core import names
from everstep.core.errors import BackendUnavailable, InvalidSpec
from everstep.core.waits import WaitKind
from everstep.core.world import GoneState, JobRef, Leftover
from tests.support.at_work import at_work, thinker
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from workflows.node_quarantine import Opening

SPOILT = "ConfigMap everstep-job-a is not as Everstep wrote it"


class Leftovers(FakeBackend):
    """Three jobs without a workflow; the first of them cannot be removed."""

    def __init__(self, obstacle: Exception | None) -> None:
        super().__init__()
        self.obstacle = obstacle
        self.left = ["a", "b", "c"]

    async def leftovers(self) -> tuple[Leftover, ...]:
        return tuple(Leftover(job=JobRef(id=job, run="r"), server="") for job in self.left)

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:  # noqa: ARG002
        if job.id != "a":
            self.left.remove(job.id)
            return GoneState(done=True)
        if self.obstacle is not None:
            raise self.obstacle
        return GoneState(done=False, wait=WaitKind.POD_GONE.of("pod a-0-g1"))


@pytest.mark.parametrize(
    "obstacle",
    [
        None,  # a pod on a silent node goes when an operator says so
        BackendUnavailable(SPOILT),
        InvalidSpec([("spec", "is of a newer version")]),
        KeyError("a bug"),
    ],
    ids=lambda obstacle: type(obstacle).__name__,
)
async def test_a_job_that_cannot_be_removed_keeps_the_janitor_from_no_other(
    server: DevServer, namespace: str, obstacle: Exception | None
) -> None:
    backend, client = Leftovers(obstacle), await server.connect(namespace)
    janitor = JanitorActivities(backend=backend, client=client, server="this one")
    sweep = ActivityEnvironment().run(janitor.sweep, "local")
    assert await asyncio.wait_for(sweep, HUNG_S) == ["b", "c"]
    assert backend.left == ["a"]


async def test_a_quarantine_that_does_not_answer_keeps_the_janitor_from_nothing(
    server: DevServer, namespace: str
) -> None:
    backend, client = Leftovers(None), await server.connect(namespace)
    quarantine = await client.start_workflow(
        names.NODE_QUARANTINE, id=names.quarantine_id("local"), task_queue="without a worker"
    )
    janitor = JanitorActivities(backend=backend, client=client, server="this one")
    for removed in (["b", "c"], []):
        sweep = ActivityEnvironment().run(janitor.sweep, "local")
        assert await asyncio.wait_for(sweep, HUNG_S) == removed
    await quarantine.terminate()


async def test_a_quarantine_that_refuses_the_time_of_the_cluster_is_called_once_a_minute(
    server: DevServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep that failed for it would be tried again each half second."""

    class BeforeTime(Leftovers):
        async def clock(self) -> float:
            return -1.0

    backend, client = BeforeTime(None), await server.connect(namespace)
    janitor = JanitorActivities(backend=backend, client=client, server="this one")
    async with at_work(thinker(client)):
        await client.start_workflow(
            names.NODE_QUARANTINE,
            Opening(cluster="local"),
            id=names.quarantine_id("local"),
            task_queue=names.TASK_QUEUE,
        )
        with caplog.at_level(logging.WARNING):
            for removed in (["b", "c"], []):
                sweep = ActivityEnvironment().run(janitor.sweep, "local")
                assert await asyncio.wait_for(sweep, HUNG_S) == removed
    assert caplog.text.count("from 1970 to 9999") == 1


async def test_the_janitor_reports_once_why_a_job_cannot_be_removed(
    server: DevServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend, client = Leftovers(BackendUnavailable(SPOILT)), await server.connect(namespace)
    janitor = JanitorActivities(backend=backend, client=client, server="this one")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await ActivityEnvironment().run(janitor.sweep, "local")
        assert caplog.text.count(SPOILT) == 1
        backend.obstacle = BackendUnavailable("no answer")
        await ActivityEnvironment().run(janitor.sweep, "local")
    assert caplog.text.count("no answer") == 1
