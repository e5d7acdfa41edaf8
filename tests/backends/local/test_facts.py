"""A fact is in the books before its agent forgets it, and is repeated for a job that did not get it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from everstep.backends.agents.client import watch
from everstep.backends.agents.ports import JobBooks
from everstep.backends.local.backend import LocalBackend
from everstep.core.facts import Fact
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request informs an agent of what is in the books."""
    monkeypatch.setattr(watch, "POLL_S", 0.5)


async def until_let_go(job: Run) -> None:
    """The agent of slot 0 has nothing left to report."""
    uid, backend = (await job.pod(0)).uid, job.backend
    assert isinstance(backend, LocalBackend)
    async with asyncio.timeout(HUNG_S):
        while (state := await backend.agents.request(uid, "GET", watch.STATE_NOW))["facts"]:
            await job.observe(wait_s=0.1)
    assert state["facts_seen"] == 1


async def test_an_end_is_let_go_once_it_is_in_the_books_and_told_once(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.lab.fault("kill demo 0 exit 3")
    fact = await job.fact("process.exit")
    await until_let_go(job)
    assert [one.id for one in (await job.observe_now()).facts if one.kind == fact.kind] == [fact.id]


async def test_a_worker_killed_before_the_agent_heard_costs_no_fact_and_tells_none_twice(
    local_lab: LocalLab,
) -> None:
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    await job.lab.fault("kill demo 0 exit 3")
    fact = await job.fact("process.exit")
    await local_lab.another_worker()
    await until_let_go(job)
    assert [one.id for one in (await job.observe_now()).facts if one.kind == fact.kind] == [fact.id]


async def test_what_the_agent_let_go_of_is_told_again_to_a_job_that_did_not_get_it(
    local_lab: LocalLab,
) -> None:
    """The worker ends between its report and the job's receipt; then the agent ends as well."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    not_taken = job.cursor
    await job.lab.fault("kill demo 0 exit 3")
    fact = await job.fact("process.exit")
    await until_let_go(job)
    cursor = job.cursor
    await local_lab.another_worker()
    await job.lab.fault("kill-agent demo 0")
    agent_gone = await job.fact("agent.gone")
    again = await job.backend.observe(job.ref, cursor=not_taken, until=0.0, wait_s=0.0)
    assert [one for one in again.facts if one.kind in (fact.kind, agent_gone.kind)] == [
        fact,
        agent_gone,
    ]
    rest = await job.backend.observe(job.ref, cursor=cursor, until=0.0, wait_s=0.0)
    assert [one.id for one in rest.facts] == [agent_gone.id]


async def test_a_fact_outlives_its_pod_until_the_job_has_it(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0, 1), env={"STEPS": "100000", "STEP_S": "0.02"})
    await job.launch()
    not_taken, before = job.cursor, (await job.pod(0)).uid
    await job.lab.fault("kill demo 0 exit 3")
    fact = await job.fact("process.exit")
    await job.new_generation("again")
    await job.stop()
    await job.place(recreate=(0,))
    assert (await job.pod(0)).uid != before
    again = await job.backend.observe(job.ref, cursor=not_taken, until=0.0, wait_s=0.0)
    assert fact in again.facts


async def test_each_job_is_told_of_its_own_and_says_for_itself_how_far_it_is(
    local_lab: LocalLab,
) -> None:
    usual = {"STEPS": "100000", "STEP_S": "0.02"}
    one, two = (
        Run(local_lab, slots=(0,), env=usual),
        Run(local_lab, id="two", slots=(0,), env=usual),
    )
    await one.launch()
    await two.launch()
    await one.lab.fault("kill demo 0 exit 3")
    await one.lab.fault("kill two 0 exit 4")
    codes = [(await job.fact("process.exit")).details["code"] for job in (one, two)]
    assert codes == [3, 4]
    await local_lab.another_worker()
    assert (await one.observe(wait_s=0.0)).facts == ()
    repeated = [fact.details.get("code") for fact in (await two.observe_now()).facts]
    assert (4 in repeated, 3 in repeated) == (True, False)


async def test_a_fact_is_not_read_back_by_the_transaction_that_stores_it(
    local_lab: LocalLab,
) -> None:
    one, two = (Fact(id=name, kind="process.exit", at=1.0) for name in ("one", "two"))

    def store(books: JobBooks) -> tuple[tuple[Fact, ...], str]:
        books.add_fact(one)
        books.add_fact(two)
        books.add_fact(one)
        return books.facts_after("")

    books = local_lab.backend.agent_cluster.books
    facts, cursor = await books.change("demo", store)
    assert [fact is same for fact, same in zip(facts, (one, two), strict=True)] == [True, True]
    assert await books.change("demo", store) == (facts, cursor), "those that were there are read"
    assert await books.change("demo", lambda job: job.facts_after(cursor)) == ((), cursor)
    of_these, number, checksum = cursor.split(".")

    def read(job: JobBooks, after: str) -> tuple[tuple[Fact, ...], str]:
        return job.facts_after(after)

    for other in (
        f"ffffff.{number}.{checksum}",  # other books number theirs by themselves
        f"{of_these}.{int(number) + 9}.{checksum}",  # an older copy of these books was restored
        f"{of_these}.{number}.00000000",  # the same, and it went on in another way
    ):
        answer = await books.change("demo", partial(read, after=other))
        assert answer == (facts, cursor), "it is the beginning"
