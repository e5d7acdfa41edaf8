"""One thread does everything to processes: this loop. Other threads hand it calls and wait.

Only the thread that started a rank may wait for it to end, and the kernel ends a rank when *the thread*
that started it is gone: so there is one such thread, and it lives as long as the agent.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import queue
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from typing import Any

CALL_S = 5.0
AFTER_FAULT_S = 0.02
"""What fails again and again must not keep the processor busy."""


class Timer:
    """One call to be made later, unless it is cancelled."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        self.do = None


class Loop:
    """Files, timers, signals and calls of other threads, one after the other."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._woken, self._wake = os.pipe()
        self._signals: dict[int, Callable[[], None]] = {}
        self._pending: set[int] = set()
        self._told = ""  # the newest fault of ours
        for handle in (self._woken, self._wake):
            os.set_blocking(handle, False)
        self.watch(self._woken, self._drain)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def watch(self, handle: int, do: Callable[[], object]) -> None:
        """What is done with it from now on takes the place of what was."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(handle)
        self._selector.register(handle, selectors.EVENT_READ, do)

    def unwatch(self, handle: int) -> None:
        self._selector.unregister(handle)

    def later(self, after_s: float, do: Callable[[], None]) -> Timer:
        timer = Timer(do)
        heapq.heappush(self._timers, (time.monotonic() + after_s, next(self._order), timer))
        return timer

    def on_signal(self, number: int, do: Callable[[], None]) -> None:
        self._signals[number] = do
        signal.signal(number, lambda signum, _frame: self._pending.add(signum))

    def hand_over(self, do: Callable[[], Any]) -> Future[Any]:
        """Have it called by the loop, from any thread, without waiting."""
        call: Future[Any] = Future()
        self._calls.put((call, do))
        with contextlib.suppress(BlockingIOError):  # full of wake-ups: it will wake
            os.write(self._wake, b"\0")
        return call

    def call(self, do: Callable[[], Any]) -> Any:
        """The result of a call made by the loop."""
        try:
            return self.hand_over(do).result(CALL_S)
        except TooLate:
            raise OSError("the agent is busy") from None

    def run(self) -> None:
        """For ever; the process is left by `os._exit`."""
        while True:
            for key, _ in self._selector.select(self._wait_s()):
                self._safely(key.data)
            self._serve_signals()
            self._serve_timers()
            self._serve_calls()

    def _safely(self, do: Callable[[], object]) -> None:
        """A fault of ours must not end a training that goes on well: it is written down instead."""
        try:
            do()
        except Exception:  # noqa: BLE001  # the loop's edge
            told = traceback.format_exc()
            if told != self._told:
                self._told = told
                sys.stderr.write(told)
                sys.stderr.flush()
            time.sleep(AFTER_FAULT_S)

    def _wait_s(self) -> float | None:
        if self._pending or not self._calls.empty():
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 65536)

    def _serve_signals(self) -> None:
        while self._pending:
            do = self._signals.get(self._pending.pop())
            if do is not None:
                self._safely(do)

    def _serve_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.do is not None:
                self._safely(timer.do)

    def _serve_calls(self) -> None:
        for _ in range(self._calls.qsize()):
            call, do = self._calls.get()
            try:
                call.set_result(do())
            except Exception as error:  # noqa: BLE001  # whoever asked is told
                call.set_exception(error)
