"""Pods that wait for a node while nodes are isolated and released."""

from __future__ import annotations

from typing import Any

from everstep.core.world import PlaceState
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.test_gangs import pods_of
from tests.testbed.api import Api, Json
from tests.testbed.machines import Machines


async def waiting(job: KubernetesRun, api: Api, namespace: str) -> PlaceState:
    """The state of a placement once the scheduler has looked at its pods in vain."""
    states: list[PlaceState] = []

    async def is_refused() -> bool:
        states.append(await job.backend.ensure_placed(job.place_order()))
        return "available" in str(states[-1].waiting_for)

    await until(is_refused)
    assert all(not pod["spec"].get("nodeName") for pod in await pods_of(api, namespace, job.ref.id))
    return states[-1]


async def test_pods_that_wait_take_a_node_as_soon_as_it_is_released(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    isolated = [f"{namespace}-{number}" for number in (0, 1)]
    for node in isolated:
        await lab.backend.ensure_isolated(node, reason="broken")
    job = KubernetesRun(lab, id="released", env=NEVER_ENDS)
    await job.new_generation("launch")
    refused = await waiting(job, api, namespace)
    assert not refused.placed
    hint = f"; {isolated[0]}, {isolated[1]} are isolated: everstep release {isolated[0]}"
    assert str(refused.waiting_for).endswith(hint)
    await lab.backend.ensure_released(isolated[0])
    state = await job.place()
    assert {pod.node for pod in state.pods.values()} == {isolated[0], f"{namespace}-2"}
    await job.gone()


async def test_pods_that_wait_keep_off_a_node_that_is_isolated_meanwhile(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    nodes = [f"{namespace}-{number}" for number in range(3)]

    async def close(node: str, closed: bool) -> None:
        await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": closed}})

    for node in nodes:
        await close(node, True)
    job = KubernetesRun(lab, id="isolated", slots=(0,), env=NEVER_ENDS)
    await job.new_generation("launch")
    await waiting(job, api, namespace)
    [before] = await pods_of(api, namespace, "isolated")
    for node in nodes[:2]:
        await lab.backend.ensure_isolated(node, reason="broken")

    async def is_another() -> bool:
        await job.backend.ensure_placed(job.place_order())
        uids = [pod["metadata"]["uid"] for pod in await pods_of(api, namespace, "isolated")]
        return len(uids) == 1 and uids != [before["metadata"]["uid"]]

    await until(is_another)
    for node in nodes:
        await close(node, False)
    state = await job.place()
    assert [pod.node for pod in state.pods.values()] == [nodes[2]]
    await job.gone()


async def test_pods_that_wait_stay_while_nothing_changes(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    for number in (0, 1):
        await lab.backend.ensure_isolated(f"{namespace}-{number}", reason="broken")
    job = KubernetesRun(lab, id="same", env=NEVER_ENDS)
    await job.new_generation("launch")
    await waiting(job, api, namespace)
    before = [pod["metadata"]["uid"] for pod in await pods_of(api, namespace, "same")]
    for _ in range(5):
        await waiting(job, api, namespace)
    assert [p["metadata"]["uid"] for p in await pods_of(api, namespace, "same")] == before
    await job.gone()


def with_scheduler(lab: KubernetesLab, name: str) -> dict[str, Any]:
    """A template whose pods another scheduler than the usual one places."""
    spec = lab.pod["pod_template"]["spec"]
    return {"spec": {**spec, "schedulerName": name}}


async def say(api: Api, namespace: str, pod: Json, *, reason: str, message: str) -> None:
    """What a scheduler says of a pod that it does not place."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    await api.patch(path, {"status": {"conditions": [condition]}})


async def test_of_a_gang_of_volcano_the_pod_that_has_no_place_says_why(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """Its scheduler says of each other pod where it would be placed. With a real one: `make test-volcano`."""
    job = KubernetesRun(lab, id="gang", slots=(0, 1, 2), env=NEVER_ENDS)
    await job.new_generation("launch")
    order = job.place_order(pod_template=with_scheduler(lab, "volcano"))
    state = await lab.backend.ensure_placed(order)
    assert state.waiting_for == "pod gang-0-g1: the scheduler to choose a node"
    *fitting, last = await pods_of(api, namespace, "gang")
    for pod in fitting:
        text = "Pod can possibly be assigned to n0, once minAvailable is satisfied"
        await say(api, namespace, pod, reason="Schedulable", message=text)
    text = "0/3 nodes are unavailable: 3 Insufficient cpu."
    await say(api, namespace, last, reason="Unschedulable", message=text)

    async def shows_reason() -> bool:
        state = await lab.backend.ensure_placed(order)
        return state.waiting_for == f"pod {last['metadata']['name']}: {text}"

    await until(shows_reason)
    await job.gone()
