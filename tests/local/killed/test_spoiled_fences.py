"""One job's folder under attack for a minute, another job beside it.

Only here everything comes together: a real server, workers of two state directories, a second job that
wants the attacked folder under another name, fences spoiled while agents restart and wardens read them.
The attacked job ends with the weights of an undisturbed one, the job beside it loses no step.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from everstep.agent.storage import fence
from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Handle, Rehearsal, small

SEED = int(os.environ.get("FENCE_SEED", "0")) or 20_261
"""Another course: FENCE_SEED=7 make test-long ARGS=tests/local/killed/test_spoiled_fences.py"""

STEPS, ATTACKED_UNTIL = 400, 300
PROGRESS = 20
"""Steps between two attacks: a job that makes none is restarted seldomer and seldomer."""

SPOILS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: _sparse(path, 700 * 1024**2),
    "infinity": lambda path: path.write_text('{"generation": Infinity}'),
    "deep": lambda path: path.write_text("[" * 4000),
    "large": lambda path: path.write_text(f'{{"generation": {2**53}}}'),
}


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@contextmanager
def _spoiled(path: Path, how: str) -> Iterator[None]:
    """Something else is in the place of this file."""
    aside = path.with_name("aside")
    path.rename(aside)
    SPOILS[how](path)
    try:
        yield
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        aside.rename(path)


class Attacks:
    """What may happen to the folder of a job; each leaves it as the job can go on with."""

    def __init__(self, r: Rehearsal, there: Rehearsal, job: Handle, folder: Path) -> None:
        self.r, self.there, self.job = r, there, job
        self.folder = folder / "out"
        self.also = folder / "also"
        self.also.symlink_to(self.folder)
        self.intruders = 0

    @property
    def generation(self) -> int:
        return self.r.newest(self.job.id)

    async def crash(self, chance: random.Random) -> None:
        """A rank ends, so that the next generation comes."""
        ranks = [pid for pod in self.r.pods(self.job.id) for pid in pod.ranks()]
        if ranks:
            os.kill(chance.choice(ranks), signal.SIGKILL)

    async def goes_on(self, before: int) -> None:
        """The next generation, and no other one; it trains."""
        at = self.r.step(generation=before, job=self.job.id)
        await self.r.until(lambda: self._step() >= at + PROGRESS, f"{PROGRESS} steps more")
        assert self.generation == before + 1

    def _step(self) -> int:
        return self.r.step(generation=self.generation, job=self.job.id)

    async def spoiled(self, chance: random.Random) -> None:
        """Where a restart needs it; the job says so, and waits until it is mended."""
        before = self.generation
        files = sorted((self.folder / ".everstep").glob("generation*"))
        with _spoiled(chance.choice(files), chance.choice(sorted(SPOILS))):
            await self.crash(chance)
            await self._require("its fence is damaged")
        await self.goes_on(before)

    async def _require(self, words: str) -> None:
        async with asyncio.timeout(60):
            while words not in str((await self.job.query("status"))["waiting_for"]):
                await asyncio.sleep(0.1)  # a query is asked, it does not call

    async def removed(self, chance: random.Random) -> None:
        """A user who tidied up removed the fence; a restart writes it again."""
        before = self.generation
        shutil.rmtree(self.folder / ".everstep")
        await self.crash(chance)
        await self.goes_on(before)

    async def stray(self, chance: random.Random) -> None:
        """Half a claim of a writer that was stopped."""
        stray = fence.Fence("demo", "r", f"{chance.random()}", chance.randrange(1, 2**53))
        with fence._opened(str(self.folder)) as handle:
            fence._enter(handle, stray)
        before = self.generation
        await self.crash(chance)
        await self.goes_on(before)
        (self.folder / ".everstep" / stray.name).unlink()

    async def shared(self, chance: random.Random) -> None:
        """A job of this or of another state directory wants the folder, by its name or another one."""
        self.intruders += 1
        where = chance.choice([self.r, self.there])
        folder = str(chance.choice([self.folder, self.also]))
        name = chance.choice(["attacked", f"intruder-{self.intruders}"])
        name = name if where is self.there else f"intruder-{self.intruders}"
        body = small(where.folder / f"{name}-{self.intruders}", name, nodes=1, model_dir=folder)
        intruder = await where.submit(body, job_id=f"{name}-{self.intruders}")
        with pytest.raises(WorkflowFailureError) as refused:
            await intruder.result()
        assert "which has not ended, writes to" in str(refused.value.cause)

    async def mute(self, chance: random.Random) -> None:
        """A warden is stopped; whatever comes meanwhile, its agent is there."""
        before = self.generation
        for pid in self.r.agents():
            if b"\0warden\0" in Path(f"/proc/{pid}/cmdline").read_bytes() and chance.random() < 0.3:
                os.kill(pid, signal.SIGSTOP)
        await self.crash(chance)
        await self.goes_on(before)


def steps_of(r: Rehearsal, job: str) -> dict[Path, list[int]]:
    """What each rank of the job printed, over all generations."""
    return {
        log: [int(n) for n in re.findall(r"^step (\d+) loss", log.read_text(), re.MULTILINE)]
        for log in r.home.glob(f"agents/{job}*/logs/g*-r*.log")
    }


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_spoiled_and_shared_fences_cost_no_weight_and_no_step(tmp_path: Path) -> None:
    sys.stdout.write(f"\nseed {SEED}\n")
    chance = random.Random(SEED)
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    for_ever = {"no_progress_restarts": None}
    attacked: dict[str, Any] = small(tmp_path / "job", "attacked", steps=STEPS, recovery=for_ever)
    second_job = small(tmp_path / "beside", "beside", steps=STEPS)
    async with (
        Rehearsal(tmp_path / "r", nodes=4) as r,
        Rehearsal(tmp_path / "there", nodes=4) as there,
    ):
        peace, job = await r.submit(second_job), await r.submit(attacked)
        await r.until(lambda: r.step(generation=1, job="attacked") >= 2, "step 2")
        attacks = Attacks(r, there, job, tmp_path / "job")
        ways = [attacks.spoiled, attacks.removed, attacks.stray, attacks.shared, attacks.mute]
        made: list[str] = []
        while attacks._step() < ATTACKED_UNTIL:
            if not made or not len(made) % len(ways):
                chance.shuffle(ways)  # each once before any comes twice
            way = ways[len(made) % len(ways)]
            made.append(way.__name__)
            sys.stdout.write(f"{way.__name__} at {attacks._step()} of {attacks.generation}\n")
            await way(chance)
        assert len(made) >= len(ways)
        reports = await r.report(job), await r.report(peace)
        assert [report["status"] for report in reports] == ["Completed", "Completed"]
        assert final(tmp_path / "job") == expected
        assert final(tmp_path / "beside") == expected
        whole = list(range(1, STEPS + 1))
        assert [*steps_of(r, "beside").values()] == [whole, whole]
        assert await r.is_clean(tmp_path / "job", tmp_path / "beside") == []
        assert await there.is_clean() == []
