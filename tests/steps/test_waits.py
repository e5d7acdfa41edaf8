"""What a launch or a restart waited for is shown afterwards too, with how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.chronicle import happenings, record_rows
from everstep.core.deciding.decision import StepOrder, Waited
from everstep.core.errors import NoAgentAvailable
from everstep.core.levels import FaultClass
from everstep.core.recovering import recovery
from everstep.core.waits import WaitKind
from everstep.core.world import Checkpoint, JobRef, Observation, PlaceOrder, StopOrder
from everstep.dialects import responses
from everstep.simulation import QuarantineInMemory, Simulation
from everstep.steps.step_run import StepContext, StepRun
from tests.support.builders import job_spec, running, sighting
from tests.support.playing.scenario import play, read
from tests.support.playing.simulated import PromptBackend, Simulated

SCENARIOS = Path(__file__).parents[1] / "scenarios"


async def played(name: str) -> Simulated:
    driver = Simulated()
    await play(read(SCENARIOS / f"{name}.txt"), driver)
    return driver


@pytest.mark.parametrize(
    ("scenario", "n", "what", "least", "most"),
    [
        ("storage_unwritable", 1, "the storage to be writable", 255, 265),
        ("no_spare_until_later", 1, "room for 1 more pod", 59, 61),
        ("no_spare_until_later", 2, "room for 1 more pod", 500, 505),
        ("device_heals", 1, "to heal", 1, 60),
    ],
)
async def test_a_record_says_what_it_waited_for(
    scenario: str, n: int, what: str, least: float, most: float
) -> None:
    chronicle = (await played(scenario)).simulation.chronicle
    record: dict[str, Any] = next(r for r in responses.restarts(chronicle) if r["n"] == n)
    (waited,) = record["waited"]
    assert what in waited["for"]
    assert least <= waited["s"] <= most
    assert f"waited   {waited['s']:g} s for {waited['for']}" in record_rows.story(record)


async def test_what_needed_no_wait_says_nothing() -> None:
    chronicle = (await played("crash")).simulation.chronicle
    assert [record["waited"] for record in responses.restarts(chronicle)] == [[]]


async def test_the_event_of_a_start_says_what_the_launch_waited_for() -> None:
    chronicle = (await played("waits_for_places_at_launch")).simulation.chronicle
    started = next(e for e in happenings.events(chronicle) if e["event"] == "JobStarted")
    assert "s of waiting for room for 1 more pod" in started["message"]
    assert started["waiting_reason"] == "ClusterTooSmall"


async def test_a_step_that_is_repeated_counts_its_wait_from_the_first_try() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    order = recovery.next_step(recovery.begin(job.plan))
    assert isinstance(order, StepOrder)
    step = StepRun.of(StepContext(backend=FakeBackend(), quarantine=QuarantineInMemory()), order)
    await step.report_wait(WaitKind.WRITABLE.of())  # as the first try did, which was killed
    step.now = order.since + 30.0
    await step.report_wait(None)
    assert step.long_waits() == (
        Waited(what="the storage to be writable", s=30.0, reason="StorageUnavailable"),
    )


@pytest.mark.parametrize(("took_s", "is_reported"), [(10.0, True), (0.2, False)])
async def test_a_step_that_finds_done_what_an_earlier_try_waited_for_tells_it(
    took_s: float, is_reported: bool
) -> None:
    running_job = running()
    running_job.see(sighting(FaultClass.CRASH))
    order = recovery.next_step(recovery.begin(running_job.plan))
    assert isinstance(order, StepOrder)
    context = StepContext(backend=FakeBackend(), quarantine=QuarantineInMemory())
    began = await context.backend.clock() - took_s
    step = StepRun.of(context, replace(order, since=began))
    await step.resume_wait(WaitKind.HEAL.of("n1", 0))
    await step.report_wait(None)
    assert [waited.what for waited in step.long_waits()] == ["device n1/0 to heal"] * is_reported


async def test_checkpoints_that_no_agent_can_tell_of_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as its pods live: the job resumes from the same one, only later."""
    listed = []

    async def checkpoints(self: FakeBackend, job: JobRef) -> tuple[Checkpoint, ...]:
        listed.append(job)
        if 1 < len(listed) < 5:  # not at the launch
            raise NoAgentAvailable("all agents are stopped")
        return await original(self, job)

    undisturbed = (await played("crash")).simulation.chronicle
    original = FakeBackend.checkpoints
    monkeypatch.setattr(FakeBackend, "checkpoints", checkpoints)
    (record,) = responses.restarts((await played("crash")).simulation.chronicle)
    (usual,) = responses.restarts(undisturbed)
    assert record["resume_step"] == usual["resume_step"]
    assert len(listed) == 6  # and once more when the job is done


async def test_a_checkpoint_that_nobody_has_seen_yet_is_looked_for_before_a_phase_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Agents look once a second; a script may save and end between two looks."""

    async def observe(self: PromptBackend, job: JobRef, **options: Any) -> Observation:
        return replace(await original(self, job, **options), checkpoint=None)

    original = PromptBackend.observe
    monkeypatch.setattr(PromptBackend, "observe", observe)
    driver, scenario = Simulated(), read(SCENARIOS / "crash_after_progress.txt")
    await play(replace(scenario, policy={"no_progress_restarts": 1}), driver)
    state = driver.simulation.state
    assert (state.ending, state.ledger.restarts) == ("Completed", 3)


def comes_late(monkeypatch: pytest.MonkeyPatch, verb: str, *, by_s: float) -> set[int]:
    """The first call of each generation; they are all there."""
    ordered: set[int] = set()
    original = getattr(FakeBackend, verb)

    async def late(self: FakeBackend, order: PlaceOrder | StopOrder) -> Any:
        if order.generation not in ordered:
            ordered.add(order.generation)
            cursor, until = "", await self.clock() + by_s
            while await self.clock() < until:
                cursor = (await self.observe(order.job, cursor=cursor, until=until)).cursor
        return await original(self, order)

    monkeypatch.setattr(FakeBackend, verb, late)
    return ordered


async def on_four_nodes(*faults: str) -> Simulation:
    """A job that may live with two has run there."""
    backend = FakeBackend()
    backend.build(FakeSettings(nodes=4, devices=8))
    for line in faults:
        await backend.admin.fault(line)
    plain = job_spec(nodes_min=2)
    phases = tuple(replace(phase, env={"STEPS": "200"}) for phase in plain.phases)
    job = Simulation(backend=backend, spec=replace(plain, phases=phases))
    await job.run()
    return job


async def test_places_asked_for_late_are_not_taken_for_all_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No worker was there for longer than `spare_s`: until then the old pods had no order to end."""
    ordered = comes_late(monkeypatch, "ensure_placed", by_s=100.0)
    job = await on_four_nodes("slow-teardown n1 3s", "at 200s preempt job")
    (record,) = responses.restarts(job.chronicle)
    assert (record["level"], record["recover_result"]) == ("job", "success")
    assert len(job.state.active) == 4
    assert ordered == {1, 2}


async def test_places_are_not_taken_for_all_there_are_after_a_stop_that_took_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait for a spare is over by then, but the old pods go only now."""
    ordered = comes_late(monkeypatch, "ensure_stopped", by_s=100.0)
    job = await on_four_nodes("slow-teardown n1 3s", "at 200s preempt job")
    (record,) = responses.restarts(job.chronicle)
    assert (record["level"], record["recover_result"]) == ("job", "success")
    assert len(job.state.active) == 4
    assert ordered == {1, 2}


async def test_the_wait_for_a_spare_begins_with_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    comes_late(monkeypatch, "ensure_stopped", by_s=20.0)
    job = await on_four_nodes("at 200s node-down n2")
    pod, elastic = responses.restarts(job.chronicle)
    assert [r["level"] for r in (pod, elastic)] == ["pod", "elastic"]
    assert (pod["stages_s"]["stop"], pod["stages_s"]["place"]) == (20.0, 40.0)
    assert elastic["stages_s"]["place"] == 0.0
