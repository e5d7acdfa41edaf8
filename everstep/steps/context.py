"""What a step works with: a backend, the quarantine, and a sign of life to give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from everstep.backends.base import Backend
from everstep.core.recovering.quarantine import QuarantineAnswer, Request


class QuarantineUnreachable(Exception):
    """The quarantine did not answer in time: the job isolates for itself and tells it later."""


class QuarantineClient(Protocol):
    """Where isolations are asked for."""

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        """The quarantine's answer; `QuarantineUnreachable` if there is none within 10 s."""


def _silent(*_details: object) -> None:
    return None


async def _untold(_what: str | None) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Everything a step may touch."""

    backend: Backend
    quarantine: QuarantineClient
    beat: Callable[..., None] = _silent  # called after every successful look at the world
    # What a step waits for, once it changes.
    waits: Callable[[str | None], Awaitable[None]] = _untold
    poll_s: float = 1.0  # real seconds; bounds how late a cancellation is heard
