"""Suspension on real processes: who is still is started again where it is, who is not goes on.

Only the kernel has the counters of real ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.clearing import end_all
from everstep.backends.local.faults import rehearse
from everstep.backends.local.settings import LocalSettings
from everstep.core.facts import Fact
from everstep.core.loop.next_actions import Action, Decide
from everstep.core.spec import (
    Accelerator,
    JobSpec,
    Limits,
    PhaseSpec,
    scaled,
)
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.dialects import responses
from everstep.dialects.modelarts.policy import modelarts
from everstep.simulation import Simulation

SCALE = 200.0
STILL_S = 600.0  # 3 s in the rehearsal
LASTS_S = 2 * STILL_S / SCALE
SCRIPT = """
import os, pathlib, sys, time
rank = int(os.environ["RANK"])
counts = f"{os.environ['MA_SCHEDULE_CNT']} {os.environ['MA_PROC_START_CNT']} {os.environ['EVERSTEP_POD']}"
with pathlib.Path(f"started-{rank}").open("a") as file:
    file.write(counts + "\\n")
if os.environ["MA_PROC_START_CNT"] != "1":
    sys.exit()
does, ends = os.environ["DOES"].split()[rank], time.monotonic() + float(os.environ["LASTS_S"])
while time.monotonic() < ends:
    if does == "nothing":
        time.sleep(ends - time.monotonic())  # what this rank is for: to do nothing until then
    if does == "writes":
        print("still here", flush=True)
    time.sleep(0.02)  # the pace of one that prints or turns
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the two ranks do, what their devices show, and the facts that must come of it."""

    does: str
    shows: tuple[str, str] | None = None  # None: what their processes do
    accelerator: Accelerator = "simulated"
    machine: Accelerator = "simulated"  # what its devices are
    facts: tuple[tuple[str, int | None], ...]


ROWS: dict[str, Row] = {
    "one is still": Row(does="writes nothing", facts=(("hang.instance", 1),)),
    "all are flat, though they write": Row(
        does="writes writes", shows=("37", "80"), facts=(("hang.all", None),)
    ),
    "both do something": Row(does="writes writes", facts=()),
    "one is still, but its device is used": Row(
        does="writes nothing", shows=("20", "vary"), facts=()
    ),
    "one is still, on devices that this machine only simulates": Row(
        does="writes nothing", accelerator="ascend", facts=(("hang.instance", 1),)
    ),
    "one does no I/O, on devices that the document did not know of": Row(
        does="writes nothing", machine="nvidia", facts=()
    ),
    "the tool cannot say what the devices do": Row(
        does="nothing nothing", accelerator="nvidia", facts=()
    ),
}


@pytest.fixture
async def backend(tmp_path: Path, row: Row) -> AsyncIterator[LocalBackend]:
    home = tmp_path / "home"
    settings = LocalSettings(home=home, nodes=2, devices=1, accelerator=row.machine)
    backend = await LocalBackend.open(settings)
    yield backend
    await backend.close()
    end_all(home)


@dataclass(slots=True, kw_only=True)
class JobResult:
    """The facts that were decided on."""

    facts: list[Fact] = field(default_factory=list)

    def note(self, _state: JobState, action: Action) -> None:
        if isinstance(action, Decide):
            self.facts += action.inputs.facts


def spec(row: Row, folder: Path) -> JobSpec:
    phase = PhaseSpec(
        name="main",
        command=(sys.executable, "-c", SCRIPT),
        env={"DOES": row.does, "LASTS_S": str(LASTS_S)},
        workdir=str(folder),
        nodes=2,
        accelerator=row.accelerator,
        accelerators_per_node=1,
        limits=Limits(still_s=STILL_S),
        policy=replace(modelarts(job_retry=3, hang_retry=True), precheck=False),
    )
    return scaled(JobSpec(name="demo", phases=(phase,), dialect="modelarts"), SCALE)


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_suspension(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    for node, value in enumerate(row.shows or ()):
        await rehearse(backend.settings.home, f"metric n{node} 0 {value}")
    result = JobResult()
    job = Simulation(backend=backend, spec=spec(row, tmp_path), job=JobRef(id="demo", run="r1"))
    job.on_action = result.note
    assert (await job.run()).status == "Completed"
    assert tuple((fact.kind, fact.slot) for fact in result.facts) == row.facts
    restarts = [(r["level"], r["recover"], r["bills"]) for r in responses.restarts(job.chronicle)]
    assert restarts == [("suspension", "proc_restart", {})] * len(row.facts)
    for rank in range(2):
        starts = [line.split() for line in (tmp_path / f"started-{rank}").read_text().splitlines()]
        counts = [(scheduled, started) for scheduled, started, _ in starts]
        assert counts == [("1", str(n + 1)) for n in range(len(row.facts) + 1)]
        assert len({pod for *_, pod in starts}) == 1, "the same container"
