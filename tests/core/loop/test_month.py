"""A busy job's month in virtual time: the state stays flat and questions stay quick."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import pytest
from pydantic import TypeAdapter

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.chronicle import views
from everstep.chronicle.chronicle import Chronicle
from everstep.core.loop import next_actions
from everstep.core.spec import JobSpec, Limits, PhaseSpec, Policy
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.dialects import responses
from everstep.simulation import Simulation

DAY_S = 86_400.0
STATE = TypeAdapter(JobState)
CHRONICLE = TypeAdapter(Chronicle)
SLOTS, NODES = 4, 8
FLAT = 1.15
SMALL = 128 * 1024
QUICK_S = 0.05
LOG = logging.getLogger(__name__)

BREAKS = (
    "kill demo 1",
    "kill demo 2 exit 1",
    "device n{node} 0 80E01801",
    "hang demo 3",
    "kill-agent demo 2",
    "node-down n{node}",
    "device n{node} 1 80E18402 critical",
    "preempt demo",
)


@dataclass(slots=True)
class Diary:
    """Sizes of state and chronicle while the job is quiet, one per watch."""

    sizes: list[int] = field(default_factory=list)

    @property
    def half_way(self) -> int:
        return self.sizes[len(self.sizes) // 2]

    def note(self, job: Simulation, action: next_actions.Action) -> None:
        if isinstance(action, next_actions.WatchAction):
            chronicle_json = CHRONICLE.dump_json(job.chronicle)
            self.sizes.append(len(STATE.dump_json(job.state)) + len(chronicle_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """How long, how often something breaks and how often the job saves."""

    seconds: float
    breaks: int  # of which some hit a node that is not the job's
    incidents: int
    checkpoints: int


async def lived(month: Month) -> tuple[Simulation, Diary, FakeBackend]:
    backend = FakeBackend(FakeSettings(nodes=NODES, devices=2))
    diary = Diary()
    job = Simulation(backend=backend, spec=spec(month), job=JobRef(id="demo", run="r1"))
    job.on_action = lambda _state, action: diary.note(job, action)
    gap_s = month.seconds / (month.breaks + 1)
    for number in range(month.breaks):
        at_s = int((number + 1) * gap_s)
        node = number % NODES
        line = BREAKS[number % len(BREAKS)].format(node=node)
        await backend.admin.fault(f"at {at_s}s {line}")
        await backend.admin.fault(f"at {at_s + int(gap_s * 0.8)}s clear n{node}")
    operator = asyncio.create_task(released(job))
    end = await job.run()
    operator.cancel()
    assert end.status == "Completed", end
    return job, diary, backend


async def released(job: Simulation) -> None:
    """An operator who gives nodes back as soon as they are isolated: a month wears out no cluster."""
    while True:
        await asyncio.sleep(0)
        if len(job.state.isolated) < 3:
            continue
        for node in job.state.isolated:
            await job.quarantine.release("local", node)


def spec(month: Month) -> JobSpec:
    steps = month.checkpoints * 10
    phase = PhaseSpec(
        name="main",
        command=("train",),
        env={
            "STEPS": str(steps),
            "STEP_S": f"{month.seconds / steps:.6f}",
            "CHECKPOINT_EVERY": "10",
        },
        nodes=SLOTS,
        accelerator="simulated",
        accelerators_per_node=2,
        model_dir="out",
        checkpoints_path="out/ckpt",
        limits=Limits(),
        policy=Policy(no_progress_restarts=None),
    )
    return JobSpec(name="demo", phases=(phase,))


async def check(month: Month) -> Diary:
    began = time.perf_counter()
    job, diary, _ = await lived(month)
    took = time.perf_counter() - began
    ledger = job.state.finished[-1].ledger
    LOG.info(
        "%d incidents, %d recoveries, %.1f days in %.1f s; state: %d bytes, half way %d, at last %d",
        ledger.incidents,
        ledger.recoveries,
        (job.state.now - EPOCH) / DAY_S,
        took,
        diary.sizes[0],
        diary.half_way,
        diary.sizes[-1],
    )
    assert ledger.incidents >= month.incidents
    assert diary.sizes[-1] < SMALL
    state, chronicle = job.state, job.chronicle
    for view in (
        lambda: views.status(state),
        lambda: responses.restarts(chronicle),
        lambda: responses.report(state, chronicle),
        lambda: views.page(state, chronicle),
    ):
        began = time.process_time()
        view()
        assert time.process_time() - began < QUICK_S, view
    return diary


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_month_leaves_the_state_as_small_as_half_of_it_did() -> None:
    month = Month(seconds=30 * DAY_S, breaks=1_100, incidents=650, checkpoints=33_000)
    diary = await check(month)
    assert diary.sizes[-1] < FLAT * diary.half_way
