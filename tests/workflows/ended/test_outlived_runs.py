"""A reset job meets a Recovery of the run that it replaces, which requests its generation only now.

A Recovery that is under way outlives the reset of its job. Where no worker lived meanwhile, it is unknown
which of the two comes first when one is back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from temporalio.exceptions import TerminatedError

from tests.support.byhand import BY_HAND, NODE, assert_one_life, at, ended_as, reset, sweep
from tests.support.devserver import DevServer
from tests.support.moments import Call
from tests.support.stage import Stage

CALL = Call("ensure_generation", "before")
"""The Recovery that was decided before the reset is held here until the new run has come so far:"""

MOMENTS: dict[str, tuple[str, Literal["before", "after"]]] = {
    "generation": ("ensure_generation", "after"),
    "places": ("ensure_placed", "after"),
    "fence": ("ensure_fenced", "after"),
    "some started": ("ensure_started", "after"),
    "watching": ("observe", "before"),
}


async def new_run_comes_to(stage: Stage, verb: str, when: Literal["before", "after"]) -> None:
    before = (await stage.admin.calls()).get(verb, 0)
    await stage.admin.hold(verb, when=when)
    while (await stage.admin.calls()).get(verb, 0) == before:
        await asyncio.sleep(0.01)  # the fake counts calls and tells nobody


@pytest.mark.parametrize(
    "moment",
    [m if m == "places" else pytest.param(m, marks=pytest.mark.long) for m in MOMENTS],
)
async def test_the_new_run_wins_whenever_the_old_recovery_asks(
    server: DevServer, namespace: str, tmp_path: Path, moment: str
) -> None:
    async with at(server, namespace, tmp_path, NODE, CALL) as (stage, job):
        await reset(job)
        await new_run_comes_to(stage, *MOMENTS[moment])
        await stage.admin.release()
        report = await stage.client.get_workflow_handle("demo").result()

        await assert_one_life(stage, report)


@pytest.mark.long
async def test_a_stop_of_the_new_run_clears_what_the_old_recovery_took(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one stops a job of which two runs have something."""
    async with at(server, namespace, tmp_path, NODE, CALL) as (stage, job):
        await reset(job)
        await new_run_comes_to(stage, "ensure_fenced", "before")
        new = stage.client.get_workflow_handle("demo")
        await new.execute_update("stop", {"reason": "enough"})
        await new_run_comes_to(stage, "ensure_gone", "before")
        await stage.admin.release()

        assert (await new.result())["status"] == "Terminated"
        assert await stage.fake.leftovers() == ()


@pytest.mark.long
async def test_the_janitor_removes_what_the_old_recovery_took(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only here two runs of one job have left something behind that the janitor removes."""
    async with at(server, namespace, tmp_path, NODE, CALL, env=BY_HAND) as (stage, job):
        await reset(job)
        await new_run_comes_to(stage, "ensure_fenced", "before")
        new = stage.client.get_workflow_handle("demo")
        await new.terminate("by hand")
        assert isinstance(await ended_as(new), TerminatedError)
        await stage.admin.release()  # from here on the Recovery goes on, for nobody

        assert await sweep(stage) == ["demo"]
        assert await stage.fake.leftovers() == ()
