"""Recovery: one decision, carried out, with a history of its own. It decides nothing."""

from __future__ import annotations

from temporalio import workflow

from everstep.core import names
from everstep.core.decision import Outcome, Plan
from workflows.carrying_out import carry_out


@workflow.defn(name=names.RECOVERY)
class Recovery:
    """One restart of one job: a row to find by job, phase, cause, code, node and level."""

    @workflow.run
    async def run(self, plan: Plan) -> Outcome:
        outcome = await carry_out(plan)
        workflow.set_current_details(f"**{plan.title}**: {outcome.result}")
        return outcome
