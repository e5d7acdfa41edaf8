"""Work on storage that may hang: it has a thread of its own, which is given up when it takes too long.

A thread that waits for storage cannot be ended. So there are few of them for each folder: whoever comes
while they all hang is told so at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from typing import TypeVar

T = TypeVar("T")

WITHIN_S = 10.0
MOST = 4
"""So many at a time for one folder: two readers of healthy storage do not get into each other's way."""

_busy: dict[str, int] = {}
_counting = threading.Lock()


class StorageHangs(OSError):
    """The storage did not answer in time: what is there is not known."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the storage of {folder} does not answer")


def begin(folder: str, work: Callable[[], T]) -> Future[T]:
    """Do it elsewhere, and say how it came out. Raises GivenUp."""
    with _counting:
        if _busy.get(folder, 0) >= MOST:
            raise StorageHangs(folder)
        _busy[folder] = _busy.get(folder, 0) + 1
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # whoever waits no more does not hinder it
    try:
        threading.Thread(target=_do, args=(folder, work, answer), daemon=True).start()
    except RuntimeError:  # the machine gives us no thread
        _leave(folder)
        raise StorageHangs(folder) from None
    return answer


def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """What the work answers, or raises. Raises GivenUp when that takes too long."""
    try:
        return begin(folder, work).result(within_s)
    except TooLate:
        raise StorageHangs(folder) from None


def _do(folder: str, work: Callable[[], T], answer: Future[T]) -> None:
    try:
        found = work()
    except BaseException as error:  # noqa: BLE001  # whoever asked is told
        _leave(folder)
        answer.set_exception(error)
    else:
        _leave(folder)
        answer.set_result(found)


def _leave(folder: str) -> None:
    with _counting:
        _busy[folder] -= 1
        if not _busy[folder]:
            del _busy[folder]
