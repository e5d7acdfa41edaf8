"""The numbers of ranks, agents and wardens go to strangers while recoveries run. None of them is harmed.

Only this one has the numbers of whole pods reused under workers that stand still, so that what they read
afterwards in their files is about another process. A single number is in
`tests/agent/processes/test_members.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from tests.agent.pod import is_running
from tests.local.killed.test_taken_away import printed
from tests.support.machine import final, undisturbed
from tests.support.numbers import stranger_with_number
from tests.support.rehearsal import Rehearsal, gist, records, small
from tests.support.starving import stopped

SEED = int(os.environ.get("NUMBERS_SEED", "0")) or 23
"""Another course of events: NUMBERS_SEED=7 make test-long ARGS=tests/local/killed/test_reused_numbers.py"""

ATTACKS = 8
"""How many numbers are reused."""
PROGRESS = 20
"""Steps between two attacks: a job that makes none is restarted seldomer and seldomer."""
STEPS, STEP_S = 900, 0.1
"""Both jobs are still at work when the last one is, which is looked at."""

Stranger = subprocess.Popen[bytes]


async def attack(r: Rehearsal, chance: random.Random) -> list[Stranger]:
    """One rank of the attacked job ends, or an agent and all it had; then their numbers are others'."""
    pod = chance.choice(r.pods("attacked"))
    agent, ranks = pod.agent(), pod.ranks()
    what, is_worker_away = chance.choice(["rank", "agent"]), chance.random() < 0.5
    sys.stdout.write(f"{what}, the worker {'stands still' if is_worker_away else 'works'}\n")
    if agent is None or not ranks:
        return []
    wardens = [pid for pid in proc.below(agent, proc.all_processes()) if pid not in ranks]
    ended = [chance.choice(ranks)] if what == "rank" else [agent, *ranks, *wardens]
    with ExitStack() as stack:
        if is_worker_away:
            stack.enter_context(stopped(r.worker.pid))
        with suppress(ProcessLookupError):
            os.kill(ended[0], signal.SIGKILL)
        await r.until(lambda: not any(map(is_running, ended)), "their end")
        strangers = [await asyncio.to_thread(stranger_with_number, pid) for pid in ended]
    return [stranger for stranger in strangers if stranger is not None]


def furthest(r: Rehearsal) -> int:
    return max(r.step(generation=n, job="attacked") for n in range(1, r.newest("attacked") + 1))


async def goes_on(r: Rehearsal, above: int) -> None:
    """Wait until a generation after this one is further than any before."""
    target = furthest(r) + PROGRESS if r.newest("attacked") else 1
    await r.until(
        lambda: (
            (now := r.newest("attacked")) > above
            and r.step(generation=now, job="attacked") >= target
        ),
        f"step {target} in a generation after {above}",
    )


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_whoever_gets_the_number_of_one_of_ours_is_left_alone(tmp_path: Path) -> None:
    sys.stdout.write(f"\nseed {SEED}\n")
    chance, strangers = random.Random(SEED), list[Stranger]()
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    for_ever = {"no_progress_restarts": None}
    try:
        async with Rehearsal(tmp_path / "r", nodes=4) as r:
            jobs = {
                name: await r.submit(
                    small(tmp_path / name, name, steps=STEPS, step_s=STEP_S, recovery=for_ever)
                )
                for name in ("healthy", "attacked")
            }
            await r.until(lambda: r.step(generation=1, job="healthy") > 0, "the healthy job")
            await goes_on(r, above=0)
            while len(strangers) < ATTACKS:
                before = r.newest("attacked")
                strangers += await attack(r, chance)
                await goes_on(r, above=before)
                assert all(stranger.poll() is None for stranger in strangers)
            assert r.step(generation=1, job="healthy") < STEPS, "it was at work all the time"
            report = {name: await r.report(job, within_s=300) for name, job in jobs.items()}
            assert (report["healthy"]["status"], gist(report["healthy"])) == ("Completed", [])
            assert printed(r, "healthy") == [list(range(1, STEPS + 1))] * 2
            assert report["attacked"]["status"] == "Completed", r.summary()
            assert records(report["attacked"])
            assert [final(tmp_path / name) for name in jobs] == [expected, expected]
            assert await r.is_clean(*(tmp_path / name for name in jobs)) == []
            assert all(stranger.poll() is None for stranger in strangers)
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
