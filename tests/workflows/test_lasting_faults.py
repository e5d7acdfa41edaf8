"""A switch that stays down is sub-health for the jobs on its node: a job that runs, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.backends.fake.settings import EPOCH
from tests.support.devserver import DevServer
from tests.support.moments import Incident, isolated, until_incident
from tests.support.scene import tell, until
from tests.support.stage import Handle, Stage
from tests.workflows.test_counted_faults import manifest

BEGINS_S = 60.0
SWITCH = {"node": "n1", "code": "[0x08520003,na,L2,na]"}


def moves_pods(name: str) -> dict[str, Any]:
    job = manifest(name)
    job["metadata"]["labels"] |= {"pod-rescheduling": "on", "subHealthyStrategy": "forceExit"}
    return job


async def reported(job: Handle, what: str, *, at_s: float) -> None:
    await tell(job, "report_fault", kind=f"device.{what}", at=EPOCH + at_s, **SWITCH)


@pytest.mark.parametrize("lasts_s", [pytest.param(299.0, marks=pytest.mark.long), 301.0])
async def test_a_switch_that_is_down_for_300_s_moves_its_pod(
    server: DevServer, namespace: str, tmp_path: Path, *, lasts_s: float
) -> None:
    async with Stage(server, namespace, tmp_path, nodes=4) as stage:
        incident = Incident(body=moves_pods("switched"), faults=(), begins_s=BEGINS_S)
        job, clock = await until_incident(stage, incident)
        await until(job, lambda status: status["state"] == "running")
        await reported(job, "fault", at_s=BEGINS_S)
        await clock.pass_to(BEGINS_S + lasts_s)
        if lasts_s > 300:
            await until(job, lambda status: status["restarts"] == 1)
        await reported(job, "healed", at_s=BEGINS_S + lasts_s)
        await clock.let_go()
        (phase,) = (await job.result())["phases"]
        nodes = await isolated(stage)
    restarts = [(r["fault"]["class"], r["level"], r["nodes"]["before"]) for r in phase["restarts"]]
    assert restarts == ([("subhealth", "pod", {"1": "n1"})] if lasts_s > 300 else [])
    assert all("for 300 s" in restart["reason"] for restart in phase["restarts"])
    assert not nodes, "what is not well is left, not isolated"
