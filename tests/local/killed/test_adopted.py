"""A job is adopted by other books on the machine where ranks of the earlier books still live.

Only real processes sleep through a fence, or lose every process that would end them.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.processes import proc
from tests.agent.pod import is_running
from tests.local.killed.test_returns import SCRIBE, scribe, writes
from tests.support.rehearsal import Rehearsal
from tests.support.workerproc import WorkerProcess


def asleep(r: Rehearsal) -> Iterator[int]:
    """Agents, wardens and ranks stand still until the job trains in the other books."""
    for agent in _agents(r):
        yield from (agent, *proc.below(agent, proc.all_processes()))


def without_parents(r: Rehearsal) -> Iterator[int]:
    """Agents, wardens and the shells of the ranks; the trainers below them live on."""
    for agent in _agents(r):
        table = proc.all_processes()
        below = proc.below(agent, table)
        trainers = {pid for pid in below if str(SCRIBE).encode() in proc.command_line(pid)[1:2]}
        assert trainers
        yield from (agent, *below - trainers)


def _agents(r: Rehearsal) -> Iterator[int]:
    for pod in r.pods("scribe"):
        agent = pod.agent()
        assert agent is not None
        yield agent


@pytest.mark.long
@pytest.mark.parametrize("victims", [asleep, without_parents])
async def test_no_rank_of_the_earlier_books_writes_beside_those_of_the_new_ones(
    tmp_path: Path, victims: Callable[[Rehearsal], Iterator[int]]
) -> None:
    folder, kills = tmp_path / "job", victims is without_parents
    document = scribe(folder, steps=40)
    document["spec"]["model_dir"] = document["spec"]["checkpoints"]["path"] = str(folder / "out")
    if kills:  # what it prints would be its end: the agent that reads it is gone
        document["spec"]["command"] = (
            f"{shlex.join([sys.executable, str(SCRIBE)])} > /dev/null; true"
        )
    # With a namespace no trainer would outlive its agent.
    env = {"EVERSTEP_PID_NAMESPACE": str(not kills)}
    async with Rehearsal(tmp_path / "r", nodes=2, env=env) as r:
        job = await r.submit(document)
        await r.until(lambda: len(writes(folder, 1)) >= 40, "twenty steps of two ranks")
        processes = [*victims(r)]
        assert len(processes) >= 6, "an agent, a warden and a rank or its shell, of two pods"
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        r.worker.kill9()
        for pid in processes if kills else ():
            os.kill(pid, signal.SIGKILL)
        other = WorkerProcess(
            address=r.server.address,
            namespace="default",
            home=tmp_path / "other",
            backend="local",
            env={"EVERSTEP_NODES": "2"},
        )
        async with other:
            await job.execute_update("adopt", {"reason": "the disk is gone"})
            await r.until(lambda: starts(folder), "the start in the other books")
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            report = await r.report(job)
        assert report["status"] == "Completed", other.output()
        assert not any(map(is_running, processes))
        last = max(one["at"] for one in writes(folder, 1))
        assert last < min(one["at"] for one in starts(folder))


def starts(folder: Path) -> list[dict[str, Any]]:
    """The starts of ranks of the other books."""
    return [one for generation in (2, 3) for one in writes(folder, generation, "start")]
