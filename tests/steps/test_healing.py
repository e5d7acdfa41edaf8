"""Devices that heal while nothing runs: all of them at once, and all of them before the ranks start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH
from everstep.core.deciding.decision import DeviceRef, StepOrder
from everstep.core.levels import Level, Step
from everstep.core.recovering import recovery
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.steps.test_keeping_ranks import cluster, launched

TAKES_S = (10, 40)
BROKEN = tuple(f"device n1 {index} 80E01801 heals" for index in range(2))


async def heal_both(
    *, breaks_again_at_s: int | None = None, heals: int = 2, level: Level = Level.IN_PLACE
) -> tuple[str, float, list[str]]:
    """How the step ended for two devices, after how many seconds, and the health of both then."""
    backend = cluster()
    plan, past = await launched(backend)
    for index, takes_s in enumerate(TAKES_S):
        await backend.admin.fault(f"heal-takes n1 {index} {takes_s}")
        await backend.admin.fault(BROKEN[index])
    if breaks_again_at_s is not None:
        at_s = past.now - EPOCH + breaks_again_at_s
        await backend.admin.fault(f"at {at_s:g}s {BROKEN[0]}")
    devices = tuple(DeviceRef(node="n1", device=index) for index in range(heals))
    remedy = replace(plan.remedy, steps=(Step.HEAL,), heal=devices, recreate=(), gives_way_to=())
    restart = replace(
        plan,
        level=level,
        generation=past.generation,
        since=past.now,
        cursor=past.cursor,
        remedy=remedy,
    )
    order = recovery.next_step(recovery.begin(restart))
    assert isinstance(order, StepOrder)
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    result = await perform(context, order)
    node = next(node for node in await backend.nodes() if node.name == "n1")
    return result.end, result.now - past.now, [str(one.health) for one in node.devices[:2]]


async def test_two_devices_heal_at_once() -> None:
    assert await heal_both() == ("done", 40.0, ["ok", "ok"])


@pytest.mark.parametrize("at_s", [20, 35])
async def test_a_device_that_breaks_again_while_another_one_heals_is_waited_for(at_s: int) -> None:
    end, took_s, health = await heal_both(breaks_again_at_s=at_s)
    assert (end, health) == ("done", ["ok", "ok"])
    assert took_s == 50.0, "the job holds no device, so that the step looks again at 40 s"


async def test_a_look_reads_no_clock_for_devices_that_are_sound_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them would cost a request at each look."""
    reads: list[FakeBackend] = []
    clock = FakeBackend.clock

    async def read(backend: FakeBackend) -> float:
        reads.append(backend)
        return await clock(backend)

    monkeypatch.setattr(FakeBackend, "clock", read)
    await heal_both()
    with_others = len(reads)
    reads.clear()
    await heal_both(heals=1)
    assert with_others == len(reads)


async def test_a_device_that_does_not_heal_under_its_processes_is_not_given_up() -> None:
    end, took_s, _ = await heal_both(level=Level.PROCESS_ONLINE)
    assert end == "failed"
    assert took_s == pytest.approx(15.0, abs=1.0)
