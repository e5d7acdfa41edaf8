"""The `resume` step: write the fence, prove that older processes ended, choose the checkpoint to load."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import takewhile

from everstep.core.deciding.decision import Plan, StepResult
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.core.facts import NONE_OLDER, START_FAILED, STORAGE_GIVEN_UP, Fact
from everstep.core.recovering import placement, snapshots
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import (
    NEWER_NAMED,
    Checkpoint,
    CheckpointListing,
    FenceOrder,
    FenceState,
    NewerCheckpoints,
    PassedOver,
    SetAside,
    SetAsideOrder,
    Snapshot,
)
from everstep.steps.run_order import run_folders
from everstep.steps.step_run import StepRun, observe_then_report

STORAGE_POLL_S = 5.0
LISTING_BEAT_S, LISTING_BEATS = 5.0, 18
"""Real seconds between two signs of life while checkpoints are listed, and how many there are at most: an
agent has a minute for a folder with many of them."""
SET_ASIDE = ".everstep/set_aside"
STEP_IN_NAME = re.compile(r"step[-_=.]?(\d+)")
NO_CHECKPOINTS = CheckpointListing(checkpoints=())


async def resume(step: StepRun) -> StepResult:
    """Write the fence, wait for its proof, choose the checkpoint that the new ranks load, rename newer ones.

    In this order: until its end is proven, an older process may still write a checkpoint. If none is listed
    although the job saved some, either a killed try of this step has renamed all, or storage lacks them.
    """
    plan = step.order.plan
    fence = await _wait_for_fence(step, _fence_order(step))
    if isinstance(fence, StepResult):
        return fence
    listing = fence.listing or await _list_checkpoints(step)
    if not listing.checkpoints and _expects_checkpoints(plan, fence):
        if await _renamed_by_killed_try(step, listing):
            return await _result_after_renaming(step, listing, (), None)
        listing = await _wait_for_checkpoints(step)
        if not listing.checkpoints:
            message = f"nothing of what was saved is in {plan.phase.checkpoints_path} any more"
            return step.failed(step.cause(STORAGE_GIVEN_UP, message))
    checkpoints = listing.checkpoints
    chosen = _choose(checkpoints, plan)
    snapshot, why_none = await _snapshot(step, chosen)
    if not (chosen or snapshot) and (cause := _none_to_load(step, checkpoints)) is not None:
        return step.failed(cause)
    newer = tuple(takewhile(lambda one: one != chosen, checkpoints))  # all, if none was chosen
    result = await _result_after_renaming(step, listing, newer, chosen)
    notes = (*result.notes, why_none) if why_none else result.notes
    return replace(result, resume=chosen, snapshot=snapshot, no_snapshot=why_none, notes=notes)


async def _snapshot(step: StepRun, checkpoint: Checkpoint | None) -> tuple[Snapshot | None, str]:
    """The snapshots in memory that are newer than the checkpoint, if every rank has one of the same step.

    With it comes a sentence where memory has something, and no step of all ranks.
    """
    plan = step.order.plan
    if not snapshots.may_be_used(plan):
        return None, ""
    pods = (await step.observe(step.now)).pods
    node_ranks = placement.node_ranks(step.order.active)
    snapshot = snapshots.choose(plan, pods, node_ranks, checkpoint)
    return snapshot, snapshots.why_none(pods, node_ranks, plan.phase.processes_per_node)


def _fence_order(step: StepRun) -> FenceOrder:
    order, plan = step.order, step.order.plan
    return FenceOrder(
        job=plan.job,
        generation=step.generation,
        lowest_slot=min(order.active),
        run=run_folders(plan),
        begins=not plan.n,
        kept_ranks=order.kept_ranks,
    )


def _none_to_load(step: StepRun, checkpoints: tuple[Checkpoint, ...]) -> Fact | None:
    """Why no checkpoint can be loaded although there were some. None: training may begin without one."""
    plan = step.order.plan
    names = ", ".join(_describe(checkpoint) for checkpoint in checkpoints) or "none"
    limit = plan.remedy.older_than_step
    if any(checkpoint.good for checkpoint in checkpoints):
        message = f"no good checkpoint is older than {limit} (there are: {names})"
        return step.cause(NONE_OLDER, message)
    if not _had_complete_checkpoint(checkpoints, plan):
        return None
    if limit is not None:
        names += f"; earlier ones are in {SET_ASIDE} beside them"
    message = f"no good checkpoint is left to resume from (there are: {names})"
    return step.cause("checkpoint.none_left", message)


async def _wait_for_fence(step: StepRun, order: FenceOrder) -> FenceState | StepResult:
    """Wait until the fence holds, for storage that cannot be written at most `requeue_s`.

    Returns a `StepResult` where the step ends here.
    """
    wait_s, is_launch = step.order.plan.phase.limits.requeue_s, not step.order.plan.n
    deadline = None if wait_s is None else step.order.since + wait_s
    step.needs = frozenset(step.order.active)
    while not (state := await step.context.backend.ensure_fenced(order)).done:
        if state.newer:
            return replace(step.done(), end="outdated", newer=state.newer)
        assert state.wait is not None, "a fence that is not done waits for something"
        if state.no_folder and is_launch:
            return step.failed(step.cause(START_FAILED, state.unwritable))
        if state.wait.kind is not WaitKind.STORAGE:
            await observe_then_report(step, None, state.wait)
            continue
        if deadline is not None and step.now >= deadline:
            message = f"it could not be written for {wait_s:g} s: {state.unwritable}"
            return step.failed(step.cause(STORAGE_GIVEN_UP, message))
        await step.report_wait(state.wait, until=deadline)
        next_poll = step.now + STORAGE_POLL_S
        await step.observe(next_poll if deadline is None else min(deadline, next_poll))
    return state


def _expects_checkpoints(plan: Plan, fence: FenceState) -> bool:
    """Whether a checkpoint was observed, in this phase or for an earlier submission of this job ID.

    Kept ranks need none: they have the state.
    """
    has_path = plan.phase.checkpoints_path is not None
    return has_path and not plan.keep and (plan.saved_as is not None or fence.has_saved_before)


async def _wait_for_checkpoints(step: StepRun) -> CheckpointListing:
    """Wait until checkpoints are listed again, at most `requeue_s`: training must not start without."""
    wait_s = step.order.plan.phase.limits.requeue_s
    deadline = None if wait_s is None else step.order.since + wait_s
    wait = _missing(step.order.plan)
    listing = NO_CHECKPOINTS
    while not listing.checkpoints and (deadline is None or step.now < deadline):
        await step.report_wait(wait, until=deadline)
        next_poll = step.now + STORAGE_POLL_S
        await step.observe(next_poll if deadline is None else min(deadline, next_poll))
        listing = await _list_checkpoints(step)
    return listing


def _missing(plan: Plan) -> WaitCause:
    kind = WaitKind.CHECKPOINTS if plan.n else WaitKind.CHECKPOINTS_AT_LAUNCH
    return kind.of(plan.phase.checkpoints_path)


async def _list_checkpoints(step: StepRun) -> CheckpointListing:
    """The checkpoints as an agent lists them. Between two tries the step looks for lost agents."""
    if step.order.plan.phase.checkpoints_path is None:
        return NO_CHECKPOINTS  # checkpoints of the phase before do not count
    while True:
        try:
            return CheckpointListing(checkpoints=await _checkpoints(step))
        except NoAgentAvailable as error:
            await observe_then_report(step, step.now + STORAGE_POLL_S, WaitKind.LISTING.of(error))


async def _checkpoints(step: StepRun) -> tuple[Checkpoint, ...]:
    """The backend's answer, which may take a minute: meanwhile the step shows that it is not stuck."""
    answer = asyncio.ensure_future(step.context.backend.checkpoints(step.order.plan.job))
    try:
        for _ in range(LISTING_BEATS):
            if (await asyncio.wait({answer}, timeout=LISTING_BEAT_S))[0]:
                break
            step.context.beat(step.order.step, step.now)
        return await answer
    finally:
        answer.cancel()


async def _result_after_renaming(
    step: StepRun,
    listing: CheckpointListing,
    newer: tuple[Checkpoint, ...],
    chosen: Checkpoint | None,
) -> StepResult:
    """Rename newer checkpoints, so that a script that loads the newest one finds the chosen one.

    Returns the result of the step: it is done even if renaming fails.
    """
    plan = step.order.plan
    if plan.keep or plan.phase.checkpoints_path is None:
        return replace(step.done(), newer_remain=bool(newer))
    done = await _rename_newer(step, listing, newer, chosen)
    notes = [f"checkpoint set aside: {path}" for path in done.moved]
    if remain := bool(newer and done.why):
        names = ", ".join(_describe(one) for one in newer)
        notes.append(f"checkpoints not set aside ({names}): {done.why}")
    if notes and chosen is None:
        notes.insert(0, "the only checkpoint is bad: training starts from the beginning")
    newer_saved = _newer_saved(newer, done)
    return replace(step.done(), notes=tuple(notes), newer_remain=remain, newer_saved=newer_saved)


def _newer_saved(newer: tuple[Checkpoint, ...], done: SetAside) -> NewerCheckpoints | None:
    """What the start passes over. Of those that a killed try renamed only the paths are left."""
    passed_over = [PassedOver(one.name, one.doubt) for one in newer]
    if not passed_over:
        moved = sorted(done.moved, key=lambda path: _step_of_moved(path) or 0, reverse=True)
        passed_over = [PassedOver(_name_of_moved(path), "") for path in moved]
    if not passed_over:
        return None
    return NewerCheckpoints(
        count=len(passed_over), newest=tuple(passed_over[:NEWER_NAMED]), why_there=done.why
    )


def _name_of_moved(path: str) -> str:
    """How sentences name a renamed checkpoint: as before its renaming, where its path has the step."""
    step = _step_of_moved(path)
    return path.rpartition("/")[2] if step is None else f"step {step}"


def _step_of_moved(path: str) -> int | None:
    step = STEP_IN_NAME.search(path.rpartition("/")[2])
    return None if step is None else int(step[1])


async def _renamed_by_killed_try(step: StepRun, listing: CheckpointListing) -> bool:
    """Whether a killed try has set checkpoints aside: then none may be listed, but none is lost."""
    return bool((await _rename_newer(step, listing, (), None)).moved)


async def _rename_newer(
    step: StepRun,
    listing: CheckpointListing,
    newer: tuple[Checkpoint, ...],
    chosen: Checkpoint | None,
) -> SetAside:
    """Rename the newer checkpoints, and return all that this generation has renamed.

    Where none is newer, a killed try may have renamed all without reporting it: the listing or an agent
    has the new paths.
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
    except (NoAgentAvailable, BackendUnavailable) as error:
        return SetAside(why=str(error))


def _choose(checkpoints: tuple[Checkpoint, ...], plan: Plan) -> Checkpoint | None:
    """The newest checkpoint proven complete; without one, the newest that may be complete."""
    limit = plan.remedy.older_than_step
    older = [
        c
        for c in checkpoints
        if limit is None or (c.order_number is not None and c.order_number < limit)
    ]
    good = next((c for c in older if c.good), None)
    return good or next((c for c in older if not c.is_sure), None)


def _had_complete_checkpoint(checkpoints: tuple[Checkpoint, ...], plan: Plan) -> bool:
    """Whether a complete checkpoint ever existed. Here none of them is known to be good.

    - Where no check was sure (`is_sure`): only if the document forbids a start without a checkpoint, and the
      job saved one.
    - In a rollback: yes, as it leaves a checkpoint behind.
    - Several: yes, as one was finished before the next one began.
    - A single bad one may never have been complete: yes only if the job saved another one, or if the
      document forbids a start without a checkpoint and the job saved one.
    """
    is_strict = plan.phase.policy.needs_checkpoint and plan.saved_as is not None
    if checkpoints and not any(one.is_sure for one in checkpoints):
        return is_strict
    if plan.remedy.older_than_step is not None or len(checkpoints) > 1:
        return True
    return any(is_strict or plan.saved_as not in (None, one.path) for one in checkpoints)


def _describe(checkpoint: Checkpoint) -> str:
    return checkpoint.name.removeprefix("step ") + ("" if checkpoint.good else " is bad")
