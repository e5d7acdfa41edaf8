"""Jobs that name no namespace in one of their lab_apart, as deploy has it: workers make no pods in theirs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.backends.kubernetes import node_views
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.core.errors import InvalidSpec
from everstep.plugin import MESSAGES
from tests.backends.lab import left_on
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes import rights
from tests.kubernetes.conftest import make_namespace, worker_process
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_namespaces import KINDS, names_in
from tests.testbed.api import Api
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines


@pytest.fixture(scope="module")
async def worker_kubeconfig(
    cluster: ClusterAccess, api: Api, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """A kubeconfig of workers with the rights of deploy/kubernetes alone."""
    path = tmp_path_factory.mktemp("rights") / "kubeconfig"
    async with rights.of_workers(cluster, api, namespace, path, rights.MANIFEST) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="module")
async def jobs(api: Api, namespace: str, worker_kubeconfig: str) -> str:
    """The namespace of jobs that name none, with the rights of deploy/job-namespace."""
    name = f"{namespace}-jobs"
    await make_namespace(api, name, nodes_of=namespace)
    await rights.grant_for_jobs(api, name, workers_in=namespace)
    return name


@pytest.fixture
async def lab_apart(
    jobs: str, worker_kubeconfig: str, namespace: str, machines: Machines, tmp_path: Path
) -> AsyncIterator[KubernetesLab]:
    one = await KubernetesLab.open(
        worker_kubeconfig, namespace, tmp_path / "storage", default_namespace=jobs
    )
    try:
        yield one
    finally:
        await one.backend.close()


async def test_a_job_that_names_no_namespace_is_made_in_that_of_jobs(
    lab_apart: KubernetesLab, api: Api, namespace: str, jobs: str
) -> None:
    job = KubernetesRun(lab_apart, id="apart", env=NEVER_ENDS)
    await job.launch()
    await job.step(1)
    assert await names_in(api, jobs, "pods", "apart") == ["apart-0-g1", "apart-1-g1"]
    assert [await names_in(api, namespace, kind, "apart") for kind in KINDS] == [[]] * 4
    [left] = await lab_apart.backend.leftovers()
    assert left.job == job.ref
    await lab_apart.another_worker()  # that one finds the job there too
    await job.gone()
    assert await names_in(api, jobs, "pods", "apart") == []


async def test_a_job_may_name_that_of_jobs_and_not_that_of_the_workers(
    lab_apart: KubernetesLab, namespace: str, jobs: str
) -> None:
    job = KubernetesRun(lab_apart, id="named", env=NEVER_ENDS, namespace=jobs)
    await job.launch()
    await job.gone()
    with pytest.raises(InvalidSpec, match=f"is {namespace}, and the workers of this cluster make"):
        await KubernetesRun(lab_apart, id="inside", namespace=namespace).new_generation("first")


async def test_nodes_that_the_workers_isolated_are_shown_with_the_jobs_there(
    lab_apart: KubernetesLab, cluster: ClusterAccess, namespace: str, jobs: str
) -> None:
    job = KubernetesRun(lab_apart, id="listed", env=NEVER_ENDS)
    await job.launch()
    node = (await job.pod(0)).node
    await lab_apart.backend.ensure_isolated(node, reason="it smokes")
    reader = await KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    try:
        views = {view.name: view for view in await node_views.nodes(reader, namespace, [jobs], {})}
    finally:
        await reader.close()
        await lab_apart.backend.ensure_released(node)
    assert (views[node].isolated, views[node].reason) == (True, "it smokes")
    assert views[node].jobs == ("listed",)
    await job.gone()


async def test_a_worker_uses_each_right_that_it_has_in_its_own_namespace_and_no_other(
    lab_apart: KubernetesLab, api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = rights.recorded(monkeypatch, below=f"/namespaces/{namespace}/")
    lab_apart.settings = replace(lab_apart.settings, messages=MESSAGES[:1])
    await api.delete(f"/api/v1/namespaces/{namespace}/configmaps/everstep-books")
    await lab_apart.another_worker()  # which makes it again
    job = KubernetesRun(lab_apart, id="rights", env=NEVER_ENDS)
    await job.launch()
    await lab_apart.backend.ensure_isolated("a-node", reason="test")
    await lab_apart.backend.ensure_released("a-node")
    await left_on(lab_apart)
    await job.gone()
    of_cluster = {("nodes", "list"), ("nodes", "watch"), ("leases", "list"), ("leases", "watch")}
    assert used == rights.granted(rights.MANIFEST) - of_cluster


@pytest.fixture
async def apart(
    site: Site, worker_kubeconfig: str, namespace: str, jobs: str, machines: Machines
) -> AsyncIterator[Site]:
    """Whose worker makes jobs there."""
    site.env["EVERSTEP_KUBE_NAMESPACE"] = namespace
    worker = worker_process(
        site, worker_kubeconfig, namespace, EVERSTEP_KUBE_DEFAULT_NAMESPACE=jobs
    )
    await worker.start()
    try:
        yield site
    finally:
        worker.kill9()


async def test_commands_find_jobs_where_the_workers_make_them(
    apart: Site, cluster: ClusterAccess, namespace: str
) -> None:
    site = apart
    site.env["KUBECONFIG"] = cluster.kubeconfig
    site.submit("shown", STEPS="1000000", STEP_S="0.05")
    await until(lambda: site.status("shown")["state"] == "running")
    await until(lambda: "step 3" in site.everstep("logs", "shown"))
    value = json.loads(site.everstep("doctor", "--cluster", "pods", "--json"))
    checks = {check["name"]: (check["state"], check["what"]) for check in value["checks"]}
    assert checks["namespace"] == ("ok", f"{namespace} has the service account everstep-worker")
    assert checks["rights"][0] == "ok"
    nodes = json.loads(site.everstep("nodes", "--cluster", "pods", "--json"))
    assert [job for node in nodes for job in node["jobs"]] == ["shown", "shown"]
    site.everstep("stop", "shown")
    await until(lambda: site.status("shown")["state"] == "stopped")
    pruning = ("prune", "--cluster", "pods", "--older-than", "0s", "--json")
    await until(lambda: json.loads(site.everstep(*pruning))["kept"][0]["why"] == "ended lately")
