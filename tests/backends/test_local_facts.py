"""What an agent saw is in the books before it lets go of it, whoever is killed in between."""

from __future__ import annotations

import asyncio

from everstep.agent_client.watch import NOW
from everstep.backends.local.backend import LocalBackend
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S


async def until_let_go(job: Run) -> None:
    """The agent of slot 0 has nothing to tell any more."""
    uid, backend = (await job.pod(0)).uid, job.backend
    assert isinstance(backend, LocalBackend)
    async with asyncio.timeout(HUNG_S):
        while (state := await backend.agents.ask(uid, "GET", NOW))["facts"]:
            await job.observe(wait_s=0.1)
    assert state["facts_seen"] == 1


async def test_an_end_is_let_go_once_it_is_in_the_books_and_told_once(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.lab.fault("kill demo 0 exit code=3")
    fact = await job.fact("process.exit")
    await until_let_go(job)
    assert [one.id for one in (await job.look()).facts if one.kind == fact.kind] == [fact.id]


async def test_a_worker_killed_before_the_agent_heard_costs_no_fact_and_tells_none_twice(
    local_lab: LocalLab,
) -> None:
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.lab.fault("kill demo 0 exit code=3")
    fact = await job.fact("process.exit")
    await local_lab.another_worker()
    await until_let_go(job)
    assert [one.id for one in (await job.look()).facts if one.kind == fact.kind] == [fact.id]
