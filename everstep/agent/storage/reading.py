"""Read storage that may hang, each piece of work in a thread that is abandoned when it takes too long.

A thread that waits for storage cannot be ended. So a folder has at most `MOST` of them: while all of them
hang, further work fails at once with `StorageHangs`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from everstep.agent.future import Future, TooLate, in_thread

T = TypeVar("T")

WITHIN_S = 10.0
MOST = 4
"""Threads per folder. More than one, so that two readers of healthy storage do not wait for each other."""

_busy: dict[str, int] = {}
_counting = threading.Lock()


class StorageHangs(OSError):
    """The storage did not answer in time. What is on it is unknown."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the storage of {folder} does not answer")


def begin(folder: str, work: Callable[[], T]) -> Future[T]:
    """Start the work in a thread. Raises StorageHangs if the folder has no thread left."""
    with _counting:
        if _busy.get(folder, 0) >= MOST:
            raise StorageHangs(folder)
        _busy[folder] = _busy.get(folder, 0) + 1
    try:
        return in_thread(partial(_do, folder, work))
    except RuntimeError:  # the machine gives us no thread
        _leave(folder)
        raise StorageHangs(folder) from None


def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """Return what the work returns, or raise what it raises. Raises StorageHangs if it takes too long."""
    return result_of(folder, begin(folder, work), within_s=within_s)


def result_of(folder: str, work: Future[T], *, within_s: float) -> T:
    """Return what work that was begun returns, as `read` does."""
    try:
        return work.result(within_s)
    except TooLate:
        raise StorageHangs(folder) from None


def _do(folder: str, work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        _leave(folder)


def _leave(folder: str) -> None:
    with _counting:
        _busy[folder] -= 1
        if not _busy[folder]:
            del _busy[folder]
