"""Jobs whose pods a real Volcano schedules: `make test-volcano`.

Each pod takes a node. Their template and their PodGroup are those of docs/operations/gangs-and-queues.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.lab import order_end
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_gangs import another_node, bound, pods_of, uids
from tests.support.child import Child
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.volcano import scheduler

pytestmark = pytest.mark.volcano

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "gangs-and-queues.md"
WHOLE_NODE = {"resources": {"requests": {"cpu": "8"}}}
"""What a pod requests: Volcano places pods that request nothing one by one."""
NO_NODE = "1 Unschedulable, 3 Schedulable"
"""Volcano's words on a pod that alone of four has no node. Of the rest it says where they would be."""
LONG: dict[str, Any] = {"STEPS": "100000", "STEP_S": "0.05"}
"""Variables of a job that does not end by itself."""


@pytest.fixture(scope="module")
async def volcano(
    cluster: ClusterAccess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Child]:
    async with scheduler.running(cluster, tmp_path_factory.mktemp("volcano") / "one") as one:
        yield one


def on_page() -> tuple[Json, Json]:
    """The template and the PodGroup that the page shows for a job called llama."""
    _, _, rest = PAGE.read_text().partition("## Volcano")
    blocks = [block for block in rest.split("\n\n") if block.startswith("    ")]
    template, group = (yaml.safe_load(block) for block in blocks[:2])
    return template["pod_template"], group


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A user of Volcano in one namespace."""

    site: Site
    api: Api
    namespace: str

    async def submit(
        self, name: str, *, nodes: int, least: int | None = None, **options: Any
    ) -> None:
        """A job of this many pods, of which Volcano places none or `least` at least."""
        template, group = on_page()
        group["metadata"] = {"name": name, "namespace": self.namespace}
        group["spec"]["minMember"] = least or nodes
        groups = f"{scheduler.API}/namespaces/{self.namespace}/podgroups"
        await self.api.create(groups, group)
        annotations = dict.fromkeys(template["metadata"]["annotations"], name)
        more = {"nodes": nodes, **options.pop("more", {})}
        self.site.submit(
            name,
            train=WHOLE_NODE,
            annotations=annotations,
            pod=template["spec"],
            more=more,
            **options,
        )

    def status(self, name: str) -> dict[str, Any]:
        return self.site.status(name)

    async def state(self, name: str, *states: str) -> dict[str, Any]:
        await until(lambda: self.status(name)["state"] in states)
        return self.status(name)

    def living(self, name: str) -> list[int]:
        """The slots that train."""
        status = self.status(name)
        slots = [pod["slot"] for pod in status["pods"] if pod["state"] == "running"]
        return slots if status["state"] == "running" else []

    def restarts(self, name: str) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = json.loads(self.site.everstep("restarts", name, "--json"))
        return records

    async def until_saved(self, name: str) -> None:
        await until(lambda: self.status(name)["checkpoint_step"])

    async def bound(self, name: str) -> list[str]:
        return await bound(self.api, self.namespace, name)

    async def uids(self, name: str) -> dict[str, str]:
        """The uids of the pods by their slots."""
        pods = await pods_of(self.api, self.namespace, name)
        return {
            pod["metadata"]["labels"]["everstep.dev/slot"]: pod["metadata"]["uid"] for pod in pods
        }

    async def stop(self, name: str) -> None:
        self.site.everstep("stop", name)
        await self.state(name, "stopped")


@pytest.fixture
async def team(
    volcano: Child, site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> AsyncIterator[Team]:
    assert volcano.pid
    assert worker.pid
    yield Team(site=site, api=api, namespace=namespace)
    await api.delete_all(f"{scheduler.API}/namespaces/{namespace}/podgroups")


async def test_a_gang_that_fits_runs_to_its_end(team: Team) -> None:
    await team.submit("fits", nodes=3, STEPS="20")
    status = await team.state("fits", "completed", "failed")
    assert (status["state"], status["restarts"]) == ("completed", 0)


async def test_a_gang_that_does_not_fit_ends_with_the_words_of_volcano(team: Team) -> None:
    await team.submit("large", nodes=4, more={"limits": {"queue_s": 8}})
    assert (await team.state("large", "completed", "failed"))["state"] == "failed"
    why = team.site.everstep("why", "large")
    assert "only 0 of 4 slots found a place" in why
    assert NO_NODE in why


async def test_a_gang_that_waits_for_a_node_holds_none_and_runs_once_it_comes(
    team: Team, machines: Machines
) -> None:
    await team.submit("waits", nodes=4, STEPS="5")
    await until(lambda: NO_NODE in str(team.status("waits")["waiting_for"]))
    assert NO_NODE in " ".join(team.site.everstep("status", "waits").split())
    assert await team.bound("waits") == []
    async with another_node(machines, team.namespace, "fourth"):
        assert (await team.state("waits", "completed", "failed"))["state"] == "completed"


async def test_gangs_that_fit_only_one_after_the_other_never_deadlock(team: Team) -> None:
    for name in ("one", "two"):
        await team.submit(name, nodes=2, STEPS="30")
    for name in ("one", "two"):
        status = await team.state(name, "completed", "failed")
        assert (status["state"], status["restarts"]) == ("completed", 0)


async def test_a_crash_in_place_needs_no_new_pod(team: Team) -> None:
    await team.submit("crash", nodes=3, **LONG)
    await team.until_saved("crash")
    before = await uids(team.api, team.namespace, "crash")
    order_end(team.site.storage / "control", "crash", 1, 7)
    await until(lambda: team.status("crash")["restarts"] == 1)
    await until(lambda: len(team.living("crash")) == 3)
    assert await uids(team.api, team.namespace, "crash") == before
    await team.stop("crash")


async def test_the_pod_of_a_killed_node_is_replaced_and_the_rest_stay(
    team: Team, machines: Machines
) -> None:
    await team.submit("node", nodes=3, **LONG)
    await team.until_saved("node")
    before = await team.uids("node")
    lost = next(pod["node"] for pod in team.status("node")["pods"] if pod["slot"] == 1)
    async with another_node(machines, team.namespace, "spare"):
        await machines.fault("node-crash", node=lost)
        await team.api.delete(f"/api/v1/nodes/{lost}")
        await until(lambda: team.status("node")["restarts"] == 1)
        await until(lambda: len(team.living("node")) == 3)
        after = await team.uids("node")
        assert {slot for slot in before if before[slot] != after[slot]} == {"1"}
        await team.stop("node")


async def test_an_elastic_job_goes_on_with_fewer_nodes_and_grows_again(
    team: Team, machines: Machines
) -> None:
    """3 -> 2 -> 3, in a group of two at least."""
    more = {"nodes": {"min": 2, "wanted": 3}, "limits": {"spare_s": 3}}
    await team.submit("elastic", nodes=3, least=2, more=more, **LONG)
    await until(lambda: len(team.living("elastic")) == 3)
    await team.until_saved("elastic")
    lost = next(pod["node"] for pod in team.status("elastic")["pods"] if pod["slot"] == 2)
    await machines.fault("node-crash", node=lost)
    await team.api.delete(f"/api/v1/nodes/{lost}")
    await until(lambda: len(team.living("elastic")) == 2)
    async with another_node(machines, team.namespace, "new"):
        await until(lambda: len(team.living("elastic")) == 3)
        levels = [one["level"] for one in team.restarts("elastic")]
        assert levels[-2:] == ["elastic", "elastic"]
        await team.stop("elastic")
