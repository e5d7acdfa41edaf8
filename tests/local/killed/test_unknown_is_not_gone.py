"""A worker that cannot look concludes nothing: whatever it lacks, jobs that are well go on.

Only a real worker can lack descriptors or its directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, small
from tests.support.starving import away, stopped, without_descriptors

STEPS, STEP_S = 240, 0.1
SHORT = {"hang_s": 5, "unreachable_s": 5}
ROWS: dict[str, tuple[float, Callable[[Rehearsal], AbstractContextManager[object]]]] = {
    "no descriptors": (5.0, lambda r: without_descriptors(r.worker.pid)),
    "no state directory": (1.5, lambda r: away(r.home)),
    "its worker and agents stopped": (12.0, lambda r: stopped(r.worker.pid, *r.agents())),
    "its worker stopped": (12.0, lambda r: stopped(r.worker.pid)),
    "its agents stopped": (4.0, lambda r: stopped(*r.agents())),
}


@pytest.mark.long
@pytest.mark.parametrize(("lasts_s", "take_away"), ROWS.values(), ids=ROWS)
async def test_a_worker_that_cannot_look_takes_no_pod_for_gone(
    tmp_path: Path, lasts_s: float, take_away: Callable[[Rehearsal], AbstractContextManager[object]]
) -> None:
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(
            small(tmp_path / "job", "healthy", steps=STEPS, step_s=STEP_S, limits=SHORT)
        )
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        uids = [pod.uid for pod in r.pods("healthy")]
        with take_away(r):
            await asyncio.sleep(lasts_s)  # the claim itself is about so much time
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", []), r.summary()
        assert r.newest("healthy") == 1
        assert {path.parent.parent.name for path in r.logs(generation=1)} == set(uids)
        assert final(tmp_path / "job") == expected
        assert await r.is_clean(tmp_path / "job") == []
