"""Faults of MindCluster's device plugin, from a ConfigMap of kube-system up to the job on that node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.core.deciding.playbook import row_for
from everstep.core.levels import FaultClass
from everstep.dialects.mindcluster import device_info
from everstep.faults.meanings import with_meaning
from everstep.plugin import MESSAGES
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes import rights
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.testbed.api import Api, Json
from tests.testbed.machines import Machines

CODE = "80E01801"


def fault(
    *codes: str,
    device: str = "Ascend910-3",
    kind: str = "CardUnhealthy",
    level: str = "SeparateNPU",
    at: int = 1_760_000_000,
) -> Json:
    came = {"fault_time": at, "fault_level": level}
    return {
        "fault_type": kind,
        "npu_name": device,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": ",".join(codes),
        "fault_time_and_level_map": dict.fromkeys(codes, came),
    }


def info(*faults: Json) -> Json:
    lists = {
        "huawei.com/Ascend910": "Ascend910-0",
        "huawei.com/Ascend910-Fault": json.dumps(faults),
    }
    return {"DeviceInfo": {"DeviceList": lists, "UpdateTime": 1_760_000_100}, "CheckCode": "x"}


def config_map(content: object, name: str = "mindx-dl-deviceinfo-n1") -> Json:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"DeviceInfoCfg": text}}


def test_each_code_of_each_device_is_a_fault_that_lasts() -> None:
    result = device_info.observer_report(config_map(info(fault(CODE, "8C1F8608"))))
    assert [(f.node, f.device, f.code, f.at) for f in result.facts] == [
        ("n1", 3, CODE, 1_760_000_000.0),
        ("n1", 3, "8C1F8608", 1_760_000_000.0),
    ]
    assert len({fact.id for fact in result.facts}) == 2
    assert row_for(with_meaning(result.facts[0])).cls is FaultClass.DEVICE_FATAL


@pytest.mark.parametrize(
    ("content", "name", "dropped"),
    [
        (info(), "mindx-dl-deviceinfo-n1", False),
        (info(fault(CODE, kind="PublicFault")), "mindx-dl-deviceinfo-n1", False),
        (info(fault(CODE)), "mindx-dl-nodeinfo-n1", False),
        ("{", "mindx-dl-deviceinfo-n1", True),
        ({"DeviceInfo": {"DeviceList": {"a-Fault": "x"}}}, "mindx-dl-deviceinfo-n1", True),
        (info({"fault_type": "Other"}), "mindx-dl-deviceinfo-n1", True),
    ],
)
def test_what_is_no_fault_of_a_device_is_left_out(
    content: object, name: str, dropped: bool
) -> None:
    result = device_info.observer_report(config_map(content, name))
    assert result.facts == ()
    assert bool(result.dropped) is dropped


@pytest.mark.parametrize(
    ("change", "dropped"),
    [
        ({"fault_type": "SuperPodUnhealthy"}, "DeviceList.huawei.com/Ascend910-Fault.0.fault_type"),
        ({"npu_name": 3}, "DeviceList.huawei.com/Ascend910-Fault.0.npu_name"),
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_read_takes_no_other_along(change: Json, dropped: str) -> None:
    result = device_info.observer_report(config_map(info({**fault(CODE), **change}, fault(CODE))))
    assert [(f.device, f.code) for f in result.facts] == [(3, CODE)]
    (sentence,) = result.dropped
    assert dropped in sentence


@pytest.mark.parametrize(
    ("times", "at"),
    [
        (None, 1_760_000_100.0),
        ({CODE: None}, 1_760_000_100.0),
        ({CODE: {"fault_time": -1, "fault_level": None}}, 1_760_000_100.0),
        ({"8C1F8608": {"fault_time": -1}, CODE: {"fault_time": 1_760_000_000}}, 1_760_000_000.0),
    ],
    ids=str,
)
def test_a_fault_without_a_time_counts_as_of_the_last_change(times: Json | None, at: float) -> None:
    """Null is how Go writes a map or a list that has nothing in it."""
    content = info({**fault(CODE), "fault_time_and_level_map": times})
    result = device_info.observer_report(config_map(content))
    assert [(f.device, f.code, f.at) for f in result.facts] == [(3, CODE, at)]
    assert result.facts[0].details["level"] == "SeparateNPU"
    assert result.dropped == ()


@pytest.mark.parametrize("nothing", ["", "null", "[]"])
def test_a_list_without_faults_takes_no_other_along(nothing: str) -> None:
    content = info(fault(CODE))
    content["DeviceInfo"]["DeviceList"]["huawei.com/Ascend310-Fault"] = nothing
    result = device_info.observer_report(config_map(content))
    assert [f.code for f in result.facts] == [CODE]
    assert result.dropped == ()


def test_a_fault_of_a_node_has_no_device() -> None:
    result = device_info.observer_report(config_map(info(fault(kind="NodeUnhealthy", device="n1"))))
    [fact] = result.facts
    assert (fact.device, fact.code, fact.at) == (None, None, 1_760_000_100.0)


@pytest.fixture
async def observed(lab: KubernetesLab, api: Api, namespace: str) -> AsyncIterator[KubernetesLab]:
    """The same lab with the right of deploy/kubernetes/device-info.yaml, and a worker that uses it."""
    async with rights.to_read_device_info(api, namespace):
        await lab.backend.close()
        lab.settings = replace(lab.settings, messages=MESSAGES)
        lab.backend = await KubernetesBackend.open(lab.settings)
        yield lab


async def test_a_job_is_told_what_the_device_plugin_reports_of_its_node(
    observed: KubernetesLab, machines: Machines
) -> None:
    job = KubernetesRun(observed, id="ascend", slots=(0,), env=NEVER_ENDS)
    await job.launch()
    node = (await job.step(1)).pods[0].node

    async def report(*faults: Any) -> None:
        await machines.fault("device-config-map", node=node, device_info=info(*faults))

    await report(fault(CODE))
    fact = await job.fact("device.fault")
    assert (fact.node, fact.device, fact.code) == (node, 3, CODE)
    assert [one.id for one in await observed.backend.check(job.ref)] == [fact.id]
    await report()

    async def is_over() -> bool:
        return not await observed.backend.check(job.ref)

    await until(is_over)
    await job.gone()


async def test_a_fault_without_a_time_is_reported_again_each_time_that_it_comes_back(
    observed: KubernetesLab, machines: Machines
) -> None:
    """Its plugin gives it the same time always: 0."""
    job = KubernetesRun(observed, id="again", slots=(0,), env=NEVER_ENDS)
    await job.launch()
    node = (await job.step(1)).pods[0].node
    timeless = fault(CODE, at=0)

    async def report(*faults: Any) -> None:
        await machines.fault("device-config-map", node=node, device_info=info(*faults))

    async def facts() -> list[tuple[str, str]]:
        newest = await observed.backend.observe(job.ref, cursor="", wait_s=0.1)
        return [(fact.kind, fact.id) for fact in newest.facts if fact.family == "device"]

    async def has_facts(count: int) -> bool:
        return len(await facts()) == count

    for times in range(1, 3):
        await report(timeless)
        await until(partial(has_facts, 2 * times - 1))
        present = [fact.id for fact in await observed.backend.check(job.ref)]
        assert present == [(await facts())[-1][1]]
        view = next(n for n in await observed.backend.nodes() if n.name == node)
        assert view.lists_codes
        assert {d.index: d.codes for d in view.devices if d.codes} == {3: (CODE,)}
        await report()
        await until(partial(has_facts, 2 * times))
        view = next(n for n in await observed.backend.nodes() if n.name == node)
        assert view.lists_codes
        assert not any(device.codes for device in view.devices)
        # Another worker reads the record, and continues from there.
        await observed.backend.close()
        observed.backend = await KubernetesBackend.open(observed.settings)
    assert [kind for kind, _ in await facts()] == ["device.fault", "device.healed"] * 2
    assert len({fact_id for _, fact_id in await facts()}) == 4
    await job.gone()
