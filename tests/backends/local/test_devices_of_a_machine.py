"""A machine's books hold the devices that it has."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.clearing import end_all
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.worker_settings import LocalWorkerSettings
from everstep.core.spec import Accelerator
from everstep.core.world import HealState, JobRef, PlaceOrder

ROWS: tuple[tuple[Accelerator, int], ...] = (("simulated", 8), ("nvidia", 2))


@pytest.mark.parametrize(("kind", "count"), ROWS)
async def test_real_devices_are_as_many_as_there_are_now(
    tmp_path: Path, kind: Accelerator, count: int
) -> None:
    """Simulated ones stay as they were made."""
    first = await LocalBackend.open(LocalSettings(home=tmp_path, nodes=1, devices=8))
    await first.close()
    second = await LocalBackend.open(
        LocalSettings(home=tmp_path, nodes=1, devices=2, accelerator=kind)
    )
    (node,) = await second.nodes()
    await second.close()
    assert (node.accelerator, len(node.devices)) == (kind, count)


async def test_a_job_whose_device_fell_off_the_bus_is_still_served(tmp_path: Path) -> None:
    """A worker that is restarted finds fewer devices than a pod holds."""
    machine = LocalSettings(home=tmp_path, nodes=1, devices=2, accelerator="nvidia")
    job = JobRef(id="demo", run="r")
    try:
        first = await LocalBackend.open(machine)
        generation = await first.ensure_generation(job, "launch")
        order = PlaceOrder(
            job=job,
            phase="main",
            generation=generation,
            slots=(0,),
            recreate=(0,),
            accelerator="nvidia",
            accelerators_per_node=2,
        )
        await first.ensure_placed(order)
        await first.close()
        second = await LocalBackend.open(replace(machine, devices=1))
        assert await second.check(job) == ()
        healed = await second.ensure_healed(job, generation=generation, node="n0", device=1)
        assert healed == HealState(state="failed", message="n0 has no device 1; it has 1")
        await second.close()
    finally:
        end_all(tmp_path)


def test_a_worker_serves_the_devices_that_it_finds_unless_it_is_told_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H100'; echo 'GPU 1: H100'\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def served(**options: Any) -> tuple[str, int]:
        settings = LocalWorkerSettings(**options).of_cluster(tmp_path, "")
        return settings.accelerator, settings.devices

    assert served() == ("nvidia", 2)
    assert served(devices=1) == ("nvidia", 1)
    assert served(accelerator="simulated") == ("simulated", 8)
