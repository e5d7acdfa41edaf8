"""What a right document becomes: every key, every default, phases over their job, notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.core.levels import NEVER_BILLED, FaultClass, Level, Owner
from everstep.core.spec import (
    DEFAULT_ROWS,
    Budget,
    JobSpec,
    LadderRow,
    Limits,
    Match,
    Note,
    PhaseSpec,
    Policy,
    Rule,
)
from everstep.dialects.registry import compile_document
from everstep.documents.text import read_text

FULL = Path(__file__).with_name("full.yaml").read_text()

IN_FULL = PhaseSpec(
    name="main",
    command=("python", "train.py"),
    env={"LR": "3e-4"},
    workdir=".",
    nodes=4,
    nodes_min=4,
    processes_per_node=1,
    accelerators_per_node=0,
    accelerator="none",
    model_dir="out",
    checkpoints_path="out/ckpt",
    checkpoints_format="auto",
    prewarm=(),
    log_pattern=r"step (?P<step>\d+)",
    limits=Limits(),
    policy=Policy(
        ladders=(
            LadderRow((Level.IN_PLACE, Level.POD, Level.JOB), (FaultClass.CRASH,), is_literal=True),
            *DEFAULT_ROWS,
        ),
        budgets=(
            Budget(name="hardware", limit=50, levels=(Level.POD, Level.JOB), owners=(Owner.INFRA,)),
        ),
        rules=(
            Rule(match=Match(exit_code=(3,)), action="fail", why="bad configuration"),
            Rule(match=Match(log="vocab size"), action="fail", why="data does not fit"),
        ),
        no_progress_restarts=3,
    ),
)


def document(name: str = "demo", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"command": ["python", "train.py"], **spec},
    }


def phase(**spec: Any) -> PhaseSpec:
    """The only phase of a document that says this."""
    (only,) = compile_document(document(**spec)).phases
    return only


def test_a_pattern_says_what_checkpoints_are_called() -> None:
    pattern = r"[)*+]state_(?P<step>\d+)(?:_(?P<again>\d{8}))?\+"
    only = phase(checkpoints={"path": "x", "pattern": pattern})
    assert only.checkpoints_pattern == pattern


def notes(**spec: Any) -> dict[str, str]:
    written = document(**{"checkpoints": {"path": "ckpt"}, **spec})
    return {note.field: note.message for note in compile_document(written).notes}


def test_full_example_becomes_exactly_this_job() -> None:
    assert compile_document(read_text(FULL)) == JobSpec(
        name="demo",
        labels={"team": "nlp"},
        cluster="local",
        start_phase="main",
        phases=(
            replace(IN_FULL, name="warmup", env={"LR": "3e-4", "STEPS": "100"}),
            IN_FULL,
        ),
    )


def test_defaults_are_those_of_the_core() -> None:
    assert replace(compile_document(document()), notes=()) == JobSpec(
        name="demo", phases=(PhaseSpec(name="main", command=("python", "train.py")),)
    )


def test_json_and_yaml_say_the_same() -> None:
    as_yaml = read_text(FULL)
    as_json = read_text(json.dumps(as_yaml, indent=1))
    assert compile_document(as_json) == compile_document(as_yaml)


def test_bytes_with_a_mark_in_front_are_read() -> None:
    assert read_text(b"\xef\xbb\xbf" + FULL.encode()) == read_text(FULL)


def test_text_command_is_run_by_a_shell() -> None:
    assert phase(command="python train.py | tee log").command == (
        "/bin/sh",
        "-c",
        "python train.py | tee log",
    )


@pytest.mark.parametrize(
    ("nodes", "expected"), [(3, (3, 3)), ({"min": 2, "wanted": 4}, (2, 4))], ids=str
)
def test_nodes_are_a_number_or_a_range(nodes: Any, expected: tuple[int, int]) -> None:
    assert (phase(nodes=nodes).nodes_min, phase(nodes=nodes).nodes) == expected


def test_phase_overrides_its_job_and_inherits_the_rest() -> None:
    first, second = compile_document(
        document(
            nodes={"min": 2, "wanted": 4},
            env={"A": "1", "B": "2"},
            limits={"grace_s": 1, "start_s": 2},
            recovery={
                "ladders": {"crash": ["job"], "hang": ["note"]},
                "budgets": {"all": {"limit": 5, "levels": ["job"]}},
                "rules": [{"match": {"code": "a"}, "action": "fail"}],
            },
            phases=[
                {
                    "name": "first",
                    "command": "true",
                    "nodes": 1,
                    "env": {"B": "3"},
                    "limits": {"start_s": 9},
                    "recovery": {
                        "ladders": {"hang": ["fail"]},
                        "budgets": {"all": {"limit": 1}},
                        "rules": [],
                    },
                },
                {"name": "second"},
            ],
        )
    ).phases
    assert first.command == ("/bin/sh", "-c", "true")
    assert (first.nodes_min, first.nodes) == (1, 1)
    assert first.env == {"A": "1", "B": "3"}
    assert first.limits == Limits(grace_s=1, start_s=9)
    assert first.policy.answer(FaultClass.CRASH).levels == (Level.JOB,)
    assert first.policy.answer(FaultClass.HANG).levels == (Level.FAIL,)
    assert first.policy.budgets == (Budget(name="all", limit=1, levels=(Level.JOB,)),)
    assert first.policy.rules == ()
    assert (second.nodes_min, second.nodes) == (2, 4)
    assert second.env == {"A": "1", "B": "2"}
    assert second.policy.answer(FaultClass.HANG).levels == (Level.NOTE,)
    assert len(second.policy.rules) == 1


def test_command_may_stand_in_the_phases_alone() -> None:
    whole = document(phases=[{"name": "a", "command": "x"}, {"name": "b", "command": ["y"]}])
    del whole["spec"]["command"]
    assert [p.command[-1] for p in compile_document(whole).phases] == ["x", "y"]


def test_written_ladders_are_marked_as_such() -> None:
    policy = phase(recovery={"ladders": {"hang": ["fail"]}}).policy
    ladder_row = LadderRow((Level.FAIL,), (FaultClass.HANG,), is_literal=True)
    assert policy.ladders == (ladder_row, *DEFAULT_ROWS)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("fail", Rule(match=Match(code="a"), action="fail")),
        ("note", Rule(match=Match(code="a"), action="note")),
        ("ignore", Rule(match=Match(code="a"), action="ignore")),
        ("resize", Rule(match=Match(code="a"), action="resize")),
        (
            ["pod", "job"],
            Rule(match=Match(code="a"), action="levels", levels=(Level.POD, Level.JOB)),
        ),
        ({"class": "hang"}, Rule(match=Match(code="a"), action="class", cls=FaultClass.HANG)),
    ],
    ids=str,
)
def test_every_action_of_a_rule_is_read(action: Any, expected: Rule) -> None:
    rules = [{"match": {"code": "a"}, "action": action}]
    assert phase(recovery={"rules": rules}).policy.rules == (expected,)


def test_every_key_of_a_match_is_read() -> None:
    match = {
        "exit_code": [1, 2],
        "signal": [9],
        "exception": "OutOfMemory",
        "log": "vocab",
        "kind": "process.exit",
        "code": "79",
        "class": "crash",
    }
    (rule,) = phase(recovery={"rules": [{"match": match, "action": "fail"}]}).policy.rules
    assert rule.match == Match(
        exit_code=(1, 2),
        signal=(9,),
        exception="OutOfMemory",
        log="vocab",
        kind="process.exit",
        code="79",
        cls=FaultClass.CRASH,
    )


def test_null_means_no_limit_where_there_may_be_none() -> None:
    spec = {
        "limits": {"requeue_s": None, "run_s": None},
        "recovery": {
            "no_progress_restarts": None,
            "rollbacks": None,
            "budgets": {"seen": {"limit": None}},
        },
    }
    compiled = phase(**spec)
    assert compiled.limits.requeue_s is None
    assert compiled.policy.no_progress_restarts is None
    assert compiled.policy.rollbacks is None
    assert compiled.policy.budgets == (Budget(name="seen", limit=None),)


def test_a_limit_of_rollbacks_is_2_until_a_document_says_another() -> None:
    assert phase().policy.rollbacks == 2
    assert phase(recovery={"rollbacks": 0}).policy.rollbacks == 0


def test_time_scale_shortens_long_limits_only() -> None:
    long = {"hang_s": 600, "queue_s": 120, "run_s": 3_600}
    spec = compile_document(document(limits=long), time_scale=60)
    assert spec.time_scale == 60
    # Equal to the defaults in everything else: settle, grace, start, spare, unreachable, healthy.
    assert spec.phases[0].limits == Limits(hang_s=10, requeue_s=30, queue_s=2, run_s=60)


def test_accelerators_come_with_their_kind() -> None:
    compiled = phase(accelerators_per_node="all", accelerator="ascend")
    assert (compiled.accelerators_per_node, compiled.accelerator) == ("all", "ascend")


def test_a_sound_document_has_no_notes() -> None:
    assert compile_document(read_text(FULL)).notes == ()


@pytest.mark.parametrize(
    ("field", "fragment", "spec"),
    [
        ("spec.image", "starts processes", {"image": "torch:2"}),
        ("spec.pod_template", "starts processes", {"pod_template": {"spec": {}}}),
        ("spec.accelerator", "takes no device", {"accelerator": "nvidia"}),
        ("spec.prewarm", "python", {"prewarm": ["torch"], "command": "python train.py"}),
        ("spec.prewarm", "python", {"prewarm": ["torch"], "command": ["torchrun", "x.py"]}),
        ("spec.env.RANK", "its own value", {"env": {"RANK": "0"}}),
        ("spec.env.EVERSTEP_JOB", "its own value", {"env": {"EVERSTEP_JOB": "a"}}),
        (
            "spec.recovery.ladders.node",
            "how few nodes",
            {"nodes": 4, "recovery": {"ladders": {"node": ["elastic"]}}},
        ),
        ("spec.prefetch", "how few nodes", {"nodes": 4, "prefetch": "compile"}),
        (
            "spec.recovery.ladders.planned",
            "asked for",
            {"recovery": {"ladders": {"planned": ["job"]}}},
        ),
        (
            "spec.phases.1.image",
            "no pods",
            {"phases": [{"name": "a"}, {"name": "b", "image": "x"}]},
        ),
    ],
    ids=str,
)
def test_what_has_no_effect_is_noted(field: str, fragment: str, spec: dict[str, Any]) -> None:
    notes_found = notes(**spec)
    assert list(notes_found) == [field]
    assert fragment in notes_found[field]


@pytest.mark.parametrize(
    "spec",
    [
        {"image": "torch:2", "pod_template": {"spec": {}}, "cluster": "gpu"},
        {"prewarm": ["torch", "torch._dynamo"]},
        {"prewarm": ["torch"], "command": ["/usr/bin/python3.11", "-m", "train"]},
        {"nodes": {"min": 2, "wanted": 4}, "recovery": {"ladders": {"node": ["elastic"]}}},
        {"nodes": {"min": 2, "wanted": 4}, "prefetch": "compile"},
    ],
    ids=str,
)
def test_what_has_effect_is_not_noted(spec: dict[str, Any]) -> None:
    assert notes(**spec) == {}


NEVER_RESTARTED = {cls: ["note"] for cls in FaultClass if cls not in NEVER_BILLED}


def test_a_job_that_may_restart_and_has_no_checkpoints_is_told_so() -> None:
    notes_found = compile_document(document(phases=[{"name": "a"}, {"name": "b"}])).notes
    assert [note.field for note in notes_found] == ["spec.checkpoints"]
    assert "the step from which a restart resumes is unknown" in notes_found[0].message
    phases: dict[str, Any] = {
        "phases": [{"name": "a", "checkpoints": {"path": "a"}}, {"name": "b"}]
    }
    assert [note.field for note in compile_document(document(**phases)).notes] == [
        "spec.checkpoints"
    ]
    never = document(recovery={"ladders": NEVER_RESTARTED})
    assert compile_document(never).notes == ()


def test_what_all_phases_share_is_noted_once() -> None:
    phases = [{"name": "a"}, {"name": "b"}]
    spec = compile_document(document(image="x", phases=phases, checkpoints={"path": "ckpt"}))
    message = "has no effect on cluster `local`, which starts processes, no pods"
    assert spec.notes == (Note(field="spec.image", message=message),)


@pytest.mark.parametrize("name", ["a", "Demo_1.2-x", "7", "a" * 63])
def test_job_names_that_make_workflow_ids(name: str) -> None:
    assert compile_document(document(name)).name == name
