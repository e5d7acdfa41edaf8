"""The same jobs for code without an event loop: each call returns when the answer is there.

All calls run on one event loop in a thread of its own, which lives as long as the interpreter. So they work
in a notebook too, whose own loop runs already.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from everstep.client import starts
from everstep.client.job import AsyncJob, Result

P = ParamSpec("P")
T = TypeVar("T")

END = object()
CLEANUP_S = 30.0
"""Seconds that an interrupted call has to end the processes that it started."""


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The function, returning what the coroutine returns."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return result(function(*args, **kwargs))

    return call


def result(coroutine: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns. An interrupt cancels it, and is raised once it has ended."""
    ended = threading.Event()

    async def until_ended() -> T:
        try:
            return await coroutine
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(until_ended(), _loop())
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait(CLEANUP_S)
        raise


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="everstep", daemon=True).start()
    return loop


def _method(
    method: Callable[Concatenate[AsyncJob, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Job, P], T]:
    """The method of a `Job` that does what this one does."""

    @functools.wraps(method)
    def call(job: Job, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return result(method(job._job, *args, **kwargs))  # its own

    return call


def _iterator(
    method: Callable[Concatenate[AsyncJob, P], AsyncIterator[T]],
) -> Callable[Concatenate[Job, P], Iterator[T]]:
    """The method of a `Job` that yields what this one yields."""

    @functools.wraps(method)
    def call(job: Job, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(job._job, *args, **kwargs)  # its own
        assert isinstance(items, AsyncGenerator)
        try:
            while (item := result(_next(items))) is not END:
                yield item
        finally:
            result(items.aclose())

    return call


async def _next(items: AsyncGenerator[T, Any]) -> Any:
    """The next item; `END` behind the last one."""
    return await anext(items, END)


class Job:
    """A job, by its ID. In a notebook it shows itself as it is."""

    def __init__(self, job_id: str) -> None:
        self._job = AsyncJob(job_id)

    @property
    def id(self) -> str:
        return self._job.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _repr_html_(self) -> str:
        return result(self._job.html())

    status = _method(AsyncJob.status)
    restarts = _method(AsyncJob.restarts)
    past_events = _method(AsyncJob.past_events)
    events = _iterator(AsyncJob.events)
    why = _method(AsyncJob.why)
    document = _method(AsyncJob.document)
    report = _method(AsyncJob.report)
    watch = _iterator(AsyncJob.watch)
    logs = _iterator(AsyncJob.logs)
    wait = _method(AsyncJob.wait)
    pause = _method(AsyncJob.pause)
    resume = _method(AsyncJob.resume)
    stop = _method(AsyncJob.stop)
    restart = _method(AsyncJob.restart)
    checkpoint = _method(AsyncJob.checkpoint)
    report_fault = _method(AsyncJob.report_fault)
    report_faults = _method(AsyncJob.report_faults)
    hot_update = _method(AsyncJob.hot_update)
    set_budget = _method(AsyncJob.set_budget)
    adopt = _method(AsyncJob.adopt)
    as_modelarts = _method(AsyncJob.as_modelarts)
    as_mindcluster = _method(AsyncJob.as_mindcluster)


def job(job_id: str) -> Job:
    """The job of this ID. No server is reached before one of its methods is called."""
    return Job(job_id)


run = blocking(starts.run)


@functools.wraps(starts.submit)
def _submit(*args: Any, **kwargs: Any) -> Job:
    return Job(result(starts.submit(*args, **kwargs)).id)


def _same_arguments(
    _as: Callable[P, Coroutine[Any, Any, AsyncJob]], function: Callable[..., Job]
) -> Callable[P, Job]:
    return function


submit = _same_arguments(starts.submit, _submit)
__all__ = ["Job", "Result", "job", "run", "submit"]
