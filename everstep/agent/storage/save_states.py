"""How far each save is, from the order of what happened to its files and to the processes. Pure.

A file is whole if a living process closed it or renamed it into place. The kernel also closes the files of a
process that is killed, so a close alone proves nothing. It counts once every process that may have made it
is cleared: it was alive after it, or ended by an exit of its own, with code 0 or after SIGTERM.

A process that ends by an exception closes its files too, half written or not. So a close proves nothing if an
exit with code 1 follows within moments, or if SIGTERM was sent while the file was open and an exit follows:
`sys.exit` in the handler of a signal unwinds the very save that it interrupts. Nor does a close by an exit
with another code and without SIGTERM: `os._exit` in another thread interrupts a save. Nor does the close of a
file that was open when SIGKILL was sent, or when a signal had ended a rank: a child may have inherited it.
Nor does that of a file which is written in pieces, opened for each, if a signal ends a rank soon after one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Identity = tuple[int, int]
"""The number and the start of a process."""

CONFIRMED_S = 2.0
"""A file that was closed so long ago, by a process that has trained on since, is whole."""
STALL_S = 1.0
"""A longer time between the last write and the close is a stall."""
EXCEPTION = 1
"""The exit code of an interpreter that an exception ends."""

WHOLE_MOST = 128
"""The most whole saves that stay in memory, the newest; a record has fewer."""

OPEN, LEFT, CLOSED, RENAMED, UNWATCHED = "open", "left", "closed", "renamed", "unwatched"
"""The states of a save. Open: it is being written. Left: it was open when its writer ended. Closed: by a
process that lived. Renamed: by one into its place. Unwatched: a process may have written it and ended before
its folder was watched."""


class Look(NamedTuple):
    """The processes of a pod at one moment."""

    there: frozenset[Identity]
    living: frozenset[Identity]  # those that have not begun to end
    writers: frozenset[Identity]  # those that may save
    # A shell opens files for its commands, and SIGTERM ends it before them: its end cuts off none.
    shells: frozenset[Identity]


class _File:
    """A file that was written in this run."""

    def __init__(self, now: float) -> None:
        self.changed_at = now
        self.closed_at: float | None = None  # None: it is open
        self.suspects: set[Identity] = set()  # processes whose end may have closed it
        self.is_tainted = False  # a signal was sent, or had ended a rank, while it was open
        self.is_continued = False  # it was closed moments before, and then written again
        self.is_whole = False
        self.was_left = False  # the end of its writer closed it

    @property
    def is_open(self) -> bool:
        """Whether a process may have it open, or left it so."""
        return self.closed_at is None or self.was_left or bool(self.suspects)

    @property
    def has_stalled(self) -> bool:
        """Whether nothing was written for some time before the close."""
        return self.closed_at is not None and self.closed_at - self.changed_at > STALL_S

    @property
    def is_pending(self) -> bool:
        return self.closed_at is not None and not self.is_whole and not self.was_left


class SaveStates:
    """The states of all saves below one folder. A path is `step_5.bin`, or `step-5/part-0.bin`."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._renamed: dict[str, None] = {}  # in order
        self._processes: set[Identity] = set()
        self._shells: frozenset[Identity] = frozenset()
        self._missing: set[Identity] = set()  # of these, at the newest look
        self._is_terminating = False  # SIGTERM was sent

    # -- files ------------------------------------------------------------------------------------

    def modified(self, path: str, now: float) -> bool:
        """A file was written. Returns whether it is newly open."""
        self._renamed.pop(_top(path), None)
        file = self._files.get(path)
        if file is None or file.closed_at is not None:
            before, file = file, _File(now)
            file.is_continued = before is not None and now < (before.closed_at or 0.0) + CONFIRMED_S
            self._files[path] = file
            return True
        file.changed_at = now
        return False

    def closed(self, path: str, now: float) -> None:
        self._renamed.pop(_top(path), None)
        file = self._files.setdefault(path, _File(now))
        file.closed_at, file.suspects, file.is_whole = now, set(self._processes), False

    def renamed(self, path: str) -> None:
        """A living process renamed something to this path."""
        self.removed(path)
        if path == _top(path):
            self._renamed[path] = None
            _drop_oldest(self._renamed)

    def removed(self, path: str) -> None:
        self._renamed.pop(path, None)
        for one in [one for one in self._files if one == path or one.startswith(f"{path}/")]:
            del self._files[one]

    def lost(self) -> None:
        """Events were lost: nothing is known of any file."""
        self._files.clear()
        self._renamed.clear()

    # -- processes --------------------------------------------------------------------------------

    def saw(self, processes: Iterable[Identity]) -> None:
        """These may write."""
        self._processes |= {*processes}

    def looked(self, look: Look) -> None:
        """The processes were looked at, after all that was reported before.

        One that is missing stays a suspect until the next look: its closes may be still to be reported.
        """
        missing = self._processes - look.there
        self._processes = {*look.writers} | (missing - self._missing)
        self._missing = missing
        # One that has ended since is still to be reported; one that went on as a trainer is a shell no more.
        self._shells = (self._shells - look.there) | look.shells
        for _, file in self._pending():
            file.suspects -= look.living

    def terminating(self) -> None:
        """SIGTERM is about to be sent."""
        self._is_terminating = True
        self._taint_open_files()

    def killing(self) -> None:
        """SIGKILL is about to be sent."""
        self._taint_open_files()

    def exited(self, pid: int, status: int) -> None:
        """A rank has ended: with this exit code, or by a signal, whose number is negative."""
        is_shell = any(one[0] == pid for one in self._shells)
        is_cut_off = status < 0 and not (is_shell and status == -signal.SIGTERM)
        if is_cut_off:
            self._taint_open_files()  # a child that inherited a file may close it later
        self._processes = {one for one in self._processes if one[0] != pid}
        for path, file in self._pending():
            may_have_closed = {one for one in file.suspects if one[0] == pid}
            if is_cut_off and file.is_continued and not may_have_closed:
                del self._files[path]  # another piece may have been to come
            else:
                self._judge(path, file, may_have_closed, status)

    def exited_below(self, process: Identity, status: int) -> None:
        """A process below a rank has ended, of any kind: that counts only for what it may have closed."""
        self._processes.discard(process)
        for path, file in self._pending():
            if process in file.suspects:
                self._judge(path, file, {process}, status)

    def _taint_open_files(self) -> None:
        for file in self._files.values():
            file.is_tainted = file.is_tainted or file.closed_at is None

    def _judge(self, path: str, file: _File, may_have_closed: set[Identity], status: int) -> None:
        """Decide what the end of a process says of a file: `may_have_closed` is that process, or empty."""
        cut_off = may_have_closed - (self._shells if status == -signal.SIGTERM else set())
        if cut_off and status < 0:
            file.was_left = True
            return
        file.suspects -= may_have_closed
        is_interrupted = may_have_closed and status > 0 and not self._is_terminating
        if status == EXCEPTION or is_interrupted or (file.is_tainted and status >= 0):
            if may_have_closed and file.has_stalled:
                file.was_left = True
            else:
                del self._files[path]
        elif not file.suspects:
            self._settle(path, file)

    # -- time -------------------------------------------------------------------------------------

    @property
    def next_poll(self) -> float | None:
        """When time alone changes a state; None: never."""
        times = (f.closed_at for _, f in self._pending() if f.closed_at is not None)
        first = min(times, default=None)
        return None if first is None else first + CONFIRMED_S

    def pass_time(self, now: float) -> None:
        """The processes have gone on until now."""
        for path, file in self._pending():
            if file.closed_at is not None and now >= file.closed_at + CONFIRMED_S:
                self._settle(path, file)

    def end(self) -> None:
        """All processes of the pod have ended. What is open still is open in a process of another pod.

        Where the end of a process that may have closed a file is unknown, a stall before the close decides.
        """
        self._files = {path: f for path, f in self._files.items() if f.closed_at is not None}
        self._processes.clear()
        for path, file in self._pending():
            if file.suspects and file.has_stalled:
                file.was_left = True
            else:
                self._settle(path, file)

    # -- the result -------------------------------------------------------------------------------

    def of_all(self) -> dict[str, str]:
        """The state of each save that has one, by the name of its file or folder, the oldest first."""
        states = dict.fromkeys(self._renamed, RENAMED)
        for path, file in self._files.items():
            top = _top(path)
            if file.is_open:
                is_left = file.was_left and states.get(top) != OPEN
                states[top] = LEFT if is_left else OPEN
            elif file.is_whole:
                states[top] = CLOSED
        return states

    def names(self) -> set[str]:
        """Of all saves that have a state, or may get one."""
        return {*self._renamed, *map(_top, self._files)}

    def is_closed_file(self, name: str) -> bool:
        file = self._files.get(name)
        return file is not None and file.closed_at is not None

    def open_names(self) -> set[str]:
        """Of the saves of which a file may be open, or was when its writer ended."""
        return {_top(path) for path, file in self._files.items() if file.is_open}

    def _pending(self) -> Iterator[tuple[str, _File]]:
        return iter([(path, file) for path, file in self._files.items() if file.is_pending])

    def _settle(self, path: str, file: _File) -> None:
        """Decide about a file that no process may have cut off, or of which that stays unknown.

        Of a file in a folder only that it was closed counts: more files may have been to come.
        """
        if file.suspects or file.is_tainted or path != _top(path):
            del self._files[path]
        else:
            file.is_whole = True
            self._drop_old_files()

    def _drop_old_files(self) -> None:
        """Of many whole files only the newest are of use, and each step goes through all of them."""
        whole = [path for path, file in self._files.items() if file.is_whole]
        for path in whole[:-WHOLE_MOST]:
            del self._files[path]


def _drop_oldest(names: dict[str, None]) -> None:
    while len(names) > WHOLE_MOST:
        del names[next(iter(names))]


def _top(path: str) -> str:
    return path.partition("/")[0]
