"""What lies between the end of the old processes and the start of new ones: fence, proof, checkpoint."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from everstep.core.deciding.decision import Plan, StepResult
from everstep.core.errors import BackendUnavailable, NobodyToAsk
from everstep.core.facts import NONE_OLDER, START_FAILED, STORAGE_GIVEN_UP
from everstep.core.levels import Step
from everstep.core.world import Checkpoint, FenceOrder, SetAside, SetAsideOrder
from everstep.steps.looking import Eyes, look_and_say

STORAGE_POLL_S = 5.0
SET_ASIDE = ".everstep/set_aside"


async def resume(eyes: Eyes) -> StepResult:
    """Fence, proof, and only then the checkpoint: nobody old may still be writing one."""
    order, plan = eyes.order, eyes.order.plan
    fence = FenceOrder(
        job=plan.job,
        generation=eyes.generation,
        lowest_slot=min(order.living),
        model_dir=plan.phase.model_dir,
        checkpoints_path=plan.phase.checkpoints_path,
        checkpoints_format=plan.phase.checkpoints_format,
        checkpoints_pattern=plan.phase.checkpoints_pattern,
        workdir=plan.phase.workdir,
        checkpoints_of=plan.checkpoints_of,
        begins=not plan.n,
        kept=plan.keep,
    )
    if ended := await _fenced(eyes, fence):
        return ended
    found = await _saved_again(eyes)
    if not found and _went_away(plan):
        message = f"nothing of what was saved is in {plan.phase.checkpoints_path} any more"
        return eyes.failed(eyes.cause(STORAGE_GIVEN_UP, message))
    chosen = _newest_good(found, plan)
    if chosen is None and any(one.good for one in found):
        named = ", ".join(_said(one) for one in found)
        message = f"no good checkpoint is older than {plan.older_than_step} (there are: {named})"
        return eyes.failed(eyes.cause(NONE_OLDER, message))
    if chosen is None and _was_one_there(found, plan):
        named = ", ".join(_said(checkpoint) for checkpoint in found) or "none"
        if plan.older_than_step is not None:
            named += f"; earlier ones are in {SET_ASIDE} beside them"
        message = f"no good checkpoint is left to resume from (there are: {named})"
        return eyes.failed(eyes.cause("checkpoint.none_left", message))
    newer = tuple(takewhile(lambda one: one != chosen, found))
    return replace(await _set_aside(eyes, newer, chosen), resume=chosen)


async def _fenced(eyes: Eyes, order: FenceOrder) -> StepResult | None:
    """Waits until the fence holds. A storage that takes none is not waited for without end."""
    wait_s, is_launch = eyes.order.plan.phase.limits.requeue_s, not eyes.order.plan.n
    deadline = None if wait_s is None else eyes.order.since + wait_s
    eyes.needs = frozenset(eyes.order.living)
    while not (state := await eyes.context.backend.ensure_fenced(order)).done:
        if state.newer:
            return replace(eyes.done(), end="outdone", newer=state.newer)
        if state.no_workdir and is_launch:
            return eyes.failed(eyes.cause(START_FAILED, state.unwritable))
        if not state.unwritable:
            await look_and_say(eyes, None, state.waiting_for)
            continue
        if deadline is not None and eyes.now >= deadline:
            message = f"it could not be written for {wait_s:g} s: {state.unwritable}"
            return eyes.failed(eyes.cause(STORAGE_GIVEN_UP, message))
        await eyes.waits_for(state.waiting_for)
        next_look = eyes.now + STORAGE_POLL_S
        await eyes.look(next_look if deadline is None else min(deadline, next_look))
    return None


def _went_away(plan: Plan) -> bool:
    """Whether the storage is at fault, and there was something in it."""
    return Step.WRITABLE in plan.steps and plan.saved_as is not None


async def _saved_again(eyes: Eyes) -> tuple[Checkpoint, ...]:
    """Storage that went away comes back with what was saved: until then nobody begins anew."""
    plan, found = eyes.order.plan, await _saved(eyes)
    wait_s = plan.phase.limits.requeue_s
    deadline = None if wait_s is None else eyes.order.since + wait_s
    while not found and _went_away(plan) and (deadline is None or eyes.now < deadline):
        await eyes.waits_for("the checkpoints to be there again")
        next_look = eyes.now + STORAGE_POLL_S
        await eyes.look(next_look if deadline is None else min(deadline, next_look))
        found = await _saved(eyes)
    return found


async def _saved(eyes: Eyes) -> tuple[Checkpoint, ...]:
    """An agent looks. One that is lost in this moment is seen to be lost, and not waited for."""
    if eyes.order.plan.phase.checkpoints_path is None:
        return ()  # those of the phase before are not of this one
    while True:
        try:
            return await eyes.context.backend.checkpoints(eyes.order.plan.job)
        except NobodyToAsk as nobody:
            await look_and_say(eyes, eyes.now + STORAGE_POLL_S, str(nobody))


async def _set_aside(
    eyes: Eyes, newer: tuple[Checkpoint, ...], chosen: Checkpoint | None
) -> StepResult:
    """A script that takes the newest by itself is to find the chosen one. Training goes on without that.

    Asked also where there is nothing newer: whoever was killed at this may have renamed it all.
    """
    plan = eyes.order.plan
    if plan.keep or plan.phase.checkpoints_path is None:
        return replace(eyes.done(), stays=bool(newer))
    order = SetAsideOrder(
        job=plan.job,
        generation=eyes.generation,
        paths=tuple(one.path for one in newer),
        resume=None if chosen is None else chosen.path,
    )
    try:
        done = await eyes.context.backend.ensure_set_aside(order)
    except (NobodyToAsk, BackendUnavailable) as error:
        done = SetAside(why=str(error))
    notes = [f"checkpoint set aside: {path}" for path in done.moved]
    if stays := bool(newer and done.why):
        named = ", ".join(_said(one) for one in newer)
        notes.append(f"checkpoints not set aside ({named}): {done.why}")
    if notes and chosen is None:
        notes.insert(0, "the only checkpoint is bad: training begins anew")
    return replace(eyes.done(), notes=tuple(notes), stays=stays)


def _newest_good(found: tuple[Checkpoint, ...], plan: Plan) -> Checkpoint | None:
    limit = plan.older_than_step
    older = (c for c in found if limit is None or (c.counts is not None and c.counts < limit))
    return next((c for c in older if c.good), None)


def _was_one_there(found: tuple[Checkpoint, ...], plan: Plan) -> bool:
    """Whether there was more than a single one: that may never have been whole, or was just overwritten."""
    if plan.older_than_step is not None or len(found) > 1:
        return True
    is_strict = plan.phase.policy.needs_checkpoint and plan.saved_as is not None
    return any(is_strict or plan.saved_as not in (None, one.path) for one in found)


def _said(checkpoint: Checkpoint) -> str:
    return checkpoint.name.removeprefix("step ") + ("" if checkpoint.good else " is bad")
