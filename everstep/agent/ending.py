"""How everything that runs in a pod is ended, until it is proven that nothing is left.

First what may help to understand it is kept, then SIGTERM if there is time: to the ranks, to what set up
a session of its own, and to what a rank leaves behind as soon as it has ended. Then SIGKILL to every process
that descends from the agent or carries the pod's mark, again and again until none is there. What a
killed parent leaves behind becomes our child, so each of them is waited for by us: that is the proof.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable

from everstep.agent import proc
from everstep.agent.loop import Loop, Timer

AGAIN_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
EVIDENCE_S = 1.0
LOOK_S = 0.05

SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")


class Population:
    """All processes of the pod but the agent and its helpers."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.spared: set[int] = set()
        self._family = proc.Family(os.getpid())

    def now(self) -> list[proc.Seen]:
        table = proc.everybody()
        ours = proc.below(os.getpid(), table)
        others = [
            pid for pid, seen in table.items() if pid not in ours and seen.state != proc.ZOMBIE
        ]
        found = ours | proc.marked(self.uid, others)
        return [table[pid] for pid in found - self.spared - {os.getpid()}]

    def descendants(self) -> list[proc.Seen]:
        table = proc.everybody()
        return [table[pid] for pid in proc.below(os.getpid(), table) - self.spared]

    def sample(self) -> list[proc.Seen]:
        """The descendants at a small price; one that was just started may be missing."""
        return [seen for pid, seen in self._family.now().items() if pid not in self.spared]


def to_be_asked(ranks: Collection[int], pod: Iterable[proc.Seen]) -> list[proc.Seen]:
    """Who of the pod nobody else asks to end: the ranks, and whoever left their sessions or outlived them.

    What else runs in the session of a living rank, its data loaders, is that rank's to end. A shell that
    only waits for its command would die of the signal and tell the command nothing: so that is asked too.
    """
    there = {seen.pid: seen for seen in pod if seen.state != proc.ZOMBIE}
    living = {pid for pid in ranks if pid in there}
    asked = {pid for pid, seen in there.items() if pid in living or seen.session not in living}
    shells = [there[pid] for pid in living if there[pid].name in SHELLS]
    while shells:
        shell = shells.pop()
        commands = [seen for seen in there.values() if seen.parent == shell.pid]
        asked |= {seen.pid for seen in commands}
        shells += [seen for seen in commands if seen.name in SHELLS]
    return [there[pid] for pid in asked]


class Ending:
    """One ending on its way. More may be wanted of it while it is; `done` is called once."""

    def __init__(
        self,
        loop: Loop,
        population: Population,
        *,
        groups: list[int],
        keep: Callable[[Callable[[], None]], None] | None,
        grace_s: float,
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._population = population
        self._groups = groups  # the ranks: leaders of process groups, waited for by us
        self._done = done
        self._grace_s = grace_s
        self._timer: Timer | None = None
        self._tries = 0
        self._unasked: set[tuple[int, int]] = set()  # what starts later knows that it is the end
        self._keep = keep
        self._keeps = keep is not None
        self._kills = False

    def begin(self) -> None:
        if self._keep is None:
            self._ask()
        else:
            self._timer = self._loop.later(EVIDENCE_S, self._kept)
            self._keep(self._kept)

    def hasten(self, grace_s: float) -> None:
        """No more than this grace from now on."""
        if grace_s >= self._grace_s:
            return
        self._grace_s = grace_s
        if not self._keeps and not self._kills:
            self._set(grace_s, self._kill)

    def someone_ended(self) -> None:
        """A child was waited for; it may have been the last."""
        if self._kills:
            self._set(0.0, self._kill)

    def _set(self, after_s: float, do: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(after_s, do)

    def _kept(self) -> None:
        if self._keeps:
            self._keeps = False
            self._ask()

    def _ask(self) -> None:
        if self._grace_s <= 0:
            self._kill()
            return
        self._unasked = {seen.identity for seen in self._population.descendants()}
        self._set(self._grace_s, self._kill)
        self._look()

    def _look(self) -> None:
        """Whether all ended before the grace is over. Everybody is asked once."""
        if self._kills:
            return
        left = self._population.descendants()
        if not left:
            self._kill()
            return
        for seen in to_be_asked(self._groups, left):
            if seen.identity in self._unasked:
                self._unasked.remove(seen.identity)
                proc.send(seen, signal.SIGTERM)
                proc.send(seen, signal.SIGCONT)
        self._loop.later(LOOK_S, self._look)

    def _kill(self) -> None:
        if not self._kills:
            self._kills = True
            for group in self._groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        left = self._population.now()
        if not left:
            self._finish()
            return
        dying = [seen for seen in left if seen.state != proc.ZOMBIE]
        proc.kill(dying, spared=self._population.spared)
        self._set(AGAIN_S[min(self._tries, len(AGAIN_S) - 1)], self._kill)
        self._tries += 1

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._done()
