"""`everstep watch`: what it says on the way, and how it ends."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import Client

from everstep.cli.jobs import watching
from everstep.cli.jobs.watching import Lines, Rate
from everstep.client.jobs import glances as looks
from everstep.client.jobs.glances import Glance
from tests.cli.conftest import AsyncCli, ended, submitted
from tests.cli.standin import document, record, status, working
from tests.support.patience import HUNG_S


@pytest.mark.parametrize(("end", "code"), [("completed", 0), ("failed", 1), ("stopped", 1)])
async def test_it_ends_as_the_job_did(
    served: AsyncCli, client: Client, end: str, code: int
) -> None:
    async with working(client):
        await ended(served, client, end)
    watched = await served("watch", "demo")
    assert watched.code == code
    # The times of a watch would be those of its first look.
    assert "restart 2: XID 79 on gpu-07/3 -> pod" in watched.out.splitlines()
    assert f"main {end}: because" in watched.out.splitlines()


async def test_a_living_job_is_followed_to_its_end(
    served: AsyncCli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_look, look = threading.Event(), looks.look

    async def noticed(*args: Any) -> Glance:
        glance = await look(*args)
        first_look.set()
        return glance

    monkeypatch.setattr(looks, "look", noticed)
    async with working(client):
        await submitted(served, document())
        watching_it = asyncio.ensure_future(served("watch", "demo", "--json"))
        assert await asyncio.to_thread(first_look.wait, HUNG_S)
        await client.get_workflow_handle("demo").execute_update("stop", {})
        watched = await asyncio.wait_for(watching_it, HUNG_S)
    glances = [json.loads(line) for line in watched.out.splitlines()]
    assert (glances[0]["state"], glances[-1]["state"]) == ("running", "stopped")
    assert watched.code == 1


async def test_what_is_not_there_cannot_be_watched(served: AsyncCli) -> None:
    assert (await served("watch", "nothing")).code == 3


def printed_lines(capsys: pytest.CaptureFixture[str], *glances: Glance) -> list[str]:
    lines = Lines()
    for glance in glances:
        lines.show(glance)
    return [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]


def glance(at: float, state: str = "running", **changes: object) -> Glance:
    return Glance(at=at, status={**status("demo", state), **changes})


def test_nothing_is_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    # Where it is, what is left of its budgets, and its step.
    assert len(printed_lines(capsys, glance(10), glance(11), glance(12))) == 3


def test_waits_restarts_and_silence_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    recovering = Glance(
        at=11,
        status={**status("demo", "recovering"), "waiting_for": "device n0/3"},
        restarts=(record(3, result="recovering"),),
    )
    silent = Glance(at=12, status={}, silence="no worker answered")
    back = Glance(at=13, status=status("demo", "running"), restarts=(record(3),))
    lines = printed_lines(capsys, glance(10), recovering, silent, back)
    assert lines == [
        "main running, generation 3 on gpu-01",
        "budgets left: pod 1 of 3",
        "step 41",
        "restart 3: XID 79 on gpu-07/3 -> pod",
        "main recovering",
        "waits for device n0/3",
        "no worker answered",
        "restart 3: started, from step 40",
        "main running, generation 3 on gpu-01",
    ]


def test_a_state_that_is_older_than_the_restart_beside_it_is_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The restart may start the job between the two questions of a look."""
    between = Glance(at=11, status=status("demo", "recovering"), restarts=(record(3),))
    after = replace(glance(12, generation=4), restarts=(record(3),))
    lines = printed_lines(capsys, glance(10), between, after)
    assert lines[3:] == [
        "restart 3: XID 79 on gpu-07/3 -> pod",
        "restart 3: started, from step 40",
        "main running, generation 4 on gpu-01",
    ]


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("crash of rank 3: signal 9; in_place is", "crash of rank 3 on gpu-07: signal 9 -> pod"),
        ("in_place failed; pod is the next", "crash of rank 3 on gpu-07 -> pod"),
    ],
)
def test_the_line_of_a_restart_names_the_rank_and_how_it_ended(
    capsys: pytest.CaptureFixture[str], reason: str, line: str
) -> None:
    made = record(3, result="recovering")
    fault = {**made["fault"], "class": "crash", "rank": 3, "device": None, "code": None}
    crashed = {**made, "fault": fault, "reason": reason}
    lines = printed_lines(capsys, Glance(at=10, status={}, restarts=(crashed,)))
    assert lines == [f"restart 3: {line}"]


def test_steps_are_told_now_and_then_with_their_rate(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_lines(capsys, *(glance(10 + n, step=100 + 2 * n) for n in range(8)))
    assert lines[2:] == ["step 100", "step 110  2 steps/s"]


def test_a_pause_is_printed_once_although_it_has_a_generation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed_lines(capsys, *(glance(10, "paused", generation=n) for n in (3, 4)))
    assert [line for line in lines if line.startswith("main")] == ["main paused"]


def test_a_step_is_printed_again_for_a_new_generation(capsys: pytest.CaptureFixture[str]) -> None:
    again = (glance(20 + n, generation=4, step=(None, 41)[n > 5]) for n in range(7))
    lines = printed_lines(capsys, glance(10, generation=3), *again)
    assert [line for line in lines if line.startswith(("step", "main"))] == [
        "main running, generation 3 on gpu-01",
        "step 41",
        "main running, generation 4 on gpu-01",
        "step 41",
    ]


def test_use_and_memory_of_devices_are_printed_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of four slots, those that are used least: a log has no room for a thousand."""
    looks = (
        glance(10 + n, device_use=[device_row(slot, 90.0 - slot + n // 30) for slot in range(6)])
        for n in range(0, 62, 2)
    )
    printed = [line for line in printed_lines(capsys, *looks) if "devices" in line]
    assert printed[:4] == [
        f"n{slot}, devices 0 1: {90 - slot} ? %, 70.2 1.0 of 80.0 GB" for slot in (5, 4, 3, 2)
    ]
    assert len(printed) == 12


def device_row(slot: int, percent: float) -> dict[str, Any]:
    devices = [
        {"index": 0, "percent": percent, "memory_mb": 71_840.0, "memory_total_mb": 81_920.0},
        {"index": 1, "percent": None, "memory_mb": 1_024.0, "memory_total_mb": 81_920.0},
    ]
    return {"slot": slot, "node": f"n{slot}", "devices": devices}


def test_the_time_left_is_told_where_the_last_step_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks = (glance(10 + n, step=100 + 2 * n, last_step=1_310) for n in range(8))
    assert printed_lines(capsys, *looks)[-1] == "step 110  2 steps/s, 10m left to step 1310"


def test_a_rate_of_steps_that_take_minutes_is_that_of_the_last_two() -> None:
    rate = Rate()
    for at, step in ((0.0, 1), (1.0, 1), (120.0, 2), (240.0, 3), (250.0, 3)):
        rate.add(at, {"state": "running", "generation": 1, "step": step, "last_step": 13})
    assert rate.per_s == pytest.approx(1 / 120)
    assert rate.left_s == pytest.approx(1_200)


def test_a_rate_goes_by_when_the_steps_were_made() -> None:
    rate = Rate()
    for at, step, made in ((5.0, 1, "00:00:01"), (9.0, 3, "00:00:05")):
        job_status = {"state": "running", "generation": 1, "step": step}
        rate.add(at, {**job_status, "step_at": f"2026-01-31T{made}Z"})
    assert rate.per_s == 0.5


def test_a_rate_is_of_times_by_one_clock() -> None:
    """A step of a report comes without its time, until the next watch looks."""
    rate = Rate()
    for at, step, made in ((5.0, 1, None), (9.0, 3, "00:00:05"), (11.0, 5, "00:00:09")):
        step_at = made and f"2026-01-31T{made}Z"
        job_status = {"state": "running", "generation": 1, "step": step, "step_at": step_at}
        rate.add(at, job_status)
        assert rate.per_s == (0.5 if step == 5 else None)


def test_the_last_restart_says_when_why_and_how_it_ended() -> None:
    newest = {**record(3), "at": "2026-01-31T12:00:00Z"}
    last_restart = watching.last_restart(newest, {"as_of": "2026-01-31T12:05:00Z"})
    assert last_restart == "5m ago: XID 79 on gpu-07/3 -> pod, started in 3.5 s"


def test_the_page_shows_the_last_restart_the_time_left_and_what_is_left_of_budgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, screen = watching.LivePage(), StringIO()
    monkeypatch.setattr(
        watching, "console", lambda **_: Console(file=screen, width=100, height=60, soft_wrap=True)
    )
    for n in range(2):
        step = {"step": 100 + n, "last_step": 400}
        look = Glance(at=10.0 + n, status={**status("demo", "running"), **step})
        page.show(replace(look, restarts=(record(2), record(3))))
    page.close()
    assert "1 steps/s, 4m left to step 400" in screen.getvalue()
    assert "last restart " in screen.getvalue()
    assert "XID 79 on gpu-07/3 -> pod, started in 3.5 s" in screen.getvalue()
    assert "pod 2 of 3, 1 left" in screen.getvalue()


def test_a_rate_begins_anew_when_the_step_goes_back() -> None:
    rate = Rate()
    for at, step in ((0.0, 10), (1.0, 20), (2.0, 5), (4.0, 6)):
        rate.add(at, {"state": "running", "generation": 1, "step": step})
    assert rate.per_s == 0.5


def test_the_time_of_a_restart_is_in_no_rate() -> None:
    rate = Rate()
    for at, state, generation, step in (
        (0.0, "running", 1, 10),
        (1.0, "running", 1, 12),
        (2.0, "recovering", 1, 12),
        (20.0, "running", 2, 12),
        (22.0, "running", 2, 16),
    ):
        rate.add(at, {"state": state, "generation": generation, "step": step})
    assert rate.per_s == 2.0
