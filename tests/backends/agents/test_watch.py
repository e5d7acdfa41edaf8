"""A reported fact is requested again until it is in the books; then the agent is informed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from everstep.agent.facts import Facts
from everstep.backends.agents.client.link import Link, NoAnswer
from everstep.backends.agents.client.watch import (
    TRIES_PER_S,
    Agents,
    WatchedAgent,
    retry_s,
)
from everstep.protocol import wire
from tests.backends.agents.test_clocks import agent_state_at
from tests.support.patience import HUNG_S

UID = "u"
MANY = 500
NOW = 1_000.0


class Pod(Link):
    """An agent that answers once it is let, and that loses answers and questions."""

    def __init__(self) -> None:
        self.facts = Facts("b")
        self.boot = "b"
        self.version = 0
        self.requests: list[dict[str, str]] = []
        self.answers = asyncio.Semaphore(0)

    def crash(self) -> None:
        self.version += 1
        self.facts.add(
            kind="process.exit", at=NOW, generation=1, rank=0, message="", details={"code": 1}
        )

    def restart(self) -> None:
        earlier, self.boot = self.facts.open, f"{self.boot}b"
        self.facts, self.version = Facts(self.boot), 1
        self.facts.take_over(earlier)

    def state(self) -> wire.AgentState:
        state = agent_state_at(now=NOW)
        state["boot"], state["version"] = self.boot, self.version
        state["facts"], state["facts_seen"] = self.facts.open, self.facts.count
        return state

    async def request(self, *body: Any, **_: Any) -> dict[str, Any]:
        await self.answers.acquire()
        query = {name: values[0] for name, values in parse_qs(urlsplit(body[1]).query).items()}
        self.requests.append(query)
        self.facts.drop_stored(query.get("boot", ""), int(query.get("after", 0)))
        return {**self.state()}

    def close(self) -> None:
        """There is no connection."""


class Worker:
    """One that watches the pod; its books may be shared with others."""

    def __init__(self, pod: Pod, books: set[str]) -> None:
        self.pod, self.books, self.rung = pod, books, 0
        self.agents = Agents(
            link=lambda _: pod,
            is_gone=lambda _: False,
            clock=lambda: NOW,
            changed=self._changed,
            is_cut_off=lambda _: False,
        )
        self.watched = self.agents.watch(UID)

    def _changed(self, _uid: str) -> None:
        self.rung += 1

    async def hear(self) -> wire.AgentState:
        """One more answer of the agent."""
        before = len(self.pod.requests)
        self.pod.answers.release()
        async with asyncio.timeout(HUNG_S):
            while len(self.pod.requests) == before or self.pod.answers._value:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert self.watched.state is not None
        return self.watched.state

    async def commit(self) -> wire.AgentState:
        state = await self.hear()
        self.books |= {fact["id"] for fact in state["facts"]}
        return state


@pytest.fixture
async def pod() -> Pod:
    return Pod()


@pytest.fixture
async def worker(pod: Pod) -> AsyncIterator[Worker]:
    working = Worker(pod, set())
    yield working
    await working.agents.close()


@pytest.mark.parametrize(
    ("agents", "quiet_s"), [(1, "0.5"), (200, "0.5"), (1_000, "2.5"), (2_000, "5"), (9_000, "5")]
)
async def test_a_step_is_held_back_for_half_a_second_in_a_job_of_200_pods(
    worker: Worker, pod: Pod, agents: int, quiet_s: str
) -> None:
    more_agents = {str(number): WatchedAgent(link=pod) for number in range(1, agents)}
    worker.agents.by_uid.update(more_agents)
    for _ in range(2):  # the first request was sent before they were there
        await worker.hear()
    assert pod.requests[-1]["quiet_s"] == quiet_s


@pytest.mark.parametrize(
    ("tried_s", "silent", "again_s"),
    [
        (0.0, 1, 0.01),
        (0.3, 1, 0.015),
        (10.0, 1, 0.05),
        (10.0, 2_000, 2.0),
        (0.0, 2_000, 2.0),
    ],
)
def test_an_agent_that_starts_is_tried_sooner_than_one_that_is_silent_for_long(
    tried_s: float, silent: int, again_s: float
) -> None:
    assert retry_s(tried_s, silent=silent) == pytest.approx(again_s)


async def test_it_is_said_only_once_it_is_in_the_books_and_not_before(
    pod: Pod, worker: Worker
) -> None:
    pod.crash()
    state = await worker.commit()
    await worker.hear()
    assert "after" not in pod.requests[-1]
    assert pod.facts.open
    worker.agents.note_stored(UID, state)
    await worker.hear()  # this question was on its way already
    await worker.hear()
    assert (pod.requests[-1]["boot"], pod.requests[-1]["after"]) == ("b", "1")
    assert not pod.facts.open
    assert worker.books == {"b/1"}


async def test_that_facts_were_let_go_is_no_news(pod: Pod, worker: Worker) -> None:
    pod.crash()
    worker.agents.note_stored(UID, await worker.commit())
    rung = worker.rung
    for _ in range(3):
        await worker.hear()
    assert not pod.facts.open
    assert worker.rung == rung
    pod.crash()
    await worker.hear()
    await worker.hear()
    assert worker.rung == rung + 1


async def test_a_worker_killed_before_it_said_so_costs_a_repeat_and_nothing_else(pod: Pod) -> None:
    pod.crash()
    books: set[str] = set()
    first = Worker(pod, books)
    await first.commit()
    await first.agents.close()
    second = Worker(pod, books)
    second.agents.note_stored(UID, await second.commit())
    assert books == {"b/1"}
    await second.hear()
    await second.hear()
    assert not pod.facts.open
    await second.agents.close()


async def test_another_boot_is_not_told_what_was_said_of_the_one_before(
    pod: Pod, worker: Worker
) -> None:
    pod.crash()
    worker.agents.note_stored(UID, await worker.commit())
    pod.restart()  # before it heard that
    pod.crash()
    await worker.hear()  # asked of the one before
    state = await worker.commit()
    assert [fact["id"] for fact in pod.facts.open] == ["b/1", "bb/2"], "nothing is let go"
    await worker.hear()
    assert "after" not in pod.requests[-1]
    worker.agents.note_stored(UID, state)
    await worker.hear()
    await worker.hear()
    assert not pod.facts.open
    assert worker.books == {"b/1", "bb/2"}


async def test_a_late_word_of_an_earlier_state_takes_nothing_back(pod: Pod, worker: Worker) -> None:
    pod.crash()
    earlier = await worker.commit()
    pod.crash()
    worker.agents.note_stored(UID, await worker.commit())
    worker.agents.note_stored(UID, earlier)
    assert worker.watched.stored_up_to == 2


async def test_who_was_silent_a_moment_ago_is_asked_all_the_same(pod: Pod, worker: Worker) -> None:
    """The cause may be the worker itself: without descriptors it reaches no agent."""
    await worker.hear()
    worker.agents.note_silence(UID, worker.watched, requested_at=NOW)
    assert worker.watched.silent_since is not None
    assert worker.watched.task is not None
    worker.watched.task.cancel()  # its long poll would take the answer
    pod.answers.release()
    answer = await worker.agents.request_any([UID], wire.CHECKPOINTS, {}, within_s=HUNG_S)
    assert answer["boot"] == "b"


async def test_many_agents_that_do_not_answer_yet_are_asked_no_more_often_than_a_worker_can() -> (
    None
):
    tries = 0
    enough = asyncio.Event()

    class NotThere(Pod):
        async def request(self, *_: Any, **__: Any) -> dict[str, Any]:
            nonlocal tries
            tries += 1
            if tries >= 3 * MANY:
                enough.set()
            raise NoAnswer("it is starting")

    agents = Agents(
        link=lambda _: NotThere(),
        is_gone=lambda _: False,
        clock=lambda: NOW,
        changed=lambda _: None,
        is_cut_off=lambda _: False,
    )
    assert await took_s(agents, enough) > MANY / TRIES_PER_S  # after the first try of each


async def took_s(agents: Agents, enough: asyncio.Event) -> float:
    """How long it takes until there is enough of many agents that are watched at once."""
    began = time.monotonic()
    for number in range(MANY):
        agents.watch(str(number))
    async with asyncio.timeout(HUNG_S):
        await enough.wait()
    for uid in list(agents.by_uid):
        agents.forget(uid)
    return time.monotonic() - began


async def test_many_agents_on_nodes_that_are_cut_off_are_looked_at_no_more_often_either() -> None:
    looks = 0
    enough = asyncio.Event()

    def is_cut_off(_: str) -> bool:
        nonlocal looks
        looks += 1
        if looks >= 3 * MANY:
            enough.set()
        return True

    agents = Agents(
        link=lambda _: Pod(),
        is_gone=lambda _: False,
        clock=lambda: NOW,
        changed=lambda _: None,
        is_cut_off=is_cut_off,
    )
    assert await took_s(agents, enough) > MANY / TRIES_PER_S  # after the first look at each


async def test_an_agent_that_never_answered_is_asked_no_more_once_it_is_gone() -> None:
    """Another worker removed its pod: this one may never read of that."""
    requests = 0

    class Absent(Pod):
        async def request(self, *_body: Any, **_: Any) -> dict[str, Any]:
            nonlocal requests
            requests += 1
            raise NoAnswer("no address")

    news: list[str] = []
    agents = Agents(
        link=lambda _: Absent(),
        is_gone=lambda _: requests > 2,
        clock=time.time,
        changed=news.append,
        is_cut_off=lambda _: False,
    )
    watched = agents.watch(UID)
    assert watched.task is not None
    await asyncio.wait_for(watched.task, HUNG_S)
    assert requests == 3
    assert (agents.unanswered, news) == (set(), [])


@pytest.mark.parametrize(
    "unreadable",
    [{"boot": None}, {"now": None}, {"version": None}, {"run": {}}, {"facts_seen": None}],
    ids=str,
)
async def test_a_state_that_lacks_a_field_is_no_answer_and_the_agent_is_polled_on(
    worker: Worker, pod: Pod, unreadable: dict[str, Any]
) -> None:
    """None: the field is left out."""

    def answer() -> dict[str, Any]:
        state = {**Pod.state(pod), **unreadable}
        return {name: value for name, value in state.items() if value is not None}

    with pytest.raises(NoAnswer):
        worker.agents.add_answer(UID, answer())
    assert (worker.watched.state, worker.watched.has_answered) == (None, False)
    before = await worker.hear()
    pod.crash()
    pod.state = answer  # type: ignore[method-assign,assignment]
    assert await worker.hear() == before
    assert worker.watched.silent_since == NOW
    del pod.state
    assert (await worker.hear())["version"] == pod.version
    assert worker.watched.silent_since is None
