"""Workers of two servers on one state directory: each sweeps up after its own jobs only.

Only two servers differ in the jobs they have.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.core import names
from tests.support import byhand
from tests.support.devserver import DevServer
from tests.support.rehearsal import Rehearsal, small
from tests.support.workerproc import WorkerProcess

pytestmark = pytest.mark.long


def worker_on(server: DevServer, r: Rehearsal) -> WorkerProcess:
    return WorkerProcess(
        address=server.address,
        namespace="default",
        home=r.folder / "other",
        backend="local",
        env={"EVERSTEP_HOME": str(r.home), "EVERSTEP_NODES": "2", "EVERSTEP_JANITOR": "false"},
    )


async def swept(server: DevServer) -> list[str]:
    """What a sweep removes that is requested through this server."""
    client = await server.connect()
    return await byhand.swept(client)


async def ended_elsewhere(server: DevServer, job: str) -> None:
    """A job of this ID that is over on this server; it never came to the cluster."""
    client = await server.connect()
    handle = await client.start_workflow(names.TRAINING_JOB, {}, id=job, task_queue="nobody's")
    await handle.terminate()


async def test_a_job_that_another_server_knows_is_left_alone(tmp_path: Path) -> None:
    async with Rehearsal(tmp_path / "r", nodes=2) as r, await DevServer.start() as other:
        job = await r.submit(small(tmp_path / "job", "first", steps=100_000))
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        async with worker_on(other, r):
            assert await swept(other) == []
            await ended_elsewhere(other, "first")
            assert await swept(other) == []
            assert len(r.pods("first")) == 2
            await job.terminate()
            assert await swept(other) == []
        await swept(r.server)  # unless its janitor came first
        assert r.books().pods == ()


async def test_a_job_that_its_server_has_forgotten_is_removed(tmp_path: Path) -> None:
    """As after the restart of a server that keeps everything in memory."""
    async with (
        Rehearsal(tmp_path / "r", nodes=2) as r,
        await DevServer.start() as other,
        worker_on(other, r) as worker,
    ):
        client = await other.connect()
        await client.start_workflow(
            names.TRAINING_JOB,
            small(tmp_path / "job", "first", steps=100_000),
            id="first",
            task_queue=names.TASK_QUEUE,
        )
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        worker.kill9()
        await other.restart()
        await worker.start()
        assert await swept(other) == ["first"]
        assert r.pods("first") == []
