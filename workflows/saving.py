"""A request to save now: an activity beside the watch, whose answer is that of the update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from everstep.chronicle import views
from everstep.core import names
from everstep.core.loop import saving
from everstep.core.loop.commands import SAVE_WITHIN_S
from everstep.core.state import JobState
from everstep.core.world import SaveOrder, SaveState
from workflows import options, signatures

UNKNOWN = "whether anything was saved is unknown"
NO_WORKER = "no worker of its cluster answered in time"


async def requested(job: Callable[[], JobState], args: Mapping[str, Any]) -> dict[str, Any]:
    """Request a checkpoint of the ranks that run now; return the fields of the answer.

    A restart, a pause or the end of the job ends the wait.
    """
    state, within_s = job(), float(args.get("within_s", SAVE_WITHIN_S))
    signal = state.phase.save_signal or ""
    order = SaveOrder(
        job=state.job, generation=state.generation, request=_request_id(args), signal=signal
    )
    request = asyncio.create_task(_save(order, state.spec.cluster, within_s))
    await workflow.wait_condition(lambda: request.done() or saving.is_over(job(), order.generation))
    if not request.done():
        request.cancel()
    why = ""
    try:
        save: SaveState | None = await request
    except (ActivityError, asyncio.CancelledError) as error:
        save, why = None, f"{UNKNOWN}: {_cause(error) or NO_WORKER}"
        if saving.is_over(job(), order.generation):
            why = f"{UNKNOWN}: the job is {views.shown_state(job())} now"
    return saving.answer(save, signal, within_s=within_s, why=why)


def _cause(error: BaseException) -> str:
    """What the activity reported; empty where no worker carried it out."""
    cause = error.__cause__
    return cause.message if isinstance(cause, ApplicationError) else ""


def _request_id(args: Mapping[str, Any]) -> str:
    """The ID of the request: that of the update, where the argument has none."""
    update = workflow.current_update_info()
    update_id = update.id if update is not None else str(workflow.uuid4())
    return str(args.get("id") or update_id)


async def _save(order: SaveOrder, cluster: str, within_s: float) -> SaveState:
    return await workflow.execute_activity(
        signatures.request_save,
        args=[order, within_s],
        task_queue=names.cluster_queue(cluster),
        summary=f"have generation {order.generation} save",
        **options.saving(within_s),
    )
