"""The Helm chart by a real Helm: it makes what kustomize makes, and a cluster takes it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import archives, chart
from tests.support.patience import HUNG_S
from tests.testbed.api import Api
from tests.testbed.build import CONTROL_PLANE, HELM
from tests.testbed.controlplane import ClusterAccess
from tests.testbed.operator import ENCRYPTION, GROUP, SETUP

BUILD_S = 3_600
"""A build takes two minutes of a processor, once per machine."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_S)]

Object = dict[str, Any]
GENERATED = ("everstep-worker-", "everstep-setup-")
"""Names behind which kustomize puts a hash, and Helm the number of the installation."""


class Helm:
    """The command, with the packed chart."""

    def __init__(self, folder: Path) -> None:
        self.chart = folder / "everstep.tgz"
        self.chart.write_bytes(archives.tar_gz(chart.files()))
        self._folder = folder

    def __call__(self, *words: str, **env: str) -> str:
        return run(str(HELM.binaries_folder() / "helm"), *words, HOME=str(self._folder), **env)


def run(*command: str, **env: str) -> str:
    ended = subprocess.run(
        command,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    if ended.returncode:
        raise subprocess.CalledProcessError(ended.returncode, command, ended.stdout, ended.stderr)
    return ended.stdout


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    HELM.build()
    return Helm(tmp_path)


def objects(text: str) -> dict[tuple[str, str], Object]:
    """The objects of a stream, by kind and name, without what only one of both tools adds."""
    by_name: dict[tuple[str, str], Object] = {}
    for each in filter(None, yaml.safe_load_all(text)):
        name = each["metadata"]["name"]
        prefix = next((p for p in GENERATED if name.startswith(p)), None)
        if prefix and each["kind"] in ("ConfigMap", "Job"):
            name = prefix.rstrip("-")
        each["metadata"]["name"] = name
        by_name[each["kind"], name] = each
    return by_name


KEYS = "everstep-payload-keys"


@pytest.mark.parametrize(
    ("components", "values"),
    [((), ()), ((ENCRYPTION,), ("--set", f"encryption.secret={KEYS}"))],
    ids=["as it is", "with keys"],
)
def test_it_makes_the_objects_that_kustomize_makes(
    components: Sequence[Path], values: Sequence[str], helm: Helm, tmp_path: Path
) -> None:
    """The values of the chart and the settings of the manifests are one: by default nothing differs."""
    kubectl = str(CONTROL_PLANE.binaries_folder() / "kubectl")
    folders, added = (
        [os.path.relpath(folder, tmp_path) for folder in some]
        for some in ((GROUP, SETUP), components)
    )
    kustomization = yaml.safe_dump({"resources": folders, "components": added})
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    by_kustomize = objects(run(kubectl, "kustomize", str(tmp_path)))
    by_helm = objects(helm("template", "a", str(helm.chart), "--namespace", "everstep", *values))
    del by_kustomize["Namespace", "everstep"]  # which Helm makes with --create-namespace
    worker = by_helm["Deployment", "everstep-worker"]["spec"]["template"]
    assert set(worker["metadata"].pop("annotations")) == {"checksum/settings"}
    for made in by_kustomize.values():
        _without_hash(made)
        if made["metadata"].get("namespace") == "everstep":
            del made["metadata"]["namespace"]  # Helm sends the objects to that of the release
    assert by_helm == by_kustomize
    assert (KEYS in json.dumps(list(by_helm.values()))) == bool(components)


def _without_hash(made: Object) -> None:
    """Name the settings as they are called before kustomize puts a hash behind that."""
    for container in made["spec"]["template"]["spec"]["containers"] if _has_pods(made) else ():
        container["envFrom"] = [{"configMapRef": {"name": "everstep-worker"}}]


def _has_pods(made: Object) -> bool:
    return made["kind"] in ("Deployment", "Job")


def test_helm_finds_nothing_wrong_with_it(helm: Helm) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(helm.chart))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("replicas=0", "minimum"),
        ("image.repo=x", "additional properties 'repo' not allowed"),
        ("temporal.address=temporal", "does not match pattern"),
        ("settings.HOME=/x", "HOME"),
        ("image.digest=latest", "does not match pattern"),
        ("encryption.keys=x", "additional properties 'keys' not allowed"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(helm: Helm, value: str, problem: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        helm("template", "a", str(helm.chart), "--set", value)
    assert problem in raised.value.stderr


def test_values_are_where_they_belong(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    values = {
        "image.digest": digest,
        "image.repository": "registry.example.com/everstep",
        "temporal.secret": "temporal-key",
        "settings.EVERSTEP_LOG_FORMAT": "json",
        "jobs.namespace": "team-a",
        "metrics.namespace": "prometheus",
        "image.pullSecrets[0].name": "registry",
    }
    options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    made = objects(helm("template", "a", str(helm.chart), "-n", "workers", *options))
    for kind, name in (("Deployment", "everstep-worker"), ("Job", "everstep-setup")):
        spec = made[kind, name]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["image"] == f"registry.example.com/everstep@{digest}"
        assert {"secretRef": {"name": "temporal-key"}} in container["envFrom"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert made["ConfigMap", "everstep-worker"]["data"]["EVERSTEP_LOG_FORMAT"] == "json"
    assert made["Role", "everstep-jobs"]["metadata"]["namespace"] == "team-a"
    assert made["RoleBinding", "everstep-jobs"]["subjects"][0]["namespace"] == "workers"
    assert made["PriorityClass", "everstep-worker-workers"]
    policy = json.dumps(made["NetworkPolicy", "everstep-worker"]["spec"])
    assert '{"kubernetes.io/metadata.name": "prometheus"}' in policy


@pytest.fixture
def installed(helm: Helm, cluster: ClusterAccess, namespace: str) -> Iterator[tuple[str, ...]]:
    """Installed in a namespace of the test, which takes the jobs too. Yields words of further commands."""
    where = ("a", str(helm.chart), "--namespace", namespace, "--kubeconfig", cluster.kubeconfig)
    values = ("--set", f"jobs.namespace={namespace}", "--set", "jobs.createNamespace=false")
    helm("install", *where, *values)
    yield (*where, *values)
    helm("uninstall", "a", "--wait", *where[2:])


async def test_a_cluster_takes_it_and_an_upgrade_starts_workers_with_other_settings_again(
    helm: Helm, installed: tuple[str, ...], api: Api, namespace: str
) -> None:
    place = f"/apis/apps/v1/namespaces/{namespace}/deployments/everstep-worker"
    begun = await api.get(place)
    helm("upgrade", *installed, "--set", "replicas=3")
    more = await api.get(place)
    assert (begun["spec"]["replicas"], more["spec"]["replicas"]) == (2, 3)
    assert more["spec"]["template"] == begun["spec"]["template"]
    helm("upgrade", *installed, "--set", "settings.EVERSTEP_LOG_FORMAT=json")
    assert (await api.get(place))["spec"]["template"] != begun["spec"]["template"]
