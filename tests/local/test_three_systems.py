"""Jobs of ModelArts, Cerebras and MindCluster beside each other on one machine, with real processes.

Only here one set of books and real agents give nodes to three documents at once, while the worker is killed
in the middle of three recoveries.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest

from everstep.core import names
from everstep.protocol import wire
from tests.support.rehearsal import Rehearsal
from tests.support.stage import Handle
from tests.workflows.test_three_systems import JOBS

NODES = 9
"""Two for each job, and one for each that it loses."""
POLL_S = 0.05


def document(kind: str, folder: Path) -> dict[str, Any]:
    """The job of this system with a script that lives until a file is there, and folders of its own."""
    command = f"while ! test -e {shlex.quote(str(folder / 'end'))}; do sleep 0.1; done"
    body = JOBS[kind](kind)
    folders = {
        "model_dir": str(folder / kind),
        "checkpoints": {"path": str(folder / kind / "ckpt")},
    }
    if kind == "arts":
        body["algorithm"]["command"] = command
        body["everstep"] = folders
    elif kind == "wafers":
        body["trainer"]["init"]["model_dir"] = folders["model_dir"]
        script = folder / "train.sh"
        # A trainer that fails before it saved anything is not started again.
        saved = shlex.quote(f"{folders['model_dir']}/checkpoint_20.mdl")
        save = f"echo '{{\"step\": 20}}' > {saved}.tmp && mv {saved}.tmp {saved}"
        script.write_text(f"{save}\n{command}\n")
        body["everstep"]["command"] = f"sh {shlex.quote(str(script))} {{params}}"
    else:
        for role in body["spec"]["replicaSpecs"].values():
            container = role["template"]["spec"]["containers"][0]
            container["command"] = ["/bin/sh", "-c", command]
        body["everstep"] = folders
    return body


async def homes(job: Handle, generation: int) -> list[str]:
    """The nodes of a job, by slot, once all its pods run in this generation or a later one."""
    while True:
        status = await job.query("status")
        pods = status["pods"]
        running = pods and all(pod["state"] == "running" for pod in pods)
        if running and status["state"] == "running" and status["generation"] >= generation:
            return [pod["node"] for pod in pods]
        await asyncio.sleep(POLL_S)  # no event tells it


async def has_saved(r: Rehearsal, job: str) -> bool:
    """Whether an agent of the job has noticed a complete checkpoint: the answer to a fault depends on it."""
    path = f"{wire.STATE}?since=-1&wait_s=0"
    states = [await pod.folder.request("GET", path) for pod in r.pods(job)]
    return any(state["run"]["checkpoint"] is not None for state in states)


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_each_recovers_by_its_own_rules_and_none_lands_where_another_left(
    tmp_path: Path,
) -> None:
    async with Rehearsal(tmp_path, nodes=NODES) as r:
        jobs = {kind: await r.submit(document(kind, tmp_path), job_id=kind) for kind in JOBS}
        before = {kind: await homes(job, 1) for kind, job in jobs.items()}
        assert len({node for nodes in before.values() for node in nodes}) == 6, before
        broken = {kind: nodes[1] for kind, nodes in before.items()}
        while not await has_saved(r, "wafers"):
            await asyncio.sleep(POLL_S)
        for node in broken.values():
            await r.fault(f"device {node} 3 80E18402 critical no-heals")
        await r.until(lambda: any(r.newest(kind) > 1 for kind in JOBS), "a recovery")
        r.worker.kill9()
        await r.worker.restart()
        after = {kind: await homes(job, 2) for kind, job in jobs.items()}
        quarantine = r.client.get_workflow_handle(names.quarantine_id("local"))
        rows = await quarantine.query("nodes")
        isolated = {row["name"]: row["by"] for row in rows if "/" not in row["name"]}
        assert isolated == {node: kind for kind, node in broken.items()}
        nodes_used = [node for nodes in after.values() for node in nodes]
        assert len({*nodes_used}) == 6, after
        assert not {*nodes_used} & {*broken.values()}
        (tmp_path / "end").touch()
        reports = {kind: await r.report(job) for kind, job in jobs.items()}
        for kind, report in reports.items():
            (phase,) = report["phases"]
            (restart,) = phase["restarts"]
            assert (report["status"], restart["recover_result"]) == ("Completed", "success"), kind
            assert (restart["level"], phase["isolated_nodes"]) == ("job", [broken[kind]])
        assert reports["arts"]["phases"][0]["restarts"][0]["bills"] == {"job": 1}
        assert reports["chips"]["phases"][0]["restarts"][0]["bills"] == {}
