"""Before pods are given up: have what their memory alone holds saved, one step for all ranks."""

from __future__ import annotations

from everstep.core.recovering import placement, snapshots
from everstep.core.world import DumpOrder
from everstep.steps.step_run import StepRun

LATE_S = 2.0
"""Seconds after its time within which an agent has reported that it killed what did not end."""
POLL_S = 0.25


async def dump(step: StepRun) -> tuple[str, ...]:
    """Save the newest snapshots of the job, if they are lost otherwise. Returns notes about it.

    All older processes have ended. A restart never fails by it: the checkpoint before is left then.
    """
    plan = step.order.plan
    if not snapshots.may_be_used(plan) or not plan.remedy.recreate:
        return ()
    observation = await step.observe(step.now)
    node_ranks = placement.node_ranks(step.order.active)
    number = snapshots.to_dump(plan, observation.pods, node_ranks, observation.checkpoint)
    if number is None:
        return ()
    within_s = plan.phase.limits.grace_s
    order = DumpOrder(job=plan.job, generation=step.generation, step=number, within_s=within_s)
    deadline = step.now + within_s + LATE_S
    while not (state := await step.context.backend.ensure_dumped(order)).done:
        if step.now >= deadline:
            return (f"step {number} is not saved from memory within {within_s:g} s",)
        await step.observe(min(deadline, step.now + POLL_S))
    notes = [f"step {number} is not saved from memory: {why}" for why in state.failed]
    return (*([f"step {number} saved from memory"] if state.saved else []), *notes)
