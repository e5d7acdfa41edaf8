"""The manifests of deploy/kubernetes, applied as an operator applies them."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from everstep import __version__
from tests.kubernetes import rights
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_manifest import pod
from tests.kubernetes.test_page import block
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.testbed.api import Api, ApiError, Json
from tests.testbed.controlplane import ClusterAccess, until_pods_can_be_created
from tests.testbed.machines import Machines
from tests.testbed.operator import (
    DEPLOY,
    GROUP,
    KUBERNETES,
    TRY,
    WORKER,
    Kubectl,
    KubectlFailed,
    write_overlay,
)
from tests.testbed.shared import ROOT


@pytest.fixture
def kubectl(cluster: ClusterAccess, namespace: str, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster, namespace, tmp_path)


@pytest.fixture
async def site(server: DevServer, namespace: str, tmp_path: Path) -> Site:
    temporal = await server.new_namespace(namespace)
    return Site.make(tmp_path, address=server.address, namespace=temporal)


@pytest.fixture
def overlay(site: Site, namespace: str, tmp_path: Path) -> Path:
    settings = {name: site.env[name] for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE")}
    return write_overlay(tmp_path / "overlay", namespace, {"EVERSTEP_CLUSTER": "pods", **settings})


@pytest.fixture
async def applied(
    kubectl: Kubectl, overlay: Path, api: Api, machines: Machines
) -> AsyncIterator[None]:
    await kubectl("apply", "-k", str(overlay))
    try:
        yield
    finally:
        await kubectl("delete", "-k", str(overlay), warns=True)  # some objects are cluster-wide


async def test_the_api_server_accepts_the_manifests(kubectl: Kubectl, overlay: Path) -> None:
    printed = await kubectl("apply", "--dry-run=server", "-k", str(overlay))
    kinds = {line.split("/")[0].split(".")[0] for line in printed.splitlines()}
    assert kinds == {
        "serviceaccount",
        "service",
        "priorityclass",
        "role",
        "rolebinding",
        "clusterrole",
        "clusterrolebinding",
        "configmap",
        "deployment",
        "poddisruptionbudget",
        "networkpolicy",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    }


@pytest.fixture
def administrator(cluster: ClusterAccess, tmp_path: Path) -> Kubectl:
    """kubectl with the rights of an administrator of all namespaces."""
    return Kubectl(cluster, "", tmp_path)


@pytest.fixture
async def tried(administrator: Kubectl) -> AsyncIterator[str]:
    """deploy/try, applied as it is. Its server and workers come from images, which are not here."""
    try:
        yield await administrator("apply", "-k", str(TRY))
    finally:  # which waits until they are gone
        await administrator("delete", "--ignore-not-found", "-k", str(TRY), warns=True)


async def test_what_is_to_try_it_out_makes_its_namespaces_and_enforces_the_restricted_level(
    tried: str, api: Api
) -> None:
    for name in (
        "namespace/everstep",
        "namespace/everstep-jobs",
        "deployment.apps/temporal",
        "service/temporal",
        "persistentvolumeclaim/temporal",
        "job.batch/everstep-setup",
        "deployment.apps/everstep-worker",
        "priorityclass.scheduling.k8s.io/everstep-worker-everstep",
    ):
        assert f"{name} created" in tried

    async def created() -> set[str]:
        items = (await api.get("/api/v1/namespaces/everstep/pods"))["items"]
        return {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in items}

    async def all_are_there() -> bool:  # the level of the namespace refuses none of them
        return await created() == {"temporal", "everstep-setup", "everstep-worker"}

    await until(all_are_there)
    # A job that asks for more than the level of its namespace is refused.
    await until_pods_can_be_created(api, "everstep-jobs")
    order = {"dryRun": "All"}
    pods = "/api/v1/namespaces/everstep-jobs/pods"
    await api.create(pods, pod(), **order)
    greedy = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        await api.create(pods, pod(greedy), **order)


async def test_the_overlay_of_the_page_applies_as_it_is_written(
    administrator: Kubectl, api: Api, tmp_path: Path
) -> None:
    """The overlay stands beside a clone, as its paths say. Its image is not here."""
    shutil.copytree(DEPLOY, tmp_path / "everstep" / "deploy")
    folder = tmp_path / "gpu"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(block("Install", 1))

    async def is_free() -> bool:
        """Another test may have had the same namespaces a moment ago."""
        there = {one["metadata"]["name"] for one in (await api.get("/api/v1/namespaces"))["items"]}
        return not there & {"everstep", "everstep-jobs"}

    await until(is_free)
    try:
        printed = await administrator("apply", "-k", str(folder))
        assert {line.rsplit(" ", 1)[1] for line in printed.splitlines()} == {"created"}
        deployment = await api.get("/apis/apps/v1/namespaces/everstep/deployments/everstep-worker")
        [worker] = deployment["spec"]["template"]["spec"]["containers"]
        assert worker["image"] == "registry.example.com/everstep:1"
    finally:
        await administrator("delete", "--ignore-not-found", "-k", str(folder), warns=True)
        await until(is_free)


async def test_two_groups_of_workers_share_no_object(
    administrator: Kubectl, api: Api, namespace: str, tmp_path: Path
) -> None:
    """The second one used to take the ClusterRoleBinding of the first, whose workers then could not start."""
    other = f"other-{namespace}"
    await api.create("/api/v1/namespaces", {"metadata": {"name": other}})
    overlays = [
        write_overlay(tmp_path / name, name, {"EVERSTEP_CLUSTER": name})
        for name in (namespace, other)
    ]

    async def may_list_nodes(of: str) -> bool:
        return await rights.is_allowed(api, of, "nodes", "list")

    try:
        printed = [await administrator("apply", "-k", str(one)) for one in overlays]
        for text in printed:
            assert {line.rsplit(" ", 1)[1] for line in text.splitlines()} == {"created"}
        await until(lambda: may_list_nodes(namespace))
        await until(lambda: may_list_nodes(other))
        await administrator("delete", "-k", str(overlays[1]), warns=True)
        assert await may_list_nodes(namespace)
        assert "unchanged" in await administrator("apply", "-k", str(overlays[0]))
    finally:
        for one in overlays:
            await administrator("delete", "--ignore-not-found", "-k", str(one), warns=True)
        await api.delete(f"/api/v1/namespaces/{other}")


async def test_an_overlay_that_leaves_out_the_names_is_refused(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """The API server refuses it, instead of taking objects of another group."""
    folder = tmp_path / "without"
    folder.mkdir()
    resources = [os.path.relpath(KUBERNETES, folder)]
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": namespace, "resources": resources})
    )
    with pytest.raises(KubectlFailed, match=r'Deployment\.apps "everstep-worker" is invalid'):
        await kubectl("apply", "--dry-run=server", "-k", str(folder), warns=True)


def test_what_scrapes_selects_the_workers_and_their_port() -> None:
    def objects(path: Path) -> list[Json]:
        return list(yaml.safe_load_all(path.read_text()))

    [service] = objects(KUBERNETES / "service.yaml")
    deployment, _ = objects(KUBERNETES / "worker.yaml")
    [monitor] = objects(DEPLOY / "observability" / "kubernetes" / "pod-monitor.yaml")
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    labels, [port] = template["metadata"]["labels"].items(), container["ports"]
    assert service["spec"]["selector"].items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port["name"]]
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]
    assert service["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])


def test_no_image_of_deploy_is_the_latest_one() -> None:
    """Ours is by default the one of this version."""
    images = [
        image
        for path in DEPLOY.rglob("*.yaml")
        for image in re.findall(r"^ *image: (\S+)", path.read_text(), re.MULTILINE)
    ]
    assert images
    assert {image for image in images if ":" not in image or image.endswith(":latest")} == set()
    worker_images = {image for image in images if image.startswith("everstep")}
    assert worker_images == {f"everstep:{__version__}"}
    bases = re.findall(r"^ARG PYTHON=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert [re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", one) is not None for one in bases] == [True]


async def test_setup_prepares_a_server_and_the_workers_start(
    server: DevServer, kubectl: Kubectl, namespace: str, machines: Machines, tmp_path: Path
) -> None:
    """From a server that has not even the namespace, to a worker that polls."""
    settings = {
        "EVERSTEP_CLUSTER": "new",
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": f"new-{namespace}",
    }
    overlay = write_overlay(tmp_path / "new", namespace, settings, with_setup=True)
    await kubectl("apply", "-k", str(overlay))
    try:
        within = f"--timeout={HUNG_S:.0f}s"
        await kubectl("wait", "--for=condition=Complete", "job/everstep-setup", within)
        printed = await kubectl("logs", "job/everstep-setup")
        assert "is registered" in printed
        assert "search attributes added: " in printed

        async def polls() -> bool:
            return "everstep worker ready" in await kubectl("logs", f"deployment/{WORKER}")

        await until(polls)
    finally:
        await kubectl("delete", "-k", str(overlay), warns=True)


def test_the_image_is_made_of_what_is_there() -> None:
    """It cannot be built here; what it copies and installs exists."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    assert copied
    for path in (ROOT / name for names in copied for name in names):
        assert path.exists(), path
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = set(
        re.findall(r"^([\w.-]+)==", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE)
    )
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["kubernetes"], *extras["telemetry"]]
    assert {re.split(r"[\[<>=!; ]", one)[0].lower() for one in needed} <= pinned


async def test_the_pods_of_the_manifest_pass_the_restricted_level(
    kubectl: Kubectl, api: Api, namespace: str, tmp_path: Path
) -> None:
    """A namespace that warns of anything less strict warns of nothing, without the overlay of these tests."""
    rendered = yaml.safe_load_all(await kubectl("kustomize", str(GROUP)))
    (deployment,) = (one for one in rendered if one["kind"] == "Deployment")
    deployment["metadata"]["namespace"] = namespace
    manifest = tmp_path / "deployment.json"
    manifest.write_text(yaml.safe_dump(deployment))
    labels = {"pod-security.kubernetes.io/warn": "restricted"}
    await api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    try:
        await kubectl("apply", "--dry-run=server", "-f", str(manifest))
    finally:
        no_labels = dict.fromkeys(labels)  # the namespace is the whole file's
        await api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": no_labels}})


def next_version(folder: Path) -> Path:
    """The package as another release has it: with another number, and another agent."""
    package = folder / "everstep"
    shutil.copytree(ROOT / "everstep", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in {
        "version.py": (f'"{__version__}"', '"99.0.0"'),
        "protocol/wire.py": ("from __future__", "# Of the next release.\nfrom __future__"),
    }.items():
        source = (package / name).read_text()
        assert old in source, name
        (package / name).write_text(source.replace(old, new, 1))
    return package


def to_next_version(package: Path) -> str:
    """A patch of the Deployment: another image, and the package that it has."""
    volume = {"name": "next", "hostPath": {"path": str(package)}}
    mount = {"name": "next", "mountPath": str(ROOT / "everstep"), "readOnly": True}
    worker = {"name": "worker", "image": "machine:2", "volumeMounts": [mount]}
    spec = {"volumes": [volume], "containers": [worker]}
    return json.dumps({"spec": {"template": {"spec": spec}}})


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOfNamespace:
    """What runs in the namespace of a Deployment and its jobs."""

    api: Api
    namespace: str

    async def of_jobs(self) -> dict[str, Json]:
        items = await self._pods("everstep.dev/job")
        return {one["metadata"]["name"]: one for one in items}

    async def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in (await self.of_jobs()).items()}

    async def workers(self) -> set[str]:
        items = await self._pods("app.kubernetes.io/name=everstep-worker")
        return {one["metadata"]["name"] for one in items if one["status"]["phase"] == "Running"}

    async def _pods(self, selector: str) -> list[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        items: list[Json] = (await self.api.get(path, labelSelector=selector))["items"]
        return items


def agent_of(pod: Json) -> str:
    """The ConfigMap with the agent that the pod began with."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return str(volumes["everstep-agent"]["configMap"]["name"])


@pytest.fixture
def pods(api: Api, namespace: str) -> PodsOfNamespace:
    return PodsOfNamespace(api=api, namespace=namespace)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("applied")
async def test_workers_of_the_deployment_roll_to_another_version_under_three_jobs_without_a_restart(
    kubectl: Kubectl, site: Site, pods: PodsOfNamespace, machines: Machines, tmp_path: Path
) -> None:
    """The workers find the API server, their rights and Temporal by what the manifests give them.

    Afterwards a pod is lost: the new workers start a new agent beside an old one.
    """
    names = ("one", "two", "three")
    for name in names:
        site.submit(name, STEPS="1000000", STEP_S="0.05", CHECKPOINT_EVERY="20")
    await until(lambda: all(site.saved(name) for name in names))
    before, old_workers = await pods.uids(), await pods.workers()
    assert len(before) == 6
    assert len(old_workers) == 2
    patch = to_next_version(next_version(tmp_path / "next"))
    await kubectl("patch", "deployment/everstep-worker", "--patch", patch)
    await kubectl("rollout", "status", "deployment/everstep-worker", f"--timeout={HUNG_S:.0f}s")

    async def are_replaced() -> bool:
        workers = await pods.workers()
        return len(workers) == 2 and not workers & old_workers

    await until(are_replaced)
    steps = {name: site.saved(name) for name in names}
    await until(lambda: all(site.saved(name) > steps[name] for name in names))
    assert await pods.uids() == before
    assert {name: site.status(name)["restarts"] for name in names} == dict.fromkeys(names, 0)
    place = {"namespace": pods.namespace, "pod": "one-1-g1", "container": "train"}
    await machines.fault("container-kill", **place)
    await until(lambda: site.status("one")["generation"] == 2)
    await until(lambda: site.status("one")["state"] == "running")
    after = await pods.of_jobs()
    assert after["one-0-g1"]["metadata"]["uid"] == before["one-0-g1"]
    assert agent_of(after["one-1-g2"]) != agent_of(after["one-0-g1"])
    [record] = json.loads(site.everstep("restarts", "one", "--json"))
    assert (record["level"], record["recover_result"]) == ("pod", "success")
    for name in names:
        site.everstep("stop", name)
    await until(lambda: all(site.status(name)["state"] == "stopped" for name in names))


def test_the_page_names_each_right() -> None:
    """docs/operations/kubernetes-namespaces.md says what each right is for."""
    page = (ROOT / "docs" / "operations" / "kubernetes-namespaces.md").read_text()
    for resource, verb in rights.granted():
        rows = [line for line in page.splitlines() if line.startswith(f"| {resource} |")]
        assert any(verb in row for row in rows), f"{verb} of {resource}"
