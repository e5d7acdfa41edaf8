"""What an agent finds of its place before something runs there."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.observing import checks
from everstep.agent.observing.checks import Measured, RunningChecks
from everstep.protocol import wire
from tests.agent.pod import Pod, Refused, until

NOTHING_NEEDED = {"root_gb": 0, "shm_gb": 0, "cache_gb": 0, "ulimits": False}
WELL = Measured(ok=True, measured="well", needed="well")


def command(generation: int = 1, **options: Any) -> dict[str, Any]:
    thresholds = {name: options.pop(name) for name in {*wire.Thresholds._fields} & options.keys()}
    request = {"generation": generation, "hosts": ["localhost"], **options}
    return {**request, "thresholds": {**NOTHING_NEEDED, **thresholds}}


def checked(pod: Pod, generation: int = 1, **options: Any) -> dict[str, wire.CheckSeen]:
    """All that was found, by name, once it is done."""
    states: list[wire.CheckState] = []

    def is_done() -> bool:
        states.append(pod.ask("POST", wire.CHECK, command(generation, **options)))
        return states[-1]["done"]

    until(is_done, what="the end of the checks")
    assert states[-1]["generation"] == generation
    return {check["name"]: check for check in states[-1]["checks"]}


def test_a_place_where_all_is_well_passes_every_check(pod: Pod) -> None:
    checks = checked(pod, accelerator="simulated", devices=8)
    names = ["dns", "disk-size-root", "disk-size-shm", "disk-size-cache", "gpu-check"]
    assert list(checks) == names
    assert all(check["ok"] for check in checks.values())
    assert all(check["took_s"] >= 0 for check in checks.values())
    assert checks["gpu-check"]["measured"] == "8 simulated devices"


SHORTFALLS = (
    ("dns", {"hosts": ["localhost", "no such host"]}, "no such host not found"),
    ("disk-size-root", {"root_gb": 1e9}, "GB free in /"),
    ("disk-size-shm", {"shm_gb": 1e9}, "GB free in /dev/shm"),
    ("disk-size-cache", {"cache_gb": 1e9, "cache": "/no/such"}, "(there is no /no/such)"),
    ("ulimit", {"ulimits": True, "open_files": 2**62}, "open files "),
)


@pytest.mark.parametrize(
    ("name", "options", "measured"), SHORTFALLS, ids=[row[0] for row in SHORTFALLS]
)
def test_what_a_place_lacks_is_told_and_is_not_the_hardware(
    pod: Pod, name: str, options: dict[str, Any], measured: str
) -> None:
    checks = checked(pod, **options)
    assert [check["name"] for check in checks.values() if not check["ok"]] == [name]
    assert measured in checks[name]["measured"]
    assert checks[name]["needed"]
    assert not checks[name]["hardware"]


def test_more_than_the_threshold_is_needed_not_as_much() -> None:
    soft = checks.limits(wire.Thresholds(locked_kb=0, open_files=0, stack_kb=0, user_processes=0))
    assert soft.ok
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert not checks.limits(wire.Thresholds(open_files=files)).ok


def test_limits_are_asked_for_where_there_is_an_infiniband(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "INFINIBAND", tmp_path)
    order: Any = {"hosts": [], "accelerator": "none", "devices": 0, "thresholds": {}}
    assert "ulimit" not in checks.checks_of(order)
    (tmp_path / "mlx5_0").touch()
    assert "ulimit" in checks.checks_of(order)
    order["thresholds"] = {"ulimits": False}
    assert "ulimit" not in checks.checks_of(order)


# -- Devices ------------------------------------------------------------------------------------


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: Pod) -> Callable[[str], Pod]:
    """A living agent that finds a tool of this name, which runs this script."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")

    def start(script: str) -> Pod:
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o700)
        return idle.start()

    return start


@pytest.mark.parametrize(("devices", "ok"), [(2, True), (3, False)])
def test_devices_that_are_missing_are_the_hardware(
    nvidia: Callable[[str], Pod], devices: int, ok: bool
) -> None:
    pod = nvidia("echo 'GPU 0: H100'; echo 'GPU 1: H100'")
    gpu_check = checked(pod, accelerator="nvidia", devices=devices)["gpu-check"]
    assert (gpu_check["ok"], gpu_check["hardware"]) == (ok, True)
    assert (gpu_check["measured"], gpu_check["needed"]) == (
        "2 nvidia devices",
        f"at least {devices}",
    )


def test_a_tool_that_never_answers_fails_its_check_and_keeps_nobody_waiting(
    nvidia: Callable[[str], Pod],
) -> None:
    pod = nvidia("exec sleep 600")
    checks = checked(pod, accelerator="nvidia", devices=1, within_s=3.0)
    assert checks["gpu-check"]["measured"] == "no answer within 3 s"
    assert [check["name"] for check in checks.values() if not check["ok"]] == ["gpu-check"]
    assert pod.answers()


def test_a_kind_without_devices_here_is_missing(pod: Pod) -> None:
    gpu_check = checked(pod, accelerator="ascend", devices=1)["gpu-check"]
    assert (gpu_check["ok"], gpu_check["measured"]) == (False, "0 ascend devices")


# -- Once, and in time --------------------------------------------------------------------------


def test_the_same_generation_gets_the_same_answer_and_a_new_one_its_own(pod: Pod) -> None:
    first = checked(pod, 3)
    assert checked(pod, 3, root_gb=1e9) == first
    assert not checked(pod, 4, root_gb=1e9)["disk-size-root"]["ok"]
    with pytest.raises(Refused) as refused:
        pod.ask("POST", wire.CHECK, command(3))
    assert refused.value.status == wire.STALE


@pytest.mark.parametrize(
    "wrong", [{"hosts": "localhost"}, {"devices": "many"}, {"thresholds": {"root_gb": "much"}}]
)
def test_a_command_that_makes_no_sense_is_refused(pod: Pod, wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        pod.ask("POST", wire.CHECK, {**command(), **wrong})
    assert refused.value.status == 400


def test_a_check_that_hangs_fails_alone_and_its_late_answer_changes_nothing() -> None:
    answers, answered = threading.Event(), threading.Event()

    def of_a_dead_mount() -> Measured:
        answers.wait()
        answered.set()
        return WELL

    running_checks = RunningChecks(1, {"dns": lambda: WELL, "disk": of_a_dead_mount}, within_s=1.0)
    before = running_checks.state(wait_s=0.0)
    assert not before["done"]
    check_state = running_checks.state(wait_s=20.0)
    assert [(check["name"], check["ok"]) for check in check_state["checks"]] == [
        ("dns", True),
        ("disk", False),
    ]
    assert check_state["done"]
    answers.set()
    answered.wait()
    assert running_checks.state(wait_s=0.0) == check_state


def test_a_check_that_breaks_has_failed() -> None:
    def broken() -> Measured:
        raise PermissionError(13, "no")

    (check,) = RunningChecks(1, {"disk": broken}, within_s=20.0).state(wait_s=20.0)["checks"]
    assert not check["ok"]
    assert "PermissionError" in check["measured"]
