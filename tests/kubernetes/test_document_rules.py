"""Rules and notes of this backend about a document, without any cluster."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.backends.kubernetes import document_rules
from everstep.backends.kubernetes.manifest import PodSettings
from everstep.core.spec import JobSpec
from everstep.dialects import registry

SETTINGS = PodSettings(books="b", agent="a", namespace="everstep")


def job(**spec: Any) -> JobSpec:
    body = {"cluster": "gpu", "image": "trainer:1", "command": ["true"], **spec}
    metadata = {"name": "demo"}
    return registry.compile_document(
        {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": metadata, "spec": body}
    )


def pod(**spec: Any) -> dict[str, Any]:
    return {"pod_template": {"spec": spec}}


@pytest.mark.parametrize(
    ("spec", "field", "what"),
    [
        ({"image": None}, "spec.image", ""),
        ({"model_dir": "out"}, "spec.model_dir", "is relative; on Kubernetes name an absolute"),
        ({"checkpoints": {"path": "out"}}, "spec.checkpoints.path", "is relative"),
        (
            {"accelerator": "nvidia", "accelerators_per_node": "all"},
            "spec.accelerators_per_node",
            "",
        ),
        (pod(restartPolicy="Always"), "spec.pod_template.spec.restartPolicy", "must be left"),
        (
            pod(serviceAccountName="everstep-worker"),
            "spec.pod_template.spec.serviceAccountName",
            "",
        ),
        (
            pod(containers=[{"name": "train", "image": "x"}]),
            "spec.pod_template.spec.containers.0.image",
            "is set by Everstep",
        ),
        (
            {"phases": [{"name": "a"}, {"name": "b", **pod(hostPID=True)}]},
            "spec.pod_template.spec.hostPID",
            "must be left",
        ),
    ],
)
def test_what_no_cluster_would_take_is_found_without_one(
    spec: dict[str, Any], field: str, what: str
) -> None:
    ((broken, message),) = document_rules.broken_rules(job(**spec), SETTINGS)
    assert broken == field
    assert what in message


@pytest.mark.parametrize("spec", [{}, {"model_dir": "/storage/x"}, pod(nodeSelector={"a": "b"})])
def test_a_good_document_breaks_no_rule(spec: dict[str, Any]) -> None:
    assert document_rules.broken_rules(job(**spec), SETTINGS) == []
    assert document_rules.notes(job(**spec)) == []


def test_a_template_may_name_the_namespace_that_only_the_workers_know() -> None:
    template = {"pod_template": {"metadata": {"namespace": "elsewhere"}}}
    assert document_rules.broken_rules(job(**template), SETTINGS) == []


@pytest.mark.parametrize(
    ("containers", "number"),
    [
        (["trainer"], 0),
        (["logger", "training"], 1),
        (["train", "trainer"], None),
        (["logger"], None),
        (["trace"], None),
    ],
)
def test_a_container_that_is_nearly_called_train_is_noted(
    containers: list[str], number: int | None
) -> None:
    template = pod(containers=[{"name": name, "image": "x"} for name in containers])
    fields = [field for field, _ in document_rules.notes(job(**_without_image(template)))]
    expected = [] if number is None else [f"spec.pod_template.spec.containers.{number}.name"]
    assert fields == expected


def _without_image(template: dict[str, Any]) -> dict[str, Any]:
    for container in template["pod_template"]["spec"]["containers"]:
        if container["name"] == "train":
            del container["image"]
    return template


@pytest.mark.parametrize(("workdir", "is_noted"), [(".", False), ("/app", False), ("src", True)])
def test_a_relative_workdir_is_noted_with_where_it_begins(workdir: str, is_noted: bool) -> None:
    notes = document_rules.notes(job(workdir=workdir))
    assert [field for field, _ in notes] == ["spec.workdir"] * is_noted
    assert all("begins at the working directory of the image" in what for _, what in notes)


@pytest.mark.parametrize(
    ("nodes", "limit", "most"),
    [
        (1, "64Gi", "17.2 GB"),
        (2, "64Gi", "8.59 GB"),
        (1, "4000M", "1 GB"),
        (1, 4_000_000_000, "1 GB"),
        (1, "a lot", None),
        (1, None, None),
    ],
)
def test_a_limit_of_memory_is_noted_with_the_size_of_the_states_that_fit(
    nodes: int, limit: Any, most: str | None
) -> None:
    train = {"name": "train", "resources": {"limits": {"memory": limit}}}
    spec = {"nodes": nodes, "processes_per_node": 2, **pod(containers=[train])}
    notes = [what for _, what in document_rules.notes(job(**spec))]
    assert [most in what for what in notes if most is not None] == [True] * (most is not None)
    assert len(notes) == (most is not None)


@pytest.mark.parametrize("resources", [None, [], {"limits": None}, {"limits": "much"}])
def test_a_limit_that_is_none_is_not_noted(resources: Any) -> None:
    train = {"name": "train", "resources": resources}
    assert document_rules.notes(job(**pod(containers=[train]))) == []
