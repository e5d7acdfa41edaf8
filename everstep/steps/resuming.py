"""The step between the end of the old processes and the start of new ones: fence, proof, checkpoint."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from everstep.core.deciding.decision import Plan, StepResult
from everstep.core.errors import BackendUnavailable, NobodyToAsk
from everstep.core.facts import NONE_OLDER, START_FAILED, STORAGE_GIVEN_UP
from everstep.core.world import (
    Checkpoint,
    CheckpointListing,
    FenceOrder,
    FenceState,
    SetAside,
    SetAsideOrder,
)
from everstep.steps.looking import StepRun, look_then_report

STORAGE_POLL_S = 5.0
SET_ASIDE = ".everstep/set_aside"
NOTHING = CheckpointListing(checkpoints=())


async def resume(step: StepRun) -> StepResult:
    """Fence, prove the end of older processes, then choose the checkpoint: none may still be written."""
    order, plan = step.order, step.order.plan
    fence = FenceOrder(
        job=plan.job,
        generation=step.generation,
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
    state = await _fenced(step, fence)
    if isinstance(state, StepResult):
        return state
    listing = state.listing or await _saved(step)
    if not listing.checkpoints and _are_expected(plan):
        moved_before = await _moved_aside(step, listing, (), None)
        if moved_before.moved:  # by a try that was killed afterwards
            return await _set_aside(step, listing, (), None)
        listing = await _saved_again(step)
        if not listing.checkpoints:
            message = f"nothing of what was saved is in {plan.phase.checkpoints_path} any more"
            return step.failed(step.cause(STORAGE_GIVEN_UP, message))
    checkpoints = listing.checkpoints
    chosen = _to_load(checkpoints, plan)
    if chosen is None and any(one.good for one in checkpoints):
        names = ", ".join(_described(one) for one in checkpoints)
        message = (
            f"no good checkpoint is older than {plan.remedy.older_than_step} (there are: {names})"
        )
        return step.failed(step.cause(NONE_OLDER, message))
    if chosen is None and _was_one_there(checkpoints, plan):
        names = ", ".join(_described(checkpoint) for checkpoint in checkpoints) or "none"
        if plan.remedy.older_than_step is not None:
            names += f"; earlier ones are in {SET_ASIDE} beside them"
        message = f"no good checkpoint is left to resume from (there are: {names})"
        return step.failed(step.cause("checkpoint.none_left", message))
    newer = tuple(takewhile(lambda one: one != chosen, checkpoints))
    return replace(await _set_aside(step, listing, newer, chosen), resume=chosen)


async def _fenced(step: StepRun, order: FenceOrder) -> FenceState | StepResult:
    """Wait until the fence holds; for storage that cannot be written at most `requeue_s`.

    A result ends the step.
    """
    wait_s, is_launch = step.order.plan.phase.limits.requeue_s, not step.order.plan.n
    deadline = None if wait_s is None else step.order.since + wait_s
    step.needs = frozenset(step.order.living)
    while not (state := await step.context.backend.ensure_fenced(order)).done:
        if state.newer:
            return replace(step.done(), end="outdone", newer=state.newer)
        if state.no_folder and is_launch:
            return step.failed(step.cause(START_FAILED, state.unwritable))
        if not state.unwritable:
            await look_then_report(step, None, state.waiting_for)
            continue
        if deadline is not None and step.now >= deadline:
            message = f"it could not be written for {wait_s:g} s: {state.unwritable}"
            return step.failed(step.cause(STORAGE_GIVEN_UP, message))
        await step.report_wait(state.waiting_for)
        next_look = step.now + STORAGE_POLL_S
        await step.look(next_look if deadline is None else min(deadline, next_look))
    return state


def _are_expected(plan: Plan) -> bool:
    """Whether a checkpoint was ever seen. Ranks that are kept need none: they have the state."""
    has_path = plan.phase.checkpoints_path is not None
    return has_path and plan.saved_as is not None and not plan.keep


async def _saved_again(step: StepRun) -> CheckpointListing:
    """Wait until checkpoints are there again, at most `requeue_s`: training must not start without."""
    wait_s = step.order.plan.phase.limits.requeue_s
    deadline = None if wait_s is None else step.order.since + wait_s
    listing = NOTHING
    while not listing.checkpoints and (deadline is None or step.now < deadline):
        await step.report_wait("the checkpoints to be there again")
        next_look = step.now + STORAGE_POLL_S
        await step.look(next_look if deadline is None else min(deadline, next_look))
        listing = await _saved(step)
    return listing


async def _saved(step: StepRun) -> CheckpointListing:
    """The checkpoints as an agent lists them. A look between two tries finds an agent that is lost."""
    if step.order.plan.phase.checkpoints_path is None:
        return NOTHING  # checkpoints of the phase before do not count
    while True:
        try:
            checkpoints = await step.context.backend.checkpoints(step.order.plan.job)
            return CheckpointListing(checkpoints=checkpoints)
        except NobodyToAsk as nobody:
            await look_then_report(step, step.now + STORAGE_POLL_S, str(nobody))


async def _set_aside(
    step: StepRun,
    listing: CheckpointListing,
    newer: tuple[Checkpoint, ...],
    chosen: Checkpoint | None,
) -> StepResult:
    """Rename newer checkpoints, so that a script that loads the newest one finds the chosen one.

    Training goes on if it fails.
    """
    plan = step.order.plan
    if plan.keep or plan.phase.checkpoints_path is None:
        return replace(step.done(), stays=bool(newer))
    done = await _moved_aside(step, listing, newer, chosen)
    notes = [f"checkpoint set aside: {path}" for path in done.moved]
    if remain := bool(newer and done.why):
        names = ", ".join(_described(one) for one in newer)
        notes.append(f"checkpoints not set aside ({names}): {done.why}")
    if notes and chosen is None:
        notes.insert(0, "the only checkpoint is bad: training starts from the beginning")
    return replace(step.done(), notes=tuple(notes), stays=remain)


async def _moved_aside(
    step: StepRun,
    listing: CheckpointListing,
    newer: tuple[Checkpoint, ...],
    chosen: Checkpoint | None,
) -> SetAside:
    """What this generation has set aside, after these too, if an agent can reach it.

    Where nothing is newer, the listing has that; if it does not, an agent reports it: a killed try may
    have renamed all and not reported it.
    """
    if not newer and listing.set_aside is not None:
        return SetAside(moved=listing.set_aside)
    order = SetAsideOrder(
        job=step.order.plan.job,
        generation=step.generation,
        paths=tuple(one.path for one in newer),
        resume=None if chosen is None else chosen.path,
    )
    try:
        return await step.context.backend.ensure_set_aside(order)
    except (NobodyToAsk, BackendUnavailable) as error:
        return SetAside(why=str(error))


def _to_load(checkpoints: tuple[Checkpoint, ...], plan: Plan) -> Checkpoint | None:
    """The newest that is known to be whole; where none is, the newest that may be."""
    limit = plan.remedy.older_than_step
    older = [c for c in checkpoints if limit is None or (c.counts is not None and c.counts < limit)]
    good = next((c for c in older if c.good), None)
    return good or next((c for c in older if not c.is_sure), None)


def _was_one_there(checkpoints: tuple[Checkpoint, ...], plan: Plan) -> bool:
    """Whether a whole checkpoint existed. A single bad one may never have been whole, or was overwritten."""
    is_strict = plan.phase.policy.needs_checkpoint and plan.saved_as is not None
    if checkpoints and not any(one.is_sure for one in checkpoints):
        return is_strict
    if plan.remedy.older_than_step is not None or len(checkpoints) > 1:
        return True
    return any(is_strict or plan.saved_as not in (None, one.path) for one in checkpoints)


def _described(checkpoint: Checkpoint) -> str:
    return checkpoint.name.removeprefix("step ") + ("" if checkpoint.good else " is bad")
