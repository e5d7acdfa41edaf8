"""No worker or server for a while: training goes on, and nothing is restarted for it.

Only real ranks train on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from everstep.processes import free_port
from tests.agent.pod import until
from tests.support.machine import Machine, final, synthetic, undisturbed, until_printed
from tests.support.patience import HUNG_S
from tests.support.rehearsal import Handle, Rehearsal, gist, small

OUTAGE_S = 20.0
UNREACHABLE_S = 5.0
"""The jobs' limit: much shorter than the outage, so that what it counted as silence would be noticed."""

STEP_S = 0.5
STEPS = int(OUTAGE_S / STEP_S) + 40
"""The outage ends before the training does, on a slow machine too: its steps take longer then."""

SLOWEST = 0.6
"""A step may take this much longer than it should: four processes share two cores with others."""


async def away(
    r: Rehearsal, jobs: Mapping[str, Handle], back: Callable[[], Awaitable[object]]
) -> None:
    """As long as it is away training goes on, on every job."""
    before = {name: r.step(generation=1, job=name) for name in jobs}
    await asyncio.sleep(OUTAGE_S)  # the claim itself is about so much time
    least = int(SLOWEST * OUTAGE_S / STEP_S)
    gained = {name: r.step(generation=1, job=name) - before[name] for name in jobs}
    assert min(gained.values()) >= least, gained
    await back()


def _trains(r: Rehearsal, name: str) -> bool:
    return r.step(generation=1, job=name) >= 2


@pytest.mark.long
async def test_an_outage_of_the_worker_or_of_the_server_restarts_nothing(tmp_path: Path) -> None:
    """Two machines do it at once: mostly the test waits."""
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    async with asyncio.TaskGroup() as group:
        for missing in ("worker", "server"):
            group.create_task(_goes_on_without(missing, tmp_path / missing, expected))


async def _goes_on_without(missing: str, folder: Path, expected: dict[str, object]) -> None:
    async with Rehearsal(folder / "r", nodes=2) as r:
        names = ("first", "second")
        limits = {"unreachable_s": UNREACHABLE_S}
        jobs = {
            name: await r.submit(
                small(folder / name, name, steps=STEPS, step_s=STEP_S, limits=limits)
            )
            for name in names
        }
        for name in names:
            await r.until(partial(_trains, r, name), f"step 2 of {name}")
        if missing == "worker":
            r.worker.kill9()
            await away(r, jobs, r.worker.restart)
        else:
            r.server.kill()
            await away(r, jobs, r.server.restart)
        for name, job in jobs.items():
            report = await r.report(job, within_s=2 * HUNG_S)
            assert report["status"] == "Completed", r.summary()
            assert gist(report) == []
            assert final(folder / name) == expected
        assert await r.is_clean(*(folder / name for name in names)) == []


@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 2])
async def test_agents_that_died_while_nobody_served_are_missed(tmp_path: Path, nodes: int) -> None:
    """Like a rebooted machine: no agent is left to report, and no process saw it end."""
    expected = undisturbed(tmp_path / "alone")
    async with Rehearsal(tmp_path / "r", nodes=nodes) as r:
        job = await r.submit(small(tmp_path / "job", "lonely", nodes=nodes))
        await r.until(lambda: r.step(generation=1) >= 12, "step 12")
        r.worker.kill9()
        for pid in r.agents():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await r.until(lambda: not r.agents(), "the end of the agents")
        await r.worker.start()
        report = await r.report(job)
        assert report["status"] == "Completed", r.summary()
        assert gist(report) == [("crash", "pod", "success")]
        assert final(tmp_path / "job") == expected
        assert await r.is_clean(tmp_path / "job") == []


@pytest.mark.long
def test_run_brings_back_its_server_and_sees_the_job_through(
    machine: Machine, tmp_path: Path
) -> None:
    expected = undisturbed(tmp_path / "alone")
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job)) as process:
        until_printed(process, "step ")
        (server,) = machine.servers()
        os.kill(server, signal.SIGKILL)
        until(lambda: machine.servers() not in ([], [server]), what="another server")
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0, output
    assert "restart" not in output
    assert final(tmp_path / "together") == expected
    assert machine.processes() == []


@pytest.mark.long
def test_dev_brings_back_its_server_where_it_was(machine: Machine) -> None:
    port = str(free_port())
    machine.env["TEMPORAL_ADDRESS"] = f"127.0.0.1:{port}"
    with machine.running("dev", "--port", port, "--ui-port", str(free_port())) as process:
        until_printed(process, "Ctrl-C ends")
        for _ in range(2):
            (server,) = machine.servers()
            os.kill(server, signal.SIGKILL)
            until(lambda: machine.servers() not in ([], [server]), what="another server")  # noqa: B023  # called at once
        listed = machine.everstep("list")
        assert (listed.returncode, listed.stderr) == (0, "")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert machine.processes() == []


@pytest.mark.long
def test_run_that_is_killed_is_taken_up_by_the_next_one(machine: Machine, tmp_path: Path) -> None:
    """Its server and worker die with it; agents and training do not."""
    expected = undisturbed(tmp_path / "alone")
    job = synthetic(tmp_path / "together")
    with machine.running("run", str(job)) as process:
        until_printed(process, "step ")
    until(lambda: not machine.servers() and not machine.workers(), what="their end")
    assert machine.processes(), "the agents go on"
    ended = machine.everstep("run", str(job))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "is running already" in ended.stdout
    assert "restart" not in ended.stdout
    assert final(tmp_path / "together") == expected
    assert machine.processes() == []
