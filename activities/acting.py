"""Activities that touch the cluster: one per step, the monitor, the look, the clearing, the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.service import RPCError

from activities.failures import translated
from activities.pulse import Pulse, pulse
from everstep.backends.base import Backend
from everstep.core.decision import Plan, StepOrder, StepResult
from everstep.core.levels import Step
from everstep.core.watching import WatchOrder, WatchReport
from everstep.core.world import GoneState, JobRef, Journal, NodeView
from everstep.steps import (
    Hands,
    Listener,
    QuarantineDesk,
    last_words,
    look_once,
    perform,
    record,
    watch,
)

TOLD_WITHIN = timedelta(seconds=2)
WAITING_SHOWN = 300


async def tell_waiting(plan: Plan, what: str | None) -> None:
    """Tells the job what its plan waits for. Only for show: if it cannot be told, the wait goes on."""
    job = activity.client().get_workflow_handle(plan.job.id)
    try:
        await job.signal("waiting", {"plan": plan.key, "what": what}, rpc_timeout=TOLD_WITHIN)
    except RPCError as error:
        activity.logger.info("the job was not told that it waits for %s: %s", what, error)


FAILS_VISIBLY_FROM = 2
"""A step that fails once is not worth a word: it is tried again at once."""


@asynccontextmanager
async def visible(order: StepOrder) -> AsyncIterator[None]:
    """A step that fails again and again says so in the job's status, whatever the reason is."""
    attempt = activity.info().attempt
    try:
        yield
    except Exception as error:
        if attempt >= FAILS_VISIBLY_FROM and not activity.is_cancelled():
            tried = (
                f"{order.step}, which failed {attempt} times: {str(error) or type(error).__name__}"
            )
            await tell_waiting(order.plan, tried[:WAITING_SHOWN])
        raise
    if attempt > FAILS_VISIBLY_FROM:
        await tell_waiting(order.plan, None)


async def until_gone(
    backend: Backend, job: JobRef, beat: Callable[..., None], *, grace_s: float = 0.0
) -> GoneState:
    """Asks until nothing of the job is left, with a sign of life each time."""
    cursor = 0
    while True:
        state = await backend.ensure_gone(job, grace_s=grace_s)
        beat(state.waiting_for)
        if state.done:
            return state
        cursor = (await backend.observe(job, cursor=cursor, until=None, wait_s=1.0)).cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """The hands of one worker on one cluster."""

    backend: Backend
    desk: QuarantineDesk
    listener: Listener | None = None

    def all(self) -> list[Callable[..., Any]]:
        return [
            *(self._step(step) for step in Step),
            self.monitor,
            self.look,
            self.clear,
            self.clock,
            self.marks,
            self.mark,
            self.release_mark,
        ]

    def _hands(self, mine: Pulse) -> Hands:
        return Hands(
            backend=self.backend,
            quarantine=self.desk,
            beat=mine.beat,
            listener=self.listener,
        )

    def _hands_on(self, plan: Plan, mine: Pulse) -> Hands:
        return replace(self._hands(mine), waits=partial(tell_waiting, plan))

    def _step(self, step: Step) -> Callable[..., Any]:
        """The activity that carries out this step; its name is the step's."""

        @activity.defn(name=str(step))
        async def carry_out(order: StepOrder) -> StepResult:
            async with pulse() as mine, visible(order):
                with translated():
                    return await perform(self._hands_on(order.plan, mine), order)

        return carry_out

    @activity.defn(name="monitor")
    async def monitor(self, order: WatchOrder) -> WatchReport:
        """Watches until there is news. Asked to leave, it returns what it gathered: nothing is lost."""
        leave = asyncio.Event()
        async with pulse() as mine:
            with translated():
                looking = asyncio.ensure_future(watch(self._hands(mine), order, leave))
                try:
                    return await asyncio.shield(looking)
                except asyncio.CancelledError:
                    details = activity.cancellation_details()
                    if details is None or not details.cancel_requested:
                        looking.cancel()
                        raise
                    leave.set()
                    return await looking

    @activity.defn(name="look")
    async def look(self, order: WatchOrder) -> WatchReport:
        """The world as it is now."""
        async with pulse() as mine:
            with translated():
                return await look_once(self._hands(mine), order)

    @activity.defn(name="clear")
    async def clear(
        self, job: JobRef, grace_s: float, journal: Journal, key: str | None = None
    ) -> GoneState:
        """Removes everything of the job; returns when nothing is left.

        With a key it takes a generation first: only a run that lives may end what a later one began.
        """
        async with pulse() as mine:
            with translated():
                if key is not None:
                    await self.backend.ensure_generation(job, key)
                async with last_words(self.listener, journal):
                    await record(self.backend, journal)
                    return await until_gone(self.backend, job, mine.beat, grace_s=grace_s)

    @activity.defn(name="clock")
    async def clock(self) -> float:
        """The backend's time."""
        async with pulse():
            with translated():
                return await self.backend.clock()

    @activity.defn(name="marks")
    async def marks(self) -> dict[str, str]:
        """The nodes that the cluster itself shows as isolated, and why."""
        async with pulse():
            with translated():
                return {n.name: n.reason for n in await self.nodes() if n.isolated}

    async def nodes(self) -> tuple[NodeView, ...]:
        return await self.backend.nodes()

    @activity.defn(name="mark")
    async def mark(self, node: str, reason: str) -> None:
        """Lets nothing new land on the node."""
        async with pulse():
            with translated():
                await self.backend.ensure_isolated(node, reason=reason)

    @activity.defn(name="release_mark")
    async def release_mark(self, node: str) -> None:
        """Lets new pods land on the node again."""
        async with pulse():
            with translated():
                await self.backend.ensure_released(node)
