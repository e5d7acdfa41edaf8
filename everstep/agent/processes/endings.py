"""Ends the processes of a pod for its agent: one ending at a time, and what is done after it.

`termination` ends processes and proves that they are gone. Here an ending gets its ranks, and its course is
passed on: to the watch of their saves, to the part that follows ranks, to the callers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial

from everstep.agent.agent import Agent
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.termination import Ending

SAVES_RECORDED_S = 0.5
"""Longest wait of an ending for the record of what its ranks saved: their storage may hang."""


class Endings:
    """The endings of one pod. In the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._ending: Ending | None = None  # at most one, for all that is to end
        self._afterwards: list[Callable[[], None]] = []  # called once it is over

    @property
    def is_running(self) -> bool:
        return self._ending is not None

    def end(
        self,
        *,
        below: int,
        grace_s: float = 0.0,
        evidence: bool = False,
        keep: Collection[int] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """End every process except the ranks in `keep`. Returns at once; calls `then` when they have ended.

        From then on every other process of a generation older than `below` is proven gone; 0: nothing is.

        A call during an ending adds ranks (`is_to_end`) and what is done afterwards, and may shorten the
        grace. Its `evidence` is not taken over.
        """
        agent = self._agent
        agent.parts.prefetcher.end()
        self._afterwards.append(partial(agent.mark_stopped, below))
        if then is not None:
            self._afterwards.append(then)
        for rank in agent.ranks:
            if rank.number not in keep:
                rank.is_to_end = True
        going_on = (rank.process for rank in agent.ranks if rank.is_alive and not rank.is_to_end)
        agent.population.keeps = {process.identity for process in going_on if process is not None}
        if self._ending is None:
            self._begin(grace_s, evidence=evidence)
        else:
            self._ending.hasten(grace_s)

    def _begin(self, grace_s: float, *, evidence: bool) -> None:
        agent, run = self._agent, self._agent.run
        to_end = [rank for rank in agent.ranks if rank.is_alive and rank.is_to_end]
        if grace_s > 0:
            _request_saves([rank for rank in to_end if rank.process is not None], grace_s)
        self._ending = Ending(
            agent.loop,
            agent.population,
            ranks=[rank.process for rank in to_end if rank.process is not None],
            collect=partial(agent.parts.evidence.keep, run, grace_s) if evidence and run else None,
            grace_s=grace_s,
            signals=self._note_signal,
            done=self._record_saves,
        )
        self._ending.begin()

    def _note_signal(self, number: int) -> None:
        """A signal is about to be sent to the ranks that are to end."""
        if self._agent.save_watch is not None:
            self._agent.save_watch.before_signal(number)

    def child_ended(self) -> None:
        """A child of the agent was waited for."""
        if self._ending is not None:
            self._ending.child_ended()

    def _record_saves(self) -> None:
        """Record which saves of the ended ranks are whole, for the agent that chooses the next checkpoint."""
        agent = self._agent
        if agent.save_watch is None:
            self._finish()
            return
        finish = partial(self._finish_this, self._ending)
        agent.loop.later(SAVES_RECORDED_S, finish)
        goes_on = any(rank.is_alive and not rank.is_to_end for rank in agent.ranks)
        hand_over = partial(agent.loop.hand_over, finish)
        agent.save_watch.ended(is_over=not goes_on, then=hand_over)

    def _finish_this(self, ending: Ending | None) -> None:
        if self._ending is ending:
            self._finish()

    def _finish(self) -> None:
        self._ending = None
        for rank in self._agent.ranks:
            if not rank.is_alive or rank.is_to_end:
                self._agent.parts.ranks.forget(rank)
        afterwards, self._afterwards = self._afterwards, []
        for do in afterwards:
            do()
        self._agent.save_state()
        self._agent.publish()


def _request_saves(ranks: Collection[Rank], grace_s: float) -> None:
    """Write the request to save for scripts that look at a file. SIGTERM follows for all of them."""
    for rank in ranks:
        with contextlib.suppress(OSError):  # on a full disk the signal alone has to do
            rank.folder.instruct({"generation": rank.incarnation, "do": "save", "grace_s": grace_s})
