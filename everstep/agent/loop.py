"""One thread does everything to processes: this loop. Other threads hand it calls and wait.

Only the thread that started a rank may wait for it to end, and the kernel ends a rank when *the thread*
that started it is gone: so there is one such thread, and it lives as long as the agent.
"""

from __future__ import annotations

import contextlib
import os
import sched
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from everstep.agent import clock
from everstep.agent.future import Future, TooLate

CALL_S = 5.0
AFTER_FAULT_S = 0.02
"""Pause after an exception: what fails again and again must not keep the processor busy."""


class Loop:
    """Files, timers, signals and calls of other threads, one after the other."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Future[Any]] = deque()
        # The time of the timers. It stands still while they are served, so that a timer which sets itself
        # again cannot hold up the loop.
        self._now = 0.0
        self._timers = sched.scheduler(lambda: self._now)
        self._woken, self._wake = os.pipe()  # a byte in it ends the wait of the selector
        self._signals: dict[int, Callable[[], None]] = {}
        self._pending: set[int] = set()  # signals that came and were not served yet
        self.signals_served_at = clock.now()  # every signal that came before has been served
        self._fault = ""  # the newest exception that was logged
        for handle in (self._woken, self._wake):
            os.set_blocking(handle, False)
        self.watch(self._woken, self._drain)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def watch(self, handle: int, do: Callable[[], object]) -> None:
        """Call `do` whenever the handle can be read. It replaces what was called before."""
        self.unwatch(handle)
        self._selector.register(handle, selectors.EVENT_READ, do)

    def unwatch(self, handle: int) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it is not watched, or it is closed
            self._selector.unregister(handle)

    def later(self, after_s: float, do: Callable[[], None]) -> sched.Event:
        """Call `do` after this time, unless the timer is cancelled."""
        return self._timers.enterabs(time.monotonic() + after_s, 0, self._safely, (do,))

    def cancel(self, timer: sched.Event) -> None:
        with contextlib.suppress(ValueError):  # it came, or was cancelled before
            self._timers.cancel(timer)

    def left_s(self, timer: sched.Event) -> float:
        """The time until the timer comes."""
        return timer.time - time.monotonic()

    def on_signal(self, number: int, do: Callable[[], None]) -> None:
        self._signals[number] = do
        signal.signal(number, lambda signum, _frame: self._pending.add(signum))

    def hand_over(self, do: Callable[[], Any]) -> Future[Any]:
        """Have the loop call `do`. Returns at once; for any thread."""
        call = Future(do)
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # full of wake-ups: it will wake
            os.write(self._wake, b"\0")
        return call

    def call(self, do: Callable[[], Any]) -> Any:
        """Have the loop call `do`, and return its result. For other threads.

        Raises OSError if the loop is busy for too long; it then never makes the call.
        """
        call = self.hand_over(do)
        try:
            return call.result(CALL_S)
        except TooLate:
            call.cancel()
            raise OSError("the agent is busy") from None

    def run(self) -> None:
        """Run the loop for ever. The process ends by `os._exit`."""
        while True:
            for key, _ in self._selector.select(self._serve_timers()):
                self._safely(key.data)
            self._serve_signals()
            self._serve_calls()

    def _safely(self, do: Callable[[], object]) -> None:
        """Call `do`. An exception is logged and must not end the agent, whose training may go well."""
        try:
            do()
        except Exception as error:  # noqa: BLE001  # the loop's edge
            if repr(error) != self._fault:
                self._fault = repr(error)
                sys.stderr.write(traceback_of(error))
                sys.stderr.flush()
            time.sleep(AFTER_FAULT_S)

    def _serve_timers(self) -> float | None:
        """Run due timers. Returns the time until the next one."""
        self._now = time.monotonic()
        left_s = self._timers.run(blocking=False)
        return 0.0 if self._pending or self._calls else left_s

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 65536)

    def _serve_signals(self) -> None:
        begun_at = clock.now()
        while self._pending:
            do = self._signals.get(self._pending.pop())
            if do is not None:
                self._safely(do)
        self.signals_served_at = begun_at

    def _serve_calls(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft().carry_out()


def traceback_of(error: Exception) -> str:
    """The traceback with its source lines; the error alone if the module that prints it cannot be read."""
    try:
        import traceback  # with a tokenizer: only an agent with a fault needs it
    except (ImportError, OSError):
        return f"{error!r}\n"
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
