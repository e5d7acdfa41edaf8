"""Two groups of workers in one cluster, as docs/operations/several-groups.md brings them there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from everstep.backends.kubernetes import manifest, network
from tests.kubernetes.conftest import make_namespace
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_network_policies import Peer, lets_through
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.telemetry.receiver import scrape
from tests.testbed.api import Api, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.operator import Kubectl, write_overlay
from tests.testbed.shared import ROOT

PAGE = ROOT / "docs" / "operations" / "several-groups.md"
CLUSTERS = ("east", "west")
COLLECTIVE = 20_000
"""A port at which ranks listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A cluster name, and where its workers and its jobs are."""

    cluster: str
    workers_in: str
    jobs_in: str


@pytest.fixture
def administrator(cluster: ClusterAccess, tmp_path: Path) -> Kubectl:
    """kubectl with the rights of an administrator of all namespaces."""
    return Kubectl(cluster, "", tmp_path)


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[DevServer]:
    async with await DevServer.start(db_file=tmp_path / "server.db") as server:
        yield server


@pytest.fixture
async def groups(api: Api, namespace: str, machines: Machines) -> list[Group]:
    """Their namespaces, on the nodes of this file."""
    groups = [
        Group(cluster=name, workers_in=f"{name}-{namespace}", jobs_in=f"{name}-{namespace}-jobs")
        for name in CLUSTERS
    ]
    for group in groups:
        for one in (group.workers_in, group.jobs_in):
            await make_namespace(api, one, nodes_of=namespace)
    return groups


@pytest.fixture
async def at_work(
    groups: list[Group], own_server: DevServer, administrator: Kubectl, tmp_path: Path
) -> AsyncIterator[list[Group]]:
    """Their workers, on one Temporal namespace, which their set-up registers."""
    overlays: list[Path] = []
    try:
        for group in groups:
            settings = {
                "EVERSTEP_CLUSTER": group.cluster,
                "TEMPORAL_ADDRESS": own_server.address,
                "TEMPORAL_NAMESPACE": "both",
            }
            folder = tmp_path / group.cluster
            overlays.append(
                write_overlay(
                    folder, group.workers_in, settings, with_setup=True, jobs_in=group.jobs_in
                )
            )
            await administrator("apply", "-k", str(folder))
        for group in groups:
            where = ("-n", group.workers_in)
            within = f"--timeout={HUNG_S:.0f}s"
            await administrator(*where, "rollout", "status", "deployment/everstep-worker", within)
        yield groups
    finally:
        for overlay in overlays:
            await administrator("delete", "--ignore-not-found", "-k", str(overlay), warns=True)


async def pods_of(api: Api, namespace: str, selector: str) -> list[Json]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    items: list[Json] = (await api.get(path, labelSelector=selector))["items"]
    return items


async def workers_of(api: Api, group: Group) -> list[Json]:
    return await pods_of(api, group.workers_in, "everstep.dev/component=worker")


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def peer(pod: Json) -> Peer:
    return Peer(namespace=pod["metadata"]["namespace"], labels=pod["metadata"]["labels"])


async def crash_a_container_of_each(
    groups: Sequence[Group], site: Site, machines: Machines
) -> None:
    """Returns once both jobs run again, each by its own workers."""
    for group in groups:
        place = {"namespace": group.jobs_in, "pod": f"{group.cluster}-1-g1", "container": "train"}
        await machines.fault("container-kill", **place)
    await until(lambda: all(site.status(name)["restarts"] == 1 for name in CLUSTERS))
    await until(lambda: all(site.status(name)["state"] == "running" for name in CLUSTERS))
    for name in CLUSTERS:
        [record] = json.loads(site.everstep("restarts", name, "--json"))
        assert (record["level"], record["recover_result"]) == ("pod", "success")


async def check_policies(api: Api, groups: Sequence[Group]) -> None:
    """Those that are there let no group reach the pods of the other one."""
    policies: list[Json] = []
    workers: list[Peer] = []
    ranks: list[Peer] = []
    for group in groups:
        for where in (group.workers_in, group.jobs_in):
            policies += (await api.get(network.policies_path(where)))["items"]
        workers.append(peer((await workers_of(api, group))[0]))
        selector = f"everstep.dev/job={group.cluster}"
        ranks.append(peer((await pods_of(api, group.jobs_in, selector))[0]))
    for worker, rank, other in zip(workers, ranks, reversed(ranks), strict=True):
        assert lets_through(policies, worker, rank, manifest.PORT)
        assert not lets_through(policies, worker, other, manifest.PORT)
        assert not lets_through(policies, rank, other, COLLECTIVE)


async def check_metrics(api: Api, groups: Sequence[Group]) -> None:
    for group in groups:
        for worker in await workers_of(api, group):
            samples = await scrape(f"{worker['status']['podIP']}:9464")
            labels = {dict(pairs)["cluster"] for name, pairs in samples if name[:8] == "everstep"}
            assert labels == {group.cluster}


async def until_ready(api: Api, groups: Sequence[Group], count: int) -> None:
    """Until so many workers are ready."""

    async def is_so() -> bool:
        workers = [pod for group in groups for pod in await workers_of(api, group)]
        return [is_ready(pod) for pod in workers].count(True) == count

    await until(is_so)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_each_group_runs_recovers_and_measures_its_own_job(
    at_work: list[Group], own_server: DevServer, machines: Machines, api: Api, tmp_path: Path
) -> None:
    """And while the Temporal server is away no worker is ready, and both jobs train on."""
    site = Site.make(tmp_path / "site", address=own_server.address, namespace="both")
    for name in CLUSTERS:
        site.submit(name, more={"cluster": name}, STEPS="1000000", STEP_S="0.05")
    await until(lambda: all(site.status(name)["state"] == "running" for name in CLUSTERS))
    await crash_a_container_of_each(at_work, site, machines)
    await check_policies(api, at_work)
    await check_metrics(api, at_work)
    await until_ready(api, at_work, 4)
    own_server.kill()
    saved = {name: site.saved(name) for name in CLUSTERS}
    await until_ready(api, at_work, 0)
    await until(lambda: all(site.saved(name) > saved[name] for name in CLUSTERS))
    await own_server.restart()
    await until_ready(api, at_work, 4)
    assert [site.status(name)["restarts"] for name in CLUSTERS] == [1, 1]
    for name in CLUSTERS:
        site.everstep("stop", name)
    await until(lambda: all(site.status(name)["state"] == "stopped" for name in CLUSTERS))


def commands_of_page() -> str:
    """What a reader types to have a second group."""
    page = PAGE.read_text()
    [block] = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", page.partition("\n## ")[0], re.MULTILINE)
    return dedent(block)


async def test_the_commands_of_the_page_bring_a_group_with_its_namespaces(
    administrator: Kubectl, cluster: ClusterAccess, api: Api, tmp_path: Path
) -> None:
    """The overlay stands beside a clone, as its paths say. Its images are not here."""
    shutil.copytree(ROOT / "deploy", tmp_path / "everstep" / "deploy")
    binaries = f"{administrator.binary.parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": binaries, "KUBECONFIG": cluster.kubeconfig, "HOME": str(tmp_path)}
    try:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", commands_of_page()), cwd=tmp_path, env=env, stdout=-1, stderr=-1
        )
        output, errors = await process.communicate()
        assert (process.returncode, errors.decode()) == (0, "")
        for name in (
            "namespace/team-a",
            "namespace/team-a-jobs",
            "clusterrolebinding.rbac.authorization.k8s.io/everstep-watch-team-a",
            "validatingadmissionpolicybinding.admissionregistration.k8s.io/everstep-records-team-a",
            "deployment.apps/everstep-worker",
        ):
            assert f"{name} created" in output.decode()
        deployment = await api.get("/apis/apps/v1/namespaces/team-a/deployments/everstep-worker")
        [worker] = deployment["spec"]["template"]["spec"]["containers"]
        env_of_worker = {one["name"]: one.get("value") for one in worker["env"]}
        assert env_of_worker["EVERSTEP_KUBE_DEFAULT_NAMESPACE"] == "team-a-jobs"
        bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        of_policy = await api.get(f"{bindings}/everstep-records-team-a")
        assert of_policy["spec"]["policyName"] == "everstep-records-team-a"
        roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a-jobs/rolebindings"
        binding = await api.get(f"{roles}/everstep-jobs")
        assert [subject["namespace"] for subject in binding["subjects"]] == ["team-a"]
    finally:
        await administrator(
            *("delete", "--ignore-not-found", "-k", str(tmp_path / "team-a")), warns=True
        )
