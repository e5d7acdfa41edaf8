"""Faults that external observers write into ConfigMaps of a real API server, up to what a job decides."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.faults.meanings import with_meaning
from everstep.plugin import MESSAGES
from tests.backends.verbs import NEVER_ENDS
from tests.kubernetes.jobs import KubernetesLab, KubernetesRun
from tests.kubernetes.objects import until
from tests.support.builders import running
from tests.testbed.api import Api

FATAL = "220001001"
HEALS = "200001010"


@pytest.fixture
async def observed(lab: KubernetesLab) -> KubernetesLab:
    """The same lab, with a worker that reads messages as every worker does."""
    await lab.backend.close()
    lab.settings = replace(lab.settings, messages=MESSAGES[:1])
    lab.backend = await KubernetesBackend.open(lab.settings)
    return lab


def fault(
    fault_id: str, node: str, assertion: str, *, at: float, code: str = FATAL
) -> dict[str, Any]:
    return {
        "faultId": fault_id,
        "faultType": "NPU",
        "faultCode": code,
        "faultTime": int(at * 1000),
        "assertion": assertion,
        "influence": [{"nodeName": node, "deviceIds": [3]}],
    }


def config_map(*faults: dict[str, Any]) -> dict[str, Any]:
    message = {"id": "m", "timestamp": 0, "version": "1.0", "resource": "CCAE", "faults": faults}
    metadata = {"name": "observer", "labels": {"mc-consumer-publicfault": "true"}}
    return {"metadata": metadata, "data": {"PublicFault": json.dumps(message)}}


async def test_a_job_is_told_of_the_faults_of_its_nodes_by_whichever_worker(
    observed: KubernetesLab, api: Api, namespace: str
) -> None:
    """One from before the job that lasts is news, one that was over is none, a wrong one is dropped."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    long_ago = time.time() - 3_600.0
    job = KubernetesRun(observed, id="observed", env=NEVER_ENDS)
    await job.launch()
    pods = (await job.step(5)).pods
    node = next(pod.node for pod in pods if pod.slot == 1)
    wrong = fault("wrong", node, "occur", at=long_ago) | {"faultCode": "x"}
    elsewhere = fault("elsewhere", "another", "occur", at=long_ago)
    over = fault("over", node, "once", at=long_ago)
    lasts = fault("lasts", node, "occur", at=long_ago)
    await api.create(maps, config_map(wrong, elsewhere, over, lasts))
    fact = await job.fact("device.fault")
    assert (fact.node, fact.device, fact.code) == (node, 3, FATAL)
    assert [one.id for one in await observed.backend.check(job.ref)] == [fact.id]
    assert "lasts" in fact.id
    assert decided(fact) == (Level.POD, FaultClass.DEVICE_FATAL, True)

    await observed.another_worker()
    recovered = config_map(fault("lasts", node, "recover", at=time.time()))
    await api.patch(f"{maps}/observer", recovered)
    healed = await job.fact("device.healed")
    assert (healed.where, healed.code) == (f"{node}/3", FATAL)
    assert [one.id for one in job.facts if one.kind == "device.fault"] == [fact.id]
    assert await observed.backend.check(job.ref) == ()
    await job.gone()


async def test_a_device_is_healed_once_its_observer_reports_no_fault_of_it(
    observed: KubernetesLab, api: Api, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    job = KubernetesRun(observed, id="heals", slots=(0,))
    await job.new_generation("launch")

    async def is_now(state: str) -> bool:
        state_now = await observed.backend.ensure_healed(
            job.ref, generation=job.generation, node="elsewhere", device=3
        )
        return state_now.state == state

    assert await is_now("healed"), "there is nothing to heal"
    now = time.time()
    message = config_map(fault("one", "elsewhere", "occur", at=now, code=HEALS))
    message["metadata"]["name"] = "healing"
    await api.create(maps, message)
    await until(lambda: is_now("healing"))
    message = config_map(fault("one", "elsewhere", "recover", at=now + 1, code=HEALS))
    await api.patch(f"{maps}/healing", {"data": message["data"]})
    await until(lambda: is_now("healed"))
    message = config_map(fault("two", "elsewhere", "occur", at=now + 2))
    await api.patch(f"{maps}/healing", {"data": message["data"]})
    await until(lambda: is_now("failed"))
    await job.gone()


async def test_of_a_report_that_was_deleted_nothing_is_stored(
    observed: KubernetesLab, api: Api, namespace: str
) -> None:
    """Observers may make a new object for each report."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    reported = observed.backend.watch.reported
    before = len(reported)
    message = config_map(fault("brief", "elsewhere", "occur", at=time.time()))
    message["metadata"]["name"] = "brief"
    await api.create(maps, message)
    await until(lambda: len(reported) == before + 1)
    await api.delete(f"{maps}/brief")
    await until(lambda: observed.backend.watch.faults() == () or len(reported) == before)
    assert len(reported) == before


def decided(fact: Fact) -> tuple[Level, FaultClass, bool]:
    """What a job with this fault on a node of its own decides."""
    policy = mindcluster(fault_scheduling="force", pod_rescheduling=True)
    decision = running(policy).see(with_meaning(replace(fact, node="n2", at=110.0)))
    return decision.level, decision.fault.cls, bool(decision.remedy.isolate)
