"""The result of work that another thread does: what the agent needs of `concurrent.futures`.

That package imports `logging`, which takes some milliseconds of each start of an agent and its warden.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TooLate(Exception):
    """The work was not done in time."""


class Future(Generic[T]):
    """Work, and its result once it is done. For any thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._is_cancelled = self._is_done = False
        self._result: Any = None
        self._exception: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], object]] = []

    def cancel(self) -> None:
        """Prevent the work, if it has not begun."""
        with self._changed:
            self._is_cancelled = True

    def carry_out(self) -> None:
        """Do the work in this thread, unless it was cancelled. Calls the callbacks too."""
        with self._changed:
            if self._is_cancelled:
                return
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._exception = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
        for callback in self._callbacks:
            callback(self)

    def done(self) -> bool:
        return self._is_done

    def exception(self, within_s: float | None = None) -> BaseException | None:
        """Wait for the work; return what it raised, if it did. Raises TooLate."""
        with self._changed:
            if not self._changed.wait_for(self.done, within_s):
                raise TooLate
        return self._exception

    def result(self, within_s: float | None = None) -> T:
        """Wait for the work; return what it returned, or raise what it raised. Raises TooLate."""
        if (error := self.exception(within_s)) is not None:
            raise error
        result: T = self._result
        return result

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call this with the future once the work is done, at once if it is."""
        with self._changed:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        callback(self)


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do the work in a thread of its own. Raises RuntimeError if the machine gives us none."""
    answer = Future(work)
    threading.Thread(target=answer.carry_out, daemon=True).start()
    return answer
