"""Restarts as MindCluster shows them: the newest ten that moved a pod."""

from __future__ import annotations

from everstep.core.facts import STANDBY_NONE
from everstep.core.levels import FaultClass, Level, Step
from everstep.dialects import responses
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.mindcluster.view import reschedule_reason
from tests.support.builders import running, sighting

SHAPE = {"shape": "mindcluster"}
POLICY = mindcluster(
    fault_scheduling="force",
    pod_rescheduling=True,
    fault_retry_times=12,
    recover_strategy=("recover-in-place",),
)


def test_each_restart_that_moved_a_pod_says_when_why_and_which() -> None:
    job = running(POLICY)
    for cls in (FaultClass.DEVICE, FaultClass.NODE):
        job.see(sighting(cls, at=1_000.0))
        job.succeeds()
    assert [d.level for d in job.decisions] == [Level.IN_PLACE, Level.POD]
    entry = responses.shaped_restarts(job.chronicle, "demo", SHAPE)
    assert responses.shaped_restarts(job.chronicle, "demo", None) == responses.restarts(
        job.chronicle
    )
    assert entry == {
        "demo": {
            "JobID": "demo",
            "TotalRescheduleTimes": 1,
            "RescheduleRecords": [
                {
                    "LogFileFormatTime": "I0101 00:17:10",
                    "RescheduleTimeStamp": 1030,
                    "ReasonOfTask": [
                        {
                            "RescheduleReason": "node-unhealthy",
                            "PodName": "demo-worker-0",
                            "NodeName": "n1",
                            "NodeRankIndex": "1",
                        }
                    ],
                }
            ],
        }
    }


def test_a_hot_switch_without_a_backup_pod_moved_none() -> None:
    job = running(mindcluster(fault_scheduling="force", sub_healthy="hotSwitch"))
    job.see(sighting(FaultClass.SUBHEALTH, node="n1", slot=1))
    job.fails(STANDBY_NONE, at=Step.STANDBY, stages_s={"standby": 60.0})
    assert job.decisions[-1].level is Level.NOTE
    (entry,) = reschedule_reason("demo", map(responses.record, job.chronicle.records)).values()
    assert (entry["TotalRescheduleTimes"], entry["RescheduleRecords"]) == (0, [])
    job.see(sighting(FaultClass.SUBHEALTH, node="n1", slot=1))
    assert job.decisions[-1].level is Level.NOTE, "the strategy is `ignore` from then on"


def test_the_newest_ten_are_shown_and_all_are_counted() -> None:
    job = running(mindcluster(fault_scheduling="force", fault_retry_times=11))
    for n in range(1, 13):
        job.see(sighting(FaultClass.CRASH, at=1_000.0 * n, slot=0), now=1_000.0 * n)
        if job.decisions[-1].level is not Level.FAIL:
            job.succeeds()
    (entry,) = reschedule_reason("demo", map(responses.record, job.chronicle.records)).values()
    assert entry["TotalRescheduleTimes"] == 11, "the twelfth had no unit left"
    assert [r["RescheduleTimeStamp"] for r in entry["RescheduleRecords"]] == [
        1000 * n for n in range(2, 12)
    ]
    reasons = [task for r in entry["RescheduleRecords"] for task in r["ReasonOfTask"]]
    assert {(t["RescheduleReason"], t["PodName"]) for t in reasons} == {
        ("pod-failed", "demo-master-0")
    }
