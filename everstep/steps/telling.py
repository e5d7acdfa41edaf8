"""Telling others what happened, beside the work: nothing waits for it long, and nothing fails for it.

Notices go out in their order, one after the other, and each is tried again until it was taken. Whoever
is killed in between is followed by somebody who tells the same ones again, under the same identities.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from everstep.chronicle.views import moment
from everstep.core.world import Journal, Notice

TAKEN_WITHIN_S = 2.0
"""So long somebody may need to take a notice. At the end of a job it is also how long we try."""

LAST_WORDS_S = 10.0
"""A job that has ended stays no longer than this for somebody who does take its notices, but slowly."""

PAUSE_S, PAUSE_S_MAX = 0.5, 60.0
"""Between two tries: doubled each time."""


class Listener(Protocol):
    """Somebody outside who is told."""

    async def take(self, message: Mapping[str, str]) -> bool:
        """Whether it was taken. Never raises, and knows within `TAKEN_WITHIN_S`."""


@dataclass(slots=True)
class Telling:
    """What is being told, and how far that came."""

    listener: Listener | None
    journal: Journal
    last: int = 0  # the number of the last notice that was taken

    def __post_init__(self) -> None:
        if self.listener is None:  # then there is nobody to wait for
            self.last = self.journal.last_notice

    async def go_on(self, patience_s: float | None = None) -> None:
        """Until all are taken; given up once nothing was taken for so long."""
        pause_s = PAUSE_S
        quiet_since = asyncio.get_running_loop().time()
        if self.listener is None:
            return
        for notice in self.journal.notices:
            told = message(self.journal, notice)
            while not await self.listener.take(told):
                quiet_s = asyncio.get_running_loop().time() - quiet_since
                if patience_s is not None and quiet_s + pause_s >= patience_s:
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            self.last = notice.number
            pause_s, quiet_since = PAUSE_S, asyncio.get_running_loop().time()


def message(journal: Journal, notice: Notice) -> dict[str, str]:
    """What is told. The same notice has the same `id`, however often it arrives."""
    return {
        "id": f"{journal.job}/{journal.run}/{notice.number}",
        "job": journal.job,
        "run": journal.run,
        "event": notice.event,
        "time": moment(notice.at) or "",
        "level": notice.level,
        "message": notice.message,
        "topic": journal.topic,
    }


@asynccontextmanager
async def telling(listener: Listener | None, journal: Journal) -> AsyncIterator[Telling]:
    """Tells while the caller does its work, for as long as that lasts."""
    now = Telling(listener, journal)
    task = asyncio.create_task(now.go_on())
    try:
        yield now
    finally:
        await _ended(task)


@asynccontextmanager
async def last_words(listener: Listener | None, journal: Journal) -> AsyncIterator[Telling]:
    """The same at the end of a job: it is waited for, unless nobody takes anything."""
    now = Telling(listener, journal)
    task = asyncio.create_task(now.go_on(TAKEN_WITHIN_S))
    try:
        yield now
        await asyncio.wait({task}, timeout=LAST_WORDS_S)
    finally:
        await _ended(task)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
