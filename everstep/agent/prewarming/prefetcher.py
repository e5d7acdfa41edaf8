"""Prefetch: commands that run beside the ranks once these train, each to try a smaller number of nodes.

`look` carries one plan after the other through three stages: open its log (in another thread, as storage may
hang), run its command, report its exit as a fact. A command runs at the lowest priority, in a session of its
own; it is no sign of life of the run, and a stop kills it first. Only an exit code of the command itself is a
result: if the command was killed, or could not be run, its number of nodes stays unknown.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent import clock
from everstep.agent.agent import Agent
from everstep.agent.future import Future
from everstep.agent.processes import command_files, proc, rank_exec
from everstep.agent.processes.members import with_families
from everstep.agent.processes.run import Run
from everstep.agent.storage import files, journal, permissions, reading
from everstep.protocol import wire

LOWEST = 19
OWN_CODES = range(1, 126)
"""Exit codes of the command itself. A larger one is the shell's: not runnable, or ended by a signal."""


class Prefetcher:
    """Runs the prefetch commands of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run: Run | None = None
        self._left: list[wire.PrefetchPlan] = []  # plans of this run whose commands did not run yet
        self._log: Future[int] | None = None  # of the first of them, while it is being opened
        self._pid = 0  # of the command that runs; 0: none

    def end(self) -> None:
        """End the current command at once. The remaining ones are left to the next run."""
        self._left = []
        if self._log is not None:
            self._log.add_done_callback(_close)
            self._log = None
        if self._pid:
            self._kill(self._pid)

    def _kill(self, leader: int) -> None:
        """Kill the processes of this session."""
        with contextlib.suppress(OSError):
            table = proc.all_processes()
            proc.kill([table[pid] for pid in with_families({leader}, table) if pid in table])

    def poll(self) -> None:
        """Begin the next stage if it is due; end everything if the run has ended."""
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
                opening = partial(_open_log, self._left[0], run.command, self._agent.home)
                self._log = reading.begin("the log of a prefetch", opening)
                self._log.add_done_callback(lambda _: self._agent.loop.hand_over(self.poll))
        elif self._log.done():
            log, self._log = self._log, None
            self._spawn(run, self._left.pop(0), log)

    def _spawn(self, run: Run, plan: wire.PrefetchPlan, log: Future[int]) -> None:
        home, folder = self._agent.home, f"{wire.FILES}/prefetch-{plan['nodes']}"
        try:
            handle = log.result()
        except OSError as error:
            self._agent.note(f"{_title(plan)} has no log: {error}")
            return
        outputs: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, handle, 1),
            (os.POSIX_SPAWN_DUP2, handle, 2),
        ]
        try:
            command_files.write(home, plan["files"], folder)
            words = command_files.with_paths(plan["command"], plan["files"], home / folder)
            pid, report_end = rank_exec.spawn(words, plan["env"], run.order.workdir, outputs)
        except OSError as error:
            self._agent.note(f"{_title(plan)} cannot be run: {error}")
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
        why = _spawn_error(report_end)
        # The command was waited for. If its PID is unused, the session of that number is still the command's.
        if proc.find(pid) is None:
            self._kill(pid)
        self._agent.population.helper_sessions.discard(pid)
        if why or (code != 0 and code not in OWN_CODES):
            how = why or (f"exit code {code}" if code > 0 else f"signal {-code}")
            self._agent.note(f"{_title(plan)} has no result: {how}")
            self._agent.publish()
            return
        kind, result = ("done", "it works") if code == 0 else ("failed", f"exit code {code}")
        self._agent.add_fact(
            f"prefetch.{kind}",
            f"{_title(plan)}: {result}",
            at=clock.now(),
            nodes=plan["nodes"],
            phase=run.command["phase"],
        )
        self._agent.save_state()
        self._agent.publish()


def _trains(run: Run) -> bool:
    return run.is_alive and (run.steps.first_at is not None or run.saved_at is not None)


def _title(plan: wire.PrefetchPlan) -> str:
    return f"prefetch for {plan['nodes']} node{'s' if plan['nodes'] > 1 else ''}"


def _spawn_error(report_end: int) -> str:
    """Why the process could not execute its command; empty if it did."""
    try:
        return os.read(report_end, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(report_end)


def _open_log(plan: wire.PrefetchPlan, command: wire.RunCommand, home: Path) -> int:
    """Open its log for appending: in the phase's folder of records, else in the agent's. Raises OSError."""
    if (model_dir := command["order"].model_dir) is None:
        return _append(
            permissions.ensure_below(home, home / wire.LOGS) / Path(plan["log"]).name, home
        )
    place, workdir = Path(model_dir), command["order"].workdir
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
