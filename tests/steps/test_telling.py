"""Notices reach whoever listens, in their order and at least once, and hold up nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from activities import webhook
from activities.webhook import Webhook
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.chronicle import happenings
from everstep.core.spec import JobSpec
from everstep.core.world import Journal, Notice
from everstep.simulation import Simulation
from everstep.steps import telling as of_steps
from everstep.steps.telling import Listener, last_words, telling
from tests.support.builders import job_spec
from tests.support.hook import hooked
from tests.support.patience import HUNG_S


def journal(count: int = 3) -> Journal:
    notices = tuple(
        Notice(number=n, event="JobRestarted", at=1_000.0 + n, level="Info", message=f"restart {n}")
        for n in range(1, count + 1)
    )
    return Journal(job="demo", run="r1", topic="urn:nlp", notices=notices)


class Moody:
    """Takes nothing the first times, then everything."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked: list[str] = []

    async def take(self, message: Mapping[str, str]) -> bool:
        self.asked.append(message["id"])
        self.refusals -= 1
        return self.refusals < 0


async def test_a_message_says_all_there_is_to_know() -> None:
    async with hooked() as hook, telling(Webhook(url=hook.url), journal(1)) as told:
        await hook.until(lambda h: len(h.taken) == 1)
    assert hook.taken == [
        {
            "id": "demo/r1/1",
            "job": "demo",
            "run": "r1",
            "event": "JobRestarted",
            "time": "1970-01-01T00:16:41.000Z",
            "level": "Info",
            "message": "restart 1",
            "topic": "urn:nlp",
        }
    ]
    assert told.last in (0, 1)


async def test_what_is_not_taken_is_told_again_before_the_next() -> None:
    moody = Moody(refusals=2)
    async with last_words(moody, journal()) as told:
        pass
    first, second, third = (f"demo/r1/{n}" for n in (1, 2, 3))
    assert moody.asked == [first, first, first, second, third]
    assert told.last == 3


async def test_nobody_who_listens_has_heard_everything() -> None:
    async with telling(None, journal()) as told:
        await asyncio.sleep(0)
    assert told.last == 3


async def test_a_hook_that_comes_back_is_told_what_it_missed() -> None:
    async with hooked("fails") as hook, telling(Webhook(url=hook.url), journal()):
        await hook.until(lambda h: len(h.asked) == 1)
        hook.mood = "takes"
        await hook.until(lambda h: len(h.taken) == 3)
    assert [message["id"] for message in hook.taken] == ["demo/r1/1", "demo/r1/2", "demo/r1/3"]


async def test_work_that_ends_does_not_wait_for_a_hook_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "TAKEN_WITHIN_S", HUNG_S)
    async with hooked("hangs") as hook:
        async with telling(Webhook(url=hook.url), journal()) as told:
            await hook.until(lambda h: len(h.asked) == 1)
            began = time.monotonic()
        assert time.monotonic() - began < HUNG_S
    assert told.last == 0


async def test_the_last_words_wait_for_a_slow_hook_but_not_for_a_dead_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_steps, "LAST_WORDS_S", HUNG_S)
    async with hooked() as hook:
        hook.slow_s = 0.3
        async with last_words(Webhook(url=hook.url), journal()) as told:
            pass
        assert told.last == 3
        hook.mood = "hangs"
        began = time.monotonic()
        async with last_words(Webhook(url=hook.url), journal()) as told:
            pass
        assert time.monotonic() - began < HUNG_S
        assert told.last == 0


# -- A whole job ----------------------------------------------------------------------------------


def quick() -> JobSpec:
    spec = job_spec()
    return replace(
        spec, phases=tuple(replace(p, env={"STEPS": "30"}, model_dir="out") for p in spec.phases)
    )


async def lived(listener: Listener | None, *faults: str) -> Simulation:
    backend = FakeBackend()
    backend.build(FakeSettings(nodes=6, devices=8))
    for line in faults:
        await backend.admin.fault(line)
    simulation = Simulation(backend=backend, spec=quick(), listener=listener)
    await simulation.run()
    return simulation


async def test_a_job_has_told_everything_when_it_ends() -> None:
    async with hooked() as hook:
        job = await lived(Webhook(url=hook.url), "at 10s kill job 2 exit 1")
    assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobRestarted", "JobCompleted"]
    known = {f"job/run/{e['number']}" for e in happenings.events(job.chronicle) if e["event"]}
    assert {message["id"] for message in hook.taken} == known


async def test_a_hook_that_fails_changes_nothing_about_a_job() -> None:
    alone = await lived(None, "at 10s kill job 2 exit 1")
    async with hooked("fails") as hook:
        told = await lived(Webhook(url=hook.url), "at 10s kill job 2 exit 1")
    assert hook.asked
    assert told.state.ledger == alone.state.ledger
    assert told.state.now == alone.state.now
    assert happenings.events(told.chronicle) == happenings.events(alone.chronicle)
