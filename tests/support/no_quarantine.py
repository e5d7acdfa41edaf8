"""A quarantine for steps that isolate nothing."""

from __future__ import annotations

from everstep.core.recovering.quarantine import QuarantineAnswer, Request


class NoQuarantine:
    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        raise NotImplementedError  # no case of these tests isolates a node

    async def hand_over(self, cluster: str, request: Request) -> None:
        raise NotImplementedError  # no case of these tests isolates a node
