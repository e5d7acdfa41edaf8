"""`validate`, `explain`, `--help`: everything that needs no server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.authoring.explain import explained as explanation
from everstep.cli.main import build
from everstep.client.documents.documents import job_here
from everstep.core.levels import LADDERS, FaultClass, Level
from everstep.core.spec import JobSpec, Match, PhaseSpec, Policy, Rule
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from everstep.documents.text import to_yaml
from everstep.faults.severities import LEVELS
from tests.cli.conftest import Cli
from tests.cli.standin import document
from tests.documents.test_mindcluster_documents import ascend_job

ROOT = Path(__file__).parents[3]
DOCUMENTS = ROOT / "tests" / "documents"
FULL = str(DOCUMENTS / "full.yaml")
WRONG = DOCUMENTS / "wrong"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.json"


def explained(cli: Cli, **spec: Any) -> dict[str, Any]:
    """The explanation of the only phase of a document with this spec."""
    body = document()
    body["spec"].update(spec)
    (phase,) = cli("explain", "-", "--json", stdin=json.dumps(body).encode()).json["phases"]
    value: dict[str, Any] = phase
    return value


def fault(phase: dict[str, Any], cls: str) -> dict[str, Any]:
    fault: dict[str, Any] = next(f for f in phase["faults"] if f["class"] == cls)
    return fault


def levels(entry: dict[str, Any]) -> list[str]:
    return [rung["level"] for rung in entry["ladder"]]


# -- validate -----------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> str:
    """The fullest document, with the script that it names."""
    (tmp_path / "train.py").touch()
    return str(shutil.copy(FULL, str(tmp_path)))


def test_a_valid_document_is_said_to_be_valid(cli: Cli, full: str) -> None:
    ended = cli("validate", full)
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "native document: valid",
        "levels in_place, suspension, pod, job, rollback",
        "       with everstep.train.torch in every rank also operator_online, process_online, process",
        "       not elastic: the document asks for a fixed number of nodes",
    ]
    assert ended.err == ""


def test_levels_of_a_job_of_any_size_include_the_one_that_changes_it(cli: Cli, full: str) -> None:
    elastic = Path(full).read_text().replace("nodes: 4 ", "nodes: {min: 2, wanted: 4} ")
    lines = cli("validate", "-", stdin=elastic.encode()).out.splitlines()
    assert "levels in_place, suspension, pod, job, elastic, rollback" in lines
    assert not any("not elastic" in line for line in lines)


def test_validate_prints_the_pinned_shape(cli: Cli, full: str) -> None:
    assert cli("validate", full, "--json").json == {
        "ok": True,
        "dialect": "native",
        "errors": [],
        "notes": [],
        "levels": ["in_place", "suspension", "pod", "job", "rollback"],
        "levels_with_library": ["operator_online", "process_online", "process"],
        "levels_missing": ["elastic: the document asks for a fixed number of nodes"],
    }


OF_THE_MACHINE = (
    ("echo 'GPU 0: H100'; echo 'GPU 1: H100'", "has 2 nvidia devices (nvidia-smi lists them)"),
    ("exit 9", "has 1 nvidia device (nvidia-smi is here and does not answer)"),
    ("true", "no device is found on this machine"),
)


def for_pods(folder: Path, **spec: Any) -> str:
    body = {"cluster": "gpu", "image": "train:1", "command": ["true"], **spec}
    head = {"apiVersion": "everstep/v1", "kind": "TrainingJob", "metadata": {"name": "demo"}}
    (folder / "pods.json").write_text(json.dumps({**head, "spec": body}))
    return str(folder / "pods.json")


def test_validate_has_the_rules_of_the_documents_backend_without_its_cluster(
    cli: Cli, tmp_path: Path
) -> None:
    template = {"spec": {"restartPolicy": "Always", "containers": [{"name": "trainer"}]}}
    ended = cli("validate", for_pods(tmp_path, pod_template=template, model_dir="out"), "--json")
    assert ended.code == 2
    verdict = json.loads(ended.out)
    assert [error["field"] for error in verdict["errors"]] == [
        "spec.pod_template.spec.restartPolicy",
        "spec.model_dir",
    ]
    notes = [note["field"] for note in verdict["notes"]]
    assert "spec.pod_template.spec.containers.0.name" in notes
    assert cli("validate", for_pods(tmp_path)).code == 0


def test_validate_judges_a_document_for_the_cluster_that_is_given(cli: Cli, tmp_path: Path) -> None:
    """As `submit --cluster` would run it. Without it the image has no effect, on this machine."""
    file = for_pods(tmp_path, cluster="local", model_dir="out")
    assert "has no effect on cluster `local`" in cli("validate", file).out
    ended = cli("validate", file, "--cluster", "gpu", "--json")
    assert [error["field"] for error in json.loads(ended.out)["errors"]] == ["spec.model_dir"]


def test_rules_of_a_backend_name_fields_as_the_document_writes_them(
    cli: Cli, tmp_path: Path
) -> None:
    document = json.loads(Path("examples/modelarts.json").read_text())
    document["everstep"] = {"cluster": "gpu", "image": "UPPER CASE:??"}
    path = tmp_path / "modelarts.json"
    path.write_text(json.dumps(document))
    verdict = json.loads(cli("validate", str(path), "--json").out)
    assert "everstep.image" in [error["field"] for error in verdict["errors"]]


@pytest.mark.parametrize(("tool", "devices"), OF_THE_MACHINE)
def test_validate_says_which_devices_this_machine_has(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, devices: str
) -> None:
    for name, script in (("nvidia-smi", tool), ("npu-smi", "true")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (note,) = (
        note
        for note in cli("validate", "examples/modelarts.json", "--json").json["notes"]
        if note["field"] == "everstep.accelerator"
    )
    assert devices in note["message"]
    monkeypatch.setenv("EVERSTEP_ACCELERATOR", "simulated")
    assert "simulated ones stand in" in cli("validate", "examples/modelarts.json").out


@pytest.mark.parametrize("wrong", sorted(WRONG.iterdir())[::12], ids=lambda file: file.name)
def test_a_wrong_document_ends_with_2_and_names_the_field(cli: Cli, wrong: Path) -> None:
    result = cli("validate", str(wrong), "--json")
    (error,) = json.loads(result.out)["errors"]
    assert result.code == 2
    ended = cli("validate", str(wrong))
    assert ended.code == 2
    assert f"error  {error['field']}: {error['message']}" in ended.out.splitlines()


def test_standard_input_is_a_file_too(cli: Cli) -> None:
    assert cli("validate", "-", stdin=Path(FULL).read_bytes()).code == 0
    assert cli("validate", "-", stdin=b"").code == 2


def test_no_size_is_told_of_a_file_that_was_not_read_to_its_end(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "large.json").write_bytes(b" " * 1_200_000)
    ended = cli("explain", str(tmp_path / "large.json"))
    assert ended.code == 2
    assert ended.sentence.endswith("document: is larger than 1 MB; keep data in files")


def test_a_file_that_never_ends_is_refused_soon(cli: Cli) -> None:
    ended = cli("validate", "/dev/zero")
    assert ended.code == 2
    assert "larger than 1 MB" in ended.out


@pytest.mark.parametrize(
    ("path", "why"), [("no/such.yaml", "No such file"), (str(WRONG), "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_one_sentence(cli: Cli, path: str, why: str) -> None:
    ended = cli("validate", path)
    assert ended.code == 2
    assert why in ended.sentence


# -- explain ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "words"),
    [(1, "1 node"), (3, "3 nodes"), ({"min": 1, "wanted": 2}, "1 to 2 nodes")],
    ids=str,
)
def test_a_number_of_nodes_is_in_words(cli: Cli, nodes: Any, words: str) -> None:
    spec = {"command": ["true"], "nodes": nodes}
    body = {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "a"},
        "spec": spec,
    }
    page = cli("explain", "-", stdin=json.dumps(body).encode()).out
    assert f"phase main, {words}\n" in page


def test_what_each_level_of_a_code_leads_to_is_explained_where_it_matters(cli: Cli) -> None:
    (phase,) = cli("explain", "examples/mindcluster.yaml", "--json").json["phases"]
    ladders = {
        row["code_level"]: [r["level"] for r in row["ladder"]] for row in phase["code_levels"]
    }
    assert set(ladders) == set(LEVELS)
    assert ladders["RestartNPU"] == ["pod", "job", "fail"]
    assert ladders["PreSeparateNPU"] == ["note"]
    assert "LEVEL OF A CODE" in cli("explain", "examples/mindcluster.yaml").out
    assert "LEVEL OF A CODE" not in cli("explain", FULL).out


def test_a_hot_switch_is_explained_with_its_backup_pod(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    labels = {"fault-scheduling": "force", "subHealthyStrategy": "hotSwitch"}
    file.write_text(to_yaml(ascend_job(labels)))
    sentence = "pod (once a backup pod is ready; without one the job stays) → job → fail"
    lines = cli("explain", str(file)).out.splitlines()
    assert [line.split()[0] for line in lines if sentence in line] == [
        "subhealth",
        "slow",
        "SubHealthFault",
    ]


def test_every_class_of_fault_is_explained(cli: Cli) -> None:
    for phase in cli("explain", FULL, "--json").json["phases"]:
        assert [entry["class"] for entry in phase["faults"]] == list(FaultClass)


def test_an_elastic_job_goes_down_the_ladders_of_the_table(cli: Cli) -> None:
    phase = explained(cli, nodes={"min": 2, "wanted": 4})
    needs_library = {Level.OPERATOR_ONLINE, Level.PROCESS_ONLINE, Level.PROCESS}
    for cls, ladder in LADDERS.items():
        able = [level for level in ladder if level not in needs_library]
        end = [] if able == [Level.NOTE] else [Level.FAIL]
        assert levels(fault(phase, cls)) == [*able, *end], cls


def test_a_level_that_cannot_apply_is_named_with_its_reason(cli: Cli) -> None:
    entry = fault(explained(cli, nodes=4), "node")
    assert levels(entry) == ["pod", "job", "fail"]
    assert entry["passed_over"] == ["elastic: the document asks for a fixed number of nodes"]


def test_budgets_are_billed_where_they_match(cli: Cli) -> None:
    budget = {"limit": 2, "levels": ["pod"], "owners": ["infra"]}
    phase = explained(cli, nodes=2, recovery={"budgets": {"hardware": budget}})
    bills = {
        cls: [rung["bills"] for rung in fault(phase, cls)["ladder"]] for cls in ("node", "crash")
    }
    assert bills["node"] == [{"hardware": 1}, {}, {}]
    assert bills["crash"] == [{}, {}, {}, {}]
    assert phase["budgets"] == [{"name": "hardware", "when": "executed", "free": [], **budget}]


def test_a_budget_of_nothing_takes_its_level_away(cli: Cli) -> None:
    phase = explained(cli, recovery={"budgets": {"none": {"limit": 0, "levels": ["pod"]}}})
    entry = fault(phase, "crash")
    assert levels(entry) == ["in_place", "job", "fail"]
    assert entry["passed_over"] == ["pod: budget none has no unit"]


def test_a_ladder_of_the_document_is_followed(cli: Cli) -> None:
    phase = explained(cli, recovery={"ladders": {"hang": ["job"]}, "no_progress_restarts": None})
    assert levels(fault(phase, "hang")) == ["job", "fail"]
    assert phase["no_progress_restarts"] is None


def test_only_hardware_is_isolated(cli: Cli) -> None:
    phase = explained(cli, nodes=2)
    isolating = {
        entry["class"]
        for entry in phase["faults"]
        if any(rung["isolates"] for rung in entry["ladder"])
    }
    assert isolating == {"device", "device_fatal", "node", "precheck"}


def test_what_one_level_isolated_the_next_one_does_not_isolate_again(cli: Cli) -> None:
    """As the record of that level will say: there is no newly faulty node."""
    entry = fault(explained(cli, nodes=2), "node")
    isolates = [(rung["level"], rung["isolates"]) for rung in entry["ladder"]]
    assert isolates == [("pod", True), ("job", False), ("fail", False)]


def test_times_and_checks_of_a_modelarts_document_are_told(cli: Cli) -> None:
    body = {
        "kind": "job",
        "metadata": {"name": "demo", "annotations": {"fault-tolerance/job-retry-num": "3"}},
        "algorithm": {"command": "true", "environments": {"MA_HANG_DETECT_TIME": "10"}},
        "spec": {
            "resource": {"node_count": 2},
            "auto_stop": {"time_unit": "HOURS", "duration": 2},
        },
    }
    text = json.dumps(body).encode()
    (phase,) = cli("explain", "-", "--json", stdin=text).json["phases"]
    assert phase["prechecked"] is True
    assert phase["limits"] == {
        "hang_s": None,
        "still_s": 600,
        "run_s": 7200,
        "run_s_over": "stopped",
    }
    page = cli("explain", "-", stdin=text).out
    assert "every new place is checked before the command runs there" in page
    assert "neither I/O nor the use of devices changes for 600 s" in page
    assert "after 7200 s the job ends: stopped" in page


SUSPEND = Rule(match=Match(exit_code=(3,)), action="levels", levels=(Level.SUSPENSION,))


@pytest.mark.parametrize(
    ("switched_on", "rules", "series"),
    [
        ({}, (), ["unconditional"]),  # a device that its user's input breaks three times
        ({"hang_retry": True}, (), ["unconditional", "suspension"]),
        ({}, (SUSPEND,), ["unconditional", "suspension"]),
    ],
)
def test_a_series_is_told_only_where_it_can_count(
    switched_on: dict[str, bool], rules: tuple[Rule, ...], series: list[str]
) -> None:
    policy = replace(modelarts(job_retry=3, **switched_on), rules=rules)
    spec = PhaseSpec(name="main", command=("train",), nodes=2, policy=policy)
    (phase,) = explanation(JobSpec(name="demo", phases=(spec,)))["phases"]
    assert [s["name"] for s in phase["series"]] == series


def test_rules_of_the_user_are_told_and_followed(cli: Cli) -> None:
    rules = [{"match": {"class": "hang"}, "action": "fail", "why": "it never comes back"}]
    phase = explained(cli, recovery={"rules": rules})
    assert levels(fault(phase, "hang")) == ["fail"]
    assert phase["rules"][0]["match"] == {"class": "hang"}


@pytest.mark.parametrize(
    ("policy", "of_a_crash", "of_a_node"),
    [
        (modelarts(job_retry=None), ["fail"], ["fail"]),
        (modelarts(job_retry=3, pod_retry=1), ["fail"], ["pod", "job", "fail"]),
        (mindcluster(), ["fail"], ["fail"]),
        (mindcluster(fault_scheduling="force"), ["fail"], ["job", "fail"]),
        (cerebras(max_num_restarts=2), ["job", "fail"], ["job", "fail"]),
    ],
)
def test_every_dialect_can_be_explained(
    policy: Policy, of_a_crash: list[str], of_a_node: list[str]
) -> None:
    spec = PhaseSpec(name="main", command=("train",), nodes=3, policy=policy)
    (phase,) = explanation(JobSpec(name="demo", phases=(spec,)))["phases"]
    assert levels(fault(phase, "crash")) == of_a_crash
    assert levels(fault(phase, "node")) == of_a_node


def test_the_page_tells_the_ladders_and_what_ends_a_phase(cli: Cli) -> None:
    page = cli("explain", FULL).out
    assert "in_place → pod → job → fail" in page
    assert "your rule: exit_code 3: fail (bad configuration)" in page
    assert "no progress: 3 restarts" in page
    assert "everything as in phase warmup" in page


def test_the_page_of_a_trainer_says_what_is_never_restarted_and_what_counts(
    cli: Cli, file: Path
) -> None:
    init = {"checkpoint": {"steps": 4}, "autorestart": {"max_num_restarts": 3}}
    file.write_text(json.dumps({"trainer": {"init": init, "fit": {}}}))
    page = cli("explain", str(file)).out
    assert "Cerebras' own rule: exception" in page
    assert "fail (a compile error comes again at every start)" in page
    assert "your rule" not in page
    assert "no progress: 3 restarts without a new checkpoint" in page
    assert "a failure before anything was saved ends the phase" in page
    assert "they are checked for 4 steps" in page


def test_a_wrong_document_is_one_sentence_with_its_first_problem(cli: Cli, file: Path) -> None:
    file.write_text(json.dumps({**document(), "spec": {"command": 5, "nodes": 0}}))
    ended = cli("explain", str(file))
    assert ended.code == 2
    assert ended.sentence.startswith(f"{file}: spec.")
    assert "1 more: `everstep validate" in ended.sentence


# -- explain --code -----------------------------------------------------------------------------


def test_a_code_is_explained_in_the_shape_that_programs_read(cli: Cli) -> None:
    assert cli("explain", "--code", "0x80c98002", "--json").json == {
        "code": "80C98002",
        "vendor": "ascend",
        "known": True,
        "means": "AI core: wrong input, or a fault in an operator",
        "level": "RestartRequest",
        "severity": "minor",
        "owner": "user",
        "heals": True,
        "class": "device_user",
        "source": "MindCluster, device plugin (Ascend/mind-cluster): chip codes by level, "
        "names by its diagnosis",
        "rule": None,
        "document": None,
    }


@pytest.mark.parametrize("spelt", ["79", "XID 79", "xid79"])
def test_the_page_of_a_code_says_what_it_is_and_where_we_know_it_from(cli: Cli, spelt: str) -> None:
    page = cli("explain", "--code", spelt).out
    assert page.startswith("XID 79: the GPU has fallen off the bus\n")
    for line in ("severity critical", "owner infra", "heals no", "class device_fatal"):
        name, value = line.split()
        assert any(row.split() == [name, value] for row in page.splitlines()), line
    assert "Xid catalog" in page


def test_an_unknown_code_says_the_rule_that_speaks_for_it(cli: Cli) -> None:
    explanation = cli("explain", "--code", "80FFFFFF", "--json").json
    assert (explanation["known"], explanation["level"], explanation["class"]) == (
        False,
        "SeparateNPU",
        "device_fatal",
    )
    assert "no list names" in explanation["rule"]
    assert explanation["rule"] in cli("explain", "--code", "80FFFFFF").out


@pytest.mark.parametrize(
    ("code", "ladder", "again"),
    [
        ("80E01801", ["in_place", "pod", "job", "fail"], ["pod", "job", "fail"]),
        ("80C98002", ["in_place", "job", "fail"], ["job", "fail"]),
        ("79", ["pod", "job", "fail"], ["pod", "job", "fail"]),
        ("81078603", ["note"], ["note"]),
    ],
)
def test_a_code_and_a_document_say_what_would_be_done(
    cli: Cli, code: str, ladder: list[str], again: list[str]
) -> None:
    body = json.dumps(document()).encode()
    explanation = cli("explain", "-", "--code", code, "--json", stdin=body).json
    (phase,) = explanation["document"]["phases"]
    assert levels(phase) == ladder
    assert [rung["level"] for rung in phase["again"]] == again
    assert phase["reason"]
    page = cli("explain", "-", "--code", code, stdin=body).out
    assert ("3 times within 86400 s on one device: " in page) == (ladder != again)


def test_how_often_a_device_may_show_a_code_is_explained(cli: Cli) -> None:
    example = "examples/mindcluster.yaml"
    (phase,) = cli("explain", example, "--json").json["phases"]
    by_code = {code: rule for rule in phase["repeats"] for code in rule["codes"] or ("others",)}
    times = {
        code: by_code[code]["times"] for code in ("80E01801", "80E18005", "81078603", "others")
    }
    assert times == {"80E01801": 2, "80E18005": 3, "81078603": 5, "others": 3}
    page = cli("explain", example).out
    assert (
        "81078603: 5 times within 86400 s on one device, isolated then until it was quiet" in page
    )
    of_code = cli("explain", example, "--code", "80E01801").out
    assert "2 times within 86400 s on one device, isolated then until an operator" in of_code


def test_a_document_s_own_rule_for_a_code_is_explained(cli: Cli) -> None:
    body = document()
    rules = [{"match": {"code": "79"}, "action": "fail", "why": "call the vendor"}]
    body["spec"]["recovery"] = {"rules": rules}
    explanation = cli(
        "explain", "-", "--code", "79", "--json", stdin=json.dumps(body).encode()
    ).json
    (phase,) = explanation["document"]["phases"]
    assert levels(phase) == ["fail"]
    assert "call the vendor" in phase["reason"]


@pytest.mark.parametrize("argv", [(), ("--code", " ")])
def test_explain_without_anything_to_explain_says_what_to_give(
    cli: Cli, argv: tuple[str, ...]
) -> None:
    ended = cli("explain", *argv)
    assert ended.code == 2
    assert "FILE" in ended.sentence


# -- usage --------------------------------------------------------------------------------------


COMMANDS = build().registered_commands


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_help_teaches_with_an_example(
    cli: Cli, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = cli(command.name, "--help")
    assert ended.code == 0
    assert f"Example:  everstep {command.name} " in ended.out


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(cli: Cli, argv: tuple[str, ...]) -> None:
    ended = cli(*argv)
    assert ended.code == 0
    assert all(f" {command.name} " in ended.out for command in COMMANDS)


OTHER_DIALECTS = tuple(
    f"everstep.dialects.{name}.document" for name in ("cerebras", "mindcluster", "modelarts")
)
RULES = ("everstep.core.loop", "everstep.core.deciding", "everstep.chronicle.views")


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (("--version",), ("temporalio", "pydantic", "yaml", "everstep.core.spec")),
        (("validate", FULL), ("temporalio", *OTHER_DIALECTS)),
        (("explain", FULL), ("temporalio",)),
        (
            ("run", "--print", "--", "true"),
            (*OTHER_DIALECTS, "everstep.backends.local.database", *RULES),
        ),
        (("status", "--help"), ("everstep.dialects.registry", "yaml", *RULES)),
        (("list", "--help"), ("everstep.dialects.registry", "yaml", *RULES)),
    ],
)
def test_a_command_imports_no_more_than_it_needs(
    words: tuple[str, ...], unneeded: tuple[str, ...]
) -> None:
    runs = "import sys; from everstep.cli.main import main; code = main(sys.argv[1:])"
    prints = f"print(code, [name for name in {unneeded!r} if name in sys.modules])"
    command = [sys.executable, "-c", f"{runs}; {prints}", *words]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("nonsense",), "(`everstep --help`)"),
        (("status",), "(`everstep status --help`)"),
        (("status", "demo", "--loud"), "there is no option --loud"),
        (("why", "demo", "three"), "N three"),
        (("stop", "demo", "--grace-s", "-1"), "--grace-s -1"),
    ],
)
def test_wrong_usage_is_one_sentence_and_2(cli: Cli, argv: tuple[str, ...], sentence: str) -> None:
    ended = cli(*argv)
    assert ended.code == 2
    assert sentence in ended.sentence


def test_the_script_ends_with_the_code_of_its_command(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("everstep")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kind: TrainingJob")
    codes = {
        path: subprocess.run(
            [script, "validate", path], capture_output=True, check=False
        ).returncode
        for path in (FULL, str(wrong))
    }
    assert codes == {FULL: 0, str(wrong): 2}


@pytest.mark.parametrize(
    ("file", "begin"),
    [
        ("examples/first.json", "."),
        ("examples/modelarts.json", "."),
        ("examples/mindcluster.yaml", "examples"),
        ("examples/single/job.yaml", "examples/single"),
        ("examples/two_phases.yaml", "examples/synthetic"),
    ],
)
def test_every_example_begins_where_its_files_are(
    monkeypatch: pytest.MonkeyPatch, file: str, begin: str
) -> None:
    monkeypatch.chdir(ROOT)
    assert {Path(phase.workdir) for phase in job_here(file).spec.phases} == {ROOT / begin}


def test_a_job_begins_beside_its_document_where_its_files_are_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    document = shutil.copy(ROOT / "examples" / "first.json", job)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, job):
        (folder / "examples" / "single").mkdir(parents=True)
        (folder / "examples" / "single" / "train.py").touch()
    assert Path(job_here(str(document)).spec.phases[0].workdir) == job


def test_a_folder_whose_name_is_no_text_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"bad\xffdir")
    folder.mkdir()
    document = shutil.copy(ROOT / "examples" / "single" / "job.yaml", folder)
    ended = cli("submit", str(document))
    assert ended.code == 2
    assert "workdir" in ended.sentence
