"""A job that failed or was stopped goes on: with `submit --again`, from a phase, with `run`.

Only real ranks leave checkpoints to go on from.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, small

FAILS: dict[str, Any] = {
    "rules": [{"match": {"exit_code": [3]}, "action": "fail", "why": "for this test"}]
}
CRASHES: dict[str, Any] = {"env": {"CRASH_AT_STEP": "1:24:3"}, "recovery": FAILS}
PHASES = [
    {"name": "warmup", "env": {"STEPS": "20", "LR": "0.005"}},
    {"name": "main", "env": {"STEPS": "40", "LR": "0.02"}},
]


def written(path: Path, document: object) -> str:
    path.write_text(yaml.safe_dump(document))
    return str(path)


def first_step(r: Rehearsal, job: str, generation: int) -> int:
    """Where the ranks of this generation began."""
    firsts = [path.read_text().split()[1] for path in r.logs(generation=generation, job=job)]
    (first,) = set(firsts)
    return int(first)


async def run_command(r: Rehearsal, *words: str) -> tuple[int, str]:
    """An `everstep` command, while everything else goes on."""
    ended = await asyncio.to_thread(r.machine.everstep, *words)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.long
async def test_a_failed_job_goes_on_from_its_last_checkpoint_when_it_is_submitted_again(
    tmp_path: Path,
) -> None:
    expected = undisturbed(tmp_path / "alone")
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        document = small(tmp_path / "job", "again", **CRASHES)
        file = written(tmp_path / "job" / "again.yaml", document)
        job = await r.submit(document)
        assert (await r.report(job))["status"] == "Failed"
        assert await r.is_clean() == []
        code, output = await run_command(r, "submit", file)
        assert (code, "--again" in output) == (2, True)
        code, output = await run_command(r, "submit", "--again", file)
        assert code == 0, output
        report = await r.report(r.client.get_workflow_handle("again"))
        assert (report["status"], gist(report)) == ("Completed", [])
        assert first_step(r, "again", generation=2) == 21
        assert final(tmp_path / "job") == expected
        assert await r.is_clean(tmp_path / "job") == []


@pytest.mark.long
async def test_a_failed_job_goes_on_from_the_phase_that_is_named(tmp_path: Path) -> None:
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        in_peace = small(tmp_path / "peace", "peace", phases=PHASES)
        document = small(tmp_path / "job", "phased", phases=PHASES, **CRASHES)
        for each in (in_peace, document):
            each["spec"]["env"] = {
                name: value
                for name, value in each["spec"]["env"].items()
                if name not in ("STEPS", "LR")
            }
        peace, job = await r.submit(in_peace), await r.submit(document)
        assert (await r.report(peace))["status"] == "Completed"
        failed = await r.report(job)
        assert failed["status"] == "Failed"
        file = written(tmp_path / "job" / "phased.yaml", document)
        code, output = await run_command(r, "submit", "--from-phase", "main", file)
        assert code == 0, output
        report = await r.report(r.client.get_workflow_handle("phased"))
        assert report["status"] == "Completed"
        assert [phase["name"] for phase in report["phases"]] == ["main"]
        assert first_step(r, "phased", generation=3) == 21
        assert final(tmp_path / "job") == final(tmp_path / "peace")
        assert await r.is_clean(tmp_path / "job", tmp_path / "peace") == []


@pytest.mark.long
async def test_run_goes_on_with_a_job_that_was_stopped(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone")
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        document = small(tmp_path / "job", "stopped")
        file = written(tmp_path / "job" / "stopped.yaml", document)
        job = await r.submit(document)
        await r.until(lambda: r.step(generation=1) >= 24, "step 24")
        await job.execute_update("stop", {"reason": "for this test"})
        assert (await r.report(job))["status"] == "Terminated"
        assert await r.is_clean() == []
        code, output = await run_command(r, "run", file)
        assert code == 0, output
        assert first_step(r, "stopped", generation=2) > 20
        assert final(tmp_path / "job") == expected
        assert await r.is_clean(tmp_path / "job") == []
