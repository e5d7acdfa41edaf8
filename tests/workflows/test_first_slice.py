"""The thinnest path that really runs: a document in, three faults, a report and rows to read."""

from __future__ import annotations

from pathlib import Path

from tests.support.devserver import DevServer
from tests.support.rows import recoveries
from tests.support.stage import Stage, document

FAULTS = (
    "at 35s kill demo 2 exit 1",
    "at 80s node-down n2",
    "at 100s device n1 0 80E01801 heals",
)


async def test_a_job_hit_by_three_faults_completes_and_leaves_a_row_for_each(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path) as stage:
        for fault in FAULTS:
            await stage.admin.fault(fault)
        phases = [{"name": "warmup", "env": {"STEPS": "20"}}, {"name": "main"}]
        job = await stage.submit(document(phases=phases))
        report = await job.result()

        assert report["status"] == "Completed"
        warmup, main = report["phases"]
        assert warmup["restarts"] == []
        assert [(r["level"], r["recover_result"]) for r in main["restarts"]] == [
            ("in_place", "success"),
            ("pod", "success"),
            ("in_place", "success"),
        ]
        rows = await recoveries(stage.client, job)
        assert {*rows} == {
            "demo/main/recovery-1-in_place-crash-n2",
            "demo/main/recovery-2-pod-node-n2",
            "demo/main/recovery-3-in_place-device-n1",
        }
        memo = await (await stage.client.get_workflow_handle("demo").describe()).memo()
        assert memo["report"] == report
