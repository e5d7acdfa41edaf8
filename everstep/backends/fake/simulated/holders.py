"""Decides when the virtual clock may jump: when no job holds it. Elsewhere only `advance` moves it.

A job holds the clock from its first generation until it is gone. It lets go while it waits in
`observe`. When every holder waits, the clock jumps to the next event or to the next time that an `observe`
waits for. So time stands still while a worker is dead or busy, and a killed worker leaves no trace in the
timeline. A job that made no call for `idle_s` of real time holds nothing: no worker drives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from everstep.backends.fake.cluster import FakeCluster
from everstep.core.errors import BackendUnavailable

ANSWERS = 2
"""How often the same `observe` returns a change without a fact."""

LIVELOCK = 1_000
"""Answers in a row to the same `observe` after which it raises: the caller never advances its cursor."""


@dataclass(slots=True, eq=False, kw_only=True)
class Repeats:
    """How often an `observe` with this cursor was answered with this version."""

    cursor: int
    version: int
    times: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class ShownVersion:
    """The version of a job that its worker has."""

    in_answer: int  # the version in the newest answer
    with_orders: int  # the version after the worker's own orders since then


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """One open `observe`."""

    job: str
    cursor: int
    until: float | None
    answer: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Holders:
    """The open observes of all jobs. `monotonic` is the real clock, for `idle_s` alone."""

    def __init__(self, cluster: FakeCluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._called_at: dict[str, float] = {}
        self._waiting: list[Waiter] = []
        self._repeats: dict[str, Repeats] = {}
        self._shown_versions: dict[str, ShownVersion] = {}

    def note_call(self, job: str) -> None:
        """Note that a worker made a call for this job, so that it drives the job."""
        self._called_at[job] = self._monotonic()

    def note_shown(self, job: str, version: int) -> None:
        """Note that the worker of this job has this version."""
        self._shown_versions[job] = ShownVersion(in_answer=version, with_orders=version)

    @contextmanager
    def ordering(self, job: str | None) -> Iterator[None]:
        """Carry out an order of the job's worker in the block: what it changes is no news for this worker.

        If the worker had the job's newest version before, it has the version after the order too.
        """
        if job is None:
            yield
            return
        shown_version, changing = self._shown_versions.get(job), self._cluster.state.job(job)
        has_newest = shown_version is not None and shown_version.with_orders == changing.version
        yield
        if shown_version is not None and has_newest:
            shown_version.with_orders = changing.version

    async def wait(self, waiter: Waiter, wait_s: float) -> None:
        """Wait until the job has news, `until` has come, or `wait_s` of real time are over."""
        self._waiting.append(waiter)
        try:
            self.let_time_pass()
            await asyncio.sleep(0)  # other tasks run, even if every jump is possible at once
            await asyncio.wait([waiter.answer], timeout=wait_s)
            if waiter.answer.done():
                waiter.answer.result()
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not waiter.answer.cancel():
                waiter.answer.exception()  # or asyncio reports it as never retrieved

    def let_time_pass(self) -> None:
        """Answer every `observe` that has news; if none has and all holders wait, jump to the next event."""
        while not self._answer_ready():
            if not self._all_wait():
                return
            target = self._next_moment()
            if target is None:
                return
            self._cluster.state.time.pass_to(target)

    def fail_all(self, error: BackendUnavailable) -> None:
        for waiter in self._waiting:
            waiter.answer.set_exception(error)
        self._waiting.clear()

    def _answer_ready(self) -> bool:
        ready = [waiter for waiter in self._waiting if self._count_if_ready(waiter)]
        for waiter in ready:
            # From here on its job holds the clock again, before its caller runs.
            self._waiting.remove(waiter)
            waiter.answer.set_result(None)
        return bool(ready)

    def _count_if_ready(self, waiter: Waiter) -> bool:
        """Whether the `observe` is answered now; an answer with news is counted."""
        if waiter.until is not None and waiter.until <= self._cluster.state.now:
            return True
        version, has_facts = self._cluster.news(waiter.job, waiter.cursor)
        if has_facts:  # returned to every call with an old cursor
            self._count_answer(waiter, version)
            return True
        if version <= self._version_shown(waiter) or self._answers(waiter, version) >= ANSWERS:
            return False
        self._count_answer(waiter, version)
        return True

    def _version_shown(self, waiter: Waiter) -> int:
        """The version of the job that its worker has: that of its cursor if the last answer was lost."""
        latest = self._shown_versions.get(waiter.job)
        return latest.with_orders if latest and latest.in_answer == waiter.cursor else waiter.cursor

    def _answers(self, waiter: Waiter, version: int) -> int:
        """How often this cursor was answered with this version.

        A change is returned twice, in case the first answer was lost: a caller that never advances its cursor
        would else stop the clock for ever.
        """
        repeats = self._repeats.get(waiter.job)
        is_repeat = repeats and (repeats.cursor, repeats.version) == (waiter.cursor, version)
        return repeats.times if repeats and is_repeat else 0

    def _count_answer(self, waiter: Waiter, version: int) -> None:
        times = self._answers(waiter, version) + 1
        if times > LIVELOCK:
            question = f"{waiter.job} observes with cursor {waiter.cursor} again and again"
            raise RuntimeError(f"{question}: it should pass the one of the last observation")
        repeats = Repeats(cursor=waiter.cursor, version=version, times=times)
        self._repeats[waiter.job] = repeats

    def _all_wait(self) -> bool:
        waiting = {waiter.job for waiter in self._waiting}
        return bool(waiting) and self._holders() <= waiting

    def _holders(self) -> set[str]:
        oldest = self._monotonic() - self._cluster.settings.idle_s
        return {
            job.id
            for job in self._cluster.state.jobs.values()
            if job.holds_clock and self._called_at.get(job.id, oldest) > oldest
        }

    def _next_moment(self) -> float | None:
        moments = [waiter.until for waiter in self._waiting if waiter.until is not None]
        if (happens_at := self._cluster.state.time.next_at) is not None:
            moments.append(happens_at)
        return min(moments, default=None)
