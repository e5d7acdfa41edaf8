"""What an agent has seen: each fact is told until whoever asks says that it is written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everstep.agent import bounds, wire
from everstep.agent.observing import logs

KEPT = 1_000
"""So many are kept where nobody asks for them; then the oldest go."""


class Facts:
    """Of one agent, and what an earlier one in its folder did not get rid of."""

    def __init__(self, boot: str) -> None:
        self.open: list[wire.FactSeen] = []  # nobody said that they are written down
        self.seen = 0
        self._boot = boot

    def add(self, **said: Any) -> None:
        """A fact, with an identity of its own for ever."""
        fact: wire.FactSeen = {"n": 0, "id": f"{self._boot}/{self.seen + 1}", **said}  # type: ignore[typeddict-item]  # who calls names the rest
        self._take(fact)

    def take_over(self, earlier: Iterable[wire.FactSeen]) -> None:
        """They keep their identity, under which they may have been told already."""
        for fact in earlier:
            self._take(fact)

    def _take(self, fact: wire.FactSeen) -> None:
        self.seen += 1
        numbered = _plain(fact)
        numbered["n"] = self.seen
        self.open = logs.bounded([*self.open[-KEPT + 1 :], numbered])

    def written(self, boot: str, up_to: int) -> bool:
        """Whether anything is let go. What another boot counted, or nobody did, says nothing of ours."""
        left = [fact for fact in self.open if fact["n"] > up_to]
        if boot != self._boot or up_to > self.seen or len(left) == len(self.open):
            return False
        self.open = left
        return True


def _plain(fact: wire.FactSeen) -> wire.FactSeen:
    """A copy of which every text can be sent on: it may hold what a rank printed, or a file's name."""
    plain = fact.copy()
    plain["kind"], plain["message"] = bounds.plain(fact["kind"]), bounds.plain(fact["message"])
    plain["details"] = {
        bounds.plain(key): bounds.plain(value) if isinstance(value, str) else value
        for key, value in fact["details"].items()
    }
    return plain
