"""ModelArts documents: those of their own pages, and what each key becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.core.errors import InvalidSpec
from everstep.core.levels import FaultClass, Level
from everstep.dialects.registry import compile_document, laid_over, patch, validate
from everstep.documents.merge import merged

RETRY = "fault-tolerance/job-retry-num"
UNCONDITIONAL = "fault-tolerance/job-unconditional-retry"
HANG = "fault-tolerance/hang-retry"
OPERATOR = "fault-tolerance/hccl_op_retry"
POD = "fault-tolerance/pod-retry-num"

THEIR_EXAMPLES: tuple[dict[str, str], ...] = (
    {RETRY: "8", UNCONDITIONAL: "true"},
    {RETRY: "3", HANG: "true"},
    {RETRY: "8", UNCONDITIONAL: "true", HANG: "true", POD: "3"},
)
"""The annotations of the three examples in their documentation, which hold nothing else."""


def document(annotations: dict[str, str] | None = None, **over: Any) -> dict[str, Any]:
    plain = {
        "kind": "job",
        "metadata": {"name": "demo", "annotations": annotations or {}},
        "algorithm": {"command": "python train.py"},
        "spec": {"resource": {"node_count": 4}},
    }
    return merged(plain, over)


def notes(document: dict[str, Any]) -> dict[str, str]:
    verdict = validate(json.dumps(document))
    assert verdict.ok, verdict.errors
    return dict(verdict.notes)


@pytest.mark.parametrize("annotations", THEIR_EXAMPLES, ids=["unconditional", "suspension", "all"])
def test_examples_of_their_pages_are_valid_but_say_nothing_to_run(
    annotations: dict[str, str],
) -> None:
    example = {"kind": "job", "metadata": {"annotations": annotations}}
    notes_by_key = notes(example)
    assert {"metadata.name", "algorithm.command", "algorithm.outputs"} == {*notes_by_key}
    with pytest.raises(InvalidSpec, match=r"algorithm\.command: missing"):
        compile_document(example)


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_command_is_as_good_as_none(blank: str) -> None:
    notes_by_key = notes(document(algorithm={"command": blank}))
    assert notes_by_key["algorithm.command"].startswith("missing; say what to run")


def test_a_boot_file_is_named_where_a_command_is_missing() -> None:
    written = {"command": "", "code_dir": "/obs/code/", "boot_file": "/obs/code/main.py"}
    with pytest.raises(InvalidSpec, match=r"boot_file alone starts nothing.*python main\.py"):
        compile_document(document(algorithm=written))


def test_case_01_annotations_are_accepted_and_read_back_as_they_were_written() -> None:
    written = {RETRY: "8", UNCONDITIONAL: "true"}
    spec = compile_document(document(written))
    assert spec.origin.annotations == written
    assert spec.dialect == "modelarts"
    assert [(b.name, b.limit) for b in spec.phases[0].policy.budgets] == [("job", 8)]


@pytest.mark.parametrize("number", ["0", "129", "-1", "3.5", "abc"])
def test_case_02_a_wrong_number_of_restarts_is_rejected_by_its_key(number: str) -> None:
    with pytest.raises(InvalidSpec, match=RETRY):
        compile_document(document({RETRY: number}))


@pytest.mark.parametrize("number", ["1", "128"])
def test_case_02_both_ends_of_the_range_are_accepted(number: str) -> None:
    (budget,) = compile_document(document({RETRY: number})).phases[0].policy.budgets
    assert budget.limit == int(number)


@pytest.mark.parametrize("key", [UNCONDITIONAL, HANG, POD])
def test_case_03_a_retry_without_restarts_is_told_and_switches_nothing_on(key: str) -> None:
    alone = document({key: "3" if key == POD else "true"})
    assert "no effect without" in notes(alone)[f"metadata.annotations.{key}"]
    policy = compile_document(alone).phases[0].policy
    assert policy.answer(FaultClass.CRASH).levels == (Level.FAIL,)
    assert policy.answer(FaultClass.NODE).levels == (Level.FAIL,)
    assert policy.answer(FaultClass.HANG).levels == (Level.NOTE,)
    assert not policy.precheck


def test_what_is_switched_off_needs_no_note() -> None:
    assert notes(document({HANG: "false", UNCONDITIONAL: "false"})) == {}


@pytest.mark.parametrize(
    ("minutes", "seconds"), [(None, 1800.0), ("10", 600.0), ("720", 43_200.0)], ids=str
)
def test_case_28_how_long_nothing_may_move(minutes: str | None, seconds: float) -> None:
    variables = {} if minutes is None else {"MA_HANG_DETECT_TIME": minutes}
    spec = compile_document(document(algorithm={"environments": variables}))
    assert spec.phases[0].limits.still_s == seconds
    assert spec.phases[0].limits.hang_s is None
    assert spec.phases[0].env == variables


@pytest.mark.parametrize("name", ["my.opt-name", "_", "a b", "aä", "a" * 8192])
def test_a_variable_may_have_any_name_that_they_allow(name: str) -> None:
    phase = compile_document(document(algorithm={"environments": {name: "x"}})).phases[0]
    assert phase.env == {name: "x"}


def test_names_a_shell_has_no_word_for_are_kept_by_the_one_that_runs_the_command() -> None:
    for name, shell in {"LR_1": "/bin/sh", "my.opt": "/bin/bash"}.items():
        phase = compile_document(document(algorithm={"environments": {name: "x"}})).phases[0]
        assert phase.command == (shell, "-c", "python train.py")


def test_variables_are_called_as_the_document_calls_them() -> None:
    over = {"env": {"VC_WORKER_NUM": "2"}}
    out = {"name": "NNODES", "local_dir": "/o", "access_method": "env"}
    written = {"environments": {"RANK": "1", "MA_OTHER": ""}, "outputs": [out]}
    notes_by_key = notes(document(algorithm=written, everstep=over))
    own_values = {name for name, what in notes_by_key.items() if "its own value" in what}
    assert own_values == {
        "algorithm.environments.RANK",
        "algorithm.outputs.0.name",
        "everstep.env.VC_WORKER_NUM",
    }
    assert "choose another name" in notes_by_key["algorithm.environments.MA_OTHER"]
    assert "everstep.env.RANK" not in notes_by_key


def test_variables_of_all_phases_stay_within_what_a_job_may_hold() -> None:
    large = {"environments": {f"A{i}": "x" * 4096 for i in range(100)}}
    phases = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    compile_document(document(algorithm=large))
    with pytest.raises(InvalidSpec, match=r"^algorithm\.environments: with all they inherit"):
        compile_document(document(algorithm=large, everstep={"phases": phases}))


@pytest.mark.parametrize("minutes", ["9", "721"])
def test_case_28_beyond_the_range_it_is_rejected(minutes: str) -> None:
    with pytest.raises(InvalidSpec, match="MA_HANG_DETECT_TIME"):
        compile_document(document(algorithm={"environments": {"MA_HANG_DETECT_TIME": minutes}}))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (None, None),
        ("-1", None),
        ("10", 10.0),
        ("86401", 86_401.0),
        ("9999999999", 9_999_999_999.0),
    ],
)
def test_when_a_new_pod_waits_for_the_old_ones_place(
    written: str | None, seconds: float | None
) -> None:
    name = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"
    variables = {} if written is None else {name: written}
    spec = compile_document(document(algorithm={"environments": variables}))
    assert spec.phases[0].clearing_s == seconds


def test_case_31_a_job_that_is_issued_again_waits_for_half_an_hour() -> None:
    assert compile_document(document({RETRY: "3"})).phases[0].limits.requeue_s == 1800.0


@pytest.mark.parametrize("hours", [1, 8760, 8761, 1_000_000])
def test_a_job_may_run_as_long_as_anybody_wants(hours: int) -> None:
    phase = compile_document(document(spec={"auto_stop": {"duration": hours}})).phases[0]
    assert phase.limits.run_s == hours * 3600


def test_folders_are_called_as_the_document_calls_them() -> None:
    outputs = {"outputs": [{"name": "no folder"}, {"local_dir": "/o"}, {"local_dir": "/p"}]}
    over = {
        "model_dir": "/m",
        "phases": [{"name": "a"}, {"name": "b", "checkpoints": {"path": "/c"}}],
    }
    assert compile_document(document(algorithm=outputs, everstep=over)).folders == {
        "/m": "everstep.model_dir",
        "/o": "algorithm.outputs.1.local_dir",
        "/c": "everstep.phases.1.checkpoints.path",
    }
    notes_by_key = notes(document(algorithm=outputs))
    assert "checkpoints" in notes_by_key["algorithm.outputs.1"]
    assert "stays on its node" in notes_by_key["algorithm.outputs.2"]


LOGS = {"name": "logs", "local_dir": "/cache/logs", "access_method": "parameter"}
PLAIN = {"name": "train_url", "local_dir": "/home/ma-user/modelarts/outputs/train_url_0"}

# Two outputs, what else of `algorithm` names their folders, and the index of the one that is taken.
OUTPUTS: tuple[tuple[str, list[dict[str, Any]], dict[str, Any], int], ...] = (
    ("its name", [LOGS, {"name": "ckpt_dir", "local_dir": "/o"}], {}, 1),
    ("its folder", [LOGS, {"name": "out", "local_dir": "/data/Checkpoints/"}], {}, 1),
    ("nothing, but logs are none", [LOGS, PLAIN], {}, 1),
    ("nothing: the first", [PLAIN, {"name": "b", "local_dir": "/b"}], {}, 0),
    ("a model before what says nothing", [PLAIN, {"name": "model", "local_dir": "/b"}], {}, 1),
    ("logs alone", [LOGS], {}, 0),
    ("no folder", [{"name": "ckpt"}, LOGS], {}, 1),
    (
        "a parameter",
        [PLAIN, {"name": "b", "local_dir": "/b/"}],
        {"parameters": [{"name": "checkpoint_path", "value": "/b"}, {"value": 3}, 7]},
        1,
    ),
    (
        "a variable",
        [PLAIN, {"name": "b", "local_dir": "/b"}],
        {"environments": {"CKPT_PATH": "/b"}},
        1,
    ),
    (
        "an option of the command",
        [PLAIN, {"name": "b", "local_dir": "/b"}],
        {"command": "python train.py --logs /bb --ckpt-dir='/b' --n 3"},
        1,
    ),
)


@pytest.mark.parametrize(
    ("outputs", "more", "position"), [row[1:] for row in OUTPUTS], ids=[row[0] for row in OUTPUTS]
)
def test_the_output_taken_for_checkpoints_is_the_one_that_is_called_so_and_noted(
    outputs: list[dict[str, Any]], more: dict[str, Any], position: int
) -> None:
    written = document({RETRY: "3"}, algorithm={"outputs": outputs, **more})
    (phase,) = compile_document(written).phases
    assert phase.checkpoints_path == outputs[position]["local_dir"]
    notes_by_key = {
        at: what for at, what in notes(written).items() if "taken for checkpoints" in what
    }
    assert list(notes_by_key) == [f"algorithm.outputs.{position}"]


def test_a_job_that_may_restart_and_has_no_output_is_told_so() -> None:
    what = "the step from which a restart resumes is unknown"
    assert what in notes(document({RETRY: "3"}))["algorithm.outputs"]
    body = document({RETRY: "3"}, everstep={"checkpoints": {"path": "/c"}})
    assert "algorithm.outputs" not in notes(body)


def test_an_output_is_not_taken_where_the_overlay_names_another_folder() -> None:
    over = {"checkpoints": {"path": "/c"}}
    notes_by_key = notes(document({RETRY: "3"}, algorithm={"outputs": [PLAIN]}, everstep=over))
    assert "stays on its node" in notes_by_key["algorithm.outputs.0"]


def test_the_overlay_says_how_long_a_phase_may_run() -> None:
    phases = [{"name": "a"}, {"name": "b", "limits": {"run_s": None}}]
    over = {"limits": {"run_s": 5}, "phases": phases}
    spec = {"auto_stop": {"duration": 1}}
    first, second = compile_document(document(spec=spec, everstep=over)).phases
    assert (first.limits.run_s, second.limits.run_s) == (5, None)


def test_the_check_before_the_start_can_be_switched_off() -> None:
    off = {"environments": {"MA_DETECT_TRAIN_INJECT_CODE": "0"}}
    assert compile_document(document({RETRY: "1"})).phases[0].policy.precheck
    assert not compile_document(document({RETRY: "1"}, algorithm=off)).phases[0].policy.precheck


def test_each_key_becomes_what_it_means() -> None:
    spec = compile_document(
        document(
            algorithm={
                "outputs": [{"name": "OUT", "local_dir": "/tmp/out", "access_method": "env"}],
                "environments": {"LR": "1"},
            },
            spec={
                "resource": {"pool_id": "p", "flavor_id": "f"},
                "auto_stop": {"time_unit": "HOURS", "duration": 2},
                "schedule_policy": {"priority": 3},
                "notification": {"topic_urn": "urn", "events": ["JobHanged"]},
            },
        )
    )
    phase = spec.phases[0]
    assert (spec.name, spec.priority, phase.nodes) == ("demo", 3, 4)
    assert phase.command == ("/bin/sh", "-c", "python train.py")
    assert phase.env == {"OUT": "/tmp/out", "LR": "1"}
    assert phase.checkpoints_path == "/tmp/out"
    assert phase.limits.run_s == 7200
    assert (phase.accelerators_per_node, phase.accelerator) == ("all", "simulated")
    assert (spec.topic, spec.events) == ("urn", ("JobHanged",))
    assert (spec.origin.pool_id, spec.origin.flavor_id) == ("p", "f")


def test_a_document_without_a_kind_is_a_common_job() -> None:
    bare = {key: value for key, value in document().items() if key != "kind"}
    assert "taken for kind: job" in notes(bare)["kind"]
    assert compile_document(bare).origin.kind == "job"


@pytest.mark.parametrize("kind", ["edge_job", "hetero_job", "visualization_job"])
def test_other_kinds_run_like_a_common_one(kind: str) -> None:
    assert "like a common job" in notes({**document(), "kind": kind})["kind"]
    assert compile_document({**document(), "kind": kind}).origin.kind == kind


@pytest.mark.parametrize(
    "name",
    [
        "performance_diagnosis_enabled",
        "job_template",
        "jupyter-lab/enable",
        "tensorboard/enable",
        "mindstudio-insight/enable",
    ],
)
def test_annotations_about_other_things_are_kept(name: str) -> None:
    other = document({name: "true"})
    assert "no effect on recovery" in notes(other)[f"metadata.annotations.{name}"]
    assert compile_document(other).origin.annotations == {name: "true"}


def test_a_misspelt_annotation_is_kept_and_the_right_one_named() -> None:
    notes_by_key = notes(document({"fault-tolerance/job-retry-nums": "3"}))
    assert (
        f"did you mean `{RETRY}`?"
        in notes_by_key["metadata.annotations.fault-tolerance/job-retry-nums"]
    )


def test_keys_that_are_not_read_are_noted_wherever_they_stand() -> None:
    notes_by_key = notes(
        document(
            tasks=[],
            algorithm={"boot_file": "x", "comand": "y"},
            spec={"volumes": [], "resource": {"node_cont": 3}},
        )
    )
    assert {*notes_by_key} == {
        "tasks",
        "algorithm.boot_file",
        "algorithm.comand",
        "spec.volumes",
        "spec.resource.node_cont",
    }
    assert "did you mean `command`?" in notes_by_key["algorithm.comand"]
    assert "did you mean `node_count`?" in notes_by_key["spec.resource.node_cont"]


def test_null_is_as_good_as_nothing_wherever_it_stands() -> None:
    full = document(
        {"job_template": "x"},
        metadata={"description": "d", "workspace_id": "0"},
        algorithm={"environments": {}, "outputs": [{"name": "a", "local_dir": "/o"}], "inputs": []},
        spec={
            "resource": {"node_count": 1, "pool_id": "p", "flavor_id": "f"},
            "auto_stop": {"time_unit": "HOURS", "duration": 1},
            "log_export_path": {"obs_url": "x", "host_path": "y"},
            "schedule_policy": {"priority": 1},
            "notification": {"topic_urn": "t", "events": []},
        },
        everstep={"limits": {"queue_s": None}},
        tasks=[],
    )
    for place in places(full):
        if place != ("spec", "auto_stop", "duration"):
            assert validate(json.dumps(with_null(full, place))).errors == (), place
            assert compile_again(full, place, null=True) == compile_again(full, place, null=False)


def places(value: Any, *under: str) -> Iterator[tuple[str, ...]]:
    """Every key of the document but those of the overlay, which are native."""
    for key, inner in value.items():
        yield (*under, key)
        if isinstance(inner, dict) and key != "everstep":
            yield from places(inner, *under, key)


def with_null(value: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    key, *below = place
    return {**value, key: with_null(value[key], tuple(below)) if below else None}


def compile_again(value: dict[str, Any], place: tuple[str, ...], *, null: bool) -> Any:
    """What becomes of the document with null at this place, or without the place."""
    changed = with_null(value, place)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if not null:
        del inner[place[-1]]
    return compile_document(changed, needs_command=False)


def test_a_running_job_without_an_overlay_takes_one() -> None:
    changed = patch({**document(), "everstep": None}, {"env": {"LR": "2"}})
    assert compile_document(changed).phases[0].env == {"LR": "2"}


def test_the_overlay_has_the_last_word() -> None:
    spec = compile_document(
        document(
            {RETRY: "2"},
            everstep={
                "accelerator": "none",
                "limits": {"spare_s": 1, "hang_s": 5},
                "recovery": {"ladders": {"crash": ["in_place"]}, "budgets": {"job": {"limit": 1}}},
                "phases": [{"name": "one"}, {"name": "two", "nodes": 2}],
            },
        )
    )
    one, two = spec.phases
    assert (one.nodes, two.nodes, two.accelerators_per_node) == (4, 2, 0)
    assert (one.limits.spare_s, one.limits.hang_s, one.limits.still_s) == (1, 5, None)
    assert one.policy.answer(FaultClass.CRASH).levels == (Level.IN_PLACE,)
    assert one.policy.answer(FaultClass.NODE).levels == (Level.JOB,)
    assert {b.name: b.limit for b in one.policy.budgets} == {"job": 1}
    assert [s.name for s in one.policy.series] == ["unconditional", "suspension"]


@pytest.mark.parametrize("text", ["", " ", "null", "[]", "7", "nodes"])
def test_an_annotation_that_is_no_overlay_is_told_what_one_is(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        compile_document(document({"everstep/overlay": text}))
    where, what = refused.value.problems[0]
    assert where == "metadata.annotations.everstep/overlay"
    assert what == "must be a mapping of keys of `spec`, for example {nodes: 4}"


def test_the_overlay_may_stand_in_an_annotation() -> None:
    written = document(
        {"everstep/overlay": json.dumps({"cluster": "gpu", "limits": {"spare_s": 7}})}
    )
    over = laid_over(written, {"limits": {"spare_s": 9}})
    assert compile_document(written).cluster == "gpu"
    assert compile_document(written).phases[0].limits.spare_s == 7
    assert compile_document(over).phases[0].limits.spare_s == 9


def test_what_is_switched_on_and_comes_to_nothing_is_noted() -> None:
    on = {RETRY: "3", HANG: "true", OPERATOR: "true"}
    no_devices = notes(document(on, everstep={"accelerator": "none"}))
    assert "this job has none" in no_devices[f"metadata.annotations.{HANG}"]
    assert "no effect yet" in no_devices[f"metadata.annotations.{OPERATOR}"]
    assert f"metadata.annotations.{HANG}" not in notes(document(on))
    judged_by_steps = {"accelerator": "none", "limits": {"hang_s": 60}}
    assert f"metadata.annotations.{HANG}" not in notes(document(on, everstep=judged_by_steps))
    one_of_two = {"phases": [{"name": "one", "accelerators_per_node": 0}, {"name": "two"}]}
    assert f"metadata.annotations.{HANG}" not in notes(document(on, everstep=one_of_two))


def test_a_limit_of_minutes_beside_one_of_steps_is_noted() -> None:
    variables = {"environments": {"MA_HANG_DETECT_TIME": "10"}}
    by_steps = document({HANG: "true", RETRY: "8"}, algorithm=variables)
    name = "algorithm.environments.MA_HANG_DETECT_TIME"
    assert name not in notes(by_steps)
    assert "hang_s" in notes({**by_steps, "everstep": {"limits": {"hang_s": 60}}})[name]


def test_a_running_job_is_changed_through_its_overlay() -> None:
    changed = patch(document(), {"env": {"LR": "2"}})
    assert compile_document(changed).phases[0].env == {"LR": "2"}
    with pytest.raises(InvalidSpec, match="cluster"):
        patch(document(), {"cluster": "other"})
