"""An agent that did not look for a while, as its machine slept, says since when it looks again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent import clock
from everstep.agent.observing.samples import AWAY_S, Samples
from everstep.protocol.wire import RunOrder

BEGAN = 1_000.0
SLEPT_S = 3_600.0


class IdleRun:
    """A run without living processes, of which a look reads nothing."""

    is_alive = False
    still_s = None
    watched_since: float | None = None

    def __init__(self) -> None:
        self.order = RunOrder()

    def state(self) -> dict[str, Any]:
        return dict.fromkeys(("moved_at", "io_at", "busy_at", "devices")) | {
            "watched_since": self.watched_since
        }


def test_after_a_gap_the_watch_begins_anew_and_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published: list[float | None] = []
    times, run = [BEGAN], IdleRun()
    monkeypatch.setattr(clock, "now", lambda: times[-1])
    agent: Any = SimpleNamespace(run=run, publish=lambda **_: published.append(run.watched_since))
    samples = Samples(agent)
    for now in (BEGAN + 1.0, BEGAN + 1.0 + AWAY_S, BEGAN + SLEPT_S, BEGAN + SLEPT_S + 1.0):
        times.append(now)
        samples.poll()
    assert published == [BEGAN, BEGAN + SLEPT_S]
