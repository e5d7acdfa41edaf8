"""Commands that are run beside the ranks once these train: each tries a smaller number of nodes.

One at a time, at the lowest priority, in a session of its own. It is no sign of life of the run, and
never holds up its end: it is killed first. Only an exit code that is the command's own says something
about a number; what was killed, or could not be run, leaves it unknown.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent import clock, wire
from everstep.agent.agent import Agent
from everstep.agent.processes import command_files, proc, rank_exec
from everstep.agent.processes.members import with_families
from everstep.agent.processes.run import Run
from everstep.agent.storage import files, journal, permissions, reading

LOWEST = 19
OWN_CODES = range(1, 126)
"""Exit codes of the command itself. A larger one is the shell's: not runnable, or ended by a signal."""


class Prefetcher:
    """Runs the prefetch commands of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run: Run | None = None
        self._left: list[wire.PrefetchPlan] = []
        self._log: Future[int] | None = None  # of the first of them; storage may hang meanwhile
        self._pid = 0

    def end(self) -> None:
        """End the current command at once. The remaining ones are left to the next run."""
        self._left = []
        if self._log is not None:
            self._log.add_done_callback(_close)
            self._log = None
        if self._pid:
            self._kill(self._pid)

    def _kill(self, leader: int) -> None:
        with contextlib.suppress(OSError):
            table = proc.all_processes()
            proc.kill([table[pid] for pid in with_families({leader}, table) if pid in table])

    def look(self) -> None:
        run = self._agent.run
        if run is not self._run:
            self.end()
            self._run, self._left = run, [] if run is None else [*run.command["prefetch"]]
        if (self._pid or self._log) and not (run is not None and run.is_alive):
            self.end()
        if self._pid or run is None or not self._left or not _trains(run):
            return
        if self._log is None:
            with contextlib.suppress(reading.StorageHangs):
                where = partial(_opened, self._left[0], run.command, self._agent.home)
                self._log = reading.begin("the log of a prefetch", where)
                self._log.add_done_callback(lambda _: self._agent.loop.hand_over(self.look))
        elif self._log.done():
            log, self._log = self._log, None
            self._begin(run, self._left.pop(0), log)

    def _begin(self, run: Run, plan: wire.PrefetchPlan, log: Future[int]) -> None:
        home, folder = self._agent.home, f"{wire.FILES}/prefetch-{plan['nodes']}"
        try:
            handle = log.result()
        except OSError as error:
            self._agent.note(f"{_what(plan)} has no log: {error}")
            return
        outputs: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, handle, 1),
            (os.POSIX_SPAWN_DUP2, handle, 2),
        ]
        try:
            command_files.write(home, plan["files"], folder)
            words = command_files.with_paths(plan["command"], plan["files"], home / folder)
            pid, report_end = rank_exec.spawn(words, plan["env"], run.command["workdir"], outputs)
        except OSError as error:
            self._agent.note(f"{_what(plan)} cannot be run: {error}")
            return
        finally:
            os.close(handle)
        self._pid = pid
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, pid, LOWEST)
        self._agent.population.helper_sessions.add(pid)
        self._agent.children[pid] = partial(self._ended, run, plan, pid, report_end)

    def _ended(
        self, run: Run, plan: wire.PrefetchPlan, pid: int, report_end: int, code: int
    ) -> None:
        self._pid = 0
        why = _last_said(report_end)
        if proc.look(pid) is None:  # its number is free: what is left of its session is its own
            self._kill(pid)
        self._agent.population.helper_sessions.discard(pid)
        if why or (code != 0 and code not in OWN_CODES):
            how = why or (f"exit code {code}" if code > 0 else f"signal {-code}")
            self._agent.note(f"{_what(plan)} has no result: {how}")
            self._agent.publish()
            return
        kind, came = ("done", "it works") if code == 0 else ("failed", f"exit code {code}")
        about: dict[str, Any] = {"nodes": plan["nodes"], "phase": run.command["phase"]}
        self._agent.add_fact(f"prefetch.{kind}", f"{_what(plan)}: {came}", at=clock.now(), **about)
        self._agent.save_state()
        self._agent.publish()


def _trains(run: Run) -> bool:
    return run.is_alive and (run.steps.first_at is not None or run.saved_at is not None)


def _what(plan: wire.PrefetchPlan) -> str:
    return f"prefetch for {plan['nodes']} node{'s' if plan['nodes'] > 1 else ''}"


def _last_said(report_end: int) -> str:
    """Why it did not become its command; empty if it did."""
    try:
        return os.read(report_end, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(report_end)


def _opened(plan: wire.PrefetchPlan, command: wire.RunCommand, home: Path) -> int:
    """The end of its log. Raises OSError."""
    if (model_dir := command["model_dir"]) is None:
        return _append(permissions.below(home, home / wire.LOGS) / Path(plan["log"]).name, home)
    place, workdir = Path(model_dir), command["workdir"]
    with journal.folder_of(place, plan["began"], plan["owner"], workdir) as folder:
        path = folder / plan["log"]
        if ".." in path.parts:
            raise OSError(f"{plan['log']} is not in {folder}")
        permissions.users_folder(path.parent)
        return _append(path, place)


def _close(log: Future[int]) -> None:
    """Close a log that was opened too late."""
    with contextlib.suppress(OSError):
        os.close(log.result())


def _append(path: Path, within: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    handle = files.handle(path, flags, journal.MODE, within=within)
    permissions.open_as_users(handle, journal.MODE)
    return handle
