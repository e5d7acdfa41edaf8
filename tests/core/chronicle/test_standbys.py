"""No run ends before it is stopped: training goes on while a backup pod gets ready."""

from __future__ import annotations

from everstep.core.facts import STANDBY_NONE
from everstep.core.levels import FaultClass, Step
from everstep.dialects.mindcluster.policy import mindcluster
from tests.support.builders import ScriptedJob, running, sighting

AT = 2_000.0


def switching() -> ScriptedJob:
    """A job that lets a backup pod get ready, from `AT` on."""
    job = running(mindcluster(fault_scheduling="force", sub_healthy="hotSwitch"))
    job.see(sighting(FaultClass.SUBHEALTH, node="n1", slot=1, at=AT), now=AT)
    assert job.plan.remedy.steps[0] is Step.STANDBY
    return job


def test_a_run_goes_on_where_no_backup_pod_was_ready() -> None:
    job = switching()
    job.fails(STANDBY_NONE, at=Step.STANDBY, stages_s={"standby": 60.0})
    (start,) = job.chronicle.starts
    assert (start.ended_at, start.why, start.step) == (None, "", None)
    assert job.chronicle.phase is not None
    row = job.chronicle.phase.row
    assert (row["status"], row["end_time"], row["failure_reason"]) == ("running", None, None)
    assert "error" not in row
    job.see(sighting(FaultClass.CRASH, at=AT + 500, slot=1), now=AT + 500)
    assert job.chronicle.starts[0].ended_at == AT + 500, "by what ended it in the end"


def test_a_run_that_moved_to_its_backup_pod_ended_once_that_was_ready() -> None:
    job = switching()
    job.succeeds(stages_s={"standby": 2.0, "stop": 0.5, "place": 0.0, "start": 1.0})
    first, _second = job.chronicle.starts
    assert first.ended_at == AT + 2.0
