"""A worker that goes away while something is tried beside the training, and what is left of a try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.core.spec import Prefetch, PrefetchOrder
from tests.backends.lab import Run, left_on
from tests.backends.local_lab import LocalLab
from tests.backends.verbs import NEVER_ENDS
from tests.support.marks import marked
from tests.support.patience import HUNG_S

STEPS = r"step (?P<step>\d+)"


class Tries:
    """A command that says when it began, ends once it is let, and does not work for two nodes."""

    def __init__(self, folder: Path) -> None:
        self._begun, self._go = folder / "begun", folder / "go"
        waits = f"until test -e {self._go}; do sleep 0.02; done"
        command = f"echo $NNODES >> {self._begun}"
        self.script = f'setsid sleep 1000 & {command}; {waits}; test "$NNODES" != 2'

    def begun(self) -> list[str]:
        return self._begun.read_text().split() if self._begun.exists() else []

    def may_end(self) -> None:
        self._go.touch()

    async def until(self, holds: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(HUNG_S):
            while not holds(self.begun()):
                await asyncio.sleep(0.01)


@pytest.fixture
async def tries(local_lab: LocalLab, tmp_path: Path) -> Tries:
    return Tries(tmp_path)


@pytest.fixture
async def job(local_lab: LocalLab, tries: Tries) -> Run:
    """One of three nodes, while the first smaller number is tried."""
    job = Run(local_lab, slots=(0, 1, 2), env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    await job.place()
    await job.fence()
    await start(job, tries)
    await tries.until(lambda begun: begun == ["2"])
    return job


async def start(job: Run, tries: Tries) -> None:
    what = Prefetch(command=("/bin/sh", "-c", tries.script))
    order = PrefetchOrder(what=what, nodes=(2, 1), began=1_800_000_000.0)
    await job.start(prefetch=order, log_pattern=STEPS)


def prefetch_results(job: Run) -> list[tuple[str, object]]:
    prefetch_facts = (fact for fact in job.facts if fact.kind.startswith("prefetch."))
    return [(fact.kind, fact.details["nodes"]) for fact in prefetch_facts]


BOTH = [("prefetch.failed", 2), ("prefetch.done", 1)]


async def test_a_worker_that_goes_meanwhile_begins_none_twice_and_loses_none(
    job: Run, tries: Tries, local_lab: LocalLab
) -> None:
    await local_lab.another_worker()
    await start(job, tries)
    tries.may_end()
    await job.fact("prefetch.done")
    await local_lab.another_worker()
    await start(job, tries)
    await job.observe(wait_s=0.5)
    assert (tries.begun(), prefetch_results(job)) == (["2", "1"], BOTH)


@pytest.mark.long
async def test_what_ends_while_nobody_serves_is_told_to_the_next_worker(
    job: Run, tries: Tries, local_lab: LocalLab
) -> None:
    """Only this one has a try that ends while no worker lives."""
    await local_lab.leave()
    tries.may_end()
    await tries.until(lambda begun: begun == ["2", "1"])
    await local_lab.another_worker()
    await job.fact("prefetch.done")
    assert (tries.begun(), prefetch_results(job)) == (["2", "1"], BOTH)


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(False, id="undisturbed"),
        pytest.param(True, id="worker gone in the middle", marks=pytest.mark.long),
    ],
)
async def test_a_job_that_is_cleared_away_leaves_nothing_of_it(
    killed: bool, job: Run, local_lab: LocalLab
) -> None:
    uid = (await job.pod(0)).uid
    assert len(marked(uid)) >= 3, "the rank, the try, and what it put into a session of its own"
    if killed:
        await job.backend.ensure_gone(job.ref)
        await local_lab.another_worker()
    await job.gone()
    assert marked(uid) == []
    assert await left_on(local_lab) == []
    assert prefetch_results(job) == []
