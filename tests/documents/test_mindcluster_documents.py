"""MindCluster's manifests: which are read, what each label and annotation becomes, and what is noted."""

from __future__ import annotations

import itertools
import json
import re
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from everstep.backends.kubernetes import manifest
from everstep.backends.kubernetes.manifest import PodSettings
from everstep.core.errors import InvalidSpec
from everstep.core.levels import FaultClass, Level
from everstep.core.spec import PhaseSpec
from everstep.core.world import JobRef, PlaceOrder
from everstep.dialects.registry import compile_document, laid_over, patch, read_text, validate
from everstep.documents.merge import merged
from everstep.documents.text import to_yaml

_C, _L = FaultClass, Level
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mindcluster.yaml"

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "reset-config-demo"}}
LABELS = {"framework": "pytorch", "fault-scheduling": "force", "fault-retry-times": "3"}


def template(**container: Any) -> dict[str, Any]:
    plain = {
        "name": "ascend",
        "image": "pytorch-test:latest",
        "command": ["python3"],
        "args": ["train.py"],
        "resources": {"requests": {"huawei.com/Ascend910": 8}},
    }
    return {"spec": {"containers": [merged(plain, container)]}}


def ascend_job(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **over: Any
) -> dict[str, Any]:
    """Four pods: one Master and three Workers."""
    metadata = {"name": "demo", "labels": LABELS if labels is None else labels}
    if annotations:
        metadata["annotations"] = annotations
    roles = {
        "Master": {"replicas": 1, "restartPolicy": "Never", "template": template()},
        "Worker": {"replicas": 3, "restartPolicy": "Never", "template": template()},
    }
    plain = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": roles},
    }
    return merged(plain, over)


def volcano_job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "demo", "labels": LABELS},
        "spec": {"tasks": [{"name": "train", "replicas": 2, "template": template()}], **spec},
    }


def deployment(**labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "demo", "labels": {"fault-scheduling": "grace", **labels}},
        "spec": {"replicas": 2, "selector": {}, "template": template()},
    }


def phase(document: dict[str, Any]) -> PhaseSpec:
    (one,) = compile_document(document).phases
    return one


def notes(document: dict[str, Any]) -> dict[str, str]:
    verdict = validate(json.dumps(document))
    assert verdict.ok, verdict.errors
    return dict(verdict.notes)


# --- Objects and pods -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "nodes", "devices"),
    [(ascend_job(), 4, 8), (volcano_job(), 2, 8), (deployment(), 2, 8)],
    ids=["AscendJob", "Volcano Job", "Deployment"],
)
def test_each_kind_of_job_is_read(document: dict[str, Any], nodes: int, devices: int) -> None:
    spec = compile_document(document)
    assert (spec.dialect, spec.name) == ("mindcluster", "demo")
    assert (spec.phases[0].nodes, spec.phases[0].accelerators_per_node) == (nodes, devices)
    assert spec.phases[0].command == ("python3", "train.py")


def test_the_job_of_a_file_is_found_and_what_stands_beside_it_is_noted() -> None:
    file = f"{to_yaml(CONFIG_MAP)}---\n{to_yaml(ascend_job())}---\n"
    document = read_text(file)
    assert compile_document(document) == compile_document(
        {"apiVersion": "v1", "kind": "List", "items": [CONFIG_MAP, ascend_job()]}
    )
    verdict = validate(file)
    assert verdict.ok
    assert ("items.0", "the ConfigMap reset-config-demo has no effect: only the job is read") in (
        verdict.notes
    )


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (f"{to_yaml(CONFIG_MAP)}---\n{to_yaml(CONFIG_MAP)}", "holds no job, only ConfigMap"),
        (f"{to_yaml(volcano_job())}---\n{to_yaml(ascend_job())}", "is a second job"),
        (f"{to_yaml(CONFIG_MAP)}---\n[1]", "only Kubernetes objects share one"),
        ("apiVersion: everstep/v1\nkind: TrainingJob\n---\na: b", "begins a second document"),
        (json.dumps({"kind": "List", "items": [3, ascend_job()]}), "must be a Kubernetes object"),
    ],
)
def test_a_file_without_one_job_is_refused(file: str, message: str) -> None:
    verdict = validate(file)
    assert not verdict.ok
    assert message in verdict.errors[0][1]


def test_the_overlay_may_stand_beside_the_job_or_in_it() -> None:
    whole = {"kind": "List", "items": [ascend_job(everstep={"env": {"A": "1"}}), CONFIG_MAP]}
    changed = laid_over(whole, {"env": {"B": "2"}})
    assert phase(changed).env == {"A": "1", "B": "2"}
    assert phase(ascend_job(annotations={"everstep/overlay": '{"nodes": 1}'})).nodes == 1
    assert phase(patch(ascend_job(), {"limits": {"grace_s": 3}})).limits.grace_s == 3


def test_variables_are_handed_over_and_references_to_them_resolved() -> None:
    env = [
        {"name": "STEPS", "value": "5"},
        {"name": "OUT", "value": "/out/$(STEPS)"},
        {"name": "XDL_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "NOTHING"},
    ]
    document = volcano_job()
    pod = template(env=env, args=["$(OUT)", "$(XDL_IP)", "$$(STEPS)"])
    document["spec"]["tasks"][0]["template"] = pod
    one = phase(document)
    assert one.command == ("python3", "/out/5", "$(XDL_IP)", "$(STEPS)")
    assert one.env == {"STEPS": "5", "OUT": "/out/5", "NOTHING": ""}
    assert "XDL_IP: no value" in notes(document)["spec.tasks.0.template.spec.containers.0.env"]


def test_pods_of_different_commands_are_told_apart_by_their_rank() -> None:
    over = {"env": [{"name": "ROLE", "value": "a b"}], "args": ["lead.py"]}
    document = ascend_job()
    document["spec"]["replicaSpecs"]["Master"]["template"] = template(**over)
    shell, flag, text = phase(document).command
    assert (shell, flag) == ("/bin/sh", "-c")
    assert text.splitlines() == [
        """if [ "$NODE_RANK" -lt 1 ]; then exec env 'ROLE=a b' python3 lead.py; fi""",
        """if [ "$NODE_RANK" -lt 4 ]; then exec python3 train.py; fi""",
    ]


def test_the_container_that_trains_is_found_among_others() -> None:
    document = volcano_job()
    (trains,) = template()["spec"]["containers"]
    sidecar = {"name": "logs", "command": ["tail"]}
    for containers in ([sidecar, trains], [sidecar, {**trains, "name": "x"}]):
        document["spec"]["tasks"][0]["template"] = {"spec": {"containers": containers}}
        assert phase(document).command == ("python3", "train.py")


def test_roles_are_ranked_by_their_rank_index() -> None:
    document = ascend_job()
    roles = document["spec"]["replicaSpecs"]
    for kind, index in (("Master", "3"), ("Worker", "0")):
        roles[kind]["template"]["metadata"] = {"annotations": {"hccl/rankIndex": index}}
    roles["Master"]["template"]["spec"]["containers"][0]["args"] = ["lead.py"]
    assert (
        phase(document)
        .command[2]
        .splitlines()[0]
        .endswith("-lt 3 ]; then exec python3 train.py; fi")
    )


def test_a_command_of_the_image_has_to_be_said() -> None:
    document = volcano_job()
    document["spec"]["tasks"][0]["template"] = {"spec": {"containers": [{"image": "a"}]}}
    assert "names none" in notes(document)["everstep.command"]
    with pytest.raises(InvalidSpec, match=r"everstep\.command: missing"):
        compile_document(document)
    assert phase({**document, "everstep": {"command": ["a"]}}).command == ("a",)


def test_a_command_that_only_one_template_lacks_has_to_be_said_too() -> None:
    document = ascend_job()
    document["spec"]["replicaSpecs"]["Worker"]["template"] = {
        "spec": {"containers": [{"name": "ascend", "image": "a"}]}
    }
    missing = notes(document)["everstep.command"]
    assert missing.startswith("missing: spec.replicaSpecs.Worker.template.spec.containers.0 names")
    with pytest.raises(InvalidSpec, match=r"everstep\.command: missing"):
        compile_document(document)
    assert phase({**document, "everstep": {"command": ["a"]}}).command == ("a",)


def test_a_share_of_a_device_takes_one() -> None:
    document = ascend_job(annotations={"huawei.com/schedule_policy": "chip1-softShareDev"})
    assert phase(document).accelerators_per_node == 1
    assert phase(ascend_job(everstep={"accelerator": "none"})).accelerators_per_node == 0


# --- Labels and annotations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "saves_before_stop", "grace_s", "node"),
    [
        ({}, False, 15.0, (_L.FAIL,)),
        ({"fault-scheduling": "off"}, False, 15.0, (_L.FAIL,)),
        ({"fault-scheduling": "foo"}, False, 15.0, (_L.FAIL,)),
        ({"fault-scheduling": "force"}, False, 15.0, (_L.JOB,)),
        ({"fault-scheduling": "grace"}, True, 900.0, (_L.JOB,)),
        ({"fault-scheduling": "external-grace"}, True, 900.0, (_L.JOB,)),
    ],
    ids=str,
)
def test_case_50_how_a_fault_is_rescheduled(
    labels: dict[str, str], saves_before_stop: bool, grace_s: float, node: tuple[Level, ...]
) -> None:
    one = phase(ascend_job(labels))
    assert (_C.NODE in one.policy.saves_before_stop) is saves_before_stop
    assert one.limits.grace_s == grace_s
    assert one.policy.answer(_C.NODE).levels == node


@pytest.mark.parametrize(("written_s", "grace_s"), [(60, 60.0), (900, 900.0), (1200, 900.0)])
def test_a_graceful_end_takes_what_the_pod_is_given_and_900_s_at_most(
    written_s: int, grace_s: float
) -> None:
    document = ascend_job({"fault-scheduling": "grace"})
    for role in document["spec"]["replicaSpecs"].values():
        role["template"]["spec"]["terminationGracePeriodSeconds"] = written_s
    assert phase(document).limits.grace_s == grace_s


@pytest.mark.parametrize(
    ("annotations", "env", "spare_s"),
    [
        ({}, None, 12.0),
        ({"wait-reschedule-timeout": "30"}, None, 12.0),
        ({"recover-strategy": "recover"}, None, 270.0),
        ({"recover-strategy": "recover", "wait-reschedule-timeout": "30"}, None, 30.0),
        ({"recover-strategy": "recover", "wait-reschedule-timeout": "29"}, None, 270.0),
        ({"recover-strategy": "recover", "wait-reschedule-timeout": "271"}, None, 270.0),
        ({"recover-strategy": "recover", "wait-reschedule-timeout": "x"}, None, 270.0),
        ({"recover-strategy": "elastic-training"}, None, 20.0),
        ({"recover-strategy": "elastic-training"}, "3600", 3590.0),
        ({"recover-strategy": "elastic-training"}, "5", 0.0),
    ],
    ids=str,
)
def test_how_long_a_lost_pod_waits_for_its_place(
    annotations: dict[str, str], env: str | None, spare_s: float
) -> None:
    document = ascend_job(annotations=annotations)
    if env is not None:
        variables = [{"name": "MINDIO_WAIT_MINDX_TIME", "value": env}]
        for role in document["spec"]["replicaSpecs"].values():
            role["template"]["spec"]["containers"][0]["env"] = variables
    assert phase(document).limits.spare_s == spare_s
    wait = annotations.get("wait-reschedule-timeout", "30")
    has_note = "metadata.annotations.wait-reschedule-timeout" in notes(document)
    assert has_note is (
        wait != "30" or (bool(annotations) and "recover-strategy" not in annotations)
    )


STRATEGIES = ("retry", "recover-in-place", "recover", "elastic-training")


@pytest.mark.parametrize("names", list(itertools.permutations(STRATEGIES)))
def test_case_59_strategies_are_tried_in_one_order_however_they_are_written(
    names: tuple[str, ...],
) -> None:
    document = ascend_job(
        {**LABELS, "pod-rescheduling": "on"}, {"recover-strategy": ",".join(names)}
    )
    assert phase(document).policy.answer(_C.DEVICE, code_level="RestartRequest").levels == (
        *(_L.PROCESS_ONLINE, _L.IN_PLACE, _L.PROCESS),
        *(_L.POD, _L.ELASTIC, _L.JOB),
    )


def test_case_52_both_limits_are_budgets() -> None:
    document = ascend_job({**LABELS, "fault-retry-times": "5"})
    document["spec"]["runPolicy"] = {"backoffLimit": 2}
    budgets = {b.name: b.limit for b in phase(document).policy.budgets}
    assert budgets == {"fault_retry_times": 5, "backoff_limit": 2}
    assert "never 5 times" in notes(document)["spec.runPolicy.backoffLimit"]


@pytest.mark.parametrize(
    ("written_retries", "limit"), [({}, 3), ({"maxRetry": 0}, 3), ({"maxRetry": 7}, 7)]
)
def test_a_volcano_job_is_retried_three_times_unless_it_says_more(
    written_retries: dict[str, int], limit: int
) -> None:
    budgets = {b.name: b.limit for b in phase(volcano_job(**written_retries)).policy.budgets}
    assert budgets["backoff_limit"] == limit


@pytest.mark.parametrize(
    ("annotations", "slot", "levels"),
    [
        ({}, 1, (_L.POD, _L.JOB)),
        ({}, 0, (_L.JOB,)),
        ({"recover-strategy": "recover-in-place"}, 0, (_L.IN_PLACE, _L.JOB)),
        ({"huawei.com/recover_policy_path": "pod"}, 0, (_L.POD,)),
        ({"huawei.com/recover_policy_path": "pod"}, 1, (_L.POD,)),
    ],
    ids=str,
)
def test_case_53_a_fault_under_rank_0_needs_the_whole_job(
    annotations: dict[str, str], slot: int, levels: tuple[Level, ...]
) -> None:
    policy = phase(ascend_job({**LABELS, "pod-rescheduling": "on"}, annotations)).policy
    ruled_out = {
        level
        for exclusion in policy.exclusions
        if not exclusion.under_rank0 or slot == 0
        for level in exclusion.levels
    }
    ladder = policy.answer(_C.DEVICE).levels
    assert tuple(level for level in ladder if level not in ruled_out) == levels


def test_the_queue_has_no_end() -> None:
    assert phase(ascend_job()).limits.requeue_s is None
    assert phase(ascend_job(everstep={"limits": {"requeue_s": 5}})).limits.requeue_s == 5


def test_elastic_training_goes_down_to_min_replicas() -> None:
    annotations = {"recover-strategy": "elastic-training", "minReplicas": "2"}
    assert (phase(ascend_job(annotations=annotations)).nodes_min) == 2
    del annotations["minReplicas"]
    document = ascend_job(annotations=annotations)
    assert phase(document).nodes_min == 1
    assert "minReplicas" in notes(document)["metadata.annotations.recover-strategy"]


def test_elastic_training_without_fault_scheduling_never_leaves_it_fewer_nodes() -> None:
    document = ascend_job({"framework": "pytorch"}, {"recover-strategy": "elastic-training"})
    assert (phase(document).nodes_min, phase(document).nodes) == (4, 4)


MIN_AVAILABLE = "huawei.com/schedule_minAvailable"
ELASTIC = {"recover-strategy": "elastic-training"}


def test_a_document_may_add_spares_for_its_hot_switch() -> None:
    spared = phase(ascend_job(everstep={"spares": 1}))
    assert (spared.nodes, spared.spare_slots) == (4, (4,))


@pytest.mark.parametrize(
    ("annotations", "over", "first_nodes_min"),
    [
        ({}, {}, 4),
        (ELASTIC, {}, 4),
        ({**ELASTIC, "minReplicas": "2"}, {}, 2),
        ({**ELASTIC, MIN_AVAILABLE: "3"}, {}, 3),
        ({"minReplicas": "2"}, {}, 4),
        (ELASTIC, {"everstep": {"nodes": {"min": 2, "wanted": 4}}}, None),
    ],
    ids=str,
)
def test_with_how_many_nodes_a_job_begins(
    annotations: dict[str, str], over: dict[str, Any], first_nodes_min: int | None
) -> None:
    assert phase(ascend_job(annotations=annotations, **over)).first_nodes_min == first_nodes_min


@pytest.mark.parametrize(
    ("annotations", "run_policy", "field"),
    [
        ({"minReplicas": "2"}, {}, "metadata.annotations.minReplicas"),
        ({MIN_AVAILABLE: "2"}, {}, f"metadata.annotations.{MIN_AVAILABLE}"),
        ({}, {"schedulingPolicy": {"minAvailable": 2}}, "spec.runPolicy.schedulingPolicy.minAvailable"),
        (ELASTIC, {"schedulingPolicy": {"minAvailable": 2}}, "spec.runPolicy.schedulingPolicy.minAvailable"),
    ],
    ids=str,
)  # fmt: skip
def test_a_minimum_with_which_the_job_does_not_begin_is_noted(
    annotations: dict[str, str], run_policy: dict[str, Any], field: str
) -> None:
    document = ascend_job(annotations=annotations)
    document["spec"]["runPolicy"] = run_policy
    assert "begins with 4 nodes" in notes(document)[field]


def test_a_wait_that_comes_from_the_pod_is_not_judged() -> None:
    document = ascend_job(annotations=ELASTIC)
    source = {"configMapKeyRef": {"name": "settings", "key": "wait"}}
    variables = [{"name": "MINDIO_WAIT_MINDX_TIME", "valueFrom": source}]
    for role in document["spec"]["replicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["env"] = variables
    assert phase(document).limits.spare_s == 20


def test_a_type_of_no_replicas_has_no_pods() -> None:
    document = ascend_job(spec={"replicaSpecs": {"Worker": {"replicas": 0}}})
    assert phase(document).nodes == 1
    del document["spec"]["replicaSpecs"]["Master"]
    with pytest.raises(InvalidSpec, match="no other type has pods"):
        compile_document(document)


FILTER = "huawei.com/schedule.filter.faultCode"
NOTES: tuple[tuple[dict[str, str], dict[str, str], str, str], ...] = (
    ({"fault-scheduling": "Grace"}, {}, "labels.fault-scheduling", "means off; its values are"),
    ({"framework": "pytorch"}, {}, "labels.fault-scheduling", "write grace or force"),
    ({"fault-retry-times": "3"}, {}, "labels.fault-retry-times", "while fault-scheduling is off"),
    ({"fault-scheduling": "force"}, {}, "labels.fault-retry-times", "ends the job"),
    ({**LABELS, "pod-rescheduling": "yes"}, {}, "labels.pod-rescheduling", "means off"),
    ({**LABELS, "pod-reschedulling": "on"}, {}, "labels.pod-reschedulling", "did you mean `pod-"),
    ({**LABELS, "subHealthyStrategy": "x"}, {}, "labels.subHealthyStrategy", "means ignore"),
    ({**LABELS, "recover-strategy": "retry"}, {}, "labels.recover-strategy", "belongs under"),
    ({**LABELS, "process-recover-enable": "on"}, {}, "labels.process-recover-enable", "by itself"),
    (LABELS, {"recover-strategy": "retry"}, "annotations.recover-strategy", "everstep.train.torch"),
    (LABELS, {"recover-strategy": "recover"}, "annotations.recover-strategy", "next coarser level"),
    (LABELS, {"recover-strategy": "exit, dump"}, "annotations.recover-strategy", "newest checkpoint"),
    (LABELS, {"huawei.com/recover_policy_path": "job"}, "annotations.huawei.com/recover_policy_path", "pod"),
    (LABELS, {FILTER: "1:2"}, f"annotations.{FILTER}", "every fault is answered"),
)  # fmt: skip


@pytest.mark.parametrize(("labels", "annotations", "field", "message"), NOTES)
def test_what_has_another_effect_than_its_author_may_think_is_noted(
    labels: dict[str, str], annotations: dict[str, str], field: str, message: str
) -> None:
    assert message in notes(ascend_job(labels, annotations))[f"metadata.{field}"]


def test_exit_codes_below_128_end_a_job_of_restart_policy_exit_code() -> None:
    document = ascend_job()
    assert phase(document).policy.rules == ()
    document["spec"]["replicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    (rule,) = phase(document).policy.rules
    assert (rule.action, rule.match.exit_code) == ("fail", tuple(range(1, 128)))


@pytest.mark.parametrize("at", ["restartPolicy", "template.spec.restartPolicy"])
def test_the_note_on_a_restart_policy_names_the_field_that_has_it(at: str) -> None:
    document = ascend_job()
    worker = document["spec"]["replicaSpecs"]["Worker"]
    del worker["restartPolicy"]
    *parents, key = at.split(".")
    for parent in parents:
        worker = worker[parent]
    worker[key] = "OnFailure"
    (field,) = (field for field in notes(document) if field.endswith("restartPolicy"))
    assert field == f"spec.replicaSpecs.Worker.{at}"


def test_null_says_nothing() -> None:
    document = ascend_job()
    document["metadata"]["annotations"] = None
    document["spec"]["runPolicy"] = {"backoffLimit": None}
    assert compile_document(document) == compile_document(ascend_job())


def test_a_document_of_a_thousand_pods_is_judged_at_once() -> None:
    """100 tasks with 60 variables each: more than any manifest that they publish."""
    variables = [{"name": f"A{i}", "value": "x" * 20} for i in range(60)]
    document = volcano_job()
    task = {"replicas": 10, "template": template(env=variables)}
    document["spec"]["tasks"] = [{**deepcopy(task), "name": f"t{i}"} for i in range(100)]
    text = to_yaml(document)
    began = time.process_time()
    assert validate(text).ok
    assert time.process_time() - began < 5.0, "it takes 0.25 s"


def test_the_example_is_right() -> None:
    verdict = validate(EXAMPLE.read_bytes())
    assert (verdict.ok, verdict.dialect) == (True, "mindcluster")
    one = phase(read_text(EXAMPLE.read_bytes()))
    assert one.command == ("python3", "synthetic/train.py", "out/mindcluster/ckpt")
    assert one.policy.answer(_C.CRASH).levels == (_L.POD, _L.JOB), "a killed pod is replaced"


# -- Its page -----------------------------------------------------------------------------------------


CHECKS = Path(__file__).with_name("mindcluster.md")
"""Which test shows which sentence of the page."""


def plain(text: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).lower()


def test_every_check_of_a_sentence_is_there() -> None:
    checks = CHECKS.read_text(encoding="utf-8")
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in (file.stem, *re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8")))
    }
    test_names = set(re.findall(r"\b(test_\w+)", checks))
    assert len(test_names) > 15
    assert test_names - there == set()


def test_every_checked_sentence_is_on_the_page() -> None:
    page = plain((ROOT / "docs" / "mindcluster.md").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| (.+?) \| .+ \|$", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)
    sentences = [row for row in rows if row not in ("sentence", "---")]
    assert len(sentences) > 30
    assert [one for one in sentences if plain(one) not in page] == []


# -- Pods on Kubernetes -------------------------------------------------------------------------------


def rich_template(**spec: Any) -> dict[str, Any]:
    """As the public samples have them: volumes of the driver, selectors, a port, a sidecar."""
    made = template(
        env=[{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        ports=[{"containerPort": 2222, "name": "ascendjob-port"}],
        volumeMounts=[{"name": "driver", "mountPath": "/usr/local/Ascend/driver"}],
    )
    made["metadata"] = {"labels": {"app": "demo"}, "annotations": {"a": "b"}, "name": "own"}
    made["spec"] |= {
        "nodeSelector": {"host-arch": "huawei-arm"},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 600,
        "volumes": [{"name": "driver", "hostPath": {"path": "/usr/local/Ascend/driver"}}],
        **spec,
    }
    made["spec"]["containers"].append({"name": "logs", "image": "tail", "command": ["tail"]})
    return made


def on_kubernetes(master: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    roles = {"Master": {"template": master}, "Worker": {"replicas": 3, "template": worker}}
    return {**ascend_job(), "spec": {"replicaSpecs": roles}, "everstep": {"cluster": "big"}}


def test_on_kubernetes_the_pods_are_made_from_the_template_of_the_document() -> None:
    spec = compile_document(on_kubernetes(rich_template(), rich_template()))
    (phase,) = spec.phases
    assert (phase.image, phase.command) == ("pytorch-test:latest", ("python3", "train.py"))
    template = phase.pod_template
    assert template["metadata"] == {"labels": {"app": "demo"}, "annotations": {"a": "b"}}
    assert set(template["spec"]) == {
        *("containers", "nodeSelector", "terminationGracePeriodSeconds", "volumes")
    }
    train, logs = template["spec"]["containers"]
    assert set(train) == {"name", "env", "ports", "resources", "volumeMounts"}
    assert (train["name"], logs) == (
        "train",
        {"name": "logs", "image": "tail", "command": ["tail"]},
    )
    assert not [note for note in spec.notes if "images" in note.message]


def test_the_kubernetes_backend_takes_the_template_of_a_document() -> None:
    (phase,) = compile_document(on_kubernetes(rich_template(), rich_template())).phases
    order = PlaceOrder(
        job=JobRef(id="demo", run="run"),
        generation=1,
        phase=phase.name,
        slots=(0,),
        recreate=(0,),
        image=phase.image,
        pod_template=phase.pod_template,
        accelerator=phase.accelerator,
        accelerators_per_node=phase.accelerators_per_node,
    )
    settings = PodSettings(books="books", agent="agent")
    made = manifest.pod(order, 0, owner={"name": "demo", "uid": "u"}, settings=settings)
    train, logs = made["spec"]["containers"]
    assert train["image"] == "pytorch-test:latest"
    assert train["command"][0] == "python3"
    assert {"name": "driver", "mountPath": "/usr/local/Ascend/driver"} in train["volumeMounts"]
    assert made["spec"]["nodeSelector"] == {"host-arch": "huawei-arm"}
    assert logs["name"] == "logs"


def test_templates_that_differ_are_noted_and_the_largest_pod_is_kept() -> None:
    scheduler = rich_template(nodeSelector={"host-arch": "any"})
    scheduler["spec"]["containers"][0]["resources"] = {}
    spec = compile_document(on_kubernetes(scheduler, rich_template()))
    assert spec.phases[0].pod_template["spec"]["nodeSelector"] == {"host-arch": "huawei-arm"}
    (note,) = [note for note in spec.notes if "made from" in note.message]
    assert note.field == "spec.replicaSpecs.Master.template"
    assert "spec.replicaSpecs.Worker.template" in note.message


def test_what_is_missing_is_named_as_kubernetes_has_it() -> None:
    """Not with the values of a native document."""
    with pytest.raises(InvalidSpec) as raised:
        compile_document({"kind": "AscendJob"})
    messages = dict(raised.value.problems)
    assert messages["apiVersion"] == "missing; write apiVersion: mindxdl.gitee.com/v1"
    what = "missing; write spec: {replicaSpecs: {Master: {template: ...}}}"
    assert messages["spec"] == what
