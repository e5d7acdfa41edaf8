"""Devices that fail, are healed and are checked. Held against every backend."""

from __future__ import annotations

import pytest

from tests.backends.lab import Lab, Run, effects


async def heal(job: Run, node: str, device: int) -> str:
    async def ask() -> str:
        state = await job.backend.ensure_healed(
            job.ref, generation=job.generation, node=node, device=device
        )
        return state.state

    while (state := await ask()) == "healing":
        await job.observe()
    return state


async def test_a_device_that_can_repair_itself_is_healed(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 heals")
    assert (await job.fact("device.fault")).code == "80E01801"
    assert await heal(job, "n0", 0) == "healed"
    assert await heal(job, "n0", 0) == "healed"
    assert await job.backend.check(job.ref) == ()


KNOWN_OF_CODES: dict[str, dict[str, object]] = {
    "80E01801": {"severity": "minor", "heals": True, "level": "RestartBusiness"},
    "79": {"severity": "critical", "heals": False},
    "80CB8002": {
        "severity": "minor",
        "heals": True,
        "user_induced": True,
        "level": "RestartRequest",
    },
    "79 minor": {"severity": "minor", "heals": True},
    "79 heals": {"severity": "major", "heals": True},
    "80E01801 no-heals": {"severity": "minor", "heals": False},
}


async def test_a_device_fault_says_what_is_known_of_its_code(
    lab: Lab, subtests: pytest.Subtests
) -> None:
    job = Run(lab, slots=(0,), devices="all")
    await job.launch()
    for device, (words, details) in enumerate(KNOWN_OF_CODES.items()):
        with subtests.test(words):
            await lab.fault(f"device n0 {device} {words}")
            assert (await job.fact("device.fault")).details == details


async def test_a_device_without_a_fault_is_healed(job: Run) -> None:
    await job.launch()
    done = await effects(job.lab)
    assert await heal(job, "n0", 5) == "healed"
    assert await effects(job.lab) == done


async def test_a_failed_heal_stays_failed(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 no-heals")
    assert await heal(job, "n0", 0) == "failed"
    done = await effects(job.lab)
    assert await heal(job, "n0", 0) == "failed"
    assert await effects(job.lab) == done


async def test_a_new_fault_is_asked_anew_whether_it_heals(job: Run) -> None:
    await job.launch()
    await job.lab.fault("device n0 0 80E01801 no-heals")
    assert await heal(job, "n0", 0) == "failed"
    await job.lab.fault("device n0 0 80CB8002 heals")
    state = await job.backend.ensure_healed(job.ref, generation=job.generation, node="n0", device=0)
    assert state.state == "healing"
    assert await heal(job, "n0", 0) == "failed"
    await job.lab.fault("clear n0 0")
    assert await heal(job, "n0", 0) == "healed"


async def test_a_node_that_is_down_cannot_be_cut_off(lab: Lab) -> None:
    for line in ("node-down n1", "node-down n1 partition"):
        await lab.fault(line)
    reasons = {node.name: node.reason for node in await lab.backend.nodes()}
    assert reasons["n1"] == "n1 is down"


async def test_check_finds_what_observe_told_and_only_while_it_is_there(job: Run) -> None:
    await job.launch()
    assert await job.backend.check(job.ref) == ()
    await job.lab.fault("device n1 0 80E01801 heals")
    device_fact = await job.fact("device.fault")
    check_results = await job.backend.check(job.ref)
    assert [(fact.id, fact.kind, fact.device) for fact in check_results] == [
        (device_fact.id, "device.fault", 0)
    ]
    await job.lab.fault("clear n1 0")
    assert await job.backend.check(job.ref) == ()


async def test_a_device_fault_is_told_to_who_holds_the_device(lab: Lab) -> None:
    holder, neighbour = (Run(lab, id=name, slots=(0, 1)) for name in ("holder", "neighbour"))
    await neighbour.new_generation("launch")
    await neighbour.backend.ensure_placed(neighbour.place_order())
    await holder.new_generation("launch")
    await holder.backend.ensure_placed(holder.place_order())
    held = next(
        device.index
        for node in await lab.backend.nodes()
        if node.name == "n0"
        for device in node.devices
        if device.job == "holder"
    )
    await lab.fault(f"device n0 {held} 80E01801")
    assert (await holder.observe_now()).facts
    assert not (await neighbour.observe_now()).facts


async def test_a_node_in_maintenance_says_so_until_that_is_over(job: Run) -> None:
    """A job that left the node avoids it only as long as it says so."""

    async def maintenance() -> str:
        return next(node.maintenance for node in await job.backend.nodes() if node.name == "n1")

    assert await maintenance() == ""
    await job.lab.fault("maintenance n1")
    assert await maintenance() == "n1 is about to be serviced"
    await job.lab.fault("clear n1")
    assert await maintenance() == ""
