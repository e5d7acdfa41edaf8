"""Objects under names of ours that others made or removed: the job goes on, or says what is in its way."""

from __future__ import annotations

from everstep.backends.kubernetes import names
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import Pods
from tests.kubernetes.test_gangs import ALL, another_node, groups, pods_of, until_refused
from tests.testbed.api import Api
from tests.testbed.machines import Machines


async def test_a_pod_of_others_under_the_name_of_a_slot_is_left_alone_and_named(
    lab: KubernetesLab, pods: Pods
) -> None:
    """Once it is gone the job is placed."""
    job = KubernetesRun(lab, id="taken", env=NEVER_ENDS)
    name = names.pod("taken", slot=1, generation=1)
    await pods.create(name)
    other = await pods.until_phase(name, "Running")
    await job.new_generation("launch")
    for _ in range(3):
        state = await lab.backend.ensure_placed(job.place_order())
        assert f"pod {name} is not of job taken" in state.waiting_for
    await job.gone()
    still = await pods.get(name)
    assert still["metadata"]["uid"] == other["metadata"]["uid"]
    assert "deletionTimestamp" not in still["metadata"]
    job.run = "run-2"
    job.generation = await lab.backend.ensure_generation(job.ref, "launch again")
    await pods.delete(name, gracePeriodSeconds=0)
    await pods.until_gone(name)
    await job.place()
    await job.gone()


async def test_a_group_that_is_deleted_by_hand_holds_its_pods_up_no_longer_than_it_stays(
    lab: KubernetesLab, api: Api, machines: Machines, namespace: str
) -> None:
    job = KubernetesRun(lab, id="groupless", slots=ALL, env=NEVER_ENDS)
    await job.new_generation("launch")
    await until_refused(job)
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{namespace}/podgroups"
    [name] = await groups(api, namespace, "groupless")
    await api.delete(f"{path}/{name}")
    async with another_node(machines, namespace, "fourth"):
        await job.place()
        assert len(await pods_of(api, namespace, "groupless")) == 4
        await job.gone()


async def test_without_the_file_of_the_agent_new_pods_get_it_again(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    """An operator who tidies up removes the ConfigMap that all pods of this version mount."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    labelled = (await api.get(maps, labelSelector="app.kubernetes.io/managed-by=everstep"))["items"]
    [agent] = [m for m in labelled if m["metadata"]["name"].startswith("everstep-agent-")]
    await api.delete(f"{maps}/{agent['metadata']['name']}")
    job = KubernetesRun(lab, id="no-agent", env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.place()
    assert (await api.get(f"{maps}/{agent['metadata']['name']}"))["binaryData"] == agent[
        "binaryData"
    ]
    await job.gone()


async def test_without_the_books_of_the_cluster_its_jobs_go_on(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="no-books", env=NEVER_ENDS)
    await job.launch()
    await job.step(5)
    path = f"/api/v1/namespaces/{namespace}/configmaps/everstep-books"
    await lab.backend.ensure_isolated("some-node", reason="broken")
    books = await api.get(path)
    await api.delete(path)
    await job.again("restart-1")
    await job.step(10)
    await lab.another_worker()
    job.cursor = ""
    await job.again("restart-2")
    await job.step(15)
    assert (await api.get(path))["data"]["identity"] == books["data"]["identity"]
    await job.gone()
