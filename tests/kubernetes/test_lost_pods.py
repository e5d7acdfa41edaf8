"""Pods that end, vanish or fall silent: what is reported of them, and what becomes of their job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.core.world import Observation
from tests.backends.lab import left_on, uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun, ranks_of
from tests.kubernetes.objects import condition, until, until_node
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def trained(job: KubernetesRun) -> Observation:
    """The job once it has a checkpoint."""
    await job.launch()
    return await job.step(15)


async def replace_last_pod(job: KubernetesRun, *, avoid: tuple[str, ...] = ()) -> None:
    """A restart that makes a new pod for slot 1."""
    await job.new_generation("restart-1")
    await job.stop(slots=(0,))
    await job.place(recreate=(1,), avoid=avoid)
    await job.fence()
    saved = await job.backend.checkpoints(job.ref)
    await job.start(next(checkpoint for checkpoint in saved if checkpoint.good))


def old_ranks(job: str) -> list[int]:
    """Processes of the first generation's rank 1, wherever they run."""
    return ranks_of(job, slot=1, generation=1)


async def test_a_killed_container_is_told_at_once_and_its_pod_alone_is_replaced(
    lab: KubernetesLab, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="killed", env=NEVER_ENDS)
    before = await trained(job)
    await machines.fault(
        "container-kill", namespace=namespace, pod="killed-1-g1", container="train"
    )
    await job.fact("agent.gone")
    await replace_last_pod(job)
    after = await job.step(30)
    assert uids_of(after, [0]) == uids_of(before, [0])
    assert uids_of(after, [1]) != uids_of(before, [1])
    await job.gone()


async def test_a_pod_that_is_deleted_by_hand_is_replaced(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="by-hand", env=NEVER_ENDS)
    before = await trained(job)
    path = f"/api/v1/namespaces/{namespace}/pods/by-hand-1-g1"
    await api.delete(path, gracePeriodSeconds=1)
    await job.fact("agent.gone")
    await replace_last_pod(job)
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    await job.gone()


@pytest.mark.short_fence
async def test_a_pod_deleted_by_force_is_missed_and_its_ranks_end_before_others_train(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """Only the object is gone: that proves nothing of processes whose kubelet is dead."""
    job = KubernetesRun(lab, id="by-force", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("kubelet-death", node=node)
    path = f"/api/v1/namespaces/{namespace}/pods/by-force-1-g1"
    await api.delete(path, gracePeriodSeconds=0)
    await job.see(lambda news: [pod.slot for pod in news.pods] == [0])
    assert old_ranks("by-force"), "they train on"
    await replace_last_pod(job, avoid=(node,))
    assert not old_ranks("by-force")
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    await job.gone()


@pytest.mark.short_fence
async def test_the_next_run_of_a_job_waits_for_what_a_pod_deleted_by_force_left(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="again", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("kubelet-death", node=node)
    await api.delete(f"/api/v1/namespaces/{namespace}/pods/again-1-g1", gracePeriodSeconds=0)
    await job.see(lambda news: [pod.slot for pod in news.pods] == [0])
    await job.gone()
    assert old_ranks("again"), "they train on"
    assert job.ref not in await left_on(lab)
    job.run = "run-2"
    await job.new_generation("launch")
    await job.place(avoid=(node,))
    await job.fence()
    assert not old_ranks("again")
    await job.gone()


@pytest.mark.short_fence
async def test_a_node_that_falls_silent_holds_up_its_job_no_longer_than_the_fence(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="silent", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("node-crash", node=node)  # and nobody deletes the node
    await job.fact("node.not_ready")
    await replace_last_pod(job, avoid=(node,))
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])

    async def old_pod_is_removed() -> bool:
        await lab.backend.observe(job.ref, cursor="", until=0.0, wait_s=0.0)
        items = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return "silent-1-g1" not in {item["metadata"]["name"] for item in items}

    await until(old_pod_is_removed)
    await job.gone()


async def test_a_node_that_is_not_ready_for_a_moment_is_no_fault_while_its_agent_answers(
    lab: KubernetesLab, api: Api, machines: Machines
) -> None:
    """So it is after each outage of the API server: the job trains on."""
    await lab.backend.close()
    lab.settings = replace(lab.settings, not_ready_s=600.0)
    lab.backend = await KubernetesBackend.open(lab.settings)
    job = KubernetesRun(lab, id="moment", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("kubelet-death", node=node)
    await until_node(api, node, lambda obj: condition(obj, "Ready")["status"] == "Unknown")
    await until(lambda: lab.backend.watch.service(node)[0] == "cut_off")
    await job.step(25)
    await machines.fault("node-return", node=node)
    await until(lambda: lab.backend.watch.service(node)[0] == "ready")
    await job.step(30)
    after = await job.observe_now()
    assert [fact.kind for fact in job.facts if fact.family == "node"] == []
    assert uids_of(after) == uids_of(before)
    await job.gone()


@pytest.mark.short_fence
@pytest.mark.parametrize("fault", ["kubelet-death", "partition"])
async def test_ranks_on_a_node_cut_off_are_over_before_others_train_and_when_it_is_back(
    lab: KubernetesLab, machines: Machines, fault: str
) -> None:
    job = KubernetesRun(lab, id=fault, env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault(fault, node=node)
    await job.fact("node.not_ready")
    assert old_ranks(fault), "they train on"
    await replace_last_pod(job, avoid=(node,))
    assert not old_ranks(fault)
    await machines.fault("node-return", node=node)
    after = await job.step(30)
    assert not old_ranks(fault)
    assert uids_of(after, [0]) == uids_of(before, [0])
    await job.gone()
