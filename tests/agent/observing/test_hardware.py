"""Which devices a machine has: those its vendor tools list, unless a setting overrides them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.observing import hardware

TWO_GPUS = "echo 'GPU 0: H100 (UUID: a)'; echo 'GPU 1: H100 (UUID: b)'"
TWO_NPUS = "echo '  Total Count : 2'; echo '  NPU ID : 0'; echo '  NPU ID : 1'"
NONE, FAILS = "true", "echo it has failed; exit 9"

Install = Callable[[str, str], None]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts stand-ins of both tools first on the path; they run these scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(nvidia: str, ascend: str) -> None:
        for name, script in (("nvidia-smi", nvidia), ("npu-smi", ascend)):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o700)

    return install


MACHINES = (
    ("an nvidia machine", TWO_GPUS, NONE, "2 nvidia devices", "nvidia-smi lists them"),
    ("an ascend machine", NONE, TWO_NPUS, "2 ascend devices", "npu-smi lists them"),
    ("a tool that fails", NONE, FAILS, "1 ascend device", "npu-smi is here and does not answer"),
    ("tools and no device", NONE, NONE, "8 simulated devices", "neither nvidia-smi nor npu-smi"),
)


@pytest.mark.parametrize(
    ("nvidia", "ascend", "reason", "why"),
    [row[1:] for row in MACHINES],
    ids=[row[0] for row in MACHINES],
)
def test_what_a_machine_has_is_found(
    tools: Install, nvidia: str, ascend: str, reason: str, why: str
) -> None:
    tools(nvidia, ascend)
    devices = hardware.devices()
    assert (str(devices), why in devices.why) == (reason, True)


SETTINGS = (
    ("auto", 1, "1 nvidia device"),
    ("simulated", None, "8 simulated devices"),
    ("simulated", 4, "4 simulated devices"),
    ("none", None, "0 none devices"),
    ("nvidia", None, "2 nvidia devices"),
    ("ascend", None, "8 ascend devices"),
)


@pytest.mark.parametrize(("kind", "number", "reason"), SETTINGS)
def test_what_is_said_of_them_counts(
    tools: Install, kind: str, number: int | None, reason: str
) -> None:
    tools(TWO_GPUS, NONE)
    assert str(hardware.devices(kind, number)) == reason


CONFIGURED = (
    ("simulated", "as configured"),
    ("nvidia", "nvidia-smi lists them"),
    ("ascend", "as configured, though npu-smi lists none"),
)


@pytest.mark.parametrize(("kind", "why"), CONFIGURED)
def test_the_reason_of_a_configured_kind_is_whether_its_tool_lists_any(
    tools: Install, kind: str, why: str
) -> None:
    tools(TWO_GPUS, NONE)
    assert hardware.devices(kind).why == why
