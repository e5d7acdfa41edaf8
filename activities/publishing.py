"""The activity `publish`: writes run.log and the records, sends notices, totals and spans.

No step of a job waits for it. An attempt publishes what it can and returns how far it came. An attempt that
published nothing fails, and Temporal retries it without limit. After an attempt was killed, the next one
publishes the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.failures import is_worth_a_line
from activities.heartbeat import Heartbeat, heartbeating
from activities.visibility import SIGNAL_WITHIN
from everstep.backends.base import Backend
from everstep.chronicle.chronicle import JobTotals
from everstep.chronicle.fleet_totals import JobReport
from everstep.chronicle.happenings import Notice
from everstep.chronicle.incidents import IncidentSummary
from everstep.chronicle.publishing import Publication, PublishedUpTo
from everstep.chronicle.shapes import moment
from everstep.core.errors import EverstepError

WRITTEN_WITHIN_S = 10.0
"""Storage may hang: then the lines are written later."""
SHOWN_FROM_ATTEMPT = 4
"""The attempt from which on a failure is shown; a number of `is_worth_a_line`."""


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

    async def export(self, publication: Publication) -> bool:
        """Whether all spans of the publication were taken. Never raises."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far an attempt came with its publication."""

    publication: Publication
    exports: bool  # whether this worker exports metrics or traces
    # Numbers of the newest that went out; 0: none.
    entry: int = 0
    notice: int = 0
    span: int = 0
    totals_are_settled: bool = False  # the totals were taken, or never will be
    spans_are_settled: bool = False  # also where there is no exporter
    totals_sent: str = ""  # fingerprint of the totals that were taken
    trouble: str = ""  # why a part failed, the newest

    @property
    def published(self) -> PublishedUpTo:
        first_step = self.publication.first_step if self.totals_are_settled else 0
        return PublishedUpTo(
            entry=self.entry,
            notice=self.notice,
            span=self.span,
            is_end_left=self.publication.is_end_due and not self._is_exported,
            # None: no exporter here, so a first step is no reason for the job to publish again.
            first_step=first_step if self.exports else None,
            totals_sent=self.totals_sent,
        )

    @property
    def published_nothing(self) -> bool:
        """Whether this attempt published nothing that has to go out. Totals and spans alone may go later."""
        has_first_step = self.publication.is_first_step_due and self.totals_are_settled
        has_end = self.publication.is_end_due and self._is_exported
        return not (self.entry or self.notice or has_first_step or has_end)

    @property
    def _is_exported(self) -> bool:
        return self.totals_are_settled and self.spans_are_settled


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
    async def publish(self, publication: Publication) -> PublishedUpTo:
        """Write, notify, count and trace at the same time: storage and listener do not wait for each other.

        A canceled attempt returns how far it came, so that nothing is published twice without need.
        """
        exports = self.counters is not None or self.span_exporter is not None
        progress = Progress(publication=publication, exports=exports)
        async with heartbeating() as heartbeat:
            try:
                await asyncio.gather(
                    self._write(publication, progress),
                    self._notify(publication, progress, heartbeat),
                    self._count(publication, progress),
                    self._trace(publication, progress),
                )
            except asyncio.CancelledError:
                if progress.published_nothing:
                    raise
        if progress.published_nothing and not publication.is_empty:
            await _report_failure(publication, progress.trouble)
            # Tried again until it works: worth no traceback each time.
            benign = ApplicationErrorCategory.BENIGN
            why = f"nothing could be published: {progress.trouble}"
            raise ApplicationError(why, type="Unpublished", category=benign)
        return progress.published

    async def _write(self, publication: Publication, progress: Progress) -> None:
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

    async def _count(self, publication: Publication, progress: Progress) -> None:
        """Send totals that changed. After a failure a later publication sends them."""
        newest = fingerprint(publication.totals, activity.info().workflow_run_id or "")
        if self.counters is not None and newest != publication.totals_sent:
            key = f"{publication.job.id}/{publication.first_run}"
            report = JobReport(key=key, at=publication.at, totals=publication.totals)
            try:
                problem = await self.counters.take(report)
            except RPCError as error:
                progress.trouble = f"the totals of the job are sent later: {error.message}"
                if is_worth_a_line(activity.info().attempt):
                    activity.logger.warning(progress.trouble)
                return
            if problem:
                activity.logger.warning(problem)
            else:
                progress.totals_sent = newest
        progress.totals_are_settled = True

    async def _trace(self, publication: Publication, progress: Progress) -> None:
        """Send the spans. A later publication sends those that were refused."""
        exporter = self.span_exporter
        if exporter is None or not publication.spans or await exporter.export(publication):
            progress.span, progress.spans_are_settled = publication.newest_span, True
            return
        progress.trouble = "the collector takes no spans"

    async def _notify(
        self, publication: Publication, progress: Progress, heartbeat: Heartbeat
    ) -> None:
        """Each notice waits for the one before it."""
        if self.listener is None:  # then there is no answer to wait for
            progress.notice = publication.newest.notice
            return
        for notice in publication.notices:
            if not await self.listener.take(message(publication, notice)):
                progress.trouble = progress.trouble or "the webhook takes no notices"
                return
            progress.notice = notice.number
            heartbeat.beat(progress.notice)


def fingerprint(totals: JobTotals, run: str) -> str:
    """A text that is the same for the same totals of one run: these are not sent again.

    The run is part of it. A run that a reset began sends its totals even if its history had sent them: later
    totals of the run that it replaces may have been counted since.
    """
    written = json.dumps([run, asdict(totals)], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


async def _report_failure(publication: Publication, trouble: str) -> None:
    """Show a publication that fails again and again in the job's status and events, ever more rarely."""
    attempt = activity.info().attempt
    if attempt < SHOWN_FROM_ATTEMPT or not is_worth_a_line(attempt):
        return
    handle = activity.client().get_workflow_handle(publication.job.id)
    with contextlib.suppress(RPCError):  # only for show
        what = f"publish, which failed {attempt} times: {trouble}"
        await handle.signal("unpublished", what, rpc_timeout=SIGNAL_WITHIN)


def message(publication: Publication, notice: Notice) -> dict[str, Any]:
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
        "waiting_reason": notice.waiting_reason or None,
        "incident": None if notice.incident is None else _incident(notice.incident, notice.at),
    }


def _text(job_id: str, notice: Notice) -> str:
    """The notice in one line, for people."""
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
