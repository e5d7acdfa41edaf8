"""The restarts of a job as MindCluster shows them: what `job-reschedule-reason` holds of it.

From the records of a job to plain values, no rule. Every job has this view, whatever its document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from everstep.core.levels import RESCHEDULING, FaultClass

Value = dict[str, Any]

RECORDS_SHOWN = 10

REASON: Mapping[FaultClass, str] = {
    FaultClass.NODE: "node-unhealthy",
    FaultClass.DEVICE: "card-unhealthy",
    FaultClass.DEVICE_USER: "card-unhealthy",
    FaultClass.DEVICE_FATAL: "card-unhealthy",
    FaultClass.NETWORK: "card-network-unhealthy",
    FaultClass.SUBHEALTH: "sub-health-fault",
}
"""What a fault of this class is called there; of any other a pod failed."""


def reschedule_reason(job_id: str, records: Iterable[Mapping[str, Any]]) -> Value:
    """The job's entry, from its records, oldest first: the newest ten restarts that moved a pod."""
    moved = [record for record in records if _moved_a_pod(record)]
    entry = {
        "JobID": job_id,
        "TotalRescheduleTimes": len(moved),
        "RescheduleRecords": [_record(job_id, record) for record in moved[-RECORDS_SHOWN:]],
    }
    return {job_id: entry}


def _moved_a_pod(record: Mapping[str, Any]) -> bool:
    """Whether a pod was removed, or is being. A hot switch without a backup pod removed none."""
    levels, stages_s = {str(level) for level in RESCHEDULING}, record["stages_s"]
    was_in_vain = stages_s.get("standby") is not None and stages_s.get("stop") is None
    is_refused = record["recover_result"] == "quotaExceeded"
    places_pods = record["level"] in levels or stages_s.get("place") is not None
    return places_pods and not is_refused and not was_in_vain


def _record(job_id: str, record: Mapping[str, Any]) -> Value:
    at = datetime.fromisoformat(record["at"]).astimezone(UTC)
    return {
        "LogFileFormatTime": f"I{at:%m%d %H:%M:%S}",
        "RescheduleTimeStamp": int(at.timestamp()),
        "ReasonOfTask": [_reason(job_id, record)],
    }


def _reason(job_id: str, record: Mapping[str, Any]) -> Value:
    fault = record["fault"]
    left = (int(slot) for slot, node in record["nodes"]["before"].items() if node == fault["node"])
    slot = fault["slot"] if fault["slot"] is not None else next(left, None)
    return {
        "RescheduleReason": REASON.get(FaultClass(fault["class"]), "pod-failed"),
        "PodName": "" if slot is None else _pod_name(job_id, slot),
        "NodeName": fault["node"] or "",
        "NodeRankIndex": "" if slot is None else str(slot),
    }


def _pod_name(job_id: str, slot: int) -> str:
    return f"{job_id}-master-0" if slot == 0 else f"{job_id}-worker-{slot - 1}"
