"""Recovery: one decision, carried out, with a history of its own. It decides nothing.

Below it is how a plan becomes activities, step by step, also that of a job's launch, and the end of a job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from everstep.chronicle import record_rows
from everstep.core import names
from everstep.core.bounds import cut
from everstep.core.deciding.decision import Outcome, Plan, StepOrder, StepResult
from everstep.core.escaping import in_markdown
from everstep.core.loop.next_actions import Clear
from everstep.core.recovering import recovery
from everstep.core.world import GoneState, resuming_from
from workflows import attributes, missing_workers, options, signatures
from workflows.inputs import read, required, typed

STALE = "StaleGeneration"
"""The type of the failure of an order that the cluster refuses: a newer generation owns the job."""


@workflow.defn(name=names.RECOVERY)
class Recovery:
    """One restart of one job: a row to find by job, phase, cause, code, node and level."""

    def __init__(self) -> None:
        self._plan: Plan | None = None

    def log_labels(self) -> dict[str, Any]:
        """Labels of what its steps log."""
        plan = self._plan
        if plan is None:
            return {}
        return {
            "job": plan.job.id,
            "first_run": plan.job.first_run,
            "phase": plan.phase.name,
            "generation": plan.generation,
        }

    @workflow.run
    async def run(self, *raw: Any) -> Outcome:
        self._plan = plan = required(read(raw, Plan))
        try:
            outcome = await carry_out(plan, partial(_show, plan))
        except (ActivityError, asyncio.CancelledError) as error:
            if _behind(error, STALE) is not None:
                await _late_cancel()
            is_over = is_cancelled()  # its step may still have failed: the janitor can be faster
            _close(plan, "cancelled" if is_over or is_cancelled_exception(error) else "failed")
            if is_over:
                raise asyncio.CancelledError from error
            raise
        workflow.upsert_memo({"outcome": record_rows.outcome_values(outcome)})
        _close(plan, outcome.result)
        if outcome.result == "failed":
            why = recovery.failure(plan, outcome)
            raise ApplicationError(why, outcome, type=names.RECOVERY_FAILED, non_retryable=True)
        return outcome


async def _late_cancel() -> None:
    """Wait for the cancel of a Recovery whose job was terminated. The janitor may be faster."""
    if not is_cancelled():
        with contextlib.suppress(asyncio.CancelledError):
            await workflow.sleep(options.CANCEL_COMES, summary="until a cancel comes")


async def _show(plan: Plan, what: str | None) -> None:
    """Signal the job what its plan waits for. One that has ended since waits for nothing."""
    job = workflow.get_external_workflow_handle(plan.job.id)
    waiting = {"plan": plan.key, "what": what, "is_refusal": what is not None}
    with contextlib.suppress(ApplicationError):
        await job.signal("waiting", waiting)


def _close(plan: Plan, result: str) -> None:
    workflow.set_current_details(
        f"**{in_markdown(plan.title)}**: {record_rows.result_word(result)}"
    )
    workflow.upsert_search_attributes(attributes.of_result(result))


# -- Plans as activities --------------------------------------------------------------------------


async def carry_out(plan: Plan, show: missing_workers.Show) -> Outcome:
    """The outcome of the plan, whose steps follow `core.recovering.recovery`. A cancel reaches its step."""
    progress = recovery.begin(plan)
    while True:
        order = recovery.next_step(progress)
        if isinstance(order, Outcome):
            return order
        if is_cancelled():  # a step that ended well although it was cancelled swallowed that
            raise asyncio.CancelledError
        result = await missing_workers.run_step(partial(_step, order), show)
        match recovery.after(progress, result):
            case Outcome() as outcome:
                return outcome
            case recovery.PlanProgress() as after_step:
                progress = after_step


async def clear_away(
    order: Clear, cluster: str, show: missing_workers.Show, *, why: str
) -> GoneState:
    """Remove everything of the job. If another run took a generation since, take a newer one.

    A Recovery under way outlives the reset of its job, so it may take a generation after this call did.
    """
    key: str | None = None
    times = 0
    while True:
        try:
            return await missing_workers.run_step(partial(_clear, order, cluster, key, why), show)
        except ActivityError as error:
            if _behind(error, STALE) is None:
                raise
            times += 1
            key = f"clear-{times}"


async def _clear(
    order: Clear, cluster: str, key: str | None, why: str, how: Mapping[str, Any]
) -> GoneState:
    return await workflow.execute_activity(
        signatures.clear,
        args=[order.job, order.grace_s, key],
        task_queue=names.cluster_queue(cluster),
        summary=line("remove everything of this job", why),
        **how,
    )


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _step(order: StepOrder, how: Mapping[str, Any]) -> StepResult:
    return await workflow.execute_activity(
        signatures.STEPS[order.step],
        order,
        task_queue=names.cluster_queue(order.plan.cluster),
        summary=line(summary(order)),
        **how,
    )


LINE_MOST = 130
"""Characters of a summary: of one line, and within the 400 bytes that a server may take."""


def line(*parts: str) -> str:
    """A row of the timeline, in words."""
    return cut(" · ".join(part for part in parts if part), LINE_MOST)


def summary(order: StepOrder) -> str:
    """What the row of the timeline says beside the name of the step."""
    plan = order.plan
    return {
        "stop": f"generation {plan.generation} ends" if plan.generation else "nothing may run yet",
        "space": f"{plan.remedy.space_s:g} s, the last restarts brought no progress",
        "heal": f"wait for heal · {_healing(plan)}",
        "isolate": ", ".join(i.node for i in plan.remedy.isolate),
        "place": f"{len(plan.remedy.recreate)} of {len(order.active)} slots",
        "resume": _from(plan.remedy.older_than_step),
        "start": f"generation {order.generation}{resuming_from(order.snapshot or order.resume)}",
    }.get(str(order.step), "")


def _healing(plan: Plan) -> str:
    """With the code where it is only one device."""
    refs = [f"{ref.node}/{ref.device}" for ref in plan.remedy.heal]
    fault = plan.title.rpartition(" · ")[2]
    return fault if len(refs) == 1 and fault.endswith(f" on {refs[0]}") else ", ".join(refs)


def _from(older_than_step: int | None) -> str:
    before = "" if older_than_step is None else f" before step {older_than_step}"
    return f"fence, and the newest checkpoint{before}"


def refusal(error: BaseException | None) -> str:
    """What is wrong with the job, if that is why its plan failed."""
    failure = _behind(error, "InvalidSpec")
    return "" if failure is None else failure.message


def failed_outcome(error: BaseException) -> Outcome | None:
    """The outcome of a Recovery whose level failed; None if it ended in another way."""
    failure = _behind(error, names.RECOVERY_FAILED)
    return None if failure is None else typed(failure.details[0], Outcome)


def raise_cause(error: ActivityError | ApplicationError) -> NoReturn:
    """The activity's own failure, so that the user reads one clean line instead of a wrapper."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError):
        raise ApplicationError(
            cause.message, *cause.details, type=cause.type, non_retryable=True
        ) from None
    raise error


def _behind(error: BaseException | None, kind: str) -> ApplicationError | None:
    """The failure of this type that led to the error."""
    while error is not None:
        if isinstance(error, ApplicationError) and error.type == kind:
            return error
        error = error.__cause__
    return None


async def end_recovery(workflow_id: str, plan: Plan) -> str:
    """Free the ID of a restart that an earlier run of the job began, as before a reset.

    Returns the type of the workflow that has the ID, if the job did not start it; else nothing.
    """
    return await workflow.execute_activity(
        signatures.end_recovery,
        args=[workflow_id, plan.job.id, plan.key],
        task_queue=names.cluster_queue(plan.cluster),
        summary="end what an earlier run of this job left under the same ID",
        **options.CALL,
    )
