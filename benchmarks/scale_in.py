"""A node of four is lost and there is no spare: how long until three train.

Ranks of the synthetic example, real server, worker, agents and processes of this machine. The time is from
the loss itself to the first step that three ranks printed. What goes beyond `spare_s` is ours, and what the
script takes to start.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from everstep.core import names
from tests.support.rehearsal import Rehearsal, small

JOB = "bench"
TIMES = 7
SPARE_S = 2.0
GOAL_S = SPARE_S + 1.0
LOST = "n2"


async def measured() -> list[float]:
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    document = small(
        folder / "job",
        JOB,
        nodes={"min": 2, "wanted": 4},
        steps=100_000,
        step_s=0.05,
        limits={"spare_s": SPARE_S},
        recovery={"no_progress_restarts": None},
    )
    try:
        async with Rehearsal(folder, nodes=4) as stage:
            job = await stage.submit(document)
            found = [await lost_and_back(stage, four=1 + 3 * n) for n in range(TIMES)]
            await job.terminate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


async def lost_and_back(stage: Rehearsal, *, four: int) -> float:
    """From the loss to the first step of three, two generations later; then there are four again."""
    before = stage.step(generation=four)
    await stage.until(lambda: stage.step(generation=four) >= before + 25, "training on four")
    began = time.monotonic()
    await stage.fault(f"node-down {LOST}")
    await stage.until(lambda: stage.step(generation=four + 2) > 0, "a step of three")
    took = time.monotonic() - began
    await stage.fault(f"node-up {LOST}")
    quarantine = stage.client.get_workflow_handle(names.quarantine_id("local"))
    await quarantine.execute_update("release", {"node": LOST})
    await stage.until(lambda: stage.step(generation=four + 3) > 0, "a step of four")
    return took


def main() -> None:
    took = asyncio.run(measured())
    median = statistics.median(took)
    print(f"\nloss of one of four nodes, spare_s: {SPARE_S:g}, {len(took)} times, s")
    print(f"{'':28}{'median':>10}{'min':>10}{'max':>10}")
    print(f"  {'first step on three':26}{median:10.3f}{min(took):10.3f}{max(took):10.3f}")
    beyond = [s - SPARE_S for s in took]
    print(
        f"  {'beyond spare_s':26}{statistics.median(beyond):10.3f}{min(beyond):10.3f}{max(beyond):10.3f}"
    )
    print(f"  goal: at most {GOAL_S:g} s, {'met' if median <= GOAL_S else 'missed'}")


if __name__ == "__main__":
    main()
