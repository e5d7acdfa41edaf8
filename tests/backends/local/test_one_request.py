"""How often a restart requests the checkpoints of an agent, and that the answers agree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.backends.resuming import commands_to, resumed

CRASHES = {"STEPS": "35", "CHECKPOINT_EVERY": "10", "CRASH_AT_STEP": "0:34:1"}
SAVES = (
    "mkdir -p {folder}; echo first > {folder}/a.opaque; exec 9> {folder}/step-7.opaque; "
    "echo weights >&9; "
    "if test $RANK = 0; then until test -e {folder}/opened; do sleep 0.01; done; exit 3; fi; "
    """exec {python} -c 'open("{folder}/opened", "w").close(); import time; time.sleep(1000)'"""
)
"""Both ranks have the checkpoint open. The one that does not end by itself holds it as a trainer does, not as
a shell, until it is stopped."""


async def crashed(lab: LocalLab) -> Run:
    """A job that saved steps 10, 20 and 30 and was stopped for its next generation."""
    job = Run(lab, slots=(0, 1), env=CRASHES)
    await job.launch()
    return await stopped_after_a_crash(job)


async def stopped_after_a_crash(job: Run) -> Run:
    await job.fact("process.exit")
    await job.new_generation("restart")
    await job.stop()
    return job


@pytest.mark.parametrize(
    ("are_older", "requests"),
    [(False, [wire.FENCE]), (True, [wire.FENCE, wire.CHECKPOINTS, wire.SET_ASIDE])],
)
async def test_an_agent_that_writes_the_fence_lists_what_is_saved_as_well(
    local_lab: LocalLab, *, are_older: bool, requests: list[str]
) -> None:
    """An agent of an earlier release gets the earlier request."""
    job = await crashed(local_lab)
    commands = commands_to(local_lab.backend.agents, are_older=are_older)
    result = await resumed(job)
    assert (result.end, result.resume and result.resume.step) == ("done", 30)
    assert commands == requests


async def test_only_what_has_to_be_set_aside_is_a_second_request(local_lab: LocalLab) -> None:
    job = await crashed(local_lab)
    commands = commands_to(local_lab.backend.agents)
    first = await resumed(job, older_than_step=30)
    assert (first.end, first.resume and first.resume.step) == ("done", 20)
    assert commands == [wire.FENCE, wire.SET_ASIDE]
    again = await resumed(job, older_than_step=30)  # by a worker that took over from a killed one
    assert (again.end, again.resume, again.notes) == ("done", first.resume, first.notes)
    assert "step-30" in first.notes[0]


async def test_what_is_found_behind_the_fence_is_what_the_job_s_checkpoints_are(
    local_lab: LocalLab,
) -> None:
    """Those that cannot show that they are complete, and the ends of their writers, included."""
    job = Run(local_lab, slots=(0, 1))
    local_lab.command = (
        "/bin/sh",
        "-c",
        SAVES.format(folder=job.checkpoints_path, python=sys.executable),
    )
    await job.launch()
    await stopped_after_a_crash(job)
    order = job.fence_order(checkpoints_pattern=r"step-(?P<step>\d+)")
    state = await job.backend.ensure_fenced(order)
    assert state.done
    assert state.listing is not None
    saved = await job.backend.checkpoints(job.ref)
    assert [(one.step, one.good, one.is_sure) for one in saved] == [(7, False, False)]
    assert (state.listing.checkpoints, state.listing.set_aside) == (saved, ())


@pytest.mark.long
@pytest.mark.short_fence
async def test_nothing_is_read_before_the_older_ranks_are_proven_gone(local_lab: LocalLab) -> None:
    """They save on, out of reach, until the fence ends them. Only this one has such ranks."""
    job = Run(local_lab, slots=(0, 1), env={"STEPS": "1000000"})
    await job.launch()
    await job.step(11)
    (node,) = {(await job.pod(0)).node}
    await local_lab.fault(f"node-down {node} partition")
    await job.fact("node.not_ready")
    await job.new_generation("restart")
    await job.stop(slots=(1,))
    await job.place(recreate=(0,), avoid=(node,))
    commands = commands_to(local_lab.backend.agents)
    result = await resumed(job)
    assert commands[-3:] == [wire.FENCE, wire.CHECKPOINTS, wire.SET_ASIDE]
    steps = [int(path.stem[5:]) for path in Path(job.checkpoints_path).glob("step-*.json")]
    assert (result.resume and result.resume.step) == max(steps)
