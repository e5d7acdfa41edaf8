"""All nodes are drained one after the other, as an upgrade does it: what becomes of the jobs on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.lab import order_end
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines

JOBS = ("first", "second", "third")
BUDGET = {"recovery": {"budgets": {"any": {"limit": 5}}}}


class Upgrade:
    """The hand of an operator who upgrades the nodes of a cluster."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self.nodes = [f"{namespace}-{number}" for number in range(3)]

    async def cordon(self, node: str, *, on: bool = True) -> None:
        await self._api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": on}})

    async def pods_on(self, node: str) -> list[str]:
        pods = (await self._api.get(self._pods))["items"]
        return [p["metadata"]["name"] for p in pods if p["spec"].get("nodeName") == node]

    async def drain(self, node: str) -> None:
        """As `kubectl drain` does it. Returns once the node is empty."""
        await self.cordon(node)
        for pod in await self.pods_on(node):
            await self._api.create(f"{self._pods}/{pod}/eviction", {"metadata": {"name": pod}})

        async def is_empty() -> bool:
            return not await self.pods_on(node)

        await until(is_empty)


async def until_status(site: Site, name: str, claim: Callable[[dict[str, Any]], bool]) -> None:
    await until(lambda: claim(site.status(name)))


def is_running(status: dict[str, Any]) -> bool:
    return bool(status["state"] == "running")


def is_off(node: str) -> Callable[[dict[str, Any]], bool]:
    """The claim that a job runs on two nodes, of which this one is none."""

    def claim(status: dict[str, Any]) -> bool:
        nodes = {pod["node"] for pod in status["pods"]}
        return is_running(status) and len(nodes) == 2 and node not in nodes

    return claim


@pytest.mark.long
async def test_three_jobs_outlive_two_rolling_upgrades_and_spend_no_budget(
    site: Site, worker: WorkerProcess, api: Api, namespace: str, machines: Machines
) -> None:
    assert worker.pid
    upgrade = Upgrade(api, namespace)
    for name in JOBS:
        site.submit(name, more=BUDGET, STEPS=NEVER_ENDS["STEPS"])
    for name in JOBS:
        await until_status(site, name, is_running)
    for node in upgrade.nodes * 2:
        await upgrade.drain(node)
        for name in JOBS:
            await until_status(site, name, is_off(node))
        await upgrade.cordon(node, on=False)
    for name in JOBS:
        await until_status(site, name, lambda status: status["avoided_nodes"] == [])
        for rank in range(2):
            order_end(site.storage / "control", name, rank, 0)
    for name in JOBS:
        await until_status(site, name, lambda status: status["state"] in {"completed", "failed"})
        status = site.status(name)
        assert status["state"] == "completed"
        assert status["budgets"] == {"any": {"limit": 5, "used": 0}}
        assert status["restarts"] >= 2


async def test_a_job_without_a_place_names_the_drained_nodes_and_takes_one_that_is_uncordoned(
    site: Site, worker: WorkerProcess, api: Api, namespace: str, machines: Machines
) -> None:
    assert worker.pid
    upgrade = Upgrade(api, namespace)
    site.submit("waits", STEPS=NEVER_ENDS["STEPS"])
    await until_status(site, "waits", is_running)
    for node in upgrade.nodes:
        await upgrade.cordon(node)
    drained, *_ = (pod["node"] for pod in site.status("waits")["pods"])
    await upgrade.drain(drained)

    def waits() -> bool:
        return f"the job avoids {drained} until" in (site.status("waits")["waiting_for"] or "")

    await until(waits)
    (avoided,) = site.status("waits")["avoided_nodes"]
    assert avoided["node"] == drained
    assert avoided["until"] == "its cordon or taint is removed"
    assert "waits avoids it until" in site.everstep("nodes", "--cluster", "pods")
    for node in upgrade.nodes:
        await upgrade.cordon(node, on=False)
    await until_status(site, "waits", is_running)
    site.everstep("stop", "waits")
