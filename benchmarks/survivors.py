"""What a fault costs ranks that outlive it, with real PyTorch: `make torch` first.

Two ranks with 100 MB of state in all. One is killed, or its connections are cut; the time runs from that
moment until both have made a step again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

import benchmarks.support  # noqa: F401  # SIGTERM ends this as Ctrl-C does
from benchmarks.local_restart import show_line
from tests.support.machine import EXAMPLES, ROOT
from tests.support.rehearsal import Rehearsal
from tests.torch.ranks import PYTHON

JOB = "survivors"
TIMES, EVERY = 8, 20
WITHIN_S = 300.0
WIDTH = 114_000
"""Of the layers: 8.3 million parameters, and twice as many moments of the optimizer."""


def document(folder: Path, what: str) -> dict[str, Any]:
    """The example with this fault at every twentieth step."""
    (folder / "out").mkdir(parents=True)
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / JOB / "job.yaml").read_text())
    faults = ",".join(f"{what}:1:{n * EVERY}" for n in range(1, TIMES + 1))
    job["spec"] |= {
        "command": [str(PYTHON), str(ROOT / "tests" / "torch" / "faulty.py")],
        "workdir": str(folder),
        "processes_per_node": 2,
        "model_dir": str(folder / "out"),
        "checkpoints": {"path": str(folder / "out")},
        "prewarm": "auto",
        "env": {
            "EXAMPLE": str(EXAMPLES / JOB / "train.py"),
            "OUT": str(folder / "out"),
            "FAULTS": faults,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "STEPS": str((TIMES + 1) * EVERY),
            "SAVE_EVERY": "100000",
            "STEP_S": "0.3",
            "WIDTH": str(WIDTH),
        },
    }
    return job


async def measure(what: str, level: str) -> None:
    home = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    try:
        async with Rehearsal(home / "r", nodes=1) as stage:
            job = await stage.submit(document(home / "job", what))

            records: list[dict[str, Any]] = []
            deadline = time.monotonic() + WITHIN_S
            while len(records) < TIMES or records[-1]["stages_s"]["first_step"] is None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
                records = await job.query("restarts")
            await job.terminate()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert {record["level"] for record in records} == {level}, records
    stages = [{k: v or 0.0 for k, v in record["stages_s"].items()} for record in records]
    print(f"{what}, {len(records)} times, s{'median':>12}{'min':>10}{'max':>10}")
    show_line("until all run again", [sum(s.values()) - s["first_step"] for s in stages])
    show_line("and a step is made", [sum(s.values()) for s in stages])


async def main() -> None:
    print(time.strftime("%Y-%m-%d"), f"load {os.getloadavg()[0]:.1f}")
    await measure("forward", "process")
    await measure("cut", "operator_online")


if __name__ == "__main__":
    asyncio.run(main())
