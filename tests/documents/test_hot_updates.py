"""Laying a hot update over a document: what merges, what is replaced, what may not change."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from everstep.core.errors import InvalidSpec
from everstep.core.levels import FaultClass, Level
from everstep.dialects.registry import compile_document, patch
from everstep.documents.text import read_text

FULL = read_text(Path(__file__).with_name("full.yaml").read_bytes())

RELATIVE = {
    "apiVersion": "everstep/v1",
    "kind": "TrainingJob",
    "metadata": {"name": "demo"},
    "spec": {
        "command": "train",
        "workdir": "/code/1",
        "model_dir": "out",
        "checkpoints": {"path": "/data/saved"},
        "phases": [{"name": "warmup"}, {"name": "main", "model_dir": "/data/main"}],
    },
}
MODELARTS = {
    "kind": "job",
    "metadata": {"name": "demo"},
    "algorithm": {"command": "train", "outputs": [{"name": "ckpt", "local_dir": "/data/ckpt"}]},
}
CEREBRAS = {"trainer": {"init": {"model_dir": "/data/out", "checkpoint": {"steps": 10}}, "fit": {}}}
POD = {"spec": {"containers": [{"name": "ascend", "command": ["train"]}]}}
MINDCLUSTER = {
    "apiVersion": "mindxdl.gitee.com/v1",
    "kind": "AscendJob",
    "metadata": {"name": "demo", "namespace": "team"},
    "spec": {"replicaSpecs": {"Master": {"template": POD}}},
}
OVERLAY = {
    "cluster": "gpu",
    "model_dir": "/data/out",
    "phases": [{"name": "warmup"}, {"name": "main", "env": {"LR": "1"}}],
}


def with_annotation(document: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    metadata = {**document["metadata"], "annotations": {"everstep/overlay": json.dumps(overlay)}}
    return {**document, "metadata": metadata}


def test_mappings_merge_and_the_rest_is_replaced() -> None:
    fragment = {
        "nodes": {"min": 2, "wanted": 8},
        "env": {"WD": "0.1"},
        "limits": {"requeue_s": None},
        "recovery": {"ladders": {"hang": ["fail"]}, "rules": [], "rollbacks": 5},
    }
    first, second = compile_document(patch(FULL, fragment)).phases
    assert (second.nodes_min, second.nodes) == (2, 8)
    assert second.env == {"LR": "3e-4", "WD": "0.1"}
    assert first.env == {"LR": "3e-4", "WD": "0.1", "STEPS": "100"}
    assert second.limits.requeue_s is None
    assert second.limits.grace_s == 15
    literal_rows = [row.classes for row in second.policy.ladders if row.is_literal]
    assert sorted(literal_rows) == [(FaultClass.CRASH,), (FaultClass.HANG,)]
    assert second.policy.answer(FaultClass.HANG).levels == (Level.FAIL,)
    assert second.policy.rules == ()
    assert second.policy.rollbacks == 5


def test_phases_are_found_by_name() -> None:
    changed = patch(FULL, {"phases": [{"name": "main", "nodes": 2}]})
    first, second = compile_document(changed).phases
    assert (first.name, first.nodes) == ("warmup", 4)
    assert (second.name, second.nodes) == ("main", 2)


def test_a_job_without_phases_has_one_named_main() -> None:
    plain = deepcopy(FULL)
    del plain["spec"]["phases"]
    (only,) = compile_document(patch(plain, {"phases": [{"name": "main", "nodes": 2}]})).phases
    assert only.nodes == 2


def test_the_document_itself_stays_as_it_was() -> None:
    before = deepcopy(FULL)
    patch(FULL, {"env": {"A": "1"}, "phases": [{"name": "main", "nodes": 2}]})
    assert before == FULL


def test_nothing_to_change_changes_nothing() -> None:
    assert patch(FULL, {}) == FULL


def test_saying_what_is_so_already_is_fine() -> None:
    same = {"cluster": "local", "start_phase": "main", "model_dir": "out"}
    assert patch(FULL, same) == FULL


@pytest.mark.parametrize(
    ("field", "fragment"),
    [
        ("patch.cluster", {"cluster": "gpu"}),
        ("patch.start_phase", {"start_phase": "warmup"}),
        ("patch.model_dir", {"model_dir": "elsewhere"}),
        ("patch.model_dir", {"model_dir": None}),
        ("patch.checkpoints.path", {"checkpoints": {"path": "elsewhere"}}),
        ("patch.checkpoints.path", {"checkpoints": None}),
        ("patch.phases.0.checkpoints.path", {"phases": [{"name": "main", "checkpoints": None}]}),
        ("patch.phases.0.model_dir", {"phases": [{"name": "main", "model_dir": None}]}),
        ("patch.apiVersion", {"apiVersion": "everstep/v1"}),
        ("patch.kind", {"kind": "TrainingJob"}),
        ("patch.metadata", {"metadata": {"name": "other"}}),
        ("patch.spec", {"spec": {"nodes": 4}}),
        ("patch.phases.0.name", {"phases": [{"name": "new"}]}),
        (
            "patch.phases.1.model_dir",
            {"phases": [{"name": "main"}, {"name": "warmup", "model_dir": "x"}]},
        ),
        ("patch.phases", {"phases": {"main": {}}}),
        ("patch.phases", {"phases": [{"nodes": 4}]}),
        ("patch.phases", {"phases": [{"name": "main"}, {"name": "main"}]}),
        ("patch", None),
        ("patch", [{"nodes": 4}]),
        ("patch.nodes", {"nodes": float("nan")}),
    ],
    ids=str,
)
def test_what_may_not_change_is_refused_with_a_sentence(field: str, fragment: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        patch(FULL, fragment)
    ((named_field, message),) = caught.value.problems
    assert named_field == field
    assert len(message) > 20


def test_a_patch_that_makes_no_sense_is_found_by_compiling() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.nods: unknown key; did you mean `nodes`\?"):
        compile_document(patch(FULL, {"nods": 4}))


def test_a_document_with_a_null_for_its_phases_can_be_changed() -> None:
    """A null is as good as no key, as where the document is compiled."""
    spec = {key: value for key, value in FULL["spec"].items() if key != "phases"}
    document = {**FULL, "spec": {**spec, "phases": None}}
    (phase,) = compile_document(patch(document, {"env": {"WD": "0.1"}, "phases": None})).phases
    assert phase.env["WD"] == "0.1"


def test_where_a_variable_comes_from_may_change_like_its_value() -> None:
    first_patch = patch(FULL, {"env": {"HF_TOKEN": {"from": "HF_TOKEN"}, "LR": {"from": "RATE"}}})
    first, second = compile_document(first_patch).phases
    assert (first.env_from, second.env_from) == ({"HF_TOKEN": "HF_TOKEN", "LR": "RATE"},) * 2
    assert "LR" not in second.env
    second_patch = patch(first_patch, {"env": {"HF_TOKEN": "none"}})
    assert compile_document(second_patch).phases[1].env["HF_TOKEN"] == "none"
    assert "HF_TOKEN" not in compile_document(second_patch).phases[1].env_from


MOVES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "workdir": (RELATIVE, "patch.workdir", {"workdir": "/code/2"}),
    "workdir of a phase": (
        RELATIVE,
        "patch.phases.0.workdir",
        {"phases": [{"name": "warmup", "workdir": "/code/2"}]},
    ),
    "workdir, beside what moves nothing": (
        {
            **RELATIVE,
            "spec": {"command": "train", "workdir": "/code/1", "checkpoints": {"path": "saved"}},
        },
        "patch.workdir",
        {"workdir": "/code/2", "checkpoints": {"format": "auto"}},
    ),
    "an output": (MODELARTS, "patch.checkpoints", {"checkpoints": None}),
    "a trainer's checkpoints": (CEREBRAS, "patch.checkpoints", {"checkpoints": None}),
    "a trainer's folder": (CEREBRAS, "patch.model_dir", {"model_dir": None}),
    "a trainer's folder, by its phase": (
        CEREBRAS,
        "patch.phases.0.model_dir",
        {"phases": [{"name": "main", "model_dir": None}]},
    ),
    "a manifest's namespace": (
        {**MINDCLUSTER, "everstep": {"cluster": "gpu"}},
        "patch.namespace",
        {"namespace": None},
    ),
    **{
        f"the annotation's {field}, {document['kind']}": (
            with_annotation(document, OVERLAY),
            f"patch.{field}",
            fragment,
        )
        for document in (MODELARTS, MINDCLUSTER)
        for field, fragment in (
            ("cluster", {"cluster": "local"}),
            ("model_dir", {"model_dir": None}),
            ("phases.0.name", {"phases": [{"name": "other"}]}),
        )
    },
}


@pytest.mark.parametrize("way", MOVES)
def test_nothing_that_a_job_writes_moves_whoever_named_it(way: str) -> None:
    """Folders are named by the dialect's own keys or its annotation, or begin in the working directory."""
    document, field, fragment = MOVES[way]
    with pytest.raises(InvalidSpec) as caught:
        patch(document, fragment)
    ((named_field, message),) = caught.value.problems
    assert named_field == field
    assert "while the job runs" in message


def test_a_working_directory_may_change_where_no_folder_moves_with_it() -> None:
    fragment = {"phases": [{"name": "main", "workdir": "/code/2"}]}
    first, second = compile_document(patch(RELATIVE, fragment)).phases
    assert (first.workdir, second.workdir) == ("/code/1", "/code/2")
    assert (first.model_dir, second.model_dir) == ("/code/1/out", "/data/main")


@pytest.mark.parametrize("document", [MODELARTS, MINDCLUSTER], ids=["modelarts", "mindcluster"])
def test_a_phase_of_the_annotation_is_found_by_its_name(document: dict[str, Any]) -> None:
    annotated = with_annotation(document, OVERLAY)
    changed = patch(annotated, {"phases": [{"name": "main", "env": {"WD": "2"}}]})
    first, second = compile_document(changed).phases
    assert (first.name, dict(first.env)) == ("warmup", {})
    assert (second.name, dict(second.env)) == ("main", {"LR": "1", "WD": "2"})


def test_a_change_reaches_the_job_of_a_list_that_has_a_block_of_its_own() -> None:
    job = {**MINDCLUSTER, "everstep": {"env": {"LR": "1"}, "model_dir": "/data/out"}}
    several = {"apiVersion": "v1", "kind": "List", "items": [job]}
    (phase,) = compile_document(patch(several, {"env": {"LR": "2"}})).phases
    assert (phase.env["LR"], phase.model_dir) == ("2", "/data/out")
    with pytest.raises(InvalidSpec, match=r"patch\.model_dir: cannot change"):
        patch(several, {"model_dir": "/elsewhere"})
