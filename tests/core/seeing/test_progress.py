"""When progress is noticed, and what counts for it, on the simulated cluster."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.chronicle import views
from everstep.core.loop.next_actions import Action
from everstep.core.seeing.watch_report import POLL_AGAIN_S
from everstep.core.spec import JobSpec, PhaseSpec, Policy
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.dialects.modelarts.policy import modelarts
from everstep.simulation import Simulation

CRASHED_AT_S, MINUTE_S = 100, 60.0
UNCONDITIONAL = modelarts(job_retry=3, unconditional=True)


async def counts(name: str, policy: Policy, *, saves: bool, **env: str) -> list[tuple[float, int]]:
    """`(time, count)` of a row in `status`, whenever it changed, of a job that crashes once."""
    backend = FakeBackend(FakeSettings(nodes=2, devices=0))
    phase = PhaseSpec(
        name="main",
        command=("train",),
        env={"STEPS": "10000", "CHECKPOINT_EVERY": "60", **env},
        nodes=2,
        checkpoints_path="out/ckpt" if saves else None,
        policy=policy,
    )
    job = Simulation(
        backend=backend,
        spec=JobSpec(name="demo", phases=(phase,)),
        job=JobRef(id="demo", run="r1"),
    )
    marks: list[tuple[float, int]] = []

    def look(state: JobState, _: Action) -> None:
        count = views.status(state)["series"].get(name, 0)
        if not marks or marks[-1][1] != count:
            marks.append((state.now - EPOCH, count))

    job.on_action = look
    await backend.admin.fault(f"at {CRASHED_AT_S}s kill demo 0 exit 1")
    assert (await job.run()).status == "Completed"
    return marks


PROGRESS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("the next checkpoint", {"saves": True}, CRASHED_AT_S + 60.0),
    ("a step beyond all before", {"saves": False}, CRASHED_AT_S + 100.0),
    ("half an hour of life", {"saves": False, "SHOW_STEPS": "0"}, CRASHED_AT_S + 1_800.0),
)


@pytest.mark.parametrize(
    ("name", "policy"),
    [("no_progress", Policy()), ("unconditional", UNCONDITIONAL)],
    ids=["native", "modelarts"],
)
@pytest.mark.parametrize(("job", "due_s"), [r[1:] for r in PROGRESS], ids=[r[0] for r in PROGRESS])
async def test_a_row_ends_in_status_with(
    job: dict[str, Any], due_s: float, name: str, policy: Policy
) -> None:
    (_, before), (_, counted), (ended_s, after) = await counts(name, policy, **job)
    assert (before, counted, after) == (0, 1, 0)
    assert due_s <= ended_s <= due_s + POLL_AGAIN_S + MINUTE_S  # the restart took its time too
