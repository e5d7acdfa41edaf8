"""Jobs go from one state directory to the next while their processes are stopped, killed and continued.

Seeded: KILL_SEED=7 has other victims and moments, ADOPTED_JOBS=6 more jobs. Every write of every rank is
recorded, so that two generations in one folder are found whenever they met.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent.processes import proc
from everstep.agent.storage import fence
from tests.local.killed.test_returns import SCRIBE, all_writes, scribe
from tests.local.killtable import SEED
from tests.support.floods import Flood, send
from tests.support.machine import Machine
from tests.support.rehearsal import Handle, Pod, Rehearsal
from tests.support.workerproc import WorkerProcess

JOBS = int(os.environ.get("ADOPTED_JOBS", "3"))
ROUNDS = 3
HOMES = 3
"""The last round brings the jobs back to the state directory in which they began."""

FLOODS: Sequence[Flood] = (
    [],
    [("pause", {}), ("resume", {})] * 300,
    [("restart", {"reason": "again"})] * 300,
    [("adopt", {"reason": "by signal"})] * 20,
)
MOMENTS = ("before", "accepted", "restarted")
"""When the stopped processes continue: before the adoption, once it is accepted, after the restart."""


# -- Victims --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Processes of one pod, and the signal that they get in one moment."""

    pids: Sequence[int]
    signal: signal.Signals

    def happens(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, self.signal)


def _no_strike(_pod: Pod) -> Strike:
    return Strike(pids=(), signal=signal.SIGKILL)


def _asleep(pod: Pod) -> Strike:
    return Strike(pids=_all_pids(pod), signal=signal.SIGSTOP)


def _ranks_asleep(pod: Pod) -> Strike:
    return Strike(pids=pod.ranks(), signal=signal.SIGSTOP)


def _guards_asleep(pod: Pod) -> Strike:
    """Agent and warden; the rank trains on."""
    ranks = pod.ranks()
    pids = [pid for pid in _all_pids(pod) if pid not in ranks]
    return Strike(pids=pids, signal=signal.SIGSTOP)


def _rank_killed(pod: Pod) -> Strike:
    return Strike(pids=pod.ranks(), signal=signal.SIGKILL)


def _all_killed(pod: Pod) -> Strike:
    return Strike(pids=_all_pids(pod), signal=signal.SIGKILL)


def _parents_killed(pod: Pod) -> Strike:
    """Agent, warden and a shell above the trainer, which lives on where there is no PID namespace."""
    pids = [pid for pid in _all_pids(pod) if str(SCRIBE).encode() not in proc.command_line(pid)]
    return Strike(pids=pids, signal=signal.SIGKILL)


VICTIMS: Sequence[Callable[[Pod], Strike]] = (
    _asleep,
    _parents_killed,
    _guards_asleep,
    _all_killed,
    _ranks_asleep,
    _rank_killed,
    _no_strike,
)


def _all_pids(pod: Pod) -> list[int]:
    agent = pod.agent()
    return [] if agent is None else [agent, *proc.below(agent, proc.all_processes())]


# -- Homes ----------------------------------------------------------------------------------------


@asynccontextmanager
async def other_homes(r: Rehearsal, folder: Path) -> AsyncIterator[list[WorkerProcess]]:
    """A worker for each state directory, the rehearsal's own first. One gives pods no PID namespace."""
    other_workers = [
        WorkerProcess(
            address=r.server.address,
            namespace="default",
            home=folder / f"home-{n}",
            backend="local",
            env={"EVERSTEP_NODES": str(JOBS), "EVERSTEP_PID_NAMESPACE": str(n % 2 == 0)},
        )
        for n in range(1, HOMES)
    ]
    try:
        yield [r.worker, *other_workers]
    finally:
        for worker in other_workers:
            worker.kill9()
            Machine.at(worker.home).end()


def serve_from(r: Rehearsal, worker: WorkerProcess) -> None:
    r.worker, r.home = worker, worker.home


# -- Jobs -----------------------------------------------------------------------------------------


def endless(folder: Path, name: str, *, has_shell: bool) -> dict[str, Any]:
    """One node whose rank writes without end; below a shell it is not the agent's own child."""
    document = scribe(folder, steps=10**9)
    document["metadata"]["name"] = name
    document["spec"]["nodes"] = 1
    document["spec"]["model_dir"] = document["spec"]["checkpoints"]["path"] = str(folder / "out")
    if has_shell:  # what it prints would be its end where the agent that reads it is gone
        document["spec"]["command"] = (
            f"{shlex.join([sys.executable, str(SCRIBE)])} > /dev/null; true"
        )
    return document


def newest_start(folder: Path) -> int:
    starts = [one["generation"] for one in all_writes(folder) if one["what"] == "start"]
    return max(starts, default=0)


def trains_above(folder: Path, generation: int) -> bool:
    newest = newest_start(folder)
    return newest > generation and sum(w["generation"] == newest for w in all_writes(folder)) > 5


def meetings(folder: Path) -> list[str]:
    """Generations of which one wrote after a later one had started."""
    last: dict[int, float] = {}
    first: dict[int, float] = {}
    for one in all_writes(folder):
        last[one["generation"]] = max(last.get(one["generation"], 0.0), one["at"])
        first[one["generation"]] = min(first.get(one["generation"], one["at"]), one["at"])
    return [
        f"{earlier} wrote {last[earlier] - first[later]:.2f} s after {later} began"
        for earlier, later in itertools.combinations(sorted(first), 2)
        if last[earlier] >= first[later]
    ]


async def adopted_once(job: Handle) -> None:
    """Two adoptions at once; at most one of them is accepted, and the job is adopted afterwards."""
    both = [answer_to_adopt(job, f"{job.id}-{n}-{os.urandom(4).hex()}") for n in "ab"]
    answers = await asyncio.gather(*both, return_exceptions=True)
    refused = [one for one in answers if isinstance(one, WorkflowUpdateFailedError)]
    assert len(refused) >= 1, answers
    assert all(isinstance(one, dict | WorkflowUpdateFailedError) for one in answers), answers


async def answer_to_adopt(job: Handle, update: str) -> Any:
    while True:
        try:
            return await job.execute_update("adopt", {"id": update}, id=update)
        except RPCError as error:
            # A busy machine was too slow for a workflow task: until it is repeated the server refuses.
            if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                raise
        await asyncio.sleep(0.1)


# -- The storm ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_no_two_generations_write_one_folder_however_often_a_job_is_adopted(
    tmp_path: Path,
) -> None:
    sys.stdout.write(f"\nseed {SEED}\n")
    chance = random.Random(SEED)
    folders = {f"job-{n}": tmp_path / f"job-{n}" for n in range(JOBS)}
    deck = itertools.cycle(chance.sample(VICTIMS, len(VICTIMS)))  # each before any comes twice
    async with (
        Rehearsal(tmp_path / "r", nodes=JOBS) as r,
        other_homes(r, tmp_path) as workers,
    ):
        jobs = {
            name: await r.submit(endless(folder, name, has_shell=n % 2 == 0))
            for n, (name, folder) in enumerate(folders.items())
        }
        for number in range(1, ROUNDS + 1):
            restarted = {}
            for name, folder in folders.items():
                await r.until(partial(trains_above, folder, 0), f"writes of {name}")
                restarted[name] = partial(trains_above, folder, newest_start(folder))
            strikes = {name: next(deck)(r.pods(name)[0]) for name in folders}
            pids_by_job = {name: [*strike.pids] for name, strike in strikes.items()}
            has_server = chance.random() < 0.4
            sys.stdout.write(f"round {number}: {strikes}, server {has_server}\n")
            for pid in (r.worker.pid, *([r.server.pid] if has_server else [])):
                os.kill(pid, signal.SIGKILL)
            for strike in strikes.values():
                strike.happens()
            r.worker.kill9()
            if has_server:
                await r.server.restart()
            for job in jobs.values():
                await send(job, chance.choice(FLOODS))
            serve_from(r, workers[number % HOMES])
            await r.worker.start()
            await asyncio.gather(
                *(
                    adopt(r, jobs[name], strikes[name], chance.choice(MOMENTS), has_restarted)
                    for name, has_restarted in restarted.items()
                )
            )
            assert not [pid for pids in pids_by_job.values() for pid in pids if is_stopped(pid)]
        for job in jobs.values():
            await job.execute_update("stop", {"grace_s": 0})
        for name, job in jobs.items():
            report = await r.report(job)
            assert report["status"] == "Terminated", r.summary()
            assert meetings(folders[name]) == []
            words = fence.read(str(folders[name] / "out"))
            assert not [word for word in words.values() if word.is_held], words


async def adopt(
    r: Rehearsal, job: Handle, strike: Strike, moment: str, has_restarted: Callable[[], bool]
) -> None:
    goes_on = Strike(pids=strike.pids, signal=signal.SIGCONT)
    if moment == "before":
        goes_on.happens()
    await adopted_once(job)
    if moment == "accepted":
        goes_on.happens()
    await r.until(has_restarted, f"{job.id} trains in the other state directory")
    goes_on.happens()


def is_stopped(pid: int) -> bool:
    process = proc.find(pid)
    return process is not None and process.state == "T"
