"""Calls caught on their way, so that a test can kill something at exactly that moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.client import FakeClient
from everstep.backends.fake.gates import HeldCall
from everstep.backends.fake.verbs import Verbs
from everstep.core.errors import BackendUnavailable
from tests.backends.conftest import FakeLab, FakeRun
from tests.backends.lab import Run

Fake = FakeBackend | FakeClient


@pytest.fixture(params=["fake", "fake_client"])
def either(request: pytest.FixtureRequest) -> Fake:
    """The fake cluster, here or in its own process."""
    fake_fixture: Fake = request.getfixturevalue(request.param)
    return fake_fixture


@pytest.fixture
def job(either: Fake) -> FakeRun:
    return FakeRun(FakeLab(either))


async def what(job: FakeRun) -> list[str]:
    return [effect.what for effect in await job.admin.effects()]


async def test_a_call_held_before_has_done_nothing_yet(job: FakeRun) -> None:
    await job.admin.hold("ensure_isolated")
    call = asyncio.ensure_future(job.backend.ensure_isolated("n1", reason="broken"))
    assert await job.admin.wait_held() == HeldCall(verb="ensure_isolated", job=None, when="before")
    assert (await what(job), call.done()) == ([], False)
    await job.admin.release()
    await call
    assert await what(job) == ["isolate n1"]


async def test_a_call_held_after_lacks_only_its_answer(job: FakeRun) -> None:
    await job.admin.hold("ensure_generation", when="after")
    call = asyncio.ensure_future(job.new_generation("a"))
    assert await job.admin.wait_held() == HeldCall(
        verb="ensure_generation", job="demo", when="after"
    )
    assert (await job.observe_now()).generation == 1
    await job.admin.release()
    assert await call == 1


async def test_the_nth_call_counts_from_when_it_was_asked_for(job: FakeRun) -> None:
    await job.backend.clock()
    await job.admin.hold("clock", nth=2)
    await job.backend.clock()
    call = asyncio.ensure_future(job.backend.clock())
    await job.admin.wait_held()
    await job.backend.clock()  # only one is held
    await job.admin.release()
    await call


async def test_any_verb_may_be_meant_but_observe(job: FakeRun) -> None:
    await job.admin.hold("*", nth=2)
    await job.observe(wait_s=0)
    await job.backend.leftovers()
    call = asyncio.ensure_future(job.backend.nodes())
    assert (await job.admin.wait_held()).verb == "nodes"
    await job.admin.release()
    await call


async def test_only_the_calls_of_one_job_may_be_meant(job: FakeRun, either: Fake) -> None:
    await job.admin.hold("ensure_generation", job="other")
    await job.new_generation("a")
    call = asyncio.ensure_future(Run(job.lab, id="other").new_generation("a"))
    assert (await job.admin.wait_held()).job == "other"
    await job.admin.release()
    await call


async def test_while_a_call_is_held_its_job_holds_the_clock(job: FakeRun) -> None:
    other = FakeRun(job.lab, id="other")
    await job.new_generation("a")
    await other.new_generation("a")
    other.cursor = "1"
    now = await job.backend.clock()
    await job.admin.hold("observe", when="before")
    call = asyncio.ensure_future(job.observe(until=now + 5))
    await job.admin.wait_held()
    assert (await other.observe(until=now + 9, wait_s=0.05)).now == now
    await job.admin.release()
    assert (await call).now in (now, now + 5)


async def test_a_call_whose_caller_dies_is_dropped(job: FakeRun, either: Fake) -> None:
    await job.admin.hold("ensure_isolated")
    await die_while_held(job)
    await job.admin.release()
    assert await what(job) == []


async def test_or_it_arrives_late(job: FakeRun) -> None:
    await job.admin.hold("ensure_isolated", late=True)
    await die_while_held(job)
    assert await what(job) == []
    await job.admin.release()
    assert await what(job) == ["isolate n1"]


async def test_what_was_done_before_the_caller_died_is_done_once(job: FakeRun) -> None:
    await job.admin.hold("ensure_isolated", when="after", late=True)
    await die_while_held(job)
    await job.admin.release()
    assert await what(job) == ["isolate n1"]


async def test_a_late_order_may_be_refused_without_harm(job: FakeRun) -> None:
    await job.new_generation("a")
    await job.admin.hold("ensure_placed", late=True)
    call = asyncio.ensure_future(job.backend.ensure_placed(job.place_order()))
    await job.admin.wait_held()
    await cancelled(call)
    await no_call_held(job)
    await job.new_generation("b")
    await job.admin.release()
    assert await what(job) == []


async def die_while_held(job: FakeRun) -> None:
    call = asyncio.ensure_future(job.backend.ensure_isolated("n1", reason="broken"))
    await job.admin.wait_held()
    await cancelled(call)
    await no_call_held(job)


async def cancelled(call: asyncio.Future[Any]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def no_call_held(job: FakeRun) -> None:
    """The server learns of a dead caller when its connection ends, a moment later."""
    while True:
        try:
            await job.admin.wait_held(timeout_s=0.01)
        except TimeoutError:
            return


async def test_waiting_for_a_held_call_has_an_end(job: FakeRun) -> None:
    with pytest.raises(TimeoutError):
        await job.admin.wait_held(timeout_s=0.01)


@pytest.mark.parametrize(("when", "done"), [("before", []), ("after", ["isolate n1"])])
async def test_one_call_may_fail(job: FakeRun, when: str, done: list[str]) -> None:
    assert when in ("before", "after")
    await job.admin.fail("ensure_isolated", when="before" if when == "before" else "after")
    with pytest.raises(BackendUnavailable):
        await job.backend.ensure_isolated("n1", reason="broken")
    assert await what(job) == done
    await job.backend.ensure_isolated("n1", reason="broken")
    assert await what(job) == ["isolate n1"]


async def test_open_observes_end_when_the_cluster_goes_out_of_reach(job: FakeRun) -> None:
    await job.new_generation("a")
    job.cursor = "1"
    call = asyncio.ensure_future(job.observe(wait_s=30))
    await asyncio.sleep(0.05)
    await job.admin.unavailable()
    with pytest.raises(BackendUnavailable):
        await call
    await job.admin.unavailable(False)
    assert (await job.observe_now()).generation == 1


async def test_calls_are_counted(job: FakeRun) -> None:
    await job.backend.clock()
    await job.backend.clock()
    await job.backend.nodes()
    assert await job.admin.calls() == {"clock": 2, "nodes": 1}


async def test_a_reset_makes_everything_new(job: FakeRun) -> None:
    await job.launch()
    await job.admin.hold("nodes")
    await job.admin.reset(nodes=2, devices=1)
    nodes = await job.backend.nodes()
    assert [(node.name, len(node.devices), node.jobs) for node in nodes] == [
        ("n0", 1, ()),
        ("n1", 1, ()),
    ]
    assert (await what(job), await job.backend.leftovers()) == ([], ())
    assert await job.new_generation("a") == 1


# --- a killed worker leaves no trace ------------------------------------------------------------


class Retrying(Verbs):
    """Repeat the call whenever the cluster did not answer, like an activity that is retried."""

    def __init__(self, fake: FakeBackend) -> None:
        self.fake = fake

    async def call(self, verb: str, /, **args: Any) -> Any:
        try:
            return await self.fake.call(verb, **args)
        except BackendUnavailable:
            return await self.fake.call(verb, **args)

    async def close(self) -> None:
        """Nothing to let go of."""


async def scenario(fake: FakeBackend) -> list[tuple[float, str]]:
    """A launch, a crash, a restart in place, a lost node, a pod elsewhere, the end."""
    lab = FakeLab(fake)
    lab.backend = Retrying(fake)
    job = FakeRun(lab, env={"STEPS": "60", "STEP_S": "0.7"})
    await job.launch()
    await fake.admin.fault("at step 25 of demo kill demo 1")
    await fake.admin.fault("at step 40 of demo node-down n2 partition")
    await job.fact("process.exit")
    await job.again("in place")
    await job.fact("node.not_ready")
    await job.new_generation("pod")
    await job.stop(slots=(0, 1, 3))
    await job.backend.ensure_isolated("n2", reason="not ready")
    await job.place(recreate=(2,))
    await job.fence()
    await job.start(resume=(await job.backend.checkpoints(job.ref))[0])
    await job.see(lambda observation: all(pod.is_done for pod in observation.pods))
    await job.gone()
    fact_times = [(fact.at, fact.id) for fact in job.facts]
    return [(effect.at, effect.what) for effect in await fake.admin.effects()] + fact_times


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["*", "observe"])
async def test_wherever_a_call_is_lost_the_timeline_is_the_same(verb: str, when: str) -> None:
    undisturbed = FakeBackend()
    expected = await scenario(undisturbed)
    counts = await undisturbed.admin.calls()
    observes = counts.pop("observe")
    for nth in range(1, (observes if verb == "observe" else sum(counts.values())) + 1):
        fake = FakeBackend()
        await fake.admin.fail(verb, nth=nth, when="before" if when == "before" else "after")
        assert await scenario(fake) == expected, f"{verb} {nth} lost {when}"
