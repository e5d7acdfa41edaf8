"""What a document means depends on what its cluster makes, pods or processes, and never on its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.local_activities import LocalActivities
from everstep.dialects.registry import compile_document, read_text
from everstep.worker_settings import WorkerSettings

NATIVE: dict[str, Any] = {
    "apiVersion": "everstep/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "demo"},
    "spec": {"command": ["python", "train.py"], "image": "train:1", "workdir": "/work"},
}
MODELARTS: dict[str, Any] = {
    "kind": "job",
    "metadata": {"name": "demo"},
    "algorithm": {"command": "python train.py"},
    "spec": {"resource": {"node_count": 2}},
}


def notes_for(document: dict[str, Any], *, cluster: str, has_pods: bool) -> list[str]:
    body = {**document, "spec": {**document["spec"], "cluster": cluster}}
    spec = compile_document(body, has_pods=lambda name: has_pods and name == cluster)
    return [note.field for note in spec.notes]


@pytest.mark.parametrize("cluster", ["local", "fake", "gpus"])
def test_a_field_has_an_effect_by_what_the_cluster_makes(cluster: str) -> None:
    for has_pods in (True, False):
        assert "spec.workdir" not in notes_for(NATIVE, cluster=cluster, has_pods=has_pods)
    assert "spec.image" not in notes_for(NATIVE, cluster=cluster, has_pods=True)
    assert "spec.image" in notes_for(NATIVE, cluster=cluster, has_pods=False)


@pytest.mark.parametrize(("has_pods", "kind"), [(True, "ascend"), (False, "simulated")])
def test_devices_of_modelarts_are_the_clusters(has_pods: bool, kind: str) -> None:
    (phase,) = compile_document(MODELARTS, has_pods=lambda _: has_pods).phases
    assert phase.accelerator == kind


@pytest.mark.parametrize(
    ("backend", "cluster", "cluster_kind", "has_pods"),
    [
        ("kubernetes", "local", "local", True),
        ("local", "gpus", "gpus", False),
        ("fake", "fake", "fake", False),
        ("local", "local", "elsewhere", True),
        ("kubernetes", "gpus", "local", False),
    ],
)
def test_a_worker_reads_documents_for_its_backend(
    backend: str, cluster: str, cluster_kind: str, has_pods: bool
) -> None:
    """Of a cluster that another worker serves only the name is available."""
    settings = WorkerSettings(backend=backend, cluster=cluster)
    spec = {**NATIVE["spec"], "cluster": cluster_kind}
    activities = LocalActivities(has_pods=settings.has_pods)
    compiled = activities.compile({**NATIVE, "spec": spec})
    assert ("spec.image" in [note.field for note in compiled.notes]) is not has_pods


def test_a_namespace_is_for_pods_alone() -> None:
    body = {**NATIVE, "spec": {**NATIVE["spec"], "namespace": "team-a"}}
    assert "spec.namespace" not in notes_for(body, cluster="gpus", has_pods=True)
    assert "spec.namespace" in notes_for(body, cluster="gpus", has_pods=False)
    assert compile_document(body, has_pods=lambda _: True).namespace == "team-a"


def job_of_mindcluster(name: str) -> dict[str, Any]:
    """A job of a sample, without the objects beside it."""
    path = Path(__file__).with_name("mindcluster") / f"{name}.yaml"
    document = read_text(path.read_text())
    return next(one for one in document.get("items", [document]) if one["kind"] != "ConfigMap")


@pytest.mark.parametrize(
    ("overlay", "namespace"),
    [({}, "default"), ({"namespace": None}, ""), ({"namespace": "b"}, "b")],
)
def test_a_job_of_mindcluster_is_in_the_namespace_of_its_metadata(
    overlay: dict[str, Any], namespace: str
) -> None:
    document = {**job_of_mindcluster("mindspore"), "everstep": overlay}
    assert compile_document(document, has_pods=lambda _: True).namespace == namespace


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mindspore", ("spec", "runPolicy", "schedulingPolicy", "priorityClass")),
        ("volcano", ("spec", "priorityClassName")),
    ],
)
def test_the_priority_class_of_a_job_of_mindcluster_is_that_of_its_pods(
    name: str, place: tuple[str, ...]
) -> None:
    document = job_of_mindcluster(name)
    part = document
    for key in place[:-1]:
        part = part.setdefault(key, {})
    part[place[-1]] = "high"
    (phase,) = compile_document(document, has_pods=lambda _: True).phases
    assert phase.pod_template["spec"]["priorityClassName"] == "high"
