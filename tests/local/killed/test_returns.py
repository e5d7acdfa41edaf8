"""Who was out of reach comes back: a node with a live old process, an agent that stood still.

Only real processes stand still and go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.processes import proc
from everstep.backends.local.reconciling.agents import reap_agents, spawn
from everstep.protocol import wire
from tests.agent.pod import is_running
from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, records, small

WAKES_S = 10.0
"""Who slept reads the fence within a second of waking and ends what it guards. It is printed."""

SCRIBE = Path(__file__).parents[2] / "support" / "scripts" / "scribe.py"


def scribe(folder: Path, *, steps: int) -> dict[str, Any]:
    """Two nodes that write down every write into `folder`."""
    folder.mkdir()
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "scribe"},
        "spec": {
            "command": [sys.executable, str(SCRIBE)],
            "workdir": str(folder),
            "nodes": 2,
            "model_dir": "out",
            "checkpoints": {"path": "out"},
            "progress": {"log_pattern": r"^step (?P<step>\d+) loss"},
            "env": {"CHECKPOINTS": str(folder / "out"), "STEPS": str(steps)},
        },
    }


def writes(folder: Path, generation: int, what: str = "save") -> list[dict[str, Any]]:
    writes = all_writes(folder)
    return [one for one in writes if one["generation"] == generation and one["what"] == what]


def all_writes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out" / "writes.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def fence_holds(r: Rehearsal, generation: int) -> bool:
    """The old processes are known to have ended: from here on a checkpoint may be chosen."""
    jobs = r.books().jobs.values()
    return any(job.fence_holds for job in jobs if job.fenced == generation)


@pytest.mark.long
@pytest.mark.parametrize("returns", ["before it is fenced", "after it was replaced"])
async def test_a_returning_node_writes_nothing_after_the_new_generation_chose(
    tmp_path: Path, returns: str
) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=3) as r:
        job = await r.submit(scribe(folder, steps=60))
        await r.until(lambda: len(writes(folder, 1)) >= 40, "twenty steps of two ranks")
        (old,) = (rank for pod in r.pods("scribe") if pod.slot == 0 for rank in pod.ranks())
        await r.fault("node-down n0 partition")
        if returns == "before it is fenced":
            await r.until(lambda: r.newest("scribe") >= 2, "generation 2")
            await r.fault("node-up n0")
        await r.until(lambda: fence_holds(r, 2), "the fence of generation 2")
        held_at = time.time()
        assert not is_running(old)
        if returns == "after it was replaced":
            await r.until(lambda: writes(folder, 2), "the first write of generation 2")
            await r.fault("node-up n0")
        report = await r.report(job)
        assert report["status"] == "Completed", r.summary()
        assert gist(report) == [("node", "pod", "success")]
        last = max(one["at"] for one in writes(folder, 1))
        assert last < held_at < min(one["at"] for one in writes(folder, 2, "start"))
        saved = max(one["step"] for one in writes(folder, 1) if one["rank"] == 0)
        # It may have been killed between the rename and its note of it.
        assert records(report)[0]["resume_step"] in (saved, saved + 1)
        assert {one["step"] for one in writes(folder, 2, "start")} <= {saved, saved + 1}
        assert await r.is_clean(folder) == []


@pytest.mark.long
async def test_a_machine_that_slept_ends_its_old_ranks_as_soon_as_it_wakes(tmp_path: Path) -> None:
    """Rank, agent and warden stood still together: none of them could read the fence meanwhile."""
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=3) as r:
        job = await r.submit(scribe(folder, steps=300))
        await r.until(lambda: len(writes(folder, 1)) >= 40, "twenty steps of two ranks")
        agent = r.pods("scribe")[0].agent()
        assert agent is not None
        asleep = [*proc.below(agent, proc.all_processes()), agent]
        assert len(asleep) >= 3, "a rank, a warden, an agent"
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        await r.fault("node-down n0 partition")
        await r.until(lambda: writes(folder, 2), "the first write of generation 2")
        ranks = [pid for pid in asleep if is_running(pid) and pid != agent]
        woke_at = time.time()
        for pid in asleep:
            with suppress(ProcessLookupError):  # ended as a stray while it slept
                os.kill(pid, signal.SIGCONT)
        await r.until(lambda: not any(map(is_running, ranks)), "their end")
        late = [one["at"] - woke_at for one in writes(folder, 1) if one["at"] > woke_at]
        sys.stdout.write(f"\n{len(late)} writes after waking, for {max(late, default=0):.2f} s\n")
        assert max(late, default=0.0) < WAKES_S
        await r.fault("node-up n0")
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", [("node", "pod", "success")])


@pytest.mark.long
async def test_an_agent_that_stood_still_for_longer_than_we_wait_costs_nothing(
    tmp_path: Path,
) -> None:
    """Its rank trains on, and so do the others: silence alone stops nothing.

    It stands still for longer than a fence waits, and than the job's limits for silence and for a hang.
    """
    still_s, step_s = wire.FENCE_S + 5.0, 0.5
    steps = int(still_s / step_s) + 30
    limits = {"unreachable_s": 2, "hang_s": 20}
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        document = small(tmp_path / "job", "still", steps=steps, step_s=step_s, limits=limits)
        job = await r.submit(document)
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        pid = r.pods("still")[1].agent()
        assert pid is not None
        before = r.step(generation=1)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(still_s)  # the claim itself is about so much time
        assert r.step(generation=1) - before > 0.5 * still_s / step_s
        os.kill(pid, signal.SIGCONT)
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", []), r.summary()
        assert final(tmp_path / "job") == undisturbed(tmp_path / "alone", steps=steps)
        assert await r.is_clean(tmp_path / "job") == []


@pytest.mark.long
async def test_a_second_agent_of_a_pod_leaves_and_the_job_does_not_notice(tmp_path: Path) -> None:
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(small(tmp_path / "job", "pair", steps=150))
        await r.until(lambda: r.step(generation=1) >= 3, "step 3")
        pods = r.pods("pair")
        first = [pod.agent() for pod in pods]
        started = [
            second(pod.folder.path, r.home / "agent.pyz", uid=pod.uid, slot=pod.slot)
            for pod in pods
            for _ in range(2)
        ]
        codes = [await asyncio.to_thread(process.wait, 20) for process in started]
        assert codes == [wire.ALREADY] * 4
        spawn(
            pods[0].folder,
            r.home / "agent.pyz",
            job="pair",
            slot=0,
            node="n0",
            uid=pods[0].uid,
            orphan_s=60.0,
            environ=os.environ,
        )
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", [])
        assert None not in first
        assert await r.is_clean(tmp_path / "job") == []
        reap_agents()  # of the one that was started by this process


def second(folder: Path, agent: Path, *, uid: str, slot: int) -> subprocess.Popen[bytes]:
    arguments = ("--home", str(folder), "--job", "pair", "--slot", str(slot), "--node", "n0")
    return subprocess.Popen([sys.executable, "-I", str(agent), *arguments, "--uid", uid])
