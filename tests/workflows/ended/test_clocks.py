"""The server's clock is ahead of the cluster's: no time of a job is ahead of its cluster for that."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

from temporalio.client import Client

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.rows import recovery
from tests.support.scene import until_state
from tests.support.stage import document

AHEAD_S = 3_600.0


async def test_a_restart_after_one_without_outcome_is_not_ahead_of_its_cluster(
    client: Client,
) -> None:
    """Nothing of the cluster comes with the end of a restart that was terminated."""
    backend = FakeBackend(FakeSettings(nodes=6))
    began = await backend.admin.advance(time.time() - AHEAD_S - EPOCH)
    clock = StandingClock(backend)
    async with at_work(thinker(client), actor(client, backend)):
        job = await clock.hold_with(backend.admin, submit(client, document()))
        await clock.pass_to(began + 34 - EPOCH)
        await until_state(job, "running")
        await backend.admin.hold("ensure_placed")
        await backend.admin.fault("node-down n2")
        await clock.let_go()
        await backend.admin.wait_held(timeout_s=HUNG_S)
        await client.get_workflow_handle(await recovery(client, job)).terminate()
        await recovery(client, job, 2)
        await backend.admin.release()
        report = await asyncio.wait_for(job.result(), HUNG_S)
    restarts = report["phases"][0]["restarts"]
    assert [restart["recover_result"] for restart in restarts] == ["terminated", "success"]
    at = [datetime.fromisoformat(restart["at"]).timestamp() - began for restart in restarts]
    assert max(at) < 60, "the job ran for some minutes by the clock of its cluster"
