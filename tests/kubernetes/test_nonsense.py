"""A kubeconfig or a setting that makes no sense ends a command or a worker with a sentence that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.aio.config import ConfigException

from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.tools import KubernetesTools
from everstep.backends.kubernetes.worker_settings import KubernetesWorkerSettings
from everstep.core.errors import InvalidSpec


@pytest.mark.parametrize(
    "content", ["", "{: nonsense", "[1, 2]", "text", "current-context: x", "contexts: 3", "\0"]
)
async def test_a_file_that_is_no_kubeconfig_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigException, match=f"^{path}: "):
        await KubernetesApi.from_kubeconfig(str(path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EVERSTEP_KUBE_JOB_NAMESPACES", "team-a"),
        ("EVERSTEP_KUBE_RESOURCES", "nvidia"),
        ("EVERSTEP_KUBE_NAMESPACE", ""),
        ("EVERSTEP_KUBE_PRIORITY_CLASSES", '{"high": "urgent"}'),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSpec, match=f"^{name}.*: is "):
        KubernetesTools()


def test_a_worker_names_a_setting_that_is_not_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_KUBE_JOB_NAMESPACES", "team-a")
    with pytest.raises(InvalidSpec, match=r"^EVERSTEP_KUBE_JOB_NAMESPACES: is 'team-a'.*JSON"):
        KubernetesWorkerSettings()
