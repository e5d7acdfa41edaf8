"""Many jobs, several workers, two clusters: each job goes its way as if it were alone.

Five kinds of trouble hit five jobs on each of two clusters at the same time. Every job has to leave
what a job of its kind leaves alone, up to the names of its nodes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from everstep.dialects import job_memo
from tests.support.devserver import DevServer
from tests.support.moments import StandingClock, isolated
from tests.support.rows import recoveries
from tests.support.scene import differences
from tests.support.stage import Handle, StageOfProcesses, document

pytestmark = pytest.mark.long

BEGINS_S = 34.0
NODES = 25  # five jobs of four pods, and five nodes to spare
CLUSTERS = ("local", "east")
SURELY_KEPT = 100
"""Of a text that was cut for its length: longer names of nodes leave less of it."""
Trace = dict[str, Any]

KINDS: Mapping[str, Sequence[str]] = {
    "crash": ("at 35s kill JOB 2 exit 1", "at 60s kill JOB 0 exit 1", "at 75s kill-agent JOB 3"),
    "device": ("at 35s device NODE1 0 80E01801 heals", "at 70s device NODE1 0 80E01801 heals"),
    "node": ("at 35s node-down NODE2", "at 60s node-down NODE0"),
    "preempt": ("at 35s preempt JOB", "at 80s bad-checkpoint JOB 40"),
    "hang": ("at 35s device NODE0 1 80E01801 critical", "at 60s hang JOB 1"),
}
"""`NODE2` is the node of slot 2; every kind has two incidents at least."""


def body(name: str, cluster: str) -> dict[str, Any]:
    budgets = {"hardware": {"limit": 9, "levels": ["in_place", "pod", "job"], "owners": ["infra"]}}
    return document(
        name,
        cluster=cluster,
        env={"STEPS": "90"},
        limits={"hang_s": 60},
        recovery={"budgets": budgets},
    )


async def together(stage: StageOfProcesses, jobs: Mapping[str, str]) -> list[Handle]:
    """All these jobs (name to kind) on this cluster, from its first day on, after their end."""
    await stage.admin.reset(nodes=NODES)
    clock = StandingClock(stage.fake)
    await clock.hold()
    before = (await stage.admin.calls())["ensure_generation"]
    handles = [await stage.submit(body(name, stage.cluster)) for name in jobs]
    while (await stage.admin.calls())["ensure_generation"] < before + len(jobs):
        await asyncio.sleep(0.01)
    await clock.pass_to(BEGINS_S)
    for job, kind in zip(handles, jobs.values(), strict=True):
        await break_things(stage, job, kind)
    await clock.let_go()
    await asyncio.gather(*(job.result() for job in handles))
    return handles


async def break_things(stage: StageOfProcesses, job: Handle, kind: str) -> None:
    homes = {pod["slot"]: pod["node"] for pod in (await job.query("status"))["pods"]}
    for fault in KINDS[kind]:
        line = re.sub(r"NODE(\d)", lambda match: homes[int(match[1])], fault)
        await stage.admin.fault(line.replace("JOB", job.id))


async def trace(stage: StageOfProcesses, job: Handle) -> Trace:
    """What the job left behind, with names that do not depend on who else was there."""
    memo = await (await job.describe()).memo()
    effects = [f"{e.at:g} {e.what}" for e in await stage.admin.effects()]
    left = {
        "report": memo["report"],
        "status": job_memo.read("status", memo["status"], memo["report"]),
        "effects": [line for line in effects if job.id in line],
        "recoveries": sorted(await recoveries(stage.client, job)),
    }
    trace: Trace = anonymous(left, {job.id: "JOB"})
    for listed in (*trace["report"]["phases"], trace["status"]):
        listed["isolated_nodes"].sort()  # by the names that were taken from them
    return trace


def anonymous(value: Any, names: dict[str, str]) -> Any:
    """The value with nodes named in the order of their first mention."""
    if isinstance(value, dict):
        return {k: anonymous(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [anonymous(item, names) for item in value]
    if not isinstance(value, str):
        return value
    (job,) = (name for name, alias in names.items() if alias == "JOB")
    nodes = re.compile(r"\bn\d+\b")
    renamed = nodes.sub(
        lambda match: names.setdefault(match[0], f"node-{len(names)}"), value.replace(job, "JOB")
    )
    return renamed[:SURELY_KEPT] if value.endswith("…") else renamed


@pytest.fixture
async def stages(
    server: DevServer, namespace: str, tmp_path: Path
) -> AsyncIterator[dict[str, StageOfProcesses]]:
    """Two clusters with a worker each; the first has a second one."""
    async with AsyncExitStack() as stack:
        stages = {
            cluster: await stack.enter_async_context(
                StageOfProcesses(server, namespace, tmp_path, nodes=NODES, cluster=cluster)
            )
            for cluster in CLUSTERS
        }
        await stack.enter_async_context(stages["local"].new_worker("second"))
        yield stages


async def test_ten_jobs_on_two_clusters_go_their_ways_as_if_alone(
    stages: dict[str, StageOfProcesses],
) -> None:
    alone = {}
    for kind in KINDS:
        (job,) = await together(stages["local"], {f"{kind}-alone": kind})
        alone[kind] = await trace(stages["local"], job)
    ended = await asyncio.gather(
        *(together(stage, {f"{k}-{c}": k for k in KINDS}) for c, stage in stages.items())
    )
    wrong = {
        job.id: differences(alone[kind], await trace(stage, job))
        for stage, jobs in zip(stages.values(), ended, strict=True)
        for kind, job in zip(KINDS, jobs, strict=True)
    }
    assert {name: what for name, what in wrong.items() if what} == {}
    restarts = {k: len(t["report"]["phases"][0]["restarts"]) for k, t in alone.items()}
    assert min(restarts.values()) >= 2, restarts


async def test_what_one_cluster_isolates_is_free_on_the_other(
    stages: dict[str, StageOfProcesses],
) -> None:
    local, east = stages.values()
    await asyncio.gather(
        together(local, {"node-local": "node"}), together(east, {"crash-east": "crash"})
    )
    assert {n["name"] for n in await isolated(local)} == {"n0", "n2"}
    assert await isolated(east) is None
    assert [n.name for n in await east.fake.nodes() if n.isolated] == []
