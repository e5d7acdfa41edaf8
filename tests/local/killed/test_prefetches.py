"""A worker killed while a smaller number of nodes is tried beside the training, and a stop meanwhile.

Only here the whole way is real: SIGKILL, a server that gives the job's work to the next worker, and what
the job reports of the tries.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rehearsal import Rehearsal, small

PREFETCH_NOTE = "prefetch for 2 nodes: exit code 1"


def tries(folder: Path) -> list[str]:
    """Says for how many it began, ends once it may, and does not work for two; a child leaves its session."""
    waits = f"until test -e {folder}/go-$NNODES; do sleep 0.02; done"
    begun = f"echo $NNODES >> {folder}/begun"
    return ["/bin/sh", "-c", f'setsid sleep 1000 & {begun}; {waits}; test "$NNODES" != 2']


@pytest.mark.long
async def test_none_is_begun_twice_or_lost_and_a_stop_leaves_no_process(tmp_path: Path) -> None:
    def begun() -> list[str]:
        begun = tmp_path / "begun"
        return begun.read_text().split() if begun.exists() else []

    def logged() -> str:
        return "".join(log.read_text() for log in (tmp_path / "job").rglob("run.log"))

    async with Rehearsal(tmp_path / "r", nodes=3) as r:
        least = {"min": 1, "wanted": 3}
        job_file = small(
            tmp_path / "job", "demo", nodes=least, steps=100_000, prefetch=tries(tmp_path)
        )
        job = await r.submit(job_file)
        await r.until(lambda: begun() == ["2"], "the first try")
        r.worker.kill9()
        (tmp_path / "go-2").touch()
        await r.until(lambda: begun() == ["2", "1"], "the next one, with no worker there")
        await r.worker.start()
        await r.until(lambda: PREFETCH_NOTE in logged(), "a word of it")
        assert (await job.query("status"))["sizes"] == {"failed": [2], "prefetched": []}
        r.worker.kill9()
        await r.worker.start()
        await job.execute_update("stop", {"reason": "for this test"})
        assert (await r.report(job))["status"] == "Terminated"
        assert await r.is_clean() == []
        assert {*r.machine.processes()} <= {r.worker.pid}
        assert begun() == ["2", "1"]
        assert logged().count(PREFETCH_NOTE) == 1
