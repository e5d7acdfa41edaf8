"""Keep the spare pods of a job standing by while it is watched: make them, check them, replace lost ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from everstep.core.errors import EverstepError
from everstep.core.seeing.watch_report import SparesOrder
from everstep.core.waits import WaitCause, sentence_of
from everstep.core.world import PlaceOrder, PrecheckOrder
from everstep.steps.step_run import StepContext

READY_POLL_S = 10.0
"""Between two looks at spares that are ready, or have no place: nothing of the job may show a change."""
KEEP_S = 2.0
"""Real seconds for one look; what it began goes on in the next one."""


@dataclass(slots=True, kw_only=True)
class KeptSpares:
    """The spares of one watch. Spares that another watch made stay as they are."""

    context: StepContext
    order: SparesOrder | None  # None: the document wants none
    time_scale: float = 1.0
    look_at: float | None = None  # the next time, whatever happens
    is_standing_up: bool = False  # every change of the job is a reason to look
    ready: int = 0
    wait: WaitCause | None = None
    unfit_nodes: list[str] = field(default_factory=list)  # on which a check failed

    async def keep(self, now: float) -> None:
        """Look at the spares, if it is time, and order what is missing. A failed look is made again later."""
        is_time = self.look_at is None or now >= self.look_at or self.is_standing_up
        if self.order is None or not is_time:
            return
        self.look_at = now + READY_POLL_S / self.time_scale
        self.is_standing_up = False
        order = self.order.places
        places = replace(order, avoid=(*order.avoid, *self.unfit_nodes))
        try:
            async with asyncio.timeout(KEEP_S):
                state = await self.context.backend.ensure_standby(places)
                is_checked = state.placed and await self._are_checked(places)
                if is_checked and places.recreate:
                    await self.context.backend.ensure_prewarmed(places.job, spares=places.recreate)
        except (TimeoutError, EverstepError):
            # A newer generation, or a cluster out of reach: the watch itself finds that out.
            return
        has_places = state.places is not None and state.places >= len(places.recreate)
        self.is_standing_up = has_places and not is_checked
        if len(self.unfit_nodes) > len(places.avoid) - len(order.avoid):
            self.look_at = now  # for one on another node
        self.ready = len(places.recreate) if is_checked else 0
        self.wait = state.wait

    async def _are_checked(self, places: PlaceOrder) -> bool:
        """Whether every spare passed the checks before a start. One that fails is replaced elsewhere."""
        assert self.order is not None
        if not (self.order.prechecks and places.recreate):
            return True
        checks = PrecheckOrder(
            job=places.job,
            generation=places.generation,
            slots=places.recreate,
            accelerator=places.accelerator,
        )
        answer = await self.context.backend.ensure_prechecked(checks)
        failed = {fact.node for fact in answer.failures if fact.node is not None}
        self.unfit_nodes += sorted(failed - {*self.unfit_nodes})
        return answer.done and not failed

    def values(self) -> dict[str, object]:
        """What the heartbeat of the watch has of them."""
        if self.order is None:
            return {}
        spares = {"wanted": len(self.order.places.recreate), "ready": self.ready}
        reason = None if self.wait is None else self.wait.reason
        wait = {"waiting_for": sentence_of(self.wait), "waiting_reason": reason}
        return {"spares": {**spares, **wait}}
