"""Publishes what happened to a job, beside all else that it does: its chronicle is the queue, an activity
sends.

Lines go to run.log, notices to a webhook, totals and spans to telemetry. No step of the job waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from temporalio import workflow
from temporalio.exceptions import ActivityError

from everstep.chronicle.chronicle import Chronicle
from everstep.chronicle.publishing import Publication, PublishedUpTo, after_publishing, due_now
from everstep.core import names
from everstep.core.state import JobState
from everstep.dialects import journals
from workflows import options, signatures


class Chronicled(Protocol):
    """A job with a chronicle whose news is published."""

    chronicle: Chronicle
    failing: str  # how a publication fails again and again; empty: it does not

    @property
    def state(self) -> JobState: ...


class Publisher:
    """Runs one publication at a time, so that lines and notices keep their order.

    Newer events cancel a publication, which returns how far it came, and start one with all that is left. A
    publication in progress at the end of a run is repeated by the next run.
    """

    def __init__(self, job: Chronicled) -> None:
        self._job = job
        self._tried: Publication | None = None  # the last publication, if it was not finished
        self._is_closed = True

    async def work(self) -> None:
        """Publish until the run ends."""
        while True:
            await self._until(self._has_more)
            self._tried = self._due()
            task = asyncio.create_task(self._publish(self._tried))
            await self._until(lambda: task.done() or self._has_more())  # noqa: B023
            if not task.done():
                task.cancel()
            with contextlib.suppress(ActivityError, asyncio.CancelledError):
                done = await task
                self._job.chronicle = after_publishing(self._job.chronicle, self._tried, done)
                self._tried, self._job.failing = None, ""

    async def _until(self, claim: Callable[[], bool]) -> None:
        """Wait until the claim holds and the rest of the job has nothing more to do for now.

        So the commands of the publisher come last, whether the end of a publication and the next news arrive
        in one workflow task or in two. A replay may join two tasks that were apart, or part them
        (decision 0073), and another order of commands fails each task of the job from then on.
        """
        while not (claim() and await self._is_at_rest()):
            await self._turn_with(claim)

    async def _is_at_rest(self) -> bool:
        """Whether all that is due to run has run and left the job as it was."""
        state, chronicle = self._job.state, self._job.chronicle
        await self._turn_with(lambda: True)
        return self._job.state is state and self._job.chronicle is chronicle

    async def _turn_with(self, claim: Callable[[], bool]) -> None:
        """A wait ended by a cancel of the workflow is no failure, as the end is published too."""
        with contextlib.suppress(asyncio.CancelledError):
            await workflow.wait_condition(claim)

    async def wait_for_lines(self) -> None:
        """Wait until run.log has all lines, while an agent that can write them lives; for a limited time."""
        if any(slot.uid for slot in self._job.state.slots.values()):
            await self._within(
                options.LAST_LINES, lambda: not self._due().entries, "last lines of run.log"
            )

    async def wait_for_all(self) -> None:
        """Wait until all is published; for a limited time."""
        await self._within(options.LAST_WORDS, lambda: self._due().is_empty, "last publication")

    async def _within(self, time: timedelta, claim: Callable[[], bool], what: str) -> None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await workflow.wait_condition(
                claim, timeout=time, timeout_summary=f"longest wait for the {what}"
            )

    def open(self) -> None:
        """Publish what comes from now on."""
        self._is_closed = False

    def close(self) -> None:
        """Start no further publication: the command that ends a run must be its last one."""
        self._is_closed = True

    def _due(self) -> Publication:
        return due_now(self._job.chronicle, self._job.state)

    def _has_more(self) -> bool:
        return not self._is_closed and self._due().has_more_than(self._tried)

    async def _publish(self, publication: Publication) -> PublishedUpTo:
        spec = self._job.state.spec
        return await workflow.execute_activity(
            signatures.publish,
            replace(publication, entries=journals.formatted(spec, publication.entries)),
            task_queue=names.cluster_queue(spec.cluster),
            summary="publish what happened",
            **options.PUBLISH,
        )
