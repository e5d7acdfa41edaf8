"""Jobs of ModelArts, Cerebras and MindCluster beside each other: they share nodes and isolations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from everstep.core import names
from tests.support.moments import isolated
from tests.support.scene import Scene
from tests.support.stage import Handle
from tests.workflows.test_counted_faults import manifest

SCRIPT = {"STEPS": "200", "STEP_S": "1", "CHECKPOINT_EVERY": "20"}
NODES = 10


def model_arts(name: str) -> dict[str, Any]:
    return {
        "kind": "job",
        "metadata": {"name": name, "annotations": {"fault-tolerance/job-retry-num": "3"}},
        "algorithm": {"command": "train", "environments": SCRIPT},
        "spec": {"resource": {"node_count": 2}},
        "everstep": {"checkpoints": {"path": f"out/{name}/ckpt"}},
    }


def cerebras(name: str) -> dict[str, Any]:
    init = {
        "model_dir": f"out/{name}",
        "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 2}},
        "loop": {"max_steps": 200},
        "checkpoint": {"steps": 20},
        "autorestart": {"max_num_restarts": 3, "min_num_csx": 2},
    }
    spec = {"command": "train {params}", "env": SCRIPT, "accelerator": "simulated"}
    return {"trainer": {"init": init, "fit": {}}, "everstep": {**spec, "accelerators_per_node": 8}}


def mind_cluster(name: str) -> dict[str, Any]:
    job = manifest(name)
    for role in job["spec"]["replicaSpecs"].values():
        container = role["template"]["spec"]["containers"][0]
        container["env"] = [{"name": key, "value": value} for key, value in SCRIPT.items()]
    return job


JOBS = {"arts": model_arts, "wafers": cerebras, "chips": mind_cluster}
BUDGETS: Mapping[str, dict[str, int]] = {"arts": {"job": 1}, "chips": {}}


@pytest.fixture
async def cluster(shared: Scene) -> AsyncIterator[Scene]:
    """A new one, whose nodes are released in the end."""
    await shared.new_cluster(nodes=NODES)
    yield shared
    quarantine = shared.stage.client.get_workflow_handle(names.quarantine_id("local"))
    for row in await isolated(shared.stage):
        await quarantine.execute_update("release", {"node": row["name"]})


@pytest.mark.long
@pytest.mark.parametrize("what", ["device NODE 3 80E18402 critical", "node-down NODE"])
async def test_each_recovers_by_its_own_rules_and_none_lands_where_another_left(
    cluster: Scene, what: str
) -> None:
    """Each loses a node, and each takes a new one; three nodes are isolated for all of them.

    Only this one has jobs of three systems beside each other; tests/cases plays the rules of each. The device
    finds a system that isolates less for a device than for its node.
    """
    suffix = what.partition("-")[0].partition(" ")[0]
    ids = {kind: f"{kind}-{suffix}" for kind in JOBS}

    async def submit_all() -> dict[str, Handle]:
        return {kind: await submitted(cluster, kind, name) for kind, name in ids.items()}

    jobs = await cluster.clock.hold_with(cluster.admin, submit_all(), jobs=len(ids))
    await cluster.clock.pass_to(60.0)
    homes = {kind: await places(job) for kind, job in jobs.items()}
    assert len({node for nodes in homes.values() for node in nodes}) == 6, homes
    broken = {kind: nodes[1] for kind, nodes in homes.items()}
    for number, node in enumerate(broken.values()):
        await cluster.admin.fault(f"at {70 + 5 * number}s {what.replace('NODE', node)}")
    await cluster.clock.let_go()
    ends = await asyncio.gather(*(job.result() for job in jobs.values()))
    reports = dict(zip(jobs, ends, strict=True))

    by = {row["name"]: row["by"] for row in await isolated(cluster.stage)}
    assert by == {node: ids[kind] for kind, node in broken.items()}
    nodes_used = {}
    for kind, report in reports.items():
        (phase,) = report["phases"]
        (restart,) = phase["restarts"]
        assert (report["status"], restart["recover_result"]) == ("Completed", "success"), kind
        assert (restart["level"], restart["isolated"]) == ("job", True)
        assert phase["isolated_nodes"] == [broken[kind]]
        assert restart["bills"] == BUDGETS.get(kind, restart["bills"])
        nodes_used[kind] = set(restart["nodes"]["after"].values())
    assert not {*broken.values()} & set().union(*nodes_used.values())


async def submitted(scene: Scene, kind: str, name: str) -> Handle:
    return await scene.stage.submit(JOBS[kind](name), job_id=name)


async def places(job: Handle) -> list[str]:
    """The nodes of the job, by slot, once all its pods run."""
    while True:
        pods = (await job.query("status"))["pods"]
        if pods and all(pod["state"] == "running" for pod in pods):
            return [pod["node"] for pod in pods]
        await asyncio.sleep(0.02)
