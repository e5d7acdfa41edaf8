"""A server takes so many signals of one run: a job that gets them goes on as a new run and can be stopped."""

from __future__ import annotations

import asyncio

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.devserver import DevServer
from tests.support.floods import send
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import until_state
from tests.support.stage import document

SMALL = {
    "history.maximumSignalsPerExecution": "300",
    "limit.historyCount.suggestContinueAsNew": "150",
}
"""The limits of a server, 10,000 signals and 4,096 events, by a thirtieth.

To send as many as the usual ones allow takes minutes beside many other processes.
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "signals"),
    [
        pytest.param(SMALL, 280, id="small"),
        pytest.param({}, 9_900, id="usual", marks=pytest.mark.timeout(900)),
    ],
)
@pytest.mark.parametrize("situation", ["running", "paused", "paused in a restart"])
async def test_a_job_is_stopped_by_signal_after_more_than_a_run_may_have(
    settings: dict[str, str], signals: int, situation: str
) -> None:
    """Only a server with these limits ends a run; the quick floods of signals stay below them."""
    backend = FakeBackend(FakeSettings(nodes=6))
    clock = StandingClock(backend)
    async with await DevServer.start(settings=settings) as server:
        client = await server.connect(await server.new_namespace("full"))
        async with at_work(thinker(client), actor(client, backend)):
            endless = submit(client, document(env={"STEPS": "1000000"}))
            job = await clock.hold_with(backend.admin, endless)
            await clock.pass_to(34)
            await until_state(job, "running")
            if situation == "paused in a restart":
                await job.signal("restart", {})
                await until_state(job, "recovering")
            state = situation.split(maxsplit=1)[0]
            if state == "paused":
                await job.signal("pause", {})
                await until_state(job, state)
                await clock.pass_to(100)  # its processes take some time to end
        first = (await job.describe()).run_id
        # No worker lives.
        await send(job, [("halt", {})] * signals)
        # 9,900 signals are one task: a third of a second alone, more than two beside many other processes.
        # After two seconds the SDK would interrupt it as deadlocked, and might never run the job again.
        patient = thinker(client, debug_mode=True)
        async with at_work(patient, actor(client, backend)):
            async with asyncio.timeout(HUNG_S):
                while (await job.describe()).run_id == first:
                    await asyncio.sleep(0.05)
            await until_state(job, state)
            await send(job, [("halt", {})] * 50)
            await job.signal("stop", {})
            await clock.let_go()
            report = await asyncio.wait_for(job.result(), HUNG_S)
    assert report["status"] == "Terminated"
