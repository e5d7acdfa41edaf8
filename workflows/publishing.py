"""What happened to a job goes out beside all that the job does: it owns the queue, an activity empties it."""

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
from everstep.chronicle.publishing import Published, Unpublished, due, published
from everstep.core import names
from everstep.core.state import JobState
from everstep.dialects import journals
from workflows import options


class Chronicled(Protocol):
    """A job that says what happens to it."""

    chronicle: Chronicle
    failing: str  # how a publication fails again and again; empty: it does not

    @property
    def state(self) -> JobState: ...


class Publisher:
    """One publication at a time, so that lines and notices keep their order; a newer one takes its place.

    A publication under way when a run ends is repeated by the next run.
    """

    def __init__(self, job: Chronicled) -> None:
        self._job = job
        self._tried: Unpublished | None = None  # in vain
        self._is_closed = False

    async def go_on(self) -> None:
        """For as long as the run lives."""
        while True:
            await self._until(self._has_more)
            self._tried = self._due()
            task = asyncio.create_task(self._publish(self._tried))
            await self._until(lambda: task.done() or self._has_more())  # noqa: B023
            if not task.done():
                task.cancel()
            with contextlib.suppress(ActivityError, asyncio.CancelledError):
                done = await task
                self._job.chronicle = published(self._job.chronicle, self._tried, done)
                self._tried, self._job.failing = None, ""

    async def _until(self, claim: Callable[[], bool]) -> None:
        """A wait ended by a cancel of the workflow starts again, as the end is published too."""
        while not claim():
            with contextlib.suppress(asyncio.CancelledError):
                await workflow.wait_condition(claim)

    async def lines_out(self) -> None:
        """Until run.log has all lines, which take an agent; no longer than processes may live on for it."""
        if any(slot.uid for slot in self._job.state.slots.values()):
            await self._within(options.LAST_LINES, lambda: not self._due().entries)

    async def last_words(self) -> None:
        """Until all is published, though no longer than a job that ended stays for it."""
        await self._within(options.LAST_WORDS, lambda: self._due().is_empty)

    async def _within(self, time: timedelta, claim: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            await workflow.wait_condition(claim, timeout=time.total_seconds())

    def close(self) -> None:
        """Begin nothing any more: the command that ends a run has to be its last one."""
        self._is_closed = True

    def _due(self) -> Unpublished:
        return due(self._job.chronicle, self._job.state)

    def _has_more(self) -> bool:
        return not self._is_closed and self._due().has_more_than(self._tried)

    async def _publish(self, unpublished: Unpublished) -> Published:
        spec = self._job.state.spec
        done: Published = await workflow.execute_activity(
            "publish",
            replace(unpublished, entries=journals.worded(spec, unpublished.entries)),
            result_type=Published,
            task_queue=names.cluster_queue(spec.cluster),
            summary="write and tell what happened",
            **options.PUBLISH,
        )
        return done
