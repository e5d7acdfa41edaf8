"""Work on storage that may hang: it has a thread of its own, which is given up when it takes too long.

A thread that waits for storage cannot be ended. So there are few of them for each folder: whoever comes
while they all hang is told so at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

WITHIN_S = 10.0
MOST = 4
"""So many at a time for one folder: two readers of healthy storage do not get into each other's way."""

_busy: dict[str, int] = {}
_counting = threading.Lock()


class GivenUp(OSError):
    """The storage did not answer in time: what is there is not known."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"the storage of {folder} does not answer")


class Ended(NamedTuple):
    """How the work came out: its answer, or the error that it raised."""

    answer: object
    error: BaseException | None


def begin(folder: str, work: Callable[[], object], then: Callable[[Ended], object]) -> None:
    """Do it elsewhere; `then` is called there with how it came out. Raises GivenUp."""
    with _counting:
        if _busy.get(folder, 0) >= MOST:
            raise GivenUp(folder)
        _busy[folder] = _busy.get(folder, 0) + 1
    try:
        threading.Thread(target=_do, args=(folder, work, then), daemon=True).start()
    except RuntimeError:  # the machine gives us no thread
        _leave(folder)
        raise GivenUp(folder) from None


def read(folder: str, work: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """What the work answers, or raises. Raises GivenUp when that takes too long."""
    done: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    begin(folder, work, done.put)
    try:
        ended = done.get(timeout=within_s)
    except queue.Empty:
        raise GivenUp(folder) from None
    if ended.error is not None:
        raise ended.error
    return ended.answer  # type: ignore[return-value]  # what the work returned


def _do(folder: str, work: Callable[[], object], then: Callable[[Ended], object]) -> None:
    try:
        ended = Ended(work(), None)
    except BaseException as error:  # noqa: BLE001  # whoever asked is told
        ended = Ended(None, error)
    _leave(folder)
    then(ended)


def _leave(folder: str) -> None:
    with _counting:
        _busy[folder] -= 1
        if not _busy[folder]:
            del _busy[folder]
