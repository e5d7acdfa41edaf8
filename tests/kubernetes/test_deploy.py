"""The manifests of deploy/kubernetes, applied as an operator applies them."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import rights
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.testbed.api import Api, Json
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.machines import Machines
from tests.testbed.operator import DEPLOY, KUBERNETES, TRY, WORKER, Kubectl, write_overlay
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
        await kubectl("delete", "-k", str(overlay), warns=True)  # two objects are cluster-wide


async def test_the_api_server_accepts_the_manifests(kubectl: Kubectl, overlay: Path) -> None:
    printed = await kubectl("apply", "--dry-run=server", "-k", str(overlay))
    kinds = {line.split("/")[0].split(".")[0] for line in printed.splitlines()}
    assert kinds == {
        "serviceaccount",
        "role",
        "rolebinding",
        "clusterrole",
        "clusterrolebinding",
        "configmap",
        "deployment",
        "poddisruptionbudget",
        "networkpolicy",
    }


async def test_what_is_to_try_it_out_is_accepted(
    kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """Applied and removed. Its server and the workers come from images, which are not here."""
    folder = tmp_path / "try"
    folder.mkdir()
    kustomization = {"namespace": namespace, "resources": [os.path.relpath(TRY, folder)]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    words = ("-k", str(folder))
    await kubectl("apply", "--dry-run=server", *words, warns=True)  # the namespace is there
    printed = await kubectl("apply", *words, warns=True)
    for name in (
        "deployment.apps/temporal",
        "service/temporal",
        "persistentvolumeclaim/temporal",
        "job.batch/everstep-setup",
        "deployment.apps/everstep-worker",
    ):
        assert f"{name} created" in printed
    rendered = yaml.safe_load_all(await kubectl("kustomize", str(folder)))
    objects = [one for one in rendered if one["kind"] != "Namespace"]
    (folder / "rendered.json").write_text(yaml.safe_dump_all(objects))
    await kubectl("delete", "-f", str(folder / "rendered.json"), warns=True)


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
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", "\n".join(lines))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


async def test_the_pods_of_the_manifest_pass_the_restricted_level(
    kubectl: Kubectl, api: Api, namespace: str, tmp_path: Path
) -> None:
    """Without the overlay of these tests: a namespace that warns of anything less strict warns of nothing."""
    rendered = yaml.safe_load_all(await kubectl("kustomize", str(KUBERNETES)))
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


async def test_workers_of_the_deployment_run_jobs_and_roll_to_a_new_image_without_a_restart(
    applied: None, kubectl: Kubectl, site: Site, api: Api, namespace: str
) -> None:
    """The workers find the API server, their rights and Temporal by what the manifests give them."""

    async def job_pods() -> dict[str, str]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        items = (await api.get(path, labelSelector="everstep.dev/job"))["items"]
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in items}

    async def workers() -> set[str]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        selector = "app.kubernetes.io/name=everstep-worker"
        items: list[Json] = (await api.get(path, labelSelector=selector))["items"]
        return {one["metadata"]["name"] for one in items if one["status"]["phase"] == "Running"}

    names = ("one", "two", "three")
    for name in names:
        site.submit(name, STEPS="1000000", STEP_S="0.05", CHECKPOINT_EVERY="1000000")
    await until(lambda: all(site.status(name)["state"] == "running" for name in names))
    pods, before = await job_pods(), await workers()
    assert len(pods) == 6
    assert len(before) == 2
    await kubectl("set", "image", "deployment/everstep-worker", "worker=machine:2")
    await kubectl("rollout", "status", "deployment/everstep-worker", f"--timeout={HUNG_S:.0f}s")

    async def are_replaced() -> bool:
        after = await workers()
        return len(after) == 2 and not after & before

    await until(are_replaced)
    steps = {name: site.status(name)["step"] for name in names}
    await until(lambda: all(site.status(name)["step"] > steps[name] for name in names))
    assert await job_pods() == pods
    for name in names:
        assert site.status(name)["restarts"] == 0
        site.everstep("stop", name)
    await until(lambda: all(site.status(name)["state"] == "stopped" for name in names))


def test_the_page_names_each_right() -> None:
    """docs/kubernetes.md says what each right is for."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for resource, verb in rights.granted():
        rows = [line for line in page.splitlines() if line.startswith(f"| {resource} |")]
        assert any(verb in row for row in rows), f"{verb} of {resource}"
