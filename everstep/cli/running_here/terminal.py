"""The terminal of a `run`, which may go away before the job ends: a lost ssh connection, a closed window.

The run goes on then, with its server and its worker, and writes into a file of the state directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field

from everstep.agent.storage import permissions
from everstep.cli.jobs.watching import JobScreen, Lines
from everstep.client.exit_codes import Failed
from everstep.client.home import made_home
from everstep.client.jobs.glances import Glance

INPUT, OUTPUT, ERRORS = 0, 1, 2
HANDLES = (INPUT, OUTPUT, ERRORS)

LOST_OUTPUT = frozenset({errno.EIO, errno.EPIPE})
"""Errors of a write to a terminal that is gone, and to a pipe without a reader."""

GOES_ON = (
    "the terminal of this run is gone; it goes on, and so does {id}: `everstep watch {id}` shows the job, "
    "`everstep stop {id}` ends it"
)


def _on_terminal() -> tuple[int, ...]:
    return tuple(handle for handle in HANDLES if os.isatty(handle))


@dataclass(slots=True)
class Terminal:
    """The terminal of this process, as found at its start: one that is gone is none any more."""

    job_id: str = "job"
    """The job of this run, as far as it is known."""
    is_gone: bool = False
    handles: tuple[int, ...] = field(default_factory=_on_terminal)
    """Those of standard input, output and errors that are on it."""

    @property
    def log(self) -> str:
        return f"run-{self.job_id}.log"

    def is_lost(self) -> bool:
        """Whether it is gone, with a signal to this process or without, as if a shell has disowned it."""
        return self.is_gone or any(not os.isatty(handle) for handle in self.handles)

    def leave(self, *, readers_too: bool = False) -> None:
        """Write into a file from now on what went to the terminal, or to a pipe whose reader is gone."""
        if self.is_gone:
            return
        left_handles = {*self.handles, *(filter(_is_pipe, HANDLES) if readers_too else ())}
        self.is_gone = True
        if left_handles:
            _redirect(left_handles, self._opened())
        # Not by `print`: a page that is still open would break the line as for its terminal.
        with contextlib.suppress(OSError):
            os.write(OUTPUT, f"{GOES_ON.format(id=self.job_id)}\n".encode())

    def _opened(self) -> int:
        """The end of the log of this run; nowhere if there is no room for one."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with contextlib.suppress(Failed, OSError):
            return permissions.opener(str(made_home() / self.log), flags)
        return os.open(os.devnull, os.O_WRONLY)


def _is_pipe(handle: int) -> bool:
    mode = os.fstat(handle).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _redirect(handles: set[int], log: int) -> None:
    """Let output of these handles go to the log, and input end at once."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for handle in handles:
        os.dup2(nothing if handle == INPUT else log, handle)
    os.close(nothing)
    os.close(log)


class LastingScreen(JobScreen):
    """A screen that ends with the terminal. From then on lines for changes of the job go to the log."""

    def __init__(self, screen: JobScreen, terminal: Terminal) -> None:
        self._screen = screen
        self._terminal = terminal
        self._is_abandoned = False
        self._lines = Lines()

    async def update(self, glance: Glance) -> None:
        if self._terminal.is_lost():
            self._terminal.leave()
        if not self._terminal.is_gone:
            await self._update_screen(glance)
        if self._terminal.is_gone:
            self.abandon()
            self._lines.show(glance)

    async def _update_screen(self, glance: Glance) -> None:
        try:
            await self._screen.update(glance)
        except OSError as error:
            if error.errno not in LOST_OUTPUT:
                raise
            self._terminal.leave(readers_too=True)

    def close(self) -> None:
        if not self._terminal.is_gone:
            self._screen.close()

    def abandon(self) -> None:
        """Leave the screen on the terminal, once, to its fate."""
        if not self._is_abandoned:
            self._is_abandoned = True
            with contextlib.suppress(OSError):
                self._screen.abandon()
