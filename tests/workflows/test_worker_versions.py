"""Workers of two versions in one deployment of Temporal's worker versioning, and the way back.

Only here a server routes by versions: a job stays with the version of its run, takes the current one with its
next run, and loses nothing on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everstep.plugin import deployment_of, plugin_of
from everstep.worker_settings import WorkerSettings
from tests.support.at_work import at_work
from tests.support.devserver import DevServer
from tests.support.moments import Incident, StandingClock, until_incident
from tests.support.patience import HUNG_S
from tests.support.rows import recovery, runs
from tests.support.scene import POLL_S, restarts_of
from tests.support.stage import Stage, document
from worker import workers

DEPLOYMENT = "trainers"
KEEPS_VERSIONS = {"worker.perNamespaceWorkerCount": "1"}
"""The other servers of tests have no workers of their own in a namespace, which keep its deployments."""


def test_without_a_deployment_no_worker_is_routed_by_its_version() -> None:
    settings = WorkerSettings(deployment="")
    config = deployment_of(settings.deployment, settings.build_id)
    assert not config.use_worker_versioning
    assert deployment_of(DEPLOYMENT, "2").use_worker_versioning


@pytest.mark.parametrize("name", ["a b", "a.b", "-a", "x" * 101])
def test_a_name_that_no_server_takes_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="deployment"):
        WorkerSettings(deployment=name)


@asynccontextmanager
async def version(stage: Stage, build_id: str) -> AsyncIterator[None]:
    """Workers of this version, beside those of the stage, over the same cluster."""
    settings = WorkerSettings.model_validate(
        {"backend": "fake", "deployment": DEPLOYMENT, "build_id": build_id, "janitor": False}
    )
    plugin = plugin_of(stage.client, stage.fake, settings, grace=timedelta(0))
    async with at_work(*workers(stage.client, plugin)):
        yield


async def make_current(client: Client, build_id: str) -> None:
    """As `temporal worker deployment set-current-version`, once the server has the version."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=DEPLOYMENT, build_id=build_id
    )
    async with asyncio.timeout(HUNG_S):
        while True:
            try:
                await client.workflow_service.set_worker_deployment_current_version(
                    request, timeout=timedelta(seconds=5)
                )
            except RPCError as error:
                if error.status not in NOT_YET:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                return


NOT_YET = {
    # The server does not know the version yet, or not all of its queues.
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    # It has not begun to keep deployments of a namespace that is new.
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.UNAVAILABLE,
}


async def version_of(client: Client, workflow_id: str) -> str:
    """The version with which the newest run of the workflow is processed; empty before its first task."""
    description = await client.get_workflow_handle(workflow_id).describe()
    info = description.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.build_id


async def until_version(client: Client, workflow_id: str, build_id: str) -> None:
    async with asyncio.timeout(HUNG_S):
        while await version_of(client, workflow_id) != build_id:
            await asyncio.sleep(POLL_S)


async def crash(stage: Stage, clock: StandingClock, at_s: float) -> None:
    """A rank ends; return after the restart."""
    await stage.admin.fault(f"at {at_s:g}s kill demo 0 exit 1")
    await clock.pass_to(at_s + 12.0)


@pytest.mark.long
async def test_a_job_takes_the_current_version_with_its_next_run_and_the_earlier_one_again(
    tmp_path: Path,
) -> None:
    env = {"EVERSTEP_DEPLOYMENT": DEPLOYMENT, "EVERSTEP_BUILD_ID": "1"}
    async with (
        await DevServer.start(log=tmp_path / "temporal.log", settings=KEEPS_VERSIONS) as server,
        Stage(server, "default", tmp_path, env=env) as stage,
    ):
        client = stage.client
        await make_current(client, "1")
        job, clock = await until_incident(
            stage, Incident(body=document(), faults=(), begins_s=20.0)
        )
        assert await version_of(client, job.id) == "1"
        async with version(stage, "2"):
            await make_current(client, "2")
            await crash(stage, clock, 30.0)
            await until_version(client, job.id, "2")
            # The restart was carried out by the version of the run that began it.
            assert await version_of(client, await recovery(client, job)) == "1"
            await make_current(client, "1")
            await crash(stage, clock, 60.0)
            await until_version(client, job.id, "1")
            assert await version_of(client, await recovery(client, job, 2)) == "2"
        await clock.let_go()
        report = await asyncio.wait_for(job.result(), HUNG_S)
        assert report["status"] == "Completed"
        assert restarts_of(report) == [("crash", "in_place", "success")] * 2
        assert len(await runs(client, job)) == 3
