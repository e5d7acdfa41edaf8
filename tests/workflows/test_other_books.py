"""A job that meets books with less than it did waits, reports that, and harms no process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.settings import LocalSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.scene import until, until_it_waits_for
from tests.support.stage import Handle, document

STRANGE = "is not in the cluster database of"


def cluster() -> FakeBackend:
    return FakeBackend(FakeSettings(nodes=6))


async def begun(client: Client, own_cluster: FakeBackend) -> Handle:
    """A job that runs without end, and whose worker is gone."""
    endless = {"STEPS": "1000000000", "CHECKPOINT_EVERY": "100000000"}
    job = await submit(client, document(env=endless))
    async with at_work(actor(client, own_cluster)):
        await until(job, lambda status: status["state"] == "running")
    return job


async def stopped(job: Handle) -> None:
    await job.execute_update("stop", {"reason": "enough"})
    assert (await job.result())["status"] == "Terminated"


async def test_a_running_job_waits_for_its_own_books_and_goes_on_there_where_none_adopt_it(
    client: Client,
) -> None:
    own_cluster, other = cluster(), cluster()
    async with at_work(thinker(client)):
        job = await begun(client, own_cluster)
        async with at_work(actor(client, other)):
            status = await until_it_waits_for(job, STRANGE)
            assert (status["state"], status["restarts"]) == ("unreachable", 0)
            assert "everstep adopt demo" in status["waiting_for"]
            assert status["waiting_reason"] == "WrongCluster"
            refusals = [e for e in await job.query("events") if STRANGE in e["message"]]
            assert len(refusals) == 1
        async with at_work(actor(client, own_cluster)):
            await until(job, lambda status: status["waiting_for"] is None)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await job.execute_update("adopt", {})
            assert "the job is in this cluster database already" in str(refused.value.cause)
            await stopped(job)
        assert (await job.query("status"))["restarts"] == 0
    assert await other.leftovers() == ()
    assert not [e for e in await other.admin.effects() if "demo" in e.what]


async def test_an_adopted_job_starts_anew_in_the_other_books_once_older_pods_had_their_time(
    client: Client,
) -> None:
    own_cluster, other = cluster(), cluster()
    async with at_work(thinker(client)):
        job = await begun(client, own_cluster)
        async with at_work(actor(client, other)):
            await until_it_waits_for(job, STRANGE)
            answer = await job.execute_update("adopt", {"id": "once", "reason": "the disk is gone"})
            assert answer["accepted"]
            assert (await job.execute_update("adopt", {"id": "once"}))["again"]
            await until(
                job, lambda status: status["restarts"] == 1 and status["state"] == "running"
            )
            await stopped(job)
        (restart,) = await job.query("restarts")
    assert (restart["level"], restart["bills"], restart["recover_result"]) == ("job", {}, "success")
    assert restart["generation"] == {"from": 1, "to": 2}
    assert "an operator had the job adopted" in restart["reason"]
    assert restart["stages_s"]["start"] >= 35.0, "nothing was proven, so the fence took its time"


async def test_of_two_adoptions_one_is_refused_and_the_job_restarts_once(client: Client) -> None:
    """At once, and a third one during the restart."""
    own_cluster, other = cluster(), cluster()
    async with at_work(thinker(client)):
        job = await begun(client, own_cluster)
        async with at_work(actor(client, other)):
            await until_it_waits_for(job, STRANGE)
            both = [job.execute_update("adopt", {"id": name}) for name in ("first", "second")]
            answers = await asyncio.gather(*both, return_exceptions=True)
            refused = [one for one in answers if isinstance(one, WorkflowUpdateFailedError)]
            assert len(refused) == 1, answers
            assert "nothing more to adopt" in str(refused[0].cause)
            await until(job, lambda status: status["restarts"] == 1)
            with pytest.raises(WorkflowUpdateFailedError, match="failed"):
                await job.execute_update("adopt", {"id": "third"})
            await until(job, lambda status: status["state"] == "running")
            await stopped(job)
        assert (await job.query("status"))["restarts"] == 1


@pytest.mark.long
async def test_a_job_that_ends_can_be_adopted_too(client: Client) -> None:
    """Only this one adopts a job that is being stopped."""
    own_cluster, other = cluster(), cluster()
    async with at_work(thinker(client)):
        job = await begun(client, own_cluster)
        async with at_work(actor(client, other)):
            await until_it_waits_for(job, STRANGE)
            await job.execute_update("stop", {"reason": "enough"})
            status = await until(
                job, lambda s: s["state"] == "stopping" and STRANGE in (s["waiting_for"] or "")
            )
            assert status["restarts"] == 0
            await job.execute_update("adopt", {})
            assert (await job.result())["status"] == "Terminated"


@pytest.mark.long
async def test_an_adoption_where_the_relative_folders_are_not_is_refused(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits on, as it did: for a worker that stands where they begin, or for its own books.

    Only this one adopts by a local cluster that stands elsewhere.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    own_cluster, other = cluster(), await LocalBackend.open(LocalSettings(home=tmp_path / "home"))
    async with AsyncExitStack() as ends, at_work(thinker(client)):
        ends.push_async_callback(other.close)
        job = await begun(client, own_cluster)
        async with at_work(actor(client, other)):
            await until_it_waits_for(job, STRANGE)
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await job.execute_update("adopt", {"reason": "the disk is gone"})
            status = await until_it_waits_for(job, STRANGE)
            assert (status["state"], status["restarts"]) == ("unreachable", 0)
        async with at_work(actor(client, own_cluster)):
            await until(job, lambda status: status["waiting_for"] is None)
            await stopped(job)
        assert (await job.query("status"))["restarts"] == 0
    assert f"there is no fence of job demo in {elsewhere}/out/demo" in str(refused.value.cause)
    assert list(elsewhere.iterdir()) == []
