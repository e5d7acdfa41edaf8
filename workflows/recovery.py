"""Recovery: one decision, carried out, with a history of its own. It decides nothing."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from everstep.core import names
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.harmless import in_markdown
from everstep.core.recovering import recovery
from workflows import attributes
from workflows.carrying_out import carry_out


@workflow.defn(name=names.RECOVERY)
class Recovery:
    """One restart of one job: a row to find by job, phase, cause, code, node and level."""

    @workflow.run
    async def run(self, plan: Plan) -> Outcome:
        try:
            outcome = await carry_out(plan)
        except (ActivityError, asyncio.CancelledError) as error:
            _close(plan, "cancelled" if is_cancelled_exception(error) else "failed")
            raise
        _close(plan, outcome.result)
        if outcome.result == "failed":
            why = recovery.failure(plan, outcome)
            raise ApplicationError(why, outcome, type=names.RECOVERY_FAILED, non_retryable=True)
        return outcome


def _close(plan: Plan, result: str) -> None:
    workflow.set_current_details(f"**{in_markdown(plan.title)}**: {result}")
    workflow.upsert_search_attributes(attributes.of_result(result))
