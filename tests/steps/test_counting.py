"""What the reports of device faults to the quarantine say of the cluster."""

from __future__ import annotations

from everstep.backends.fake.backend import FakeBackend
from everstep.core.counting.reports import CountOrder
from everstep.core.facts import Fact
from everstep.core.spec import RepeatRule
from everstep.faults.rules import duration_rules
from everstep.simulation import QuarantineInMemory
from everstep.steps.counting import (
    count_faults,
)
from everstep.steps.step_run import StepContext

CODE = "81078603"


async def test_a_report_says_whether_the_cluster_shows_the_code() -> None:
    """An agent or an operator may report one that the cluster does not show."""
    backend, quarantine = FakeBackend(), QuarantineInMemory()
    await backend.admin.fault(f"device n1 1 {CODE}")
    facts = tuple(
        Fact(id=node, kind="device.fault", at=0.0, node=node, device=1, code=CODE)
        for node in ("n1", "n2", "n99")
    )
    order = CountOrder(
        cluster="local",
        job="a",
        facts=facts,
        repeats=(RepeatRule(times=5, window_s=60.0),),
        durations=duration_rules(),
    )
    await count_faults(StepContext(backend=backend, quarantine=quarantine), order)
    spans = quarantine.quarantines["local"].spans
    assert {span.report.node: span.report.cluster_shows for span in spans} == {
        "n1": True,
        "n2": False,
        "n99": False,
    }
