"""The facts of an agent. Each is part of its state until the worker confirms that it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everstep.agent.observing import quotes
from everstep.protocol import bounds, wire

FACTS_MOST = 1_000
"""Most facts that wait for a confirmation; beyond that the oldest are dropped."""


class Facts:
    """The facts of one agent, and those of an earlier one in its folder that nothing confirmed."""

    def __init__(self, boot: str) -> None:
        self.open: list[wire.FactSeen] = []  # not confirmed yet
        self.count = 0
        self._boot = boot

    def add(self, **fields: Any) -> None:
        """Add a fact, with an identity that no other fact ever gets."""
        fact: wire.FactSeen = {"n": 0, "id": f"{self._boot}/{self.count + 1}", **fields}  # type: ignore[typeddict-item]  # who calls names the rest
        self._take(fact)

    def take_over(self, earlier: Iterable[wire.FactSeen]) -> None:
        """Take over facts of an earlier agent. They keep their identity: a worker may have stored them."""
        for fact in earlier:
            self._take(fact)

    def _take(self, fact: wire.FactSeen) -> None:
        self.count += 1
        numbered = _plain(fact)
        numbered["n"] = self.count
        self.open = quotes.bound_quotes([*self.open[-FACTS_MOST + 1 :], numbered])

    def drop_stored(self, boot: str, up_to: int) -> bool:
        """Drop confirmed facts; return whether there were any. Numbers of another boot confirm nothing."""
        left = [fact for fact in self.open if fact["n"] > up_to]
        if boot != self._boot or up_to > self.count or len(left) == len(self.open):
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
