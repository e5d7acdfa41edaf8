"""A kubelet comes back with an old process of a job alive: beside the new generation that writes nothing.

Long are the same by another fault, and what shows a limit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage.checkpoints import SETTLED_S
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.core.world import Checkpoint
from tests.kubernetes.jobs import STORAGE, KubernetesLab, KubernetesRun, processes_marked
from tests.kubernetes.objects import until
from tests.testbed.machines import Machines

SCRIBE = Path(__file__).parents[1] / "support" / "scripts" / "scribe.py"
FENCE_S = 6.0
"""Time for a warden on a busy machine to read the fence, as it has with the 30 s of users."""
FAULTS = ("kubelet-death", pytest.param("partition", marks=pytest.mark.long))


@dataclass
class Training:
    """A job whose ranks write down every write; rank 0 saves at each step, whatever becomes of its node."""

    job: KubernetesRun
    machines: Machines
    folder: Path  # of the checkpoints
    node: str = ""  # of slot 0

    @classmethod
    async def launched(cls, job: KubernetesRun, machines: Machines, folder: Path) -> Training:
        lab = job.lab
        assert isinstance(lab, KubernetesLab)
        await lab.backend.close()
        lab.settings = replace(lab.settings, fence_s=FENCE_S)
        lab.backend = await KubernetesBackend.open(lab.settings)
        await job.launch()
        node = next(pod.node for pod in (await job.observe_now()).pods if pod.slot == 0)
        return cls(job, machines, folder, node)

    @classmethod
    async def begun(cls, lab: KubernetesLab, machines: Machines, name: str) -> Training:
        shutil.copy(SCRIBE, lab.folder)
        checkpoints = f"{STORAGE}/{name}/checkpoints"
        lab.command = ("/usr/bin/env", "python3", f"{STORAGE}/{SCRIBE.name}")
        job = KubernetesRun(lab, id=name, env={"STEPS": "1000000", "CHECKPOINTS": checkpoints})
        training = await cls.launched(job, machines, lab.folder / name / "checkpoints")
        await job.step(10)
        return training

    def old_processes(self) -> list[int]:
        """Ranks of slot 0 in the first generation, wherever they run."""
        marks = (f"EVERSTEP_JOB={self.job.id}", "EVERSTEP_SLOT=0", "EVERSTEP_GENERATION=1")
        return processes_marked([mark.encode() for mark in marks], script=SCRIBE.name)

    def writes(self, generation: int) -> list[dict[str, Any]]:
        """What rank 0 of this generation wrote down."""
        lines = (self.folder / "writes.jsonl").read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        return [one for one in notes if (one["generation"], one["rank"]) == (generation, 0)]

    def saved_by(self) -> dict[int, int]:
        """The generation that wrote each checkpoint, by its step."""
        saved = [json.loads(path.read_text()) for path in self.folder.glob("step-*.json")]
        return {one["step"]: one["generation"] for one in saved}

    async def lose_node(self, fault: str) -> None:
        await self.machines.fault(fault, node=self.node)
        await self.job.fact("node.not_ready")

    async def place_elsewhere(self) -> None:
        """The job gets a new generation, and slot 0 another node."""
        await self.job.new_generation("elsewhere")
        await self.job.stop(slots=(1,))
        await self.job.place(recreate=(0,), avoid=(self.node,))
        await self.job.fence()

    async def go_on_elsewhere(self) -> Checkpoint:
        """The job trains there; what it resumes from."""
        job = self.job
        await self.place_elsewhere()
        newest = next(one for one in await job.backend.checkpoints(job.ref) if one.good)
        await job.start(newest)
        await job.step((newest.step or 0) + 20)
        return newest

    async def come_back(self) -> None:
        """The kubelet is there again, and the job has trained on since."""
        await self.machines.fault("node-return", node=self.node)
        await until(lambda: not self.old_processes())
        before = self.writes(2)[-1]["step"]
        await until(lambda: self.writes(2)[-1]["step"] >= before + 10)

    def check(self, resumed: Checkpoint) -> None:
        """Each step has one checkpoint, by the generation whose step it was, and each write its turn."""
        old, new = self.writes(1), self.writes(2)
        assert max(one["at"] for one in old) < min(one["at"] for one in new)
        assert new[0] == {**new[0], "what": "start", "step": resumed.step}
        steps = [one["step"] for one in new[1:]]
        assert steps == [*range(new[1]["step"], steps[-1] + 1)]
        by_generation = self.saved_by()
        assert resumed.step == max(step for step, by in by_generation.items() if by == 1)
        assert {by for step, by in by_generation.items() if step > resumed.step} == {2}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_process_that_runs_on_without_its_kubelet_writes_no_more_once_others_train(
    lab: KubernetesLab, machines: Machines, fault: str
) -> None:
    training = await Training.begun(lab, machines, f"runs-{fault}")
    await training.lose_node(fault)
    before = len(training.writes(1))
    await until(lambda: len(training.writes(1)) > before + 3)  # it lives, and saves
    resumed = await training.go_on_elsewhere()
    assert not training.old_processes()
    training.check(resumed)
    await training.come_back()
    training.check(resumed)
    await training.job.gone()


@contextmanager
def standing_still(rank: int) -> Iterator[list[int]]:
    """Inside, all of its container stands still, its agent and the warden too, as on a paused machine."""
    namespace = Path(f"/proc/{rank}/ns/pid").readlink()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "ns/pid").readlink() == namespace:
                os.kill(int(entry.name), signal.SIGSTOP)
                pids.append(int(entry.name))
        except OSError:
            continue
    try:
        yield pids
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_process_that_stood_still_all_the_time_ends_as_its_kubelet_comes_back(
    lab: KubernetesLab, machines: Machines, fault: str
) -> None:
    training = await Training.begun(lab, machines, f"still-{fault}")
    [rank] = training.old_processes()
    with standing_still(rank):
        written = training.writes(1)
        await training.lose_node(fault)
        resumed = await training.go_on_elsewhere()
        assert training.old_processes() == [rank]
        await training.come_back()
        assert training.writes(1) == written
    training.check(resumed)
    await training.job.gone()


@pytest.mark.long
async def test_a_process_that_goes_on_after_it_stood_still_ends_and_training_does_not(
    lab: KubernetesLab, machines: Machines
) -> None:
    """What it writes before its warden has looked no process can hold back: docs/kubernetes.md says so."""
    training = await Training.begun(lab, machines, "goes-on")
    [rank] = training.old_processes()
    with standing_still(rank):
        await training.lose_node("kubelet-death")
        resumed = await training.go_on_elsewhere()
        assert training.old_processes() == [rank]
        began = len(training.job.facts)
    await until(lambda: not training.old_processes())
    await training.come_back()
    job = training.job
    newest = next(one for one in await job.backend.checkpoints(job.ref) if one.good)
    assert newest.step is not None
    assert resumed.step is not None
    assert newest.step > resumed.step
    assert training.saved_by()[newest.step] == 2
    await job.quiet()
    assert [fact.kind for fact in job.facts[began:] if fact.family == "process"] == []
    await job.gone()


WRITES_ON = """
test $EVERSTEP_GENERATION.$EVERSTEP_SLOT = 1.0 || exec sleep 1000
while :; do echo more >> {folder}/step-9.opaque; sleep 0.02; done
"""
"""The rank of slot 0 saves for ever in the first generation, in a format that does not show its end."""


async def test_what_it_was_writing_when_it_had_to_end_is_no_checkpoint(
    lab: KubernetesLab, machines: Machines
) -> None:
    folder = lab.folder / "torn" / "checkpoints"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        path.chmod(0o777)  # ranks are another user
    whole, unfinished = folder / "step-5.opaque", folder / "step-9.opaque"
    whole.write_text("weights")
    an_hour_ago = time.time() - 3600.0
    os.utime(whole, (an_hour_ago, an_hour_ago))
    job = KubernetesRun(lab, id="torn")
    lab.command = ("/bin/sh", "-c", WRITES_ON.format(folder=job.checkpoints_path))
    training = await Training.launched(job, machines, folder)
    await until(unfinished.exists)
    await training.lose_node("kubelet-death")
    await training.place_elsewhere()
    written = unfinished.stat().st_mtime
    await until(lambda: time.time() - written > SETTLED_S)
    assert unfinished.stat().st_mtime == written, "its writer has ended"
    saved = [(one.step, one.good) for one in await job.backend.checkpoints(job.ref)]
    assert saved == [(9, False), (5, True)]
    await job.gone()
