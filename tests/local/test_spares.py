"""A pod that stands by, on this machine: its first start is a fork, and nothing of it is left."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.agents.client.link import NoAnswer
from everstep.protocol import wire
from tests.support.machine import final, undisturbed
from tests.support.patience import HUNG_S
from tests.support.rehearsal import Pod, Rehearsal, records, small

pytestmark = pytest.mark.long
JOB = "spared"
STEPS = 300


async def agent_state(pod: Pod) -> dict[str, Any]:
    """The state that its agent answers with."""
    return await pod.folder.request("GET", f"{wire.STATE}?since=-1&wait_s=0")


async def until_prewarmed(pod: Pod) -> None:
    async with asyncio.timeout(HUNG_S):
        while True:
            with suppress(NoAnswer):  # it begins
                if ((await agent_state(pod))["helper"] or {}).get("ready"):
                    return
            await asyncio.sleep(0.1)  # no process reports it; it is looked at again soon


async def test_a_lost_pod_is_replaced_by_one_that_stood_by_with_its_modules(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    async with Rehearsal(tmp_path / "r", nodes=4) as r:
        document = small(folder, JOB, steps=STEPS, spares=1, prewarm=["decimal"])
        job = await r.submit(document)
        await r.until(lambda: len(r.pods(JOB)) == 3, "a pod that stands by")
        spare = next(pod for pod in r.pods(JOB) if not pod.ranks())
        await until_prewarmed(spare)
        await r.until(lambda: r.step(generation=1) >= 12, "step 12")
        await r.fault(f"kill-agent {JOB} 1")
        await r.until(lambda: r.step(generation=2) >= 25, "step 25 after it")
        state = await agent_state(spare)
        run = state["run"]
        assert (run["generation"], run["prewarmed"], state["slot"]) == (2, True, 1)
        await r.until(lambda: len(r.pods(JOB)) == 3, "another one that stands by")
        report = await r.report(job)
        (record,) = records(report)
        assert (record["level"], record["recover_result"]) == ("pod", "success"), r.summary()
        assert record["spares"]["slots"] == [1]
        assert record["spares"]["saved_s"] > 0
        assert final(folder) == undisturbed(tmp_path / "alone", steps=STEPS)
        assert await r.is_clean(folder) == []
