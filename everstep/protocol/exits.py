"""How a rank ended: one value for its agent, for facts, for what a cluster shows and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

KILLED = 128
"""A container reports a signal as this and its number."""


class Exit(NamedTuple):
    """How a process ended: with a code, or by a signal. Neither: unknown."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of_status(cls, status: int) -> Exit:
        """The exit with this status: a code, or below 0 the number of a signal."""
        return cls(code=status) if status >= 0 else cls(signal=-status)

    @classmethod
    def in_details(cls, details: Mapping[str, Any]) -> Exit:
        """The exit in the details of a fact, which may come from outside."""
        values = (details.get(key) for key in ("exit_code", "signal"))
        return cls(*(value if isinstance(value, int) else None for value in values))

    @property
    def details(self) -> dict[str, int | None]:
        """Its part of the details of a fact."""
        return {"exit_code": self.code, "signal": self.signal}

    @property
    def is_good(self) -> bool:
        return self.code == 0

    @property
    def container_code(self) -> int | None:
        """The exit code that a container would report."""
        killed = None if self.signal is None else KILLED + self.signal
        return killed if self.code is None else self.code

    def __str__(self) -> str:
        if self.code is not None:
            return f"exit code {self.code}"
        return "" if self.signal is None else f"signal {self.signal}"


class RankExit(NamedTuple):
    """How and when one rank of the current generation ended."""

    rank: int
    at: float
    exit: Exit
