"""Jobs in the queues of a real Kueue: `make test-kueue`.

The quota of each queue is just what a job needs, so that a place that is not given back is missed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.conftest import OWN_NODES
from tests.kubernetes.jobs import KubernetesLab
from tests.kubernetes.objects import until
from tests.kubernetes.site import NOTHING, Site
from tests.kubernetes.test_gangs import pods_of, uids
from tests.kubernetes.test_lost_pods import trained
from tests.kubernetes.test_queues import QueuedRun, group_of
from tests.kubernetes.test_waiting_pods import waiting
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.kueue import controller
from tests.testbed.kueue.controller import Kueue
from tests.testbed.machines import Machines

pytestmark = pytest.mark.kueue

API = "/apis/kueue.x-k8s.io/v1beta2"
TEAM = "team"
ONE = {"resources": {"requests": {"cpu": "1"}}}
"""What a pod takes of a queue."""
CHECKPOINTS = 15
"""How many are saved while a job does not try to grow: each one would do for that."""


@pytest.fixture(scope="module")
async def kueue(
    cluster: ClusterAccess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Kueue]:
    async with controller.running(cluster, tmp_path_factory.mktemp("kueue") / "one") as one:
        yield one


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The queue `team` of the namespace, as docs/operations/gangs-and-queues.md makes one."""

    api: Api
    namespace: str

    async def make(self) -> None:
        head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": self.namespace}}
        await self.api.create(f"{API}/resourceflavors", {**head, "kind": "ResourceFlavor"})
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            **self._quota(2),
        }
        await self.api.create(
            f"{API}/clusterqueues", {**head, "kind": "ClusterQueue", "spec": spec}
        )
        local = {**head, "kind": "LocalQueue", "metadata": {"name": TEAM}}
        path = f"{API}/namespaces/{self.namespace}/localqueues"
        await self.api.create(path, {**local, "spec": {"clusterQueue": self.namespace}})

    def _quota(self, cpu: int) -> Json:
        resource = {"name": "cpu", "nominalQuota": str(cpu)}
        flavor = {"name": self.namespace, "resources": [resource]}
        return {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}]}

    async def set_quota(self, cpu: int) -> None:
        path = f"{API}/clusterqueues/{self.namespace}"
        await self.api.patch(path, {"spec": self._quota(cpu)})

    async def workloads(self) -> list[str]:
        path = f"{API}/namespaces/{self.namespace}/workloads"
        return sorted(one["metadata"]["name"] for one in (await self.api.get(path))["items"])

    async def clear(self) -> None:
        """What a failed test has left holds no quota in the next one."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        await self.api.delete_all(pods, gracePeriodSeconds="0")
        for pod in (await self.api.get(pods))["items"]:
            with contextlib.suppress(ApiError):
                path = f"{pods}/{pod['metadata']['name']}"
                await self.api.patch(path, {"metadata": {"finalizers": []}})

        async def nothing_is_left() -> bool:
            return await self.workloads() == []

        await until(nothing_is_left)

    async def workload(self, name: str) -> str:
        """The uid of a workload: another one is behind all others in its queue."""
        path = f"{API}/namespaces/{self.namespace}/workloads/{name}"
        return str((await self.api.get(path))["metadata"]["uid"])

    async def used(self) -> int:
        """The quota that jobs hold."""
        status = (await self.api.get(f"{API}/clusterqueues/{self.namespace}"))["status"]
        [flavor] = status["flavorsUsage"]
        return int(flavor["resources"][0]["total"])

    async def gated(self, job: str) -> list[str]:
        pods = await pods_of(self.api, self.namespace, job)
        return sorted(pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates"))

    async def priority(self, name: str, value: int) -> None:
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        await self.api.create(f"{API}/workloadpriorityclasses", body)


@pytest.fixture(scope="module")
async def made_queue(
    kueue: Kueue,  # admits its pods
    api: Api,
    namespace: str,
) -> AsyncIterator[Queue]:
    one = Queue(api=api, namespace=namespace)
    await one.make()
    yield one
    await api.patch(f"{API}/clusterqueues/{namespace}", {"metadata": {"finalizers": []}})


@pytest.fixture
async def queue(made_queue: Queue) -> AsyncIterator[Queue]:
    await made_queue.set_quota(2)
    yield made_queue
    await made_queue.clear()


IMPATIENT = {
    "timeout": "10s",
    "recoveryTimeout": "10s",
    "requeuingStrategy": {"backoffBaseSeconds": 12, "backoffMaxSeconds": 12},
}


@pytest.fixture
async def impatient_queue(queue: Queue, kueue: Kueue) -> AsyncIterator[Queue]:
    """Kueue takes its quota back from pods that are not ready in time."""
    await kueue.start(waitForPodsReady=IMPATIENT)
    yield queue
    await kueue.start()


async def cordon(queue: Queue, *, is_cordoned: bool) -> None:
    """All nodes: whether they take pods is another matter than quota."""
    for number in range(3):
        spec = {"unschedulable": is_cordoned}
        await queue.api.patch(f"/api/v1/nodes/{queue.namespace}-{number}", {"spec": spec})


class JobOfQueue(QueuedRun):
    """Each pod takes one of the queue's."""

    def place_order(self, **changes: Any) -> Any:
        order = super().place_order(**changes)
        order.pod_template["spec"]["containers"][0] |= ONE
        return order


def submit(
    site: Site,
    name: str,
    *,
    nodes: int = 2,
    priority: str = "",
    more: Mapping[str, Any] = NOTHING,
    **env: Any,
) -> None:
    """As the page says: a label in the template."""
    labels = {"kueue.x-k8s.io/queue-name": TEAM}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    site.submit(name, train=ONE, labels=labels, more={"nodes": nodes, **more}, **env)


async def state_of(site: Site, name: str, *states: str) -> dict[str, Any]:
    await until(lambda: site.status(name)["state"] in states)
    return site.status(name)


def submit_elastic(site: Site, name: str, *, size: int, spare_s: int = 10, **env: Any) -> None:
    more = {"nodes": {"min": 2, "wanted": size}, "limits": {"spare_s": spare_s}}
    labels = {"kueue.x-k8s.io/queue-name": TEAM}
    env = {"STEPS": "100000", "STEP_S": "0.05", **env}
    site.submit(name, train=ONE, labels=labels, more=more, **env)


def living(site: Site, name: str) -> list[int]:
    """The slots that train."""
    status = site.status(name)
    slots = [pod["slot"] for pod in status["pods"] if pod["state"] == "running"]
    return slots if status["state"] == "running" else []


def restarts(site: Site, name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(site.everstep("restarts", name, "--json"))
    return records


def tries_to_grow(site: Site, name: str) -> list[dict[str, Any]]:
    """The restarts for more nodes that have ended."""
    records = restarts(site, name)
    return [one for one in records if one["fault"]["kind"] == "scale.out" and one["recover_result"]]


def newest_step(site: Site, name: str) -> int:
    saved = (site.storage / name / "checkpoints").glob("step-*.json")
    return max((int(path.stem.split("-")[1]) for path in saved), default=0)


async def test_a_job_waits_in_its_queue_until_another_one_has_ended(
    queue: Queue, site: Site, worker: WorkerProcess, namespace: str
) -> None:
    assert worker.pid
    submit(site, "first", STEPS="100000")
    await state_of(site, "first", "running")
    submit(site, "second", STEPS="5")
    await until(lambda: "insufficient unused quota" in str(site.status("second")["waiting_for"]))
    assert await queue.gated("second") == ["second-0-g1", "second-1-g1"]
    waiting_for = site.status("second")["waiting_for"]
    assert "group second-g1 waits in queue team of Kueue" in waiting_for
    site.everstep("stop", "first")
    await state_of(site, "first", "stopped")
    status = await state_of(site, "second", "completed", "failed")
    assert (status["state"], status["restarts"]) == ("completed", 0)

    async def nothing_is_left() -> bool:
        return await queue.workloads() == []

    await until(nothing_is_left)


async def test_a_job_larger_than_its_queue_says_so_until_the_queue_grows(
    queue: Queue, site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    submit(site, "large", nodes=3, STEPS="5")
    await until(lambda: "insufficient quota" in str(site.status("large")["waiting_for"]))
    assert site.status("large")["state"] not in {"failed", "running"}
    assert "insufficient quota for cpu" in site.everstep("status", "large")
    await queue.set_quota(3)
    assert (await state_of(site, "large", "completed", "failed"))["state"] == "completed"


async def test_a_job_that_is_cancelled_in_its_queue_leaves_nothing(
    queue: Queue, site: Site, worker: WorkerProcess, api: Api, namespace: str
) -> None:
    assert worker.pid
    submit(site, "never", nodes=3)
    await until(lambda: "quota" in str(site.status("never")["waiting_for"]))
    site.everstep("stop", "never")
    await state_of(site, "never", "stopped")
    assert await pods_of(api, namespace, "never") == []

    async def nothing_is_left() -> bool:
        return await queue.workloads() == []

    await until(nothing_is_left)


async def test_a_killed_pod_is_replaced_within_the_quota_of_its_group(
    queue: Queue, lab: KubernetesLab, machines: Machines, api: Api, namespace: str
) -> None:
    job = JobOfQueue(lab, id="killed", env=NEVER_ENDS)
    before = await trained(job)
    for _ in range(2):
        name = (await pods_of(api, namespace, "killed"))[-1]["metadata"]["name"]
        await machines.fault("container-kill", namespace=namespace, pod=name, container="train")
        await job.fact("agent.gone")
        await job.new_generation(f"restart of {name}")
        await job.stop(slots=(0,))
        await job.place(recreate=(1,))
        await job.fence()
        await job.start()
        await job.step(15)
    assert uids_of(await job.observe_now(), [0]) == uids_of(before, [0])
    pods = await pods_of(api, namespace, "killed")
    assert [group_of(pod) for pod in pods] == [("killed-g1", "2")] * 2
    assert await queue.workloads() == ["killed-g1"]
    await job.gone()


async def test_a_job_whose_pods_are_all_made_anew_is_admitted_again(
    queue: Queue, lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = JobOfQueue(lab, id="anew", env=NEVER_ENDS)
    await trained(job)
    await job.new_generation("restart-1")
    await job.stop()
    await job.place()
    await job.fence()
    await job.start()
    await job.step(15)
    assert await queue.gated("anew") == []
    await job.gone()


async def test_a_job_that_gives_its_quota_to_a_more_important_one_spends_no_budget(
    queue: Queue, site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    await queue.priority("low", 1)
    await queue.priority("high", 2)
    submit(site, "modest", priority="low", STEPS="120", STEP_S="0.05")
    await until((site.storage / "modest" / "checkpoints" / "step-40.json").exists)
    submit(site, "urgent", priority="high", STEPS="5")
    assert (await state_of(site, "urgent", "completed", "failed"))["state"] == "completed"
    status = await state_of(site, "modest", "completed", "failed")
    assert (status["state"], status["restarts"]) == ("completed", 1)
    [record] = json.loads(site.everstep("restarts", "modest", "--json"))
    assert record["fault"]["kind"] == "pod.preempted"
    assert record["bills"] == {}


async def test_an_elastic_job_goes_on_with_what_its_queue_has_quota_for(
    queue: Queue, site: Site, worker: WorkerProcess
) -> None:
    """Kueue admits a group or nothing: smaller ones are tried, and a larger one once a node has room."""
    assert worker.pid
    submit_elastic(site, "elastic", size=3, spare_s=30, STEP_S="0.5", CHECKPOINT_EVERY="40")
    await until(lambda: len(living(site, "elastic")) == 2)
    await queue.set_quota(3)  # long before there is a checkpoint, without which it does not grow
    await until(lambda: len(living(site, "elastic")) == 3)
    records = restarts(site, "elastic")
    assert {one["level"] for one in records} == {"elastic"}
    assert all(one["bills"] == {} for one in records)
    site.everstep("stop", "elastic")
    await state_of(site, "elastic", "stopped")


async def test_an_elastic_job_that_tried_to_grow_in_vain_does_not_try_again_with_each_checkpoint(
    queue: Queue, site: Site, worker: WorkerProcess
) -> None:
    """A node is free, and its queue has no quota for it: each try costs a restart."""
    assert worker.pid
    submit_elastic(site, "in-vain", size=3, CHECKPOINT_EVERY="20")
    await until(lambda: tries_to_grow(site, "in-vain"))
    await until(lambda: len(living(site, "in-vain")) == 2)
    before = newest_step(site, "in-vain")
    await until(lambda: newest_step(site, "in-vain") >= before + 20 * CHECKPOINTS)
    assert len(tries_to_grow(site, "in-vain")) == 1
    assert len(living(site, "in-vain")) == 2
    site.everstep("stop", "in-vain")
    await state_of(site, "in-vain", "stopped")


async def test_pods_that_wait_for_a_node_take_a_released_one_with_the_quota_that_they_have(
    queue: Queue, lab: KubernetesLab, api: Api, namespace: str
) -> None:
    nodes = [f"{namespace}-{number}" for number in range(3)]
    for node in nodes:
        await lab.backend.ensure_isolated(node, reason="broken")
    job = JobOfQueue(lab, id="released", env=NEVER_ENDS)
    await job.new_generation("launch")
    await waiting(job, api, namespace)
    before = await queue.workload("released-g1")
    for node in nodes[:2]:
        await lab.backend.ensure_released(node)
    state = await job.place()
    assert {pod.node for pod in state.pods.values()} == {*nodes[:2]}
    assert await queue.workload("released-g1") == before
    await job.gone()


async def test_a_job_of_more_pods_than_a_group_may_have_roles_is_admitted(
    queue: Queue, lab: KubernetesLab
) -> None:
    """Its pods differ in their affinity, by which Kueue distinguishes roles. There are fewer nodes."""
    await queue.set_quota(20)
    job = JobOfQueue(lab, id="many", slots=tuple(range(20)), env=NEVER_ENDS)
    await job.new_generation("launch")

    async def are_admitted() -> bool:
        await job.backend.ensure_placed(job.place_order())
        return await queue.workloads() == ["many-g1"] and await queue.gated("many") == []

    await until(are_admitted)
    await job.gone()


async def test_an_elastic_job_loses_a_node_and_grows_again_in_its_queue(
    queue: Queue, site: Site, worker: WorkerProcess, machines: Machines
) -> None:
    """4 -> 3 -> 4: the queue admits the pod that comes back later than the job looks for the first time."""
    assert worker.pid
    await queue.set_quota(4)
    lost = f"{queue.namespace}-lost"
    await machines.add_node(lost, labels={OWN_NODES: queue.namespace})
    submit_elastic(site, "shrinks", size=4)
    await until(lambda: len(living(site, "shrinks")) == 4)
    await machines.fault("node-crash", node=lost)
    await queue.api.delete(f"/api/v1/nodes/{lost}")
    await until(lambda: len(living(site, "shrinks")) == 3)
    await machines.add_node(f"{queue.namespace}-new", labels={OWN_NODES: queue.namespace})
    await until(lambda: len(living(site, "shrinks")) == 4)
    assert len(tries_to_grow(site, "shrinks")) == 1
    assert await queue.used() == 4
    site.everstep("stop", "shrinks")
    await state_of(site, "shrinks", "stopped")


async def test_pods_that_find_no_node_in_the_time_that_kueue_gives_are_queued_again(
    impatient_queue: Queue, site: Site, worker: WorkerProcess
) -> None:
    assert worker.pid
    await cordon(impatient_queue, is_cordoned=True)
    submit(site, "unplaced", STEPS="5")
    await until(lambda: "unschedulable" in str(site.status("unplaced")["waiting_for"]))
    first = await uids(impatient_queue.api, impatient_queue.namespace, "unplaced")

    async def are_others() -> bool:
        pods = await uids(impatient_queue.api, impatient_queue.namespace, "unplaced")
        return len(pods) == len(first) and not pods & first

    await until(are_others)
    await cordon(impatient_queue, is_cordoned=False)
    status = await state_of(site, "unplaced", "completed", "failed")
    assert (status["state"], status["restarts"]) == ("completed", 0)


async def test_a_job_whose_new_pod_is_not_ready_in_time_gives_its_quota_back_and_spends_no_budget(
    impatient_queue: Queue, site: Site, worker: WorkerProcess, machines: Machines
) -> None:
    """No node takes the pod in place of the one that failed. Kueue ends the other one too."""
    assert worker.pid
    budget = {"recovery": {"budgets": {"any": {"limit": 5}}}}
    submit(site, "replaced", more=budget, STEPS="400", STEP_S="0.05")
    await until(lambda: newest_step(site, "replaced") >= 40)
    await cordon(impatient_queue, is_cordoned=True)
    place = {"namespace": impatient_queue.namespace, "container": "train"}
    await machines.fault("container-kill", pod="replaced-1-g1", **place)

    def evictions() -> list[dict[str, Any]]:
        return [one for one in restarts(site, "replaced") if one["fault"]["kind"] == "pod.evicted"]

    await until(evictions)
    await cordon(impatient_queue, is_cordoned=False)
    assert (await state_of(site, "replaced", "completed", "failed"))["state"] == "completed"
    assert [one["bills"] for one in evictions()] == [{}]
