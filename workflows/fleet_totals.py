"""FleetTotals: the counters of all jobs of one cluster, for ever. It drives `chronicle.fleet_totals`.

Workers that export metrics read it; jobs send it their totals with a signal that starts it.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from everstep.chronicle import fleet_totals
from everstep.core import names
from workflows import options
from workflows.inputs import read, required
from workflows.renewing import is_full


@workflow.defn(name=names.FLEET_TOTALS)
class FleetTotals:
    """One per cluster whose workers export metrics."""

    @workflow.init
    def __init__(self, *raw: Any) -> None:
        new = fleet_totals.FleetTotals()
        self._input = read(raw or (new,), fleet_totals.FleetTotals)
        self._totals = new if isinstance(self._input, ApplicationError) else self._input

    @workflow.run
    async def run(self, *_raw: Any) -> None:
        required(self._input)
        await workflow.wait_condition(is_full)
        workflow.continue_as_new(self._totals, initial_versioning_behavior=options.UPGRADED)

    @workflow.signal(
        name="job_totals", description="all totals of one job; they replace its earlier ones"
    )
    def job_totals(self, report: fleet_totals.JobReport) -> None:
        self._totals = fleet_totals.with_report(self._totals, report)

    @workflow.query(name="totals", description="restarts, stages and ends of all jobs")
    def totals(self, _argument: Any = None) -> fleet_totals.FleetSum:
        return fleet_totals.FleetSum(
            totals=fleet_totals.summed(self._totals), ends=fleet_totals.ends(self._totals)
        )
