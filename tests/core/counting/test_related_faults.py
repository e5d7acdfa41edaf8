"""Codes that are harmless alone and grave together: a link that was down shortly before a transfer failed."""

from __future__ import annotations

import pytest

from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.dialects.mindcluster.policy import SubHealthy, mindcluster
from everstep.faults.meanings import with_meaning
from tests.support.builders import ScriptedJob, running

LINK, LINK_BACK = "81078603", "device.healed"
SUB_HEALTH, SEPARATE = "8C1F8609", "8C1F860B"


def mindcluster_job(sub_healthy: SubHealthy = "ignore") -> ScriptedJob:
    return running(
        mindcluster(fault_scheduling="force", fault_retry_times=3, sub_healthy=sub_healthy)
    )


def shows(
    job: ScriptedJob, code: str, after_s: float, *, node: str = "n1", device: int = 0
) -> Level:
    """The level of the answer once a device shows the code."""
    at = job.state.now + after_s
    fact = Fact(id=f"{code}/{at}", kind="device.fault", at=at, node=node, device=device, code=code)
    job.see(with_meaning(fact), now=at)
    return job.decisions[-1].level


@pytest.mark.parametrize("code", [SEPARATE, "8C1F8608", "4C1F8608"])
def test_a_failed_transfer_after_a_link_was_down_leaves_the_device_of_the_link(code: str) -> None:
    job = mindcluster_job()
    assert shows(job, LINK, 10, node="n2", device=3) is Level.NOTE
    assert shows(job, code, 200) is Level.JOB
    decision = job.decisions[-1]
    assert decision.fault.cls is FaultClass.DEVICE_FATAL
    assert (decision.fault.where, decision.fault.code) == ("n2/3", LINK)
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n2"]
    assert f"{code} within 300 s of {LINK} makes it SeparateNPU" in decision.reason


def test_a_failed_transfer_after_a_fault_of_a_switch_leaves_the_node_of_the_switch() -> None:
    """A switch between chips is no device of its node."""
    job = mindcluster_job()
    at = job.state.now + 10
    switch = Fact(id="s", kind="device.fault", at=at, node="n2", code="[0x08520003,na,L2,na]")
    job.see(with_meaning(switch), now=at)
    assert job.decisions[-1].level is Level.NOTE
    assert shows(job, SEPARATE, 299) is Level.JOB
    decision = job.decisions[-1]
    assert (decision.fault.cls, decision.fault.where) == (FaultClass.DEVICE_FATAL, "n2")
    assert [isolation.node for isolation in decision.remedy.isolate] == ["n2"]
    assert shows(mindcluster_job(), SEPARATE, 10) is Level.NOTE


def test_neither_code_alone_asks_for_anything() -> None:
    assert shows(mindcluster_job(), SEPARATE, 10) is Level.NOTE
    assert shows(mindcluster_job(), LINK, 10) is Level.NOTE


def test_after_the_window_they_have_nothing_to_do_with_each_other() -> None:
    job = mindcluster_job()
    shows(job, LINK, 10)
    assert shows(job, SEPARATE, 301) is Level.NOTE


@pytest.mark.parametrize(("strategy", "level"), [("ignore", Level.NOTE), ("forceExit", Level.JOB)])
def test_a_device_that_is_not_well_is_answered_by_the_strategy(
    strategy: SubHealthy, level: Level
) -> None:
    job = mindcluster_job(strategy)
    shows(job, LINK, 10, node="n2", device=3)
    assert shows(job, SUB_HEALTH, 20) is level
    decision = job.decisions[-1]
    assert (decision.fault.cls, decision.fault.where) == (FaultClass.SUBHEALTH, "n2/3")
    assert decision.remedy.isolate == ()
