"""A script that saves on SIGTERM, behind a shell that ends with 143, goes on from that save.

Only a real shell passes the signal on, and only real files show what was whole when it ended.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.rehearsal import Rehearsal, gist

TRAIN = """
import os, signal, sys, time
out = sys.argv[1]
step = int(os.environ.get("EVERSTEP_RESUME_STEP", "0"))
print("began", step, flush=True)

def save():
    path = os.path.join(out, f"step_{step}.bin")
    with open(path + ".tmp", "wb") as file:
        file.write(b"weights" * 100_000)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)

def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the shell may pass it on once more
    save()
    print("saved", step, flush=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, end)
while not os.path.exists(os.path.join(out, "end")):
    step += 1
    print("step", step, "loss 0", flush=True)
    if step == 100:
        save()
    time.sleep(0.02)
"""
WRAPPER = "trap 'kill -TERM $!; wait $!; exit 143' TERM; {python} train.py out & wait $!"


LONG_AFTER = 300
"""By this step the save of step 100 is so old that it is whole by its time alone."""
RESUMED = 3
"""The generation after a pause, which has one of its own."""


def document(folder: Path) -> dict[str, Any]:
    (folder / "out").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "sigterm"},
        "spec": {
            "nodes": 1,
            "command": ["bash", "-c", WRAPPER.format(python=sys.executable)],
            "workdir": str(folder),
            "checkpoints": {"path": str(folder / "out")},
            "progress": {"log_pattern": r"^step (?P<step>\d+)"},
        },
    }


def printed(r: Rehearsal, generation: int, word: str) -> list[int]:
    """The steps that follow this word in the log of the only rank."""
    logs = r.logs(generation=generation, job="sigterm")
    texts = (log.read_text().rpartition("\n")[0] for log in logs)
    lines = [line.split() for text in texts for line in text.splitlines()]
    return [int(line[1]) for line in lines if line[:1] == [word]]


async def saved_by(r: Rehearsal, generation: int) -> int:
    """The step that the ranks of this generation saved on SIGTERM."""
    await r.until(lambda: printed(r, generation, "saved"), "the save on SIGTERM")
    (saved,) = printed(r, generation, "saved")
    return saved


@pytest.mark.long
async def test_a_job_goes_on_from_what_its_script_saved_on_sigterm(tmp_path: Path) -> None:
    """After a pause in the same pod, then submitted again in another one."""
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=1) as r:
        file = tmp_path / "sigterm.yaml"
        file.write_text(yaml.safe_dump(document(folder)))
        job = await r.submit(file)
        await r.until(lambda: r.step(generation=1, job="sigterm") > LONG_AFTER, "many steps")
        await job.execute_update("pause", {"reason": "for this test"})
        first = await saved_by(r, 1)
        await job.execute_update("resume", {})
        await r.until(lambda: r.newest("sigterm") == RESUMED, "the generation after the pause")
        await r.until(
            lambda: r.step(generation=RESUMED, job="sigterm") > 2 * LONG_AFTER, "more steps"
        )
        assert printed(r, RESUMED, "began") == [first]
        await job.execute_update("stop", {"reason": "for this test"})
        assert (await r.report(job))["status"] == "Terminated"
        second = await saved_by(r, RESUMED)
        (folder / "out" / "end").touch()
        again = await asyncio.to_thread(r.machine.everstep, "submit", "--again", str(file))
        assert again.returncode == 0, again.stdout + again.stderr
        report = await r.report(r.client.get_workflow_handle("sigterm"))
        assert (report["status"], gist(report)) == ("Completed", [])
        assert printed(r, r.newest("sigterm"), "began") == [second]
