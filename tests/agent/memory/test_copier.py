"""When the agent sends a snapshot to its neighbour, and when it waits."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent.future import Future
from everstep.agent.memory.copier import Copier, Sending
from everstep.agent.memory.neighbour_link import Credentials, Refused
from everstep.protocol import wire
from everstep.protocol.rank_memory import SnapshotHeader

SNAPSHOT = SnapshotHeader(5, 1, 0, 2, 10, 1000, 0.0)
NEIGHBOUR: wire.Neighbour = {"slot": 1, "uid": "b", "address": "unix:b"}
OTHER: wire.Neighbour = {"slot": 2, "uid": "c", "address": "unix:c"}


def a_run(generation: int, neighbour: wire.Neighbour = NEIGHBOUR) -> Any:
    return SimpleNamespace(generation=generation, command={"neighbour": neighbour}, ranks=[])


def after_failure(error: Exception) -> Copier:
    """A copier that tried to send the snapshot of rank 0 in run 1."""
    memory = SimpleNamespace(handle=os.open(os.devnull, os.O_RDONLY), snapshot=SNAPSHOT)
    snapshots = SimpleNamespace(restoring={0}, newest=lambda _: memory)
    agent: Any = SimpleNamespace(
        run=None, snapshots=snapshots, note=lambda _: None, publish=lambda: None
    )
    copier = Copier(agent, Credentials(None))
    sending = copier._next(a_run(1))
    assert isinstance(sending, Sending)

    def fail() -> None:
        raise error

    failed = Future(fail)
    failed.carry_out()
    copier._finish(sending, failed)
    return copier


@pytest.mark.parametrize(
    "error", [Refused(wire.STALE, "of a run that was left"), OSError("no answer")]
)
def test_a_neighbour_that_failed_is_tried_later_in_the_same_run_and_at_once_in_the_next(
    error: Exception,
) -> None:
    """It refuses what comes late from the run before: right after a restart there would be no copies."""
    copier = after_failure(error)
    assert copier._next(a_run(1)) is None
    for run in (a_run(2), a_run(1, OTHER)):
        sending = copier._next(run)
        assert sending is not None
        sending.memory.close()
