"""Whole manifests as MindCluster's users write them, with every parameter of its jobs in one of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import PhaseSpec
from everstep.dialects.registry import compile_document, read_text, validate

_C, _L = FaultClass, Level
FOLDER = Path(__file__).parent / "mindcluster"


class Sample(NamedTuple):
    nodes: tuple[int, int]  # the least, and how many it wants
    devices: int
    node_lost: tuple[Level, ...]
    unwell: tuple[Level, ...]
    budgets: dict[str, int]
    saves_before_stop: bool
    fields_with_notes: tuple[
        str, ...
    ]  # fields of which something is noted, beside what no job on one machine has


SAMPLES: dict[str, Sample] = {
    "pytorch": Sample(
        nodes=(1, 3),
        devices=8,
        node_lost=(_L.PROCESS, _L.POD, _L.ELASTIC, _L.JOB),
        unwell=(_L.POD, _L.JOB),
        budgets={"fault_retry_times": 85, "backoff_limit": 3, "max_restarts": 32_767},
        saves_before_stop=True,
        fields_with_notes=(
            "items.0",
            "metadata.annotations.recover-strategy",
            "spec.runPolicy.backoffLimit",
        ),
    ),
    "mindspore": Sample(
        nodes=(3, 3),
        devices=8,
        node_lost=(_L.PROCESS, _L.POD, _L.JOB),
        unwell=(_L.POD, _L.JOB),
        budgets={"fault_retry_times": 10, "backoff_limit": 10},
        saves_before_stop=False,
        fields_with_notes=("metadata.annotations.recover-strategy",),
    ),
    "tensorflow_without_replicas": Sample(
        nodes=(2, 2),
        devices=8,
        node_lost=(_L.FAIL,),
        unwell=(_L.NOTE,),
        budgets={},
        saves_before_stop=False,
        fields_with_notes=(
            "metadata.annotations.huawei.com/schedule.filter.faultCode",
            "metadata.annotations.huawei.com/schedule.filter.faultLevel",
        ),
    ),
    "volcano": Sample(
        nodes=(2, 2),
        devices=8,
        node_lost=(_L.JOB,),
        unwell=(_L.JOB,),
        budgets={"fault_retry_times": 3, "backoff_limit": 3},
        saves_before_stop=True,
        fields_with_notes=("items.0",),
    ),
    "deployment": Sample(
        nodes=(2, 2),
        devices=1,
        node_lost=(_L.POD, _L.JOB),
        unwell=(_L.NOTE,),
        budgets={},
        saves_before_stop=True,
        fields_with_notes=("metadata.labels.fault-scheduling", "metadata.labels.fault-retry-times"),
    ),
}


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def phase(name: str) -> PhaseSpec:
    (one,) = compile_document(read_text(text_of(name))).phases
    return one


def test_every_sample_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_valid_as_it_stands(name: str) -> None:
    verdict = validate(text_of(name))
    assert (verdict.ok, verdict.dialect, verdict.errors) == (True, "mindcluster", ())
    fields = [field for field, _ in verdict.notes]
    assert [field for field in SAMPLES[name].fields_with_notes if field not in fields] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_means_what_its_labels_say(name: str) -> None:
    one, sample = phase(name), SAMPLES[name]
    assert (one.nodes_min, one.nodes) == sample.nodes
    assert one.accelerators_per_node == sample.devices
    assert one.policy.answer(_C.NODE).levels == sample.node_lost
    assert one.policy.answer(_C.SUBHEALTH).levels == sample.unwell
    assert {b.name: b.limit for b in one.policy.budgets} == sample.budgets
    assert (_C.NODE in one.policy.saves_before_stop) is sample.saves_before_stop


KEYS = (
    *("fault-scheduling", "fault-retry-times", "backoffLimit", "maxRetry", "pod-rescheduling"),
    *("huawei.com/recover_policy_path", "process-recover-enable", "recover-strategy"),
    *("subHealthyStrategy", "wait-reschedule-timeout", "terminationGracePeriodSeconds"),
    *("restartPolicy", "huawei.com/schedule_minAvailable", "minReplicas", "hccl/rankIndex"),
    *("huawei.com/schedule.filter.faultCode", "huawei.com/schedule.filter.faultLevel"),
    *("framework", "MINDIO_WAIT_MINDX_TIME", "HCCL_ASYNC_ERROR_HANDLING", "minAvailable"),
    *("TASKD_REPORT_FAULT_TIMEOUT", "PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE"),
)
"""Every parameter of its jobs."""


def test_every_parameter_is_in_some_sample() -> None:
    written = "\n".join(text_of(name) for name in SAMPLES)
    assert [key for key in KEYS if not re.search(rf"\b{re.escape(key)}\b", written)] == []


def test_a_replica_type_without_replicas_has_one_pod() -> None:
    assert "replicas:" not in text_of("tensorflow_without_replicas")
    assert phase("tensorflow_without_replicas").nodes == 2
