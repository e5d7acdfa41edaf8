"""Pods that the cluster ends and nodes that its monitors report: what a job learns of it and does."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from everstep.backends.kubernetes.books import Stored
from everstep.backends.kubernetes.placing.reconciler import PodReconciler
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import shell_pod, until
from tests.kubernetes.site import Site
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.machines import Machines

URGENT = "urgent"
"""A priority class above that of jobs."""


class Cluster:
    """The hand of an operator, or of the cluster itself, on one pod of a job."""

    def __init__(self, api: Api, machines: Machines, namespace: str) -> None:
        self.api = api
        self.machines = machines
        self.namespace = namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    async def preempt(self, pod: str) -> None:
        """A pod of higher priority wants the whole node."""
        priority = f"{URGENT}-{self.namespace}"
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        await self.api.create(classes, {"metadata": {"name": priority}, "value": 1000})
        urgent = shell_pod(
            "urgent",
            priorityClassName=priority,
            nodeSelector={"kubernetes.io/hostname": await self.node_of(pod)},
            main={"resources": {"requests": {"cpu": "8"}}},
        )
        await self.api.create(self.pods, urgent)

    async def evict(self, pod: str) -> None:
        await self.api.create(f"{self.pods}/{pod}/eviction", {"metadata": {"name": pod}})

    async def drain(self, pod: str) -> None:
        """As `kubectl drain` does it."""
        node = f"/api/v1/nodes/{await self.node_of(pod)}"
        await self.api.patch(node, {"spec": {"unschedulable": True}})
        await self.evict(pod)

    async def run_low(self, pod: str) -> None:
        """The node runs low on memory."""
        await self.machines.fault("node-pressure", namespace=self.namespace, pod=pod)

    async def node_of(self, pod: str) -> str:
        return str((await self.api.get(f"{self.pods}/{pod}"))["spec"]["nodeName"])


@pytest.fixture
def hand(api: Api, machines: Machines, namespace: str) -> Cluster:
    return Cluster(api, machines, namespace)


DISRUPTIONS: dict[str, tuple[str, Callable[[Cluster, str], Awaitable[None]]]] = {
    "preempted": ("pod.preempted", Cluster.preempt),
    "evicted": ("pod.evicted", Cluster.evict),
    "drained": ("pod.drained", Cluster.drain),
    "low": ("pod.evicted", Cluster.run_low),
}


@pytest.mark.parametrize("name", DISRUPTIONS)
async def test_a_job_that_the_cluster_disrupts_restarts_and_spends_no_budget(
    site: Site, worker: WorkerProcess, hand: Cluster, name: str
) -> None:
    assert worker.pid
    kind, disrupt = DISRUPTIONS[name]
    few = {"resources": {"requests": {"cpu": "5"}}}
    budget = {"recovery": {"budgets": {"any": {"limit": 5}}}}
    site.submit(name, train=few, more=budget, STEPS="120", STEP_S="0.05")
    await until((site.storage / name / "checkpoints" / "step-40.json").exists)
    await disrupt(hand, f"{name}-1-g1")
    await until(lambda: site.status(name)["state"] in {"completed", "failed"})
    status = site.status(name)
    assert status["state"] == "completed"
    assert status["restarts"] == 1
    assert status["budgets"] == {"any": {"limit": 5, "used": 0}}
    [record] = json.loads(site.everstep("restarts", name, "--json"))
    assert record["fault"]["kind"] == kind
    assert record["bills"] == {}


async def next_message(lab: KubernetesLab, job: KubernetesRun, kind: str) -> str:
    """The message of the next fact of this kind."""
    return (await job.fact(kind)).message


async def test_the_end_of_a_pod_is_told_with_its_reason(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """One job, whose pod ends in one way after the other."""
    job = KubernetesRun(lab, id="ends", slots=(0,), env=NEVER_ENDS)
    await job.launch()
    place = {"namespace": namespace, "container": "train"}

    async def delete(pod: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        await api.delete(path, gracePeriodSeconds=1)

    ways: list[tuple[str, str, Callable[[str], Awaitable[None]]]] = [
        (
            "pod.oom_killed",
            "container train ended with exit code 137 (OOMKilled)",
            lambda pod: machines.fault("out-of-memory", pod=pod, **place),
        ),
        (
            "pod.exited",
            "container train ended with exit code 137 (Error)",
            lambda pod: machines.fault("container-kill", pod=pod, **place),
        ),
        ("pod.deleted", "pod ends-0-g3 was deleted, and not by Everstep", delete),
    ]
    for kind, message, end in ways:
        await job.step(1)
        await end(f"ends-0-g{job.generation}")
        assert await next_message(lab, job, kind) == message
        assert job.facts[-1].kind in {kind, "agent.gone"}
        await job.launch(f"after {kind}")
    await job.gone()


@pytest.mark.parametrize("is_object_gone", [False, True], ids=["object there", "object gone"])
async def test_a_pod_that_ends_during_a_look_is_lost_for_its_reason(
    lab: KubernetesLab,
    api: Api,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_object_gone: bool,
) -> None:
    """A step that finds a container gone ends for the reason that it has by then, else for a crash."""
    job = KubernetesRun(
        lab, id="look-gone" if is_object_gone else "look", slots=(0,), env=NEVER_ENDS
    )
    await job.launch()
    await job.step(1)
    (pod,) = (await job.observe_now()).pods
    agent = lab.backend.agent_cluster.agents.by_uid[pod.uid]
    sync, ends = PodReconciler.sync, iter([f"/api/v1/namespaces/{namespace}/pods/{job.id}-0-g1"])

    async def sync_before_the_end(reconciler: PodReconciler, *sight: Any) -> Stored:
        stored = await sync(reconciler, *sight)
        for path in ends:
            await api.delete(path, gracePeriodSeconds=1)
            await until(lambda: agent.is_gone)
            if is_object_gone:
                await until(lambda: lab.backend.watch.pod(pod.uid) is None)
        return stored

    monkeypatch.setattr(PodReconciler, "sync", sync_before_the_end)
    observation = await lab.backend.observe_now(job.ref, job.cursor)
    assert [fact.kind for fact in observation.facts] == ["pod.deleted", "agent.gone"]
    await job.gone()


async def test_what_monitors_write_on_a_node_is_told_to_the_jobs_on_it(
    lab: KubernetesLab, machines: Machines
) -> None:
    job = KubernetesRun(lab, id="watched", slots=(0,), env=NEVER_ENDS)
    await job.launch()
    node = (await job.step(1)).pods[0].node

    async def monitor(kind: str, *, holds: bool, reason: str = "", message: str = "") -> None:
        await machines.fault(
            "node-condition", node=node, kind=kind, holds=holds, reason=reason, message=message
        )

    await monitor("AcceleratedHardwareReady", holds=False, reason="NvidiaXID79Error")
    fact = await job.fact("device.fault")
    assert (fact.node, fact.code) == (node, "XID 79")
    assert fact.id in {one.id for one in await lab.backend.check(job.ref)}
    await monitor("AcceleratedHardwareReady", holds=True)
    assert not await lab.backend.check(job.ref)
    await monitor("KernelDeadlock", holds=True, reason="DockerHung")
    assert "KernelDeadlock: DockerHung" in await next_message(lab, job, "node.unhealthy")
    key = "karpenter.sh/disrupted"
    await machines.fault("node-taint", node=node, key=key, effect="NoSchedule")
    assert key in await next_message(lab, job, "maintenance.notice")
    await job.gone()


async def test_a_kubelet_that_does_not_renew_its_lease_is_noted_before_its_node_is_not_ready(
    lab: KubernetesLab, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet reports its status at first, since this cluster calls a silent node not ready after 6 s.

    Each of the two is a fact once, and a kubelet of a busy machine may be silent before a test has it so.
    """
    job = KubernetesRun(lab, id="lease", slots=(0,), env=NEVER_ENDS)
    await job.launch()
    node = (await job.step(1)).pods[0].node
    monkeypatch.setattr("everstep.backends.kubernetes.node_facts.LEASE_AGE_S", 3.0)

    async def is_noted(kind: str) -> None:
        await job.see(lambda _: (kind, node) in {(fact.kind, fact.node) for fact in job.facts})

    await machines.fault("lease-stop", node=node)
    await is_noted("subhealth.lease")
    await machines.fault("kubelet-death", node=node)
    await is_noted("node.not_ready")
    await machines.fault("node-return", node=node)
    await job.gone()
