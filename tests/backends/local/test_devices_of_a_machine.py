"""A machine's books hold the devices that it has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.worker_settings import LocalWorkerSettings
from everstep.core.spec import Accelerator

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
