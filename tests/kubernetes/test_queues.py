"""Pods in a queue of Kueue where no Kueue runs: the test holds them and their objects as it would.

With a real one: `make test-kueue`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.kubernetes.api import Refused
from everstep.backends.kubernetes.manifest import Gang
from everstep.backends.kubernetes.placing.queues import JobQueues
from tests.backends.lab import uids_of
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import condition, until, until_node
from tests.kubernetes.test_gangs import pods_of, uids
from tests.kubernetes.test_lost_pods import replace_last_pod, trained
from tests.kubernetes.test_waiting_pods import waiting
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.machines import Machines

GATE, HOLD = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/managed"
GROUP, SIZE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def queued(lab: KubernetesLab, *, is_gated: bool = False) -> dict[str, Any]:
    """A template whose pods are in a queue."""
    spec = dict(lab.pod["pod_template"]["spec"])
    if is_gated:
        spec["schedulingGates"] = [{"name": GATE}]
    return {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": spec}


class QueuedRun(KubernetesRun):
    """Its pods are in a queue."""

    def place_order(self, **changes: Any) -> Any:
        assert isinstance(self.lab, KubernetesLab)
        return super().place_order(**{"pod_template": queued(self.lab), **changes})


def group_of(pod: Json) -> tuple[str, str]:
    metadata = pod["metadata"]
    return metadata["labels"][GROUP], metadata["annotations"][SIZE]


async def hold(api: Api, path: str, *holders: str) -> None:
    await api.patch(path, {"metadata": {"finalizers": list(holders)}})


async def is_there(api: Api, path: str) -> bool:
    try:
        return bool(await api.get(path))
    except ApiError as error:
        if error.status == 404:
            return False
        raise


class Answers:
    """An API server that has one answer."""

    def __init__(self, answer: Json | Exception) -> None:
        self.answer = answer

    async def get(self, _: str) -> Json:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def refused(status: int, message: str) -> Refused:
    return Refused(status=status, reason="Forbidden", message=message, retry_after_s=0.0)


REASONS: list[tuple[Json | Exception, str]] = [
    ({}, ""),
    (refused(404, "workloads not found"), ""),
    (refused(403, "workloads is forbidden"), "workloads is forbidden (403 Forbidden)"),
    (
        {
            "status": {
                "conditions": [
                    {"type": "QuotaReserved", "status": "False", "message": "no quota for 2 pods"}
                ]
            }
        },
        "no quota for 2 pods",
    ),
]


@pytest.mark.parametrize(("answer", "reason"), REASONS)
async def test_why_kueue_holds_a_group_back_is_in_its_words_or_why_they_cannot_be_read(
    answer: Json | Exception, reason: str
) -> None:
    unused: Any = None
    api: Any = Answers(answer)
    queues = JobQueues(api=api, namespace="jobs", watch=unused, pods=unused)
    assert await queues._reason(Gang(name="demo-g1", size=2)) == reason


async def test_pods_that_kueue_holds_go_when_their_job_ends(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    job = QueuedRun(lab, id="held", env=NEVER_ENDS)
    await job.launch()
    for slot in job.slots:
        await hold(api, f"{pods}/held-{slot}-g1", HOLD, "example.test/other")
    answer = await job.backend.ensure_gone(job.ref)
    assert not answer.done

    async def only_the_other_holds() -> bool:
        await job.backend.ensure_gone(job.ref)
        items = (await api.get(pods, labelSelector="everstep.dev/job=held"))["items"]
        return [pod["metadata"].get("finalizers") for pod in items] == [["example.test/other"]] * 2

    await until(only_the_other_holds)
    for slot in job.slots:
        await hold(api, f"{pods}/held-{slot}-g1")
    await job.gone()


async def waits_in_a_queue(lab: KubernetesLab, job_id: str, *, namespace: str = "") -> None:
    """A job of two pods that are never admitted, up to its end."""
    job = QueuedRun(lab, id=job_id, env=NEVER_ENDS, namespace=namespace)
    gated = {"pod_template": queued(lab, is_gated=True)}
    await job.new_generation("launch")

    async def names_the_queue() -> bool:
        state = await job.backend.ensure_placed(job.place_order(**gated))
        assert state.places is None, "how many there are shows only a try"
        return state.waiting_for == f"group {job_id}-g1 waits in queue team of Kueue"

    await until(names_the_queue)
    await job.gone()


async def test_pods_that_kueue_does_not_admit_name_their_queue(lab: KubernetesLab) -> None:
    await waits_in_a_queue(lab, "gated")


async def test_a_pod_takes_the_place_of_an_ended_one_in_its_group(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Kueue deletes the newest pod of a group that is too large, so the old one has to be gone."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    job = QueuedRun(lab, id="joins", env=NEVER_ENDS)
    before = await trained(job)
    assert group_of(await api.get(f"{pods}/joins-1-g1")) == ("joins-g1", "2")
    await hold(api, f"{pods}/joins-1-g1", HOLD, "example.test/other")
    await job.new_generation("restart-1")
    await job.stop(slots=(0,))

    async def waits_for_its_place() -> bool:
        state = await job.backend.ensure_placed(job.place_order(recreate=(1,)))
        assert not await is_there(api, f"{pods}/joins-1-g2")
        return state.waiting_for == "a place in group joins-g1 of Kueue"

    await until(waits_for_its_place)

    async def is_released() -> bool:
        await waits_for_its_place()
        pod = await api.get(f"{pods}/joins-1-g1")
        return bool(pod["metadata"]["finalizers"] == ["example.test/other"])

    await until(is_released)
    await hold(api, f"{pods}/joins-1-g1")
    await job.place(recreate=(1,))
    assert group_of(await api.get(f"{pods}/joins-1-g2")) == ("joins-g1", "2")
    await job.fence()
    await job.start()
    assert uids_of(await job.step(15), [0]) == uids_of(before, [0])
    await job.gone()


async def test_a_whole_job_that_starts_anew_is_another_group(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = QueuedRun(lab, id="anew", env=NEVER_ENDS)
    await job.launch()
    await job.new_generation("restart-1")
    await job.stop()
    await job.place()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    assert group_of(await api.get(f"{pods}/anew-0-g2")) == ("anew-g2", "2")
    await job.gone()


@pytest.mark.short_fence
async def test_a_pod_on_a_silent_node_keeps_its_place_in_its_group(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    """Its quota is free once its end is reported, which may be never: the new pod queues by itself."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    job = QueuedRun(lab, id="silent", env=NEVER_ENDS)
    before = await trained(job)
    node = next(pod.node for pod in before.pods if pod.slot == 1)
    await machines.fault("node-crash", node=node)
    await until_node(api, node, lambda one: condition(one, "Ready")["status"] == "Unknown")
    await job.fact("node.not_ready")
    await replace_last_pod(job, avoid=(node,))
    assert group_of(await api.get(f"{pods}/silent-1-g2")) == ("silent-g2", "1")
    assert uids_of(await job.step(30), [0]) == uids_of(before, [0])
    await job.gone()


async def placed_on_released_nodes(
    lab: KubernetesLab, api: Api, namespace: str, job: QueuedRun
) -> None:
    """The pods of the job wait while all nodes are isolated, and take those that are released."""
    nodes = [f"{namespace}-{number}" for number in range(3)]
    for node in nodes:
        await lab.backend.ensure_isolated(node, reason="broken")
    await job.new_generation("launch")
    await waiting(job, api, namespace)
    for node in nodes[: len(job.slots)]:
        await lab.backend.ensure_released(node)
    state = await job.place()
    assert {pod.node for pod in state.pods.values()} == {*nodes[: len(job.slots)]}


async def test_waiting_pods_of_a_queue_take_released_nodes_and_stay_in_their_group(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = QueuedRun(lab, id="released", env=NEVER_ENDS)
    await placed_on_released_nodes(lab, api, namespace, job)
    pods = await pods_of(api, namespace, "released")
    assert [group_of(pod) for pod in pods] == [("released-g1", "2")] * 2
    await job.gone()


async def test_a_waiting_pod_that_is_alone_in_its_group_takes_a_released_node(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Its group ends with it, so it starts another one."""
    job = QueuedRun(lab, id="alone", slots=(0,), env=NEVER_ENDS)
    await placed_on_released_nodes(lab, api, namespace, job)
    [pod] = await pods_of(api, namespace, "alone")
    assert group_of(pod) == ("alone-g1-1", "1")
    await job.gone()


async def test_pods_that_a_queue_holds_keep_off_a_node_that_is_isolated_meanwhile(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """They stay the same pods, as others would be behind all others in the queue."""
    nodes = [f"{namespace}-{number}" for number in range(3)]
    pods = f"/api/v1/namespaces/{namespace}/pods"

    async def close(node: str, closed: bool) -> None:
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": closed}})

    job = QueuedRun(lab, id="held", env=NEVER_ENDS)
    order = job.place_order(pod_template=queued(lab, is_gated=True))
    await job.new_generation("launch")
    order = replace(order, generation=job.generation)
    await lab.backend.ensure_placed(order)
    before = await uids(api, namespace, "held")
    assert len(before) == 2
    await lab.backend.ensure_isolated(nodes[0], reason="broken")
    await lab.backend.ensure_placed(order)
    for node in nodes[1:]:
        await close(node, True)
    for slot in job.slots:
        await api.patch(f"{pods}/held-{slot}-g1", {"spec": {"schedulingGates": None}})

    async def is_looked_at() -> bool:
        there = await pods_of(api, namespace, "held")
        return all(condition(pod, "PodScheduled").get("reason") == "Unschedulable" for pod in there)

    await until(is_looked_at)
    assert await uids(api, namespace, "held") == before
    for node in nodes[1:]:
        await close(node, False)
    state = await job.until_done(lambda: lab.backend.ensure_placed(order))
    assert {pod.node for pod in state.pods.values()} == {*nodes[1:]}
    await job.gone()
