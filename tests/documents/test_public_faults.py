"""Public fault messages of MindCluster: the facts of a right one, the answer to a wrong one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.core.errors import InvalidSpec
from everstep.core.facts import LASTS_UNTIL_HEALED
from everstep.core.loop import commands
from everstep.dialects.mindcluster.public_faults import (
    is_public_fault,
    observer_report,
    reports,
    valid_reports,
)
from everstep.documents.merge import merged


def message(*influence: dict[str, Any], **fault: Any) -> dict[str, Any]:
    plain = {
        "faultId": "f1",
        "faultType": "NPU",
        "faultCode": "220001001",
        "faultTime": 1_767_225_600_500,
        "assertion": "occur",
        "influence": list(influence) or [{"nodeName": "n1", "deviceIds": [0, 3]}],
    }
    return {
        "id": "m1",
        "timestamp": 1_767_225_601_000,
        "version": "1.0",
        "resource": "CCAE",
        "faults": [merged(plain, fault)],
    }


def test_each_device_is_a_report_that_a_job_takes() -> None:
    public_faults = reports(message())
    assert [(r["kind"], r["node"], r["device"], r["code"], r["at"]) for r in public_faults] == [
        ("device.fault", "n1", device, "220001001", 1_767_225_600.5) for device in (0, 3)
    ]
    for report in public_faults:
        commands.parse_arguments("report_fault", report)
    ids = [commands.reported_fact(r, at=0.0, earlier_ids=frozenset()).id for r in public_faults]
    assert len({*ids, *(f"report/{r['id']}" for r in reports(message()))}) == 2, "twice is once"


def test_a_fault_of_nodes_names_no_device_and_one_that_is_over_is_good_news() -> None:
    over = message({"nodeName": "n1"}, {"nodeName": "n2"}, assertion="recover", faultType="Node")
    assert [(r["kind"], r["node"], r.get("device")) for r in reports(over)] == [
        ("device.healed", "n1", None),
        ("device.healed", "n2", None),
    ]


def test_the_message_may_stand_in_a_config_map() -> None:
    text = json.dumps(message())
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"PublicFault": text}}
    assert reports(config_map) == reports(message())
    with pytest.raises(InvalidSpec, match=r"data\.PublicFault: missing"):
        reports({"kind": "ConfigMap", "data": {}})


@pytest.mark.parametrize(
    ("wrong", "field", "line"),
    [
        ({"version": "2.0"}, "version", "must be 1.0"),
        ({"resource": ""}, "resource", "must not be empty"),
        ({"faults": []}, "faults", "must not be empty"),
        ({"faults": message()["faults"] * 101}, "faults", "not have more than 100"),
        (message(faultCode="80E01801"), "faults.0.faultCode", "a code of 9 digits"),
        (message(faultType="Disk"), "faults.0.faultType", "must be one of NPU, Node"),
        (message(assertion="maybe"), "faults.0.assertion", "must be one of occur, recover, once"),
        (message(faultTime="now"), "faults.0.faultTime", "must be a whole number"),
        (message(influence=[]), "faults.0.influence", "must not be empty"),
        (message({"deviceIds": [1]}), "faults.0.influence.0.nodeName", "name the node"),
        (message({"nodeSN": "X1"}), "faults.0.influence.0.nodeSN", "is not known here"),
        (message({"nodeName": "n1", "deviceIds": [-1]}), "faults.0.influence.0.deviceIds.0", "at least 0"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_message_gets_one_line_that_names_its_field(
    wrong: dict[str, Any], field: str, line: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        reports({**message(), **wrong})
    ((wrong_field, sentence),) = caught.value.problems
    assert (wrong_field, line in sentence) == (field, True), sentence


def config_map(body: object, labels: object = None) -> dict[str, Any]:
    text = body if isinstance(body, str) else json.dumps(body)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "faults", "labels": labels},
        "data": {"PublicFault": text},
    }


def test_of_a_config_map_of_a_cluster_a_wrong_fault_is_dropped_and_the_others_hold() -> None:
    body = message()
    wrong, later = message(faultCode="80E01801")["faults"], message(faultId="f2")["faults"]
    body["faults"] += wrong + later
    valid = valid_reports(config_map(body))
    assert valid.reports == (*reports(message()), *reports(message(faultId="f2")))
    ((field, sentence),) = valid.dropped
    assert (field, "a code of 9 digits" in sentence) == (
        "data.PublicFault.faults.1.faultCode",
        True,
    )
    with pytest.raises(InvalidSpec, match=r"faults\.1\.faultCode"):
        reports(config_map(body))


def test_the_facts_of_a_config_map_say_which_of_them_last() -> None:
    body = message()
    for assertion in ("once", "recover"):
        body["faults"] += message(faultId=assertion, assertion=assertion)["faults"]
    body["faults"] += message(faultCode="x")["faults"]
    report = observer_report(config_map(body))
    assert [(f.kind, f.where, f.details.get(LASTS_UNTIL_HEALED, False)) for f in report.facts] == [
        ("device.fault", "n1/0", True),
        ("device.fault", "n1/3", True),
        ("device.fault", "n1/0", False),
        ("device.fault", "n1/3", False),
        ("device.healed", "n1/0", False),
        ("device.healed", "n1/3", False),
    ]
    assert [sentence.partition(":")[0] for sentence in report.dropped] == [
        "data.PublicFault.faults.3.faultCode"
    ]


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", "[" * 100_000, '{"id": 1e999}', {"faults": 3}, {**message(), "id": ""}],
    ids=lambda body: str(body)[:20],
)
def test_whatever_a_config_map_holds_its_reader_goes_on(body: object) -> None:
    reports = valid_reports(config_map(body))
    assert reports.reports == ()
    assert reports.dropped


@pytest.mark.parametrize(
    ("labels", "is_one"),
    [
        ({"mc-consumer-publicfault": "true", "app": "x"}, True),
        ({"mc-consumer-publicfault": "false"}, False),
        ({}, False),
        (None, False),
        ("mc-consumer-publicfault", False),
    ],
)
def test_config_maps_are_told_apart_by_their_label(labels: object, *, is_one: bool) -> None:
    assert is_public_fault(config_map(message(), labels)) is is_one
    assert is_public_fault({}) is False
