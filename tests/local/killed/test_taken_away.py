"""Workers that lose every resource in turn, and both at once. The healthy job loses no step."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from everstep.protocol import wire
from tests.support.machine import final, undisturbed
from tests.support.patience import HUNG_S
from tests.support.rehearsal import Rehearsal, gist, records, small
from tests.support.starving import away, stopped, without_descriptors
from tests.support.workerproc import WorkerProcess

SEED = int(os.environ.get("TAKEN_SEED", "0")) or 11
"""Another course of events: TAKEN_SEED=7 make test-long ARGS=tests/local/killed/test_taken_away.py"""

ROUNDS, CRASHES = 9, (0, 4)
STEPS, STEP_S = 700, 0.1
"""The healthy job is still at work when the last round is over, which is looked at."""


class Round:
    """What is away, and for how long."""

    def __init__(
        self, what: str, outages: Sequence[AbstractContextManager[object]], lasts_s: float
    ) -> None:
        self.what, self.lasts_s = what, lasts_s
        self._outages = outages

    async def happens(self) -> None:
        with ExitStack() as stack:
            for one in self._outages:
                stack.enter_context(one)
            await asyncio.sleep(self.lasts_s)  # drawn: how long it lasts is part of the course


def drawn(chance: random.Random, number: int, r: Rehearsal, workers: list[WorkerProcess]) -> Round:
    """What is taken in this round: from one worker, from the other too in half of them, or from both."""
    if number % 3 == 2:
        return Round("the state directory", [away(r.home)], chance.uniform(0.3, 2.0))
    takes = {"goes on": None, "descriptors": without_descriptors, "stopped": stopped}
    first = ["descriptors", "stopped"][number % 3]
    words = [first, chance.choice(list(takes))]
    chance.shuffle(words)
    made = [take(w.pid) for w, word in zip(workers, words, strict=True) if (take := takes[word])]
    return Round(" and ".join(words), made, chance.uniform(1.0, 5.0))


def _trains(r: Rehearsal, name: str) -> bool:
    return r.step(generation=1, job=name) >= 2


def printed(r: Rehearsal, job: str) -> list[list[int]]:
    """The steps that each rank printed, as it printed them."""
    pattern = re.compile(r"^step (\d+) loss", re.MULTILINE)
    logs = sorted(r.home.glob(f"agents/{job}*/{wire.LOGS}/g*-r*.log"))
    return [[int(step) for step in pattern.findall(log.read_text())] for log in logs]


def crash(r: Rehearsal, share: float) -> None:
    """A rank of the other job, so that its restart has to be made by workers like these."""
    ranks = [pid for pod in r.pods("attacked") for pid in pod.ranks()]
    if ranks:
        with suppress(ProcessLookupError):
            os.kill(ranks[int(share * len(ranks))], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_what_is_taken_from_workers_is_not_missed_by_a_healthy_job(tmp_path: Path) -> None:
    """Only this one finds what comes of two at once: a worker without descriptors that recovers a job
    which the stopped one had in its hands, a stop in the middle of a transaction, a directory that comes
    back between two of their looks. Each of them alone is in `test_unknown_is_not_gone.py`,
    `test_write_lock.py`.
    """
    sys.stdout.write(f"\nseed {SEED}\n")
    chance = random.Random(SEED)
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        second = WorkerProcess(
            address=r.server.address,
            namespace="default",
            home=r.home,
            backend="local",
            env={"EVERSTEP_NODES": "2", "EVERSTEP_DEVICES": "8"},
        )
        second.log = tmp_path / "second.log"
        async with second:
            jobs = {
                name: await r.submit(
                    small(
                        tmp_path / name,
                        name,
                        steps=STEPS,
                        step_s=STEP_S,
                        recovery={"no_progress_restarts": None},
                    )
                )
                for name in ("healthy", "attacked")
            }
            for name in jobs:
                await r.until(partial(_trains, r, name), f"step 2 of {name}")
            for number in range(ROUNDS):
                one = drawn(chance, number, r, [r.worker, second])
                sys.stdout.write(f"{one.what} for {one.lasts_s:.1f} s\n")
                which = chance.random()  # drawn in any case: the course is that of the seed
                if number in CRASHES:
                    crash(r, which)
                await one.happens()
                await asyncio.sleep(chance.uniform(0.1, 1.0))
            assert r.step(generation=1, job="healthy") < STEPS, "it was at work all the time"
            report = {name: await r.report(job, within_s=2 * HUNG_S) for name, job in jobs.items()}
        assert (report["healthy"]["status"], gist(report["healthy"])) == ("Completed", []), (
            r.summary()
        )
        assert printed(r, "healthy") == [list(range(1, STEPS + 1))] * 2
        assert final(tmp_path / "healthy") == expected
        assert report["attacked"]["status"] == "Completed", r.summary()
        assert {record["fault"]["class"] for record in records(report["attacked"])} == {"crash"}
        assert final(tmp_path / "attacked") == expected
        assert await r.is_clean(*(tmp_path / name for name in jobs)) == []
