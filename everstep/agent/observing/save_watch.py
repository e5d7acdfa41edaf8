"""Watches the folder of checkpoints while a run writes there, and records which saves are whole.

A thread of its own does all that storage may hold up. The agent's loop queues calls between the events:
before it sends a signal, and when a process has ended. So the order of signals, events and ends is exact.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes import proc
from everstep.agent.processes.exit_statuses import ExitStatuses
from everstep.agent.storage import checkpoint_names, inotify, save_records
from everstep.agent.storage.save_records import SaveRecord, SlotRecord
from everstep.agent.storage.save_states import (
    LEFT,
    OPEN,
    RENAMED,
    UNWATCHED,
    Identity,
    Look,
    SaveStates,
)

BOOT = Path("/proc/sys/kernel/random/boot_id")
PAUSE_S = 0.02
"""Pause after events of mere writing, which come in thousands."""
FOLDER_S = 0.5
"""Pause between two looks for a folder that is not there yet."""
WRITERS_MOST = 1_000
"""Of so many processes that were there before the folder one has ended: more need not be remembered."""
FOLDERS_MOST = 256
"""The most folders of checkpoints that are watched, of those that were made in this run."""

Call = Callable[[], object]


class SaveRun(NamedTuple):
    """The run whose saves are watched."""

    job: str
    slot: int
    generation: int
    folder: Path
    pattern: str | None


class Timeline:
    """Events of the kernel, and calls of the agent's loop between them, in their order. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[inotify.Event | Call] = []
        self._woken, self._wake = os.pipe()
        for handle in (self._woken, self._wake):
            os.set_blocking(handle, False)
        self.events: inotify.Inotify | None = None
        with contextlib.suppress(OSError):  # without it nothing is known of any save
            self.events = inotify.Inotify()

    def call_in_turn(self, call: Call) -> None:
        """Queue the call behind all that has happened."""
        self.look_in_turn(lambda: call)

    def look_in_turn(self, look: Callable[[], Call]) -> None:
        """Look, and queue the call that `look` returns behind what had happened before the look."""
        with self._lock:
            self._read()
            self._items.append(look())
            with contextlib.suppress(BlockingIOError):  # full of wake-ups
                if self._wake >= 0:
                    os.write(self._wake, b"\0")

    def take(self) -> list[inotify.Event | Call]:
        """All that has happened since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        with self._lock:
            self._read()
            items, self._items = self._items, []
        return items

    def wait(self, timeout_s: float | None, *, for_events: bool = True) -> None:
        """Wait for a call, and for an event if `for_events`."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if for_events and self.events is not None:
            poll.register(self.events.handle, select.POLLIN)
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        with self._lock:
            os.close(self._woken)
            os.close(self._wake)
            self._woken = self._wake = -1
            if self.events is not None:
                self.events.close()
                self.events = None

    def _read(self) -> None:
        if self.events is not None:
            self._items += self.events.read()


class SaveWatch:
    """Watches the saves of one run, from before its ranks start."""

    def __init__(self, run: SaveRun, is_helper: Callable[[proc.Process], bool]) -> None:
        self.run = run
        self._is_helper = is_helper  # a process of the agent, which saves nothing
        self._timeline = Timeline()
        self._family = proc.Family(os.getpid())
        self._exit_statuses = ExitStatuses()
        self._family_lock = threading.Lock()  # of both
        self._reported_writers: frozenset[Identity] = frozenset()
        self._early_writers: frozenset[Identity] = frozenset()  # before the folder was watched
        self._open: frozenset[str] = frozenset()
        self._is_closed = False
        # Of the thread alone:
        self._kernel = ""
        self._states = SaveStates()
        self._paths: dict[int, str] = {}  # below the folder, by the number of their watch
        self._prints: dict[str, save_records.Print | None] = {}
        self._inherited: dict[str, SaveRecord] | None = None  # None: not read yet
        self._unwatched_saves: dict[str, SaveRecord] = {}
        self._recorded: SlotRecord | None = None
        self._began_ns: int | None = None
        self._is_over = False
        self._afterwards: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Start the thread. Raises RuntimeError if the machine has none left."""
        threading.Thread(target=self._work, daemon=True).start()

    # -- for the agent's loop ---------------------------------------------------------------------

    def saw(self, processes: Iterable[proc.Process]) -> None:
        """These processes of the pod may save."""
        writers = [one for one in processes if not self._is_helper(one)]
        identities = frozenset(one.identity for one in writers)
        if self._recorded is None and len(self._early_writers) < WRITERS_MOST:
            self._early_writers |= identities
        if not identities <= self._reported_writers:
            self._reported_writers = identities
            with self._family_lock:
                self._exit_statuses.hold(writers)
            self._timeline.call_in_turn(lambda: self._states.saw(identities))

    def before_signal(self, number: int) -> None:
        """This signal is about to be sent: what was closed before was not closed by its effect."""

        def look() -> Call:
            processes = self._look()
            return (lambda: None) if processes is None else (lambda: self._states.looked(processes))

        self._timeline.look_in_turn(look)
        if number == signal.SIGTERM:
            self._timeline.call_in_turn(self._states.terminating)
        elif number == signal.SIGKILL:
            self._timeline.call_in_turn(self._states.killing)

    def exited(self, pid: int, status: int) -> None:
        """A process was waited for; the status of one that a signal ended is negative."""
        self._timeline.call_in_turn(lambda: self._states.exited(pid, status))

    def ended(self, *, is_over: bool, then: Callable[[], object]) -> None:
        """Processes were ended: all of the pod, if `is_over`. `then` is called once that is recorded."""
        self._report_exits_below()

        def end() -> None:
            if is_over:
                self._states.end()
                self._is_over = True
            self._afterwards.append(then)

        self._timeline.call_in_turn(end)

    def is_open(self, path: Path) -> bool:
        """Whether a file of this save may be open, or was when its writer ended. For any thread."""
        with contextlib.suppress(ValueError):
            return path.relative_to(self.run.folder).parts[0] in self._open
        return False

    def close(self) -> None:
        """End the thread."""

        def end() -> None:
            self._is_closed = True

        self._timeline.call_in_turn(end)

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._is_closed:
                self._step()
        finally:
            self._timeline.close()
            with self._family_lock:
                self._exit_statuses.close()

    def _step(self) -> None:
        """Take what has happened, record it, and wait for more."""
        if self._recorded is None:
            self._begin_to_watch()
        self._report_exits_below()
        items = self._timeline.take()
        changes = [item for item in items if isinstance(item, inotify.Event)]
        is_saving = [self._carry_out(item) for item in items]
        if any(is_saving) and (look := self._look()) is not None:
            self._states.looked(look)
        self._states.pass_time(time.monotonic())
        self._publish()
        if changes and all(change.mask == inotify.MODIFY for change in changes):
            self._timeline.wait(PAUSE_S, for_events=False)
        else:
            self._timeline.wait(self._wait_s())

    def _wait_s(self) -> float | None:
        if self._recorded is None:
            return FOLDER_S
        due = self._states.next_poll
        return None if due is None else due - time.monotonic()

    def _begin_to_watch(self) -> None:
        """Watch the folder, if it is there, then take over what the earlier agents of this slot recorded."""
        events, folder = self._timeline.events, self.run.folder
        with contextlib.suppress(OSError):
            if not folder.is_dir():
                return
            self._kernel = self._kernel or BOOT.read_text().strip()
            if events is not None and not self._paths:
                self._paths[events.watch(folder)] = ""
                self._note_open_files()
                self._note_unwatched_files()
        if folder.is_dir():
            if self._inherited is None:
                self._inherited = self._inherit()
            self._record(self._record_now())
            self._note_begin()

    def _note_begin(self) -> None:
        """Note when the first record was written, which the storage alone can date, and write it down."""
        if self._began_ns is None:
            with contextlib.suppress(OSError):
                self._began_ns = save_records.written_ns(self.run.folder, self.run.slot)
            self._record(self._record_now())

    def _inherit(self) -> dict[str, SaveRecord]:
        """The saves of this slot's record, as all records show them. Their writers have ended."""
        own_record = save_records.read_slot(self.run.folder, self.run.slot)
        if own_record is None or not own_record.saves:
            return {}  # a thousand agents must not read a thousand records each
        records = save_records.read(self.run.folder)
        inherited = {}
        for name, save in own_record.saves.items():
            content = save_records.print_of(self.run.folder / name)
            state = save_records.state(records.values(), name, content)
            if content is not None and state is not None:
                inherited[name] = SaveRecord(LEFT if state == OPEN else RENAMED, content)
            elif save == SaveRecord(UNWATCHED, content):
                inherited[name] = save
        return inherited

    def _carry_out(self, item: inotify.Event | Call) -> bool:
        """Apply an event or a call. Returns whether a save was opened or closed."""
        if not isinstance(item, inotify.Event):
            item()
            return False
        if item.mask & inotify.OVERFLOW:
            self._states.lost()
        if item.mask & inotify.IGNORED and not self._paths.pop(item.watch, "-"):
            # The folder itself is gone: begin again once it is back.
            self._recorded = self._inherited = None
            self._states.lost()
        path = self._path_of(item)
        if self._is_over or path is None:
            return False
        if item.is_folder:
            self._change_folder(path, item)
            return False
        return self._change_file(path, item, time.monotonic())

    def _path_of(self, event: inotify.Event) -> str | None:
        """The path below the folder of checkpoints; None if it belongs to none."""
        folder = self._paths.get(event.watch)
        if folder is None or not event.name:
            return None
        path = f"{folder}/{event.name}" if folder else event.name
        return path if self._is_save(path) else None

    def _is_save(self, path: str) -> bool:
        return checkpoint_names.read(path.partition("/")[0], self.run.pattern) is not None

    def _change_file(self, path: str, event: inotify.Event, now: float) -> bool:
        if event.mask & inotify.MODIFY:
            return self._states.modified(path, now)
        if event.mask & inotify.CLOSE_WRITE:
            self._states.closed(path, now)
            self._forget_print(path)
            return True
        if event.mask & inotify.MOVED_TO:
            self._states.renamed(path)
            self._forget_print(path)
        elif event.mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._states.removed(path)
        return False

    def _change_folder(self, path: str, event: inotify.Event) -> None:
        if event.mask & (inotify.MOVED_FROM | inotify.DELETE):
            self._states.removed(path)
            self._unwatch_below(path)
        elif event.mask & inotify.MOVED_TO:
            self._states.renamed(path)
            self._watch_below(path)
            self._forget_print(path)
        elif event.mask & inotify.CREATE:
            self._watch_below(path)

    def _watch_below(self, path: str) -> None:
        """Watch a new folder of a checkpoint, and those in it."""
        events = self._timeline.events
        with contextlib.suppress(OSError):
            has_files = False
            for parent, _, names in os.walk(self.run.folder / path):
                has_files = has_files or bool(names)
                if events is not None and len(self._paths) < FOLDERS_MOST:
                    below = str(Path(parent).relative_to(self.run.folder))
                    self._paths[events.watch(Path(parent))] = below
            if has_files:
                self._note_open_files()

    def _note_open_files(self) -> None:
        """Note the saves that are open already, as where a folder is watched a moment after it was made."""
        top = f"{os.path.realpath(self.run.folder)}/"
        with contextlib.suppress(OSError), self._family_lock:
            for pid in self._family.sample():
                for path in proc.written_files(pid):
                    if path.startswith(top) and self._is_save(path[len(top) :]):
                        self._states.modified(path[len(top) :], time.monotonic())

    def _note_unwatched_files(self) -> None:
        """Note the saves that are there already if a process has ended before the folder was watched.

        It may have been killed with one of them open, and another agent may have seen that close.
        """
        look = self._look() if self._early_writers else None
        if look is None or self._early_writers <= look.living:
            return
        for entry in self.run.folder.iterdir():
            content = save_records.print_of(entry) if self._is_save(entry.name) else None
            if content is not None:
                self._unwatched_saves[entry.name] = SaveRecord(UNWATCHED, content)

    def _unwatch_below(self, path: str) -> None:
        """Forget a folder that went away: what happens to it at its new place is nothing of this one."""
        for number, folder in [*self._paths.items()]:
            if folder == path or folder.startswith(f"{path}/"):
                del self._paths[number]
                if self._timeline.events is not None:
                    self._timeline.events.unwatch(number)

    def _forget_print(self, path: str) -> None:
        """Have the print of this save taken again, once all that has happened is carried out."""
        self._prints.pop(path.partition("/")[0], None)

    def _take_prints(self, states: Mapping[str, str]) -> None:
        """Note the content of the saves that need it. A change that comes later is an event that comes later.

        That of a folder is taken only once it has such a state: its many files are closed one by one.
        """
        for name in self._states.names() - self._prints.keys():
            if states.get(name) in (RENAMED, LEFT) or self._states.is_closed_file(name):
                self._prints[name] = save_records.print_of(self.run.folder / name)

    def _report_exits_below(self) -> None:
        """Queue a call for each process that has ended and was waited for by another one than the agent."""
        with self._family_lock:
            statuses = self._exit_statuses.take()
        for identity, status in statuses:
            self._timeline.call_in_turn(partial(self._states.exited_below, identity, status))

    def _look(self) -> Look | None:
        """The processes of the pod now; None: they cannot be read."""
        with contextlib.suppress(OSError), self._family_lock:
            family = self._family.sample().values()
            self._exit_statuses.hold(one for one in family if not self._is_helper(one))
            return Look(
                there=frozenset(one.identity for one in family),
                living=frozenset(one.identity for one in family if proc.has_memory(one.pid)),
                writers=frozenset(one.identity for one in family if not self._is_helper(one)),
                shells=frozenset(one.identity for one in family if proc.is_shell(one)),
            )
        return None

    # -- the record -------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Record what has changed, then call what waits for that."""
        names = self._states.names()
        self._take_prints(self._states.of_all())
        self._open = frozenset(self._states.open_names())
        self._prints = {name: self._prints[name] for name in names if name in self._prints}
        if self._recorded is not None and (record := self._record_now()) != self._recorded:
            self._record(record)
        afterwards, self._afterwards = self._afterwards, []
        for do in afterwards:
            do()

    def _record_now(self) -> SlotRecord:
        run = self.run
        saves = {name: self._save(name, state) for name, state in self._states.of_all().items()}
        earlier = {**self._unwatched_saves, **(self._inherited or {})}
        saves = {**{n: s for n, s in earlier.items() if n not in saves}, **saves}
        is_over, began_ns = self._is_over, self._began_ns
        return SlotRecord(run.job, run.generation, self._kernel, is_over, saves, began_ns)

    def _save(self, name: str, state: str) -> SaveRecord:
        content = None if state == OPEN else self._prints.get(name)
        return SaveRecord(OPEN if state == LEFT and content is None else state, content)

    def _record(self, record: SlotRecord) -> None:
        """Write the record. One that cannot be written is tried again with the next change."""
        with contextlib.suppress(OSError):
            save_records.write(self.run.folder, self.run.slot, record)
            self._recorded = record
