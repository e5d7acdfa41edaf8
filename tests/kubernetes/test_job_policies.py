"""The NetworkPolicy of each job on a real API server: what it lets through, and how long it is there.

No network here enforces policies: `lets_through` reads them as the API documents it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.backends.kubernetes import manifest, names, network
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.test_network_policies import Peer, lets_through
from tests.testbed.api import Api, Json

COLLECTIVE = 20_000
"""A port at which ranks listen."""


async def policies(api: Api, namespace: str) -> list[Json]:
    items: list[Json] = (await api.get(network.policies_path(namespace)))["items"]
    return items


async def peer(api: Api, namespace: str, name: str) -> Peer:
    pod = await api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return Peer(namespace=namespace, labels=pod["metadata"]["labels"])


async def test_pods_of_a_job_reach_each_other_and_those_of_no_other_job(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    one, two = (KubernetesRun(lab, id=name, env=NEVER_ENDS) for name in ("one", "two"))
    for job in (one, two):
        await job.launch()
    there = await policies(api, namespace)
    first, second, other = [
        await peer(api, namespace, name) for name in ("one-0-g1", "one-1-g1", "two-0-g1")
    ]
    stranger = Peer(namespace=namespace, labels={"app": "another"})
    for port in (COLLECTIVE, manifest.PORT):
        assert lets_through(there, first, second, port)
        assert lets_through(there, second, first, port)
    for source in (other, stranger, replace(first, namespace="elsewhere")):
        assert not lets_through(there, source, first, COLLECTIVE)
    assert not lets_through(there, first, other, COLLECTIVE)
    for job in (one, two):
        await job.gone()
    assert await policies(api, namespace) == []


async def test_a_policy_that_was_deleted_is_there_again_before_a_new_pod(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="again", env=NEVER_ENDS)
    await job.launch()
    path = f"{network.policies_path(namespace)}/{names.policy('again')}"
    before = await api.get(path)
    await api.delete(path)
    await job.new_generation("new pods")
    await job.place(recreate=job.slots)
    assert (await api.get(path))["spec"] == before["spec"]
    await job.gone()


async def test_a_policy_goes_with_the_record_of_its_job(
    lab: KubernetesLab, api: Api, namespace: str
) -> None:
    job = KubernetesRun(lab, id="pruned", env=NEVER_ENDS)
    await job.launch()
    record = f"/api/v1/namespaces/{namespace}/configmaps/{names.record('pruned')}"
    [policy] = await policies(api, namespace)
    [owner] = policy["metadata"]["ownerReferences"]
    assert owner["uid"] == (await api.get(record))["metadata"]["uid"]
    await api.delete(record)

    async def is_gone() -> bool:
        return await policies(api, namespace) == []

    await until(is_gone)


@pytest.mark.parametrize(
    ("source", "is_let_in"),
    [
        pytest.param(
            Peer(namespace="everstep", labels={names.COMPONENT: names.WORKER}), True, id="a worker"
        ),
        pytest.param(
            Peer(namespace="other", labels={names.COMPONENT: names.WORKER}),
            False,
            id="a worker of another group",
        ),
        pytest.param(
            Peer(namespace="everstep", labels={names.COMPONENT: "setup"}), False, id="the set-up"
        ),
    ],
)
def test_agents_answer_the_workers_of_their_cluster_alone(source: Peer, is_let_in: bool) -> None:
    owner = {"name": "r", "uid": "u"}
    policy = network.job_policy("demo", books="b", owner=owner, workers_in="everstep")
    policy["metadata"]["namespace"] = "everstep-jobs"
    rank = Peer(namespace="everstep-jobs", labels=names.labels("b", "demo"))
    assert lets_through([policy], source, rank, manifest.PORT) is is_let_in
    assert not lets_through([policy], source, rank, COLLECTIVE)


def test_a_worker_outside_the_cluster_reaches_agents_from_whatever_address_it_has() -> None:
    policy = network.job_policy("demo", books="b", owner={"name": "r", "uid": "u"}, workers_in=None)
    policy["metadata"]["namespace"] = "everstep-jobs"
    rank = Peer(namespace="everstep-jobs", labels=names.labels("b", "demo"))
    outside = Peer(namespace="", labels={})
    assert lets_through([policy], outside, rank, manifest.PORT)
    assert not lets_through([policy], outside, rank, COLLECTIVE)
