"""What is logged in the process of a test, as the lines of a worker that logs JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from everstep.telemetry.worker_log import JsonLine
from tests.support.patience import HUNG_S

POLL_S = 0.02

Line = dict[str, Any]


class Lines(logging.Handler):
    """Each line as its reader parses it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(JsonLine())
        self.lines: list[Line] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))

    async def until(self, claim: Callable[[Line], bool]) -> Line:
        """The first line of which the claim is true."""
        async with asyncio.timeout(HUNG_S):
            while not (such := [line for line in self.lines if claim(line)]):
                await asyncio.sleep(POLL_S)
        return such[0]


@asynccontextmanager
async def logged_lines() -> AsyncIterator[Lines]:
    """The warnings, and what is worse, that are logged inside."""
    lines, root = Lines(), logging.getLogger()
    root.addHandler(lines)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
