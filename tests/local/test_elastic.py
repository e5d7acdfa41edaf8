"""A job that may live with fewer nodes, on this machine: it shrinks, grows again, and loses no bit."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.core import names
from tests.local.killtable import Moment, has_started
from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, small

JOB = "elastic"
STEPS, LONGER = 150, 300
SCALED = [("node", "pod", "downgrade"), ("node", "elastic", "success")]
GROWN = [*SCALED, ("planned", "elastic", "success")]


def document(
    folder: Path, *, least: int = 2, steps: int = STEPS, env: Mapping[str, str] = {}, **spec: Any
) -> dict[str, Any]:
    """Its ranks record their variables."""
    nodes = {"min": least, "wanted": 4}
    options = {"limits": {"spare_s": 2}, "env": {"SEEN": "1", **env}, **spec}
    return small(folder, JOB, steps=steps, nodes=nodes, **options)


def worlds(folder: Path) -> Mapping[int, list[tuple[str, ...]]]:
    """The variables of the ranks of each generation: RANK, WORLD_SIZE, NODE_RANK, NNODES, and the slot."""
    environments: dict[int, list[tuple[str, ...]]] = {}
    for path in sorted((folder / "out" / "seen").glob("*.json")):
        env = json.loads(path.read_text())
        names = ("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "EVERSTEP_SLOT")
        generation = int(env["EVERSTEP_GENERATION"])
        environments.setdefault(generation, []).append(tuple(env[name] for name in names))
    return environments


def world(*slots: int) -> list[tuple[str, ...]]:
    size = str(len(slots))
    return [(str(n), size, str(n), size, str(slot)) for n, slot in enumerate(slots)]


WORLDS = {1: world(0, 1, 2, 3), 3: world(0, 1, 3), 4: world(0, 1, 2, 3)}


async def bring_back(r: Rehearsal, node: str) -> None:
    """The machine works again, and an operator lets jobs have it."""
    await r.fault(f"node-up {node}")
    quarantine = r.client.get_workflow_handle(names.quarantine_id("local"))
    await quarantine.execute_update("release", {"node": node})


@pytest.mark.long
async def test_a_job_goes_on_with_three_nodes_and_has_four_again_later(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        job = await r.submit(document(folder))
        await r.until(lambda: r.step(generation=1) >= 12, "step 12 of four")
        await r.fault("node-down n2")
        await r.until(lambda: r.step(generation=3) >= 25, "step 25 of three")
        await bring_back(r, "n2")
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", GROWN), r.summary()
        assert worlds(folder) == WORLDS
        assert final(folder) == undisturbed(tmp_path / "alone", steps=STEPS)
        assert await r.is_clean(folder) == []


def is_stopped(generation: int) -> Callable[[Rehearsal], bool]:
    return lambda r: any(pod.state()["stopped_below"] >= generation for pod in r.pods(JOB))


def steps_of(generation: int) -> list[Moment]:
    """A Recovery, step by step, in files and books."""
    conditions: Mapping[str, Callable[[Rehearsal], object]] = {
        "given out": lambda r: r.newest(JOB) >= generation,
        "stopped for": is_stopped(generation),
        "placed": lambda r: (r.books().job(JOB).placed or 0) >= generation,
        "fenced": lambda r: (r.books().job(JOB).fenced or 0) >= generation,
        "started": lambda r: any(has_started(p, generation=generation) for p in r.pods(JOB)),
        "training": lambda r: r.step(generation=generation) > 0,
    }
    return [
        Moment(name=f"generation {generation} {what}", has_come=f) for what, f in conditions.items()
    ]


ISOLATED = Moment(
    name="n2 isolated",
    has_come=lambda r: r.books().isolated,
)
WAITS_FOR_A_SPARE = Moment(name="waiting for a spare", has_come=lambda r: r.books().queue)
SCALING_IN = [*steps_of(2)[:2], ISOLATED, WAITS_FOR_A_SPARE, *steps_of(3)]
ROOM = Moment(name="room again", has_come=lambda _: True)
SCALING_OUT = [ROOM, *steps_of(4), *steps_of(4)[2:5]]
AT_ONCE = 3

Moments = tuple[Moment, ...]


KILLS = 2
"""Kills on each way of a job: a worker killed in the first half of the steps is killed again in the other."""


def of_each_job(steps: list[Moment]) -> list[tuple[Moment, ...]]:
    """The steps at which each job's workers are killed, in their order; each step once."""
    jobs = len(steps) // KILLS
    assert jobs * KILLS == len(steps)
    return [tuple(steps[job::jobs]) for job in range(jobs)]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_worker_killed_at_any_step_of_scaling_costs_nothing(tmp_path: Path) -> None:
    """Each job has its worker killed twice on the way in and twice on the way out."""
    expected = undisturbed(tmp_path / "alone", steps=LONGER)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(shrinks: Moments, grows: Moments, folder: Path) -> list[str]:
        async with slots:
            findings = await killed_on_both_ways(shrinks, grows, folder, expected)
            names = ", ".join(map(str, (*shrinks, *grows)))
            sys.stdout.write(f"\n{names}: {findings or 'the same weights'}")
            return findings

    pairs = zip(of_each_job(SCALING_IN), of_each_job(SCALING_OUT), strict=True)
    tasks = [one(*pair, tmp_path / str(n)) for n, pair in enumerate(pairs)]
    assert not [problem for findings in await asyncio.gather(*tasks) for problem in findings]


async def killed_at(r: Rehearsal, moments: Moments) -> None:
    """The worker, at each of them; another one is started."""
    for moment in moments:
        await r.until(lambda moment=moment: moment.has_come(r), str(moment))  # type: ignore[misc]  # bound now
        await r.worker.restart()


async def killed_on_both_ways(
    shrinks: Moments, grows: Moments, folder: Path, expected: dict[str, object]
) -> list[str]:
    """What is wrong afterwards."""
    async with Rehearsal(folder / "r", nodes=4) as r:
        job = await r.submit(document(folder / "job", steps=LONGER))
        await r.until(lambda: r.step(generation=1) >= 12, "step 12 of four")
        await r.fault("node-down n2")
        await killed_at(r, shrinks)
        await r.until(lambda: r.step(generation=3) >= 25, "step 25 of three")
        await bring_back(r, "n2")
        await killed_at(r, grows)
        report = await r.report(job)
        claims = {
            f"it is {report['status']}": report["status"] != "Completed",
            f"the restarts are {gist(report)}": gist(report) != GROWN,
            f"the worlds are {worlds(folder / 'job')}": worlds(folder / "job") != WORLDS,
            "the weights are others": final(folder / "job") != expected,
        }
        wrong = [what for what, holds in claims.items() if holds]
        return [*wrong, *([r.summary()] if wrong else []), *await r.is_clean(folder / "job")]
