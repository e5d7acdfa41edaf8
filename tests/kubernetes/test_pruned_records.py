"""`everstep prune --cluster`: the record of a job goes once nothing of the job can be left, no sooner.

So does the agent of an earlier version once no pod has it mounted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from everstep.backends.kubernetes import pruning
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.tools import WorkflowEnd, WorkflowEndOf
from everstep.core.world import Leftover
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun, ranks_of
from tests.kubernetes.objects import until
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.wire import Wire

SOON = 60.0
"""Before this time from now everything here was written."""


async def long_ago(_job: Leftover) -> WorkflowEnd:
    return WorkflowEnd(at=1_700_000_000.0)


async def forgotten(_job: Leftover) -> WorkflowEnd:
    return WorkflowEnd()


@pytest.fixture
async def operator(cluster: ClusterAccess) -> AsyncIterator[KubernetesApi]:
    async with await KubernetesApi.from_kubeconfig(cluster.kubeconfig) as api:
        yield api


class Pruner:
    """An operator with a kubeconfig."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    async def __call__(
        self,
        job: str,
        *,
        end_of: WorkflowEndOf = long_ago,
        before_s: float = SOON,
        is_dry_run: bool = False,
    ) -> str | None:
        """Why the record of this job stays. None: it is gone, or would be."""
        records = await pruning.prune(
            self._api,
            [self._namespace],
            end_of,
            before=time.time() + before_s,
            is_dry_run=is_dry_run,
        )
        (record,) = [one for one in records if one.job == job]
        return record.reason

    async def jobs(self) -> list[str]:
        maps = f"/api/v1/namespaces/{self._namespace}/configmaps"
        items = (await self._api.get(maps))["items"]
        return [
            one["metadata"]["annotations"]["everstep.dev/job"] for one in items if is_record(one)
        ]


def is_record(config_map: dict[str, dict[str, str]]) -> bool:
    return config_map["metadata"]["name"].startswith("everstep-job-")


@pytest.fixture
def prune(operator: KubernetesApi, namespace: str) -> Pruner:
    return Pruner(operator, namespace)


async def ended(job: KubernetesRun) -> None:
    await job.launch()
    await job.step(1)
    await job.gone()


async def test_the_record_of_an_ended_job_goes_and_is_only_named_in_a_rehearsal(
    lab: KubernetesLab, prune: Pruner
) -> None:
    job = KubernetesRun(lab, id="over", env=NEVER_ENDS)
    await job.launch()
    await job.step(1)
    assert await prune("over") == "a pod of the job is there"
    await job.gone()
    assert await prune("over", before_s=-600.0) == pruning.LATELY
    assert await prune("over", end_of=forgotten, before_s=-600.0) == pruning.LATELY
    assert await prune("over", is_dry_run=True) is None
    assert "over" in await prune.jobs()
    assert await prune("over", end_of=forgotten) is None
    assert "over" not in await prune.jobs()


async def test_a_record_stays_where_it_is_unknown_whether_the_job_has_ended(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str, prune: Pruner
) -> None:
    async def not_known(_job: Leftover) -> WorkflowEnd:
        return WorkflowEnd(doubt="its workflow is one of another server")

    silent = KubernetesRun(lab, id="silent", env=NEVER_ENDS)
    await silent.launch()
    await silent.step(1)
    node = (await silent.pod(1)).node
    await machines.fault("kubelet-death", node=node)
    path = f"/api/v1/namespaces/{namespace}/pods/silent-1-g1"
    await api.delete(path, gracePeriodSeconds=0)
    await silent.see(lambda news: [pod.slot for pod in news.pods] == [0])
    await silent.gone()
    assert ranks_of("silent", slot=1, generation=1)
    assert await prune("silent", end_of=not_known) == "a pod of the job may still run"
    spoiled = KubernetesRun(lab, id="spoiled")
    for job in (spoiled, KubernetesRun(lab, id="known")):
        await job.new_generation("launch")
        await job.gone()
    assert await prune("known", end_of=not_known) == "its workflow is one of another server"
    maps = f"/api/v1/namespaces/{namespace}/configmaps/everstep-job-spoiled"
    await api.patch(maps, {"data": {"job.json": "{"}})
    assert await prune("spoiled", end_of=not_known) == "it is not as Everstep wrote it"
    assert {"silent", "known", "spoiled"} <= {*await prune.jobs()}


async def test_a_job_that_begins_again_meanwhile_loses_nothing(
    lab: KubernetesLab, prune: Pruner
) -> None:
    await ended(KubernetesRun(lab, id="again", env=NEVER_ENDS))
    later = KubernetesRun(lab, id="again", run="later", env=NEVER_ENDS)

    async def begins(job: Leftover) -> WorkflowEnd:
        if job.job.id == "again":
            await later.new_generation("launch")
        return await long_ago(job)

    assert await prune("again", end_of=begins) == pruning.CHANGED
    assert later.generation == 2
    await later.gone()


@pytest.mark.parametrize("generations", [1, 3])
async def test_a_later_job_of_this_id_is_above_all_that_its_folders_ever_saw(
    lab: KubernetesLab, prune: Pruner, generations: int
) -> None:
    """Its generations begin again, and an old process may be asleep still: the fence on the volume counts."""
    first = KubernetesRun(lab, id="reborn", env=NEVER_ENDS)
    await first.launch()
    await first.step(1)
    for number in range(1, generations):
        await first.new_generation(f"restart {number}")
        await first.place(recreate=first.slots)
        await first.fence()
    await first.gone()
    assert await prune("reborn") is None

    later = KubernetesRun(lab, id="reborn", run="later", env=NEVER_ENDS)
    await later.new_generation("launch")
    assert later.generation == 1
    await later.place(recreate=later.slots)
    state = await lab.backend.ensure_fenced(later.fence_order())
    assert state.newer == generations
    await later.new_generation("above that of the folder")
    assert later.generation == generations + 1
    await later.place(recreate=later.slots)
    await later.fence()
    fence = json.loads((lab.folder / "reborn" / ".everstep" / "generation").read_text())
    assert (fence["run"], fence["generation"]) == ("later", generations + 1)
    await later.gone()


# -- Agents of earlier versions ---------------------------------------------------------------------


@dataclass
class AgentFiles:
    """The ConfigMaps with agents in a namespace: that of the worker, and one of an earlier version."""

    api: KubernetesApi
    namespace: str
    earlier: str = "everstep-agent-0123456789ab"

    @property
    def maps(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    async def add_earlier(self) -> None:
        metadata = {"name": self.earlier, "labels": {"app.kubernetes.io/managed-by": "everstep"}}
        body = {"metadata": metadata, "immutable": True, "binaryData": {"agent.pyz": "UEs="}}
        await self.api.create(self.maps, body)

    async def names(self) -> set[str]:
        items = (await self.api.get(self.maps))["items"]
        return {m["metadata"]["name"] for m in items if m.get("binaryData")}

    async def prune(
        self, api: KubernetesApi | None = None, *, before_s: float = SOON, rehearses: bool = False
    ) -> list[str]:
        before = time.time() + before_s
        return await pruning.prune_agents(
            api or self.api, [self.namespace], before=before, is_dry_run=rehearses
        )

    async def create_pod(self) -> None:
        """A pod of the earlier version, which no node takes."""
        volume = {"name": "agent", "configMap": {"name": self.earlier}}
        spec = {
            "nodeSelector": {"none": "such"},
            "containers": [{"name": "train", "image": "machine"}],
            "volumes": [volume],
        }
        labels = {"app.kubernetes.io/managed-by": "everstep"}
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        await self.api.create(pods, {"metadata": {"name": "old", "labels": labels}, "spec": spec})

    async def delete_pod(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/old"
        await self.api.delete(path, {"gracePeriodSeconds": 0})


@pytest.fixture
def agent_files(operator: KubernetesApi, namespace: str) -> AgentFiles:
    return AgentFiles(operator, namespace)


async def test_an_agent_that_no_pod_has_mounted_goes_and_a_worker_makes_its_own_again(
    lab: KubernetesLab, agent_files: AgentFiles
) -> None:
    [newest] = await agent_files.names()
    job = KubernetesRun(lab, id="mounts", env=NEVER_ENDS)
    await job.launch()
    await agent_files.add_earlier()
    assert await agent_files.prune(before_s=-600.0) == []
    assert await agent_files.prune(rehearses=True) == [agent_files.earlier]
    assert await agent_files.names() == {newest, agent_files.earlier}
    await agent_files.create_pod()
    assert await agent_files.prune() == []
    await agent_files.delete_pod()
    assert await agent_files.prune() == [agent_files.earlier]
    assert await agent_files.names() == {newest}
    await job.gone()
    assert await agent_files.prune() == [newest]
    later = KubernetesRun(lab, id="later", env=NEVER_ENDS)
    await later.launch()
    await later.step(1)
    assert await agent_files.names() == {newest}
    await later.gone()


async def test_an_agent_that_a_worker_mounts_at_the_moment_of_its_removal_is_there_again(
    lab: KubernetesLab, agent_files: AgentFiles, cluster: ClusterAccess
) -> None:
    """The worker of the earlier version made its pod after the command had looked for one."""
    await agent_files.add_earlier()

    class Late(KubernetesApi):
        async def delete(self, path: str, options: Any = None) -> None:
            if path.endswith(agent_files.earlier):
                await agent_files.create_pod()
            await super().delete(path, options)

    try:
        async with await Late.from_kubeconfig(cluster.kubeconfig) as late:
            assert agent_files.earlier not in await agent_files.prune(late)
        assert agent_files.earlier in await agent_files.names()
    finally:
        await agent_files.delete_pod()
    assert agent_files.earlier in await agent_files.prune()


# -- Several at once, and one that is killed --------------------------------------------------------

MANY = 12


class PrunerProcess:
    """An operator's command as a process of its own."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._words = [sys.executable, "-m", "tests.kubernetes.pruner", kubeconfig, namespace]

    async def start(self, **env: str) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._words, env={**os.environ, **env}, cwd=ROOT, stdin=PIPE, stdout=PIPE
        )
        return self

    async def next_line(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(HUNG_S):
            return (await self._process.stdout.readline()).decode().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def reasons(self) -> dict[str, str | None]:
        """At its end why the record of each job stays."""
        async with asyncio.timeout(HUNG_S):
            output, _ = await self._process.communicate()
        assert self._process.returncode == 0
        reasons: dict[str, str | None] = json.loads(output.splitlines()[-1])
        return reasons

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@dataclass
class Jobs:
    """Jobs that ended long ago, and one that trains."""

    over: list[str]
    stay: dict[str, str]  # with the reason

    @classmethod
    async def made(cls, lab: KubernetesLab) -> Self:
        over = [KubernetesRun(lab, id=f"over-{number}") for number in range(MANY)]
        for job in over:
            await job.new_generation("launch")
            await job.gone()
        trains = KubernetesRun(lab, id="a-trains", env=NEVER_ENDS)
        await trains.launch()
        return cls([job.id for job in over], {"a-trains": "a pod of the job is there"})


async def test_two_prunes_at_once_remove_each_record_and_nothing_else(
    lab: KubernetesLab, prune: Pruner, cluster: ClusterAccess, namespace: str
) -> None:
    jobs = await Jobs.made(lab)
    pruners = [await PrunerProcess(cluster.kubeconfig, namespace).start() for _ in range(2)]
    for reasons in [await one.reasons() for one in pruners]:
        stay = {job: why for job, why in reasons.items() if why is not None}
        assert stay == jobs.stay
    assert sorted(await prune.jobs()) == sorted(jobs.stay)


async def test_a_prune_that_is_killed_between_two_records_leaves_the_rest_to_the_next_one(
    lab: KubernetesLab, prune: Pruner, cluster: ClusterAccess, namespace: str
) -> None:
    jobs = await Jobs.made(lab)
    for number in (1, 4):
        killed = await PrunerProcess(cluster.kubeconfig, namespace).start(STEPS="yes")
        left = await prune.jobs()
        for _ in range(number):
            assert await killed.next_line()
            killed.go_on()
        assert await killed.next_line()
        await killed.kill()
        assert len(await prune.jobs()) == len(left) - number
    reasons = await (await PrunerProcess(cluster.kubeconfig, namespace).start()).reasons()
    assert len(reasons) == MANY - 5 + len(jobs.stay)
    assert sorted(await prune.jobs()) == sorted(jobs.stay)


async def test_the_last_request_of_a_killed_prune_removes_no_record_of_a_job_that_began_again(
    lab: KubernetesLab, prune: Pruner, cluster: ClusterAccess, namespace: str, tmp_path: Path
) -> None:
    """It is on its way when the process dies, and arrives after the job has a generation."""
    await ended(KubernetesRun(lab, id="again", env=NEVER_ENDS))
    async with Wire(cluster) as wire:
        killed = await PrunerProcess(wire.kubeconfig(tmp_path), namespace).start(STEPS="yes")
        assert await killed.next_line() == "again"
        wire.hold()
        killed.go_on()
        await until(lambda: wire.held == 1)
        await killed.kill()
        later = KubernetesRun(lab, id="again", run="later", env=NEVER_ENDS)
        await later.launch()
        wire.release()
        await until(lambda: wire.held == 0)
    assert await prune("again") == "a pod of the job is there"
    await later.step(1)
    assert (later.generation, await prune.jobs()) == (2, ["again"])
    await later.gone()
