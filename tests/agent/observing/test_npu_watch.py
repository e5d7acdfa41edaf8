"""A real agent applies the rule for a hung NPU to what the file of its node says of its devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.agent.observing.npu_hang import CODE, DEFAULTS
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod

IDLE = {"utilisation": 0, "memory_mb": 30_000, "packets": 1_000}
POLL_S = 0.1
"""An agent looks once a second at the most; five looks in a row take some six seconds."""


def shows(pod: Pod, **devices: dict[str, Any]) -> str:
    path, fresh = pod.home / "n0.json", pod.home / "n0.json.part"
    metrics = {name[1:]: values for name, values in devices.items()}
    fresh.write_text(json.dumps({"devices": metrics}))
    fresh.replace(path)
    return str(path)


def fact_rows(state: wire.AgentState) -> list[tuple[str, Any, Any]]:
    facts = [fact for fact in state["facts"] if fact["kind"].startswith("device.")]
    return [(fact["kind"], fact["details"]["device"], fact["details"]["code"]) for fact in facts]


@pytest.mark.long
def test_a_device_without_work_is_reported_once_and_again_when_it_works(pod: Pod) -> None:
    """Ten samples of a living agent, one a second: device 1 has traffic, device 2 has no readings."""
    path = shows(pod, d0=IDLE, d1=IDLE | {"utilisation": 90}, d2={"utilisation": 0})
    pod.runs(FOREVER, devices=[0, 1, 2, 3], metrics=path, npu_look_s=POLL_S)
    assert fact_rows(pod.until(fact_rows)) == [("device.fault", 0, CODE)]
    shows(pod, d0=IDLE | {"packets": 9_000}, d1=IDLE)
    state = pod.until(lambda s: len(fact_rows(s)) > 2)
    assert fact_rows(state) == [
        ("device.fault", 0, CODE),
        ("device.healed", 0, CODE),
        ("device.fault", 1, CODE),
    ]


@pytest.mark.long
def test_other_processes_than_before_are_no_hang(pod: Pod) -> None:
    """The facts of the old processes are healed with the start of the new ones."""
    path = shows(pod, d0=IDLE)
    pod.runs(FOREVER, devices=[0], metrics=path, npu_look_s=POLL_S)
    pod.until(fact_rows)
    pod.stopped(2)
    pod.runs(FOREVER, generation=2, devices=[0], metrics=path, npu_look_s=POLL_S)
    healed = pod.until(lambda s: len(fact_rows(s)) > 1)
    assert fact_rows(healed)[1] == ("device.healed", 0, CODE)


def test_limits_of_traffic_and_time_follow_the_time_between_two_looks() -> None:
    limits = DEFAULTS.within(6.0)
    assert (limits.packets_a_minute, limits.cpu_s) == (10.0, 0.5)
    assert (limits.ai_core_percent, limits.hbm_growth_percent) == (5.0, 0.0)
