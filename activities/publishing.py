"""The one activity that writes beside a job's model and sends what happened elsewhere. Nothing waits for it.

An attempt does what it can and returns how far it came. One that could do nothing at all fails, and Temporal
tries again without end. After an attempt that was killed in between the next one publishes the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.failures import is_worth_a_line
from activities.heartbeat import Heartbeat, heartbeating
from everstep.backends.base import Backend
from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.happenings import Notice
from everstep.chronicle.incidents import IncidentSummary
from everstep.chronicle.publishing import Published, Unpublished
from everstep.chronicle.shapes import moment
from everstep.chronicle.totals import JobReport
from everstep.core.errors import EverstepError

WRITTEN_WITHIN_S = 10.0
"""Storage may hang: then the lines are written later."""


FAILS_VISIBLY_FROM = 4
"""The attempt from which on a failure is shown; a number of `is_worth_a_line`."""
TOLD_WITHIN = timedelta(seconds=2)


class Listener(Protocol):
    """Where notices go."""

    async def take(self, message: Mapping[str, Any]) -> bool:
        """Send the message; return whether it was accepted. Never raises, and returns soon."""


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
    first_step: int | None = None
    is_first_step_counted: bool = False
    totals_sent: str = ""
    trouble: str = "the webhook takes no notices"

    @property
    def published(self) -> Published:
        return Published(
            entry=self.entry,
            notice=self.notice,
            span=self.span,
            is_end_left=self.is_end_left,
            first_step=self.first_step,
            totals_sent=self.totals_sent,
        )

    @property
    def is_nothing(self) -> bool:
        is_counted = self.is_first_step_counted or (self.is_end_counted and not self.is_end_left)
        return not (self.entry or self.notice or is_counted)


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
    async def publish(self, publication: Unpublished) -> Published:
        """Writes and sends all at once; storage and listener do not wait for each other.

        A canceled attempt returns how far it came, so that nothing is published twice without need.
        """
        exports = self.counters is not None or self.span_exporter is not None
        progress = Progress(first_step=0 if exports else None)
        async with heartbeating() as heartbeat:
            try:
                await asyncio.gather(
                    self._write(publication, progress),
                    self._notify(publication, progress, heartbeat),
                    self._count(publication, progress),
                    self._trace(publication, progress),
                )
            except asyncio.CancelledError:
                if progress.is_nothing:
                    raise
                is_whole = progress.is_end_counted and progress.span == publication.newest_span
                progress.is_end_left = publication.is_end_due and not is_whole
        if progress.is_nothing and not publication.is_empty:
            await _report_failure(publication, progress.trouble)
            # Tried again until it works: worth no traceback each time.
            benign = ApplicationErrorCategory.BENIGN
            why = f"nothing could be published: {progress.trouble}"
            raise ApplicationError(why, type="Unpublished", category=benign)
        return progress.published

    async def _write(self, publication: Unpublished, progress: Progress) -> None:
        if not publication.entries:
            return
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                await self.backend.ensure_recorded(publication.job, publication.entries)
            progress.entry = publication.newest.entry
        except TimeoutError:
            progress.trouble = f"the storage did not answer within {WRITTEN_WITHIN_S:g} s"
        except EverstepError as error:
            progress.trouble = str(error)
        if not progress.entry and is_worth_a_line(activity.info().attempt):
            activity.logger.warning("run.log cannot be written, it waits: %s", progress.trouble)

    async def _count(self, publication: Unpublished, progress: Progress) -> None:
        """Send totals that changed. What fails is sent with the next publication, the end on its own."""
        counting = fingerprint(publication.totals, activity.info().workflow_run_id or "")
        if self.counters is not None and counting != publication.totals_sent:
            key = f"{publication.job.id}/{publication.first_run}"
            report = JobReport(key=key, at=publication.at, totals=publication.totals)
            try:
                problem = await self.counters.take(report)
            except RPCError as error:
                progress.is_end_left = publication.is_end_due
                progress.trouble = f"the totals of the job are sent later: {error.message}"
                if is_worth_a_line(activity.info().attempt):
                    activity.logger.warning(progress.trouble)
                return
            if problem:
                activity.logger.warning(problem)
            else:
                progress.totals_sent = counting
        progress.is_end_counted = publication.is_end_due
        progress.is_first_step_counted = publication.is_first_step_due
        if progress.first_step is not None:
            progress.first_step = publication.first_step

    async def _trace(self, publication: Unpublished, progress: Progress) -> None:
        """Spans that were not taken go out with the next publication, the last ones with the end."""
        exporter = self.span_exporter
        if exporter is None or not publication.spans or await exporter.export(publication):
            progress.span = publication.newest_span
            return
        progress.is_end_left = progress.is_end_left or publication.is_end_due
        progress.trouble = "the collector takes no spans"

    async def _notify(
        self, publication: Unpublished, progress: Progress, heartbeat: Heartbeat
    ) -> None:
        """Each notice waits for the one before it."""
        if self.listener is None:  # then there is no answer to wait for
            progress.notice = publication.newest.notice
            return
        for notice in publication.notices:
            if not await self.listener.take(message(publication, notice)):
                return
            progress.notice = notice.number
            heartbeat.beat(progress.notice)


def fingerprint(totals: JobTotals, run: str) -> str:
    """The same for the same totals of one run: a worker that takes jobs over sends nothing for them.

    A run that a reset began has another one, also where its history had sent these totals: later totals of
    the run that it replaces may have been counted since.
    """
    written = json.dumps([run, asdict(totals)], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


async def _report_failure(publication: Unpublished, trouble: str) -> None:
    """Show a publication that fails again and again in the job's status and events, ever more rarely."""
    attempt = activity.info().attempt
    if attempt < FAILS_VISIBLY_FROM or not is_worth_a_line(attempt):
        return
    handle = activity.client().get_workflow_handle(publication.job.id)
    with contextlib.suppress(RPCError):  # only for show
        what = f"publish, which failed {attempt} times: {trouble}"
        await handle.signal("unpublished", what, rpc_timeout=TOLD_WITHIN)


def message(publication: Unpublished, notice: Notice) -> dict[str, Any]:
    """The body of a notice. The same one has the same `id`, however often it arrives.

    A job that was reset gives its number to another one, at another time.
    """
    number = f"{notice.number}-{round(notice.at * 1000):x}"
    return {
        "id": f"{publication.job.id}/{publication.first_run}/{number}",
        "job": publication.job.id,
        "run": publication.first_run,
        "event": notice.event,
        "time": moment(notice.at) or "",
        "level": notice.level,
        "message": notice.message,
        "topic": publication.topic,
        "text": _text(publication.job.id, notice),
        "incident": None if notice.incident is None else _incident(notice.incident, notice.at),
    }


def _text(job_id: str, notice: Notice) -> str:
    """All of it in one line, for people."""
    line = f"{job_id}: {notice.message}"
    if notice.incident is None:
        return line
    levels = " -> ".join(restart.level for restart in notice.incident.restarts)
    took_s = notice.at - notice.incident.began
    return f"{line}, {took_s:.1f} s after {notice.incident.cause} ({levels})"


def _incident(incident: IncidentSummary, ended: float) -> dict[str, Any]:
    return {
        "phase": incident.phase,
        "incident": incident.number,
        "class": incident.cls,
        "owner": incident.owner,
        "cause": incident.cause,
        "code": incident.code,
        "node": incident.node,
        "began": moment(incident.began),
        "took_s": round(ended - incident.began, 3),
        "restarts": [
            {"n": restart.n, "level": restart.level, "result": restart.result}
            for restart in incident.restarts
        ],
    }
