"""The rule for a hung NPU from its source, the file of a node, to what a job decides.

Only a real agent reads the file and samples real processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.agent.observing.npu_hang import CODE, IN_A_ROW
from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.clearing import end_all
from everstep.backends.local.settings import LocalSettings
from everstep.core.facts import Fact
from everstep.core.levels import Level
from everstep.core.loop.next_actions import Decide
from everstep.core.spec import JobSpec, Limits, Match, PhaseSpec, Rule, scaled
from everstep.core.world import JobRef
from everstep.dialects import responses
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.simulation import Simulation

SCALE = 100.0
"""A minute between two looks is then less than the second between two looks of an agent."""
LASTS_S = 2.0 * (IN_A_ROW + 1)
SCRIPT = """
import os, time
if os.environ["MA_SCHEDULE_CNT"] == "1":
    time.sleep(float(os.environ["LASTS_S"]))
"""
RAISED = Rule(match=Match(code=CODE), action="levels", levels=(Level.JOB,), why="a hang is none")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    home = tmp_path / "home"
    backend = await LocalBackend.open(LocalSettings(home=home, nodes=2, devices=1))
    yield backend
    await backend.close()
    end_all(home)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "restarts"),
    [
        pytest.param((), [], id="NotHandleFault: the job goes on"),
        pytest.param((RAISED,), [("job", CODE, "n1", 0)], id="a rule of the document answers it"),
    ],
)
async def test_a_hung_npu(
    backend: LocalBackend,
    tmp_path: Path,
    rules: tuple[Rule, ...],
    restarts: list[tuple[str, str, str, int]],
) -> None:
    idle = {"devices": {"0": {"utilisation": 0, "memory_mb": 30_000, "packets": 1_000}}}
    metrics = backend.settings.metrics("n1")
    metrics.parent.mkdir(parents=True, exist_ok=True)
    metrics.write_text(json.dumps(idle))
    policy = mindcluster(fault_scheduling="force", fault_retry_times=1)
    phase = PhaseSpec(
        name="main",
        command=(sys.executable, "-c", SCRIPT),
        env={"LASTS_S": "600" if rules else str(LASTS_S)},
        workdir=str(tmp_path),
        nodes=2,
        accelerator="ascend",
        accelerators_per_node=1,
        limits=Limits(hang_s=3_600.0),
        policy=replace(policy, rules=rules),
    )
    spec = scaled(JobSpec(name="demo", phases=(phase,), dialect="mindcluster"), SCALE)
    job = Simulation(backend=backend, spec=spec, job=JobRef(id="demo", run="r1"))
    facts: list[Fact] = []
    job.on_action = lambda _, action: facts.extend(
        action.inputs.facts if isinstance(action, Decide) else ()
    )
    assert (await job.run()).status == "Completed"
    assert [(f.kind, f.code, f.where) for f in facts][:1] == [("device.fault", CODE, "n1/0")]
    recorded = [(r["level"], *fault_of(r)) for r in responses.restarts(job.chronicle)]
    assert recorded == restarts


def fault_of(record: dict[str, dict[str, object]]) -> tuple[object, ...]:
    fault = record["fault"]
    return fault["code"], fault["node"], fault["device"]
