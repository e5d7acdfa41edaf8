"""Ends all processes of a pod, and proves that none is left.

First evidence is collected. Then, if there is a grace, SIGTERM goes to the ranks, to processes with a session
of their own, and to what a rank leaves behind when it ends. Then SIGKILL goes to every member of the pod,
again and again until there is none. Orphans become children of the agent, which waits for each of them: that
is the proof.
"""

from __future__ import annotations

import os
import sched
import signal
from collections.abc import Callable, Collection, Iterable

from everstep.agent.loop import Loop
from everstep.agent.processes import proc
from everstep.agent.processes.members import Members, with_families

EVIDENCE_S = 1.0
"""Longest wait for the evidence."""
POLL_S = 0.05


class Population:
    """All processes of the pod but the agent and its helpers."""

    def __init__(self, members: Members, note: Callable[[str], None]) -> None:
        # Children that were not waited for, so no other process can have their numbers.
        self.spared: set[int] = set()
        # Sessions of the pod's own helpers, which the run did not start.
        self.helper_sessions: set[int] = set()
        self.keeps: set[tuple[int, int]] = set()  # ranks that an ending leaves alone, by identity
        self._members = members
        self._note = note
        self._family = proc.Family(os.getpid())
        # Whether all that earlier agents of the pod left has ended.
        self._is_taken_over = False

    def begin(self) -> None:
        """Start the list of members, before anything else is started."""
        try:
            self._members.begin()
        except OSError as error:
            self._note(f"the list of processes of this pod cannot be written: {error}")

    def now(self) -> list[proc.Process] | None:
        """The living processes of the pod. An empty list is proof that none is left.

        None: none was found, but some process could not be inspected.
        """
        try:
            # From then on every process of the pod descends from this one.
            root, reads_environments = proc.find(os.getpid()), not self._is_taken_over
            members, unknown = self._members.find(root=root, reads_environments=reads_environments)
        except OSError as error:
            self._note(f"the processes of this pod cannot be listed: {error}")
            return None
        left = [s for s in members if s.pid not in self.spared and s.pid != os.getpid()]
        for process in unknown:
            self._note(
                f"process {process.pid} ({process.name}) cannot be inspected and may belong to this pod"
            )
        if left or not unknown:
            self._is_taken_over = self._is_taken_over or not left
            return left
        return None

    def to_end(self) -> list[proc.Process] | None:
        """The processes of `now`, without the ranks that are kept and their families."""
        processes = self.now()
        return None if processes is None else self._without_kept(processes)

    def _without_kept(self, processes: list[proc.Process]) -> list[proc.Process]:
        table = {process.pid: process for process in processes}
        roots = {process.pid for process in processes if process.identity in self.keeps}
        families = with_families(roots, table)
        return [process for process in processes if process.pid not in families]

    def descendants_to_end(self) -> list[proc.Process]:
        return self._without_kept(self.descendants())

    def descendants(self) -> list[proc.Process]:
        table = proc.all_processes()
        return [table[pid] for pid in proc.below(os.getpid(), table) - self.spared]

    def is_helper(self, process: proc.Process) -> bool:
        """Whether the agent started it for itself. For any thread."""
        return process.pid in self.spared or process.session in self.helper_sessions

    def sample(self) -> list[proc.Process]:
        """Processes of the run, found cheaply; one that has just started may be missing."""
        table = {
            pid: process for pid, process in self._family.now().items() if pid not in self.spared
        }
        try:
            self._members.note(table.values())
        except OSError as error:
            self._note(f"the list of processes of this pod cannot be written: {error}")
        helpers = with_families(self.helper_sessions, table) if self.helper_sessions else ()
        return [process for pid, process in table.items() if pid not in helpers]


def to_terminate(
    ranks: Collection[proc.Process], pod: Iterable[proc.Process]
) -> list[proc.Process]:
    """Processes of the pod that get SIGTERM: the ranks, and all outside of a living rank's session.

    Other processes in the session of a living rank, such as its data loaders, are for that rank to end. A
    shell would die of the signal without passing it on, so the command that it waits for gets it too.
    """
    there = {process.pid: process for process in pod if process.is_alive}
    living = {rank.pid for rank in ranks if _is_among(rank, there)}
    pids = {pid for pid, process in there.items() if pid in living or process.session not in living}
    shells = [there[pid] for pid in living if there[pid].name in proc.SHELLS]
    while shells:
        shell = shells.pop()
        commands = [process for process in there.values() if process.parent == shell.pid]
        pids |= {process.pid for process in commands}
        shells += [process for process in commands if process.name in proc.SHELLS]
    # The older one first: a shell gets the signal before the command that it waits for ends.
    return sorted((there[pid] for pid in pids), key=lambda process: (process.started, process.pid))


def _is_among(process: proc.Process, table: dict[int, proc.Process]) -> bool:
    return process.pid in table and table[process.pid].identity == process.identity


class Ending:
    """An ending in progress. It may be hastened meanwhile; `done` is called once."""

    def __init__(
        self,
        loop: Loop,
        population: Population,
        *,
        ranks: list[proc.Process],
        collect: Callable[[Callable[[], None]], None] | None,  # evidence; calls its argument then
        grace_s: float,
        signals: Callable[[int], None],  # called before the first signal of a kind
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._signals = signals
        self._population = population
        self._ranks = ranks  # leaders of process groups
        self._done = done
        self._grace_s = grace_s
        self._timer: sched.Event | None = None
        self._looks = 0
        # Processes that were there when the grace began and got no SIGTERM yet; later ones get none.
        self._unsignalled: set[tuple[int, int]] | None = None
        self._collect = collect  # None once the evidence was collected
        self._kills = False
        self._is_done = False

    def begin(self) -> None:
        """Collect the evidence, else begin with the grace."""
        if self._collect is None:
            self._begin_grace()
        else:
            self._timer = self._loop.later(EVIDENCE_S, self._finish_collecting)
            self._collect(self._finish_collecting)

    def hasten(self, grace_s: float) -> None:
        """Kill after this time at the latest; nothing changes if the grace ends earlier."""
        if self._collect is not None or self._timer is None:  # the grace has not begun
            self._grace_s = min(grace_s, self._grace_s)
        elif not self._kills and grace_s < self._loop.left_s(self._timer):
            self._set_timer(grace_s, self._kill)

    def child_ended(self) -> None:
        """A child was waited for; it may have been the last."""
        if self._kills and not self._is_done:
            self._set_timer(0.0, self._kill)

    def _set_timer(self, after_s: float, do: Callable[[], None]) -> None:
        """Call `do` after this time. It replaces the timer that was set before."""
        if self._timer is not None:
            self._loop.cancel(self._timer)
        self._timer = self._loop.later(after_s, do)

    def _finish_collecting(self) -> None:
        """Begin the grace once the evidence is collected or the time for that is over: one call counts."""
        if self._collect is not None:
            self._collect = None
            self._begin_grace()

    def _begin_grace(self) -> None:
        if self._grace_s <= 0:
            self._kill()
            return
        self._set_timer(self._grace_s, self._kill)
        self._signals(signal.SIGTERM)
        self._check()

    def _check(self) -> None:
        """Send SIGTERM, once to each process, and kill early if all have ended within the grace."""
        if self._kills:
            return
        self._loop.later(POLL_S, self._check)
        left = self._population.descendants_to_end()
        if not left:
            self._kill()
            return
        if self._unsignalled is None:
            self._unsignalled = {process.identity for process in left}
        for process in to_terminate(self._ranks, left):
            if process.identity in self._unsignalled:
                self._unsignalled.remove(process.identity)
                proc.send(process, signal.SIGTERM)
                proc.send(process, signal.SIGCONT)

    def _kill(self) -> None:
        """Kill what is left, again and again until it is proven that nothing is."""
        if not self._kills:
            self._kills = True
            self._signals(signal.SIGKILL)
            for rank in self._ranks:
                proc.send(rank, signal.SIGKILL, to_group=True)
        left = self._population.to_end()
        if left == []:
            self._finish()
            return
        proc.kill(left or ())
        self._looks += 1
        self._set_timer(proc.pause_s(self._looks), self._kill)

    def _finish(self) -> None:
        if self._timer is not None:
            self._loop.cancel(self._timer)
        self._is_done = True
        self._done()
