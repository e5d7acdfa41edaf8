"""The one activity that writes beside a job's model and tells others what happened. Nothing waits for it.

It does once what it can and says how far that came. What could do nothing at all fails, and Temporal tries
it again without end. Whoever is killed in between is followed by somebody who publishes the same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.failures import is_worth_a_line
from activities.heartbeat import Heartbeat, heartbeating
from everstep.backends.base import Backend
from everstep.chronicle.happenings import Notice
from everstep.chronicle.publishing import Published, Unpublished
from everstep.chronicle.shapes import moment
from everstep.chronicle.totals import JobReport
from everstep.core.errors import EverstepError
from everstep.telemetry.logs import log_with
from everstep.telemetry.trace_ids import trace_id

WRITTEN_WITHIN_S = 10.0
"""Storage may hang: then the lines are written later."""


class Listener(Protocol):
    """Somebody outside who is told."""

    async def take(self, message: Mapping[str, str]) -> bool:
        """Whether it was taken. Never raises, and soon knows."""


class Counters(Protocol):
    """Where the totals of jobs are added up."""

    async def take(self, report: JobReport) -> str:
        """Replace the totals of this job; a sentence where that will never work. Raises RPCError."""


class SpanExporter(Protocol):
    """Where traces go."""

    async def export(self, publication: Unpublished) -> bool:
        """Whether all spans of the publication were taken. Never raises."""


@dataclass(slots=True)
class Progress:
    """How far a publication came."""

    entry: int = 0
    notice: int = 0
    span: int = 0
    is_end_left: bool = False
    is_end_counted: bool = False
    trouble: str = "the webhook takes no notices"

    @property
    def published(self) -> Published:
        return Published(
            entry=self.entry, notice=self.notice, span=self.span, is_end_left=self.is_end_left
        )

    @property
    def is_nothing(self) -> bool:
        return not (self.entry or self.notice or (self.is_end_counted and not self.is_end_left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """What one worker publishes with."""

    backend: Backend
    listener: Listener | None = None
    counters: Counters | None = None  # None: no metrics are exported
    span_exporter: SpanExporter | None = None

    def all(self) -> list[Callable[..., Any]]:
        return [self.publish]

    @activity.defn(name="publish")
    async def publish(self, given: Unpublished) -> Published:
        """Storage and listener do not wait for each other. Asked to leave, it says how far it came."""
        far = Progress()
        log_with(job=given.job.id, trace_id=trace_id(given.job.id, given.first_run))
        async with heartbeating() as heartbeat:
            try:
                await asyncio.gather(
                    self._write(given, far),
                    self._tell(given, far, heartbeat),
                    self._count(given, far),
                    self._trace(given, far),
                )
            except asyncio.CancelledError:
                if far.is_nothing:
                    raise
                is_whole = far.is_end_counted and far.span == given.newest_span
                far.is_end_left = given.is_end_due and not is_whole
        if far.is_nothing and not given.is_empty:
            # Tried again until it works: worth no traceback each time.
            benign = ApplicationErrorCategory.BENIGN
            why = f"nothing could be published: {far.trouble}"
            raise ApplicationError(why, type="Unpublished", category=benign)
        return far.published

    async def _write(self, given: Unpublished, far: Progress) -> None:
        if not given.entries:
            return
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                await self.backend.ensure_recorded(given.job, given.entries)
            far.entry = given.newest.entry
        except TimeoutError:
            far.trouble = f"the storage did not answer within {WRITTEN_WITHIN_S:g} s"
        except EverstepError as error:
            far.trouble = str(error)
        if not far.entry and is_worth_a_line(activity.info().attempt):
            activity.logger.warning("run.log cannot be written, it waits: %s", far.trouble)

    async def _count(self, given: Unpublished, far: Progress) -> None:
        """Send the totals. What fails is sent again with the next publication, the end on its own."""
        if self.counters is not None:
            key = f"{given.job.id}/{given.first_run}"
            report = JobReport(key=key, at=given.at, totals=given.totals)
            try:
                problem = await self.counters.take(report)
            except RPCError as error:
                far.is_end_left = given.is_end_due
                far.trouble = f"the totals of the job are sent later: {error.message}"
                if is_worth_a_line(activity.info().attempt):
                    activity.logger.warning(far.trouble)
                return
            if problem:
                activity.logger.warning(problem)
        far.is_end_counted = given.is_end_due

    async def _trace(self, given: Unpublished, far: Progress) -> None:
        """Spans that were not taken go out with the next publication, the last ones with the end."""
        exporter = self.span_exporter
        if exporter is None or not given.spans or await exporter.export(given):
            far.span = given.newest_span
            return
        far.is_end_left = far.is_end_left or given.is_end_due
        far.trouble = "the collector takes no spans"

    async def _tell(self, given: Unpublished, far: Progress, heartbeat: Heartbeat) -> None:
        """Each notice waits for the one before it."""
        if self.listener is None:  # then there is nobody to wait for
            far.notice = given.newest.notice
            return
        for notice in given.notices:
            if not await self.listener.take(message(given, notice)):
                return
            far.notice = notice.number
            heartbeat.beat(far.notice)


def message(given: Unpublished, notice: Notice) -> dict[str, str]:
    """What is told. The same notice has the same `id`, however often it arrives."""
    return {
        "id": f"{given.job.id}/{given.first_run}/{notice.number}",
        "job": given.job.id,
        "run": given.first_run,
        "event": notice.event,
        "time": moment(notice.at) or "",
        "level": notice.level,
        "message": notice.message,
        "topic": given.topic,
    }
