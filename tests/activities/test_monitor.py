"""A monitor that a worker begins after another one, and that fails again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.cluster_activities import WATCHED_BY, ClusterActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.core.errors import BackendUnavailable
from everstep.core.seeing.watch_report import WatchOrder
from everstep.core.spec import Limits
from everstep.core.world import JobRef
from everstep.simulation import QuarantineInMemory


class Unreachable(FakeBackend):
    """A cluster that does not answer."""

    async def call(self, verb: str, /, **_args: Any) -> Any:
        raise BackendUnavailable(f"{verb}: no answer")


class Server:
    """A client that keeps the signals to jobs."""

    identity = "worker 2"

    def __init__(self) -> None:
        self.signals: list[tuple[str, Mapping[str, Any]]] = []

    def get_workflow_handle(self, _workflow_id: str) -> Any:
        async def signal(name: str, notice: Mapping[str, Any], **_options: Any) -> None:
            self.signals.append((name, notice))

        return SimpleNamespace(signal=signal)


async def test_a_worker_reports_once_that_it_watches_a_job_after_another_one() -> None:
    """Its monitor may fail every second for hours, and a server takes a number of signals of a run."""
    server = Server()
    works = ClusterActivities(backend=Unreachable(), quarantine=QuarantineInMemory())
    order = WatchOrder(
        job=JobRef(id="demo", run="run"),
        cluster="fake",
        generation=1,
        cursor="",
        since=0.0,
        limits=Limits(),
        active=(0,),
    )
    tries = ActivityEnvironment(client=cast("Client", server))
    before = {WATCHED_BY: "worker 1", "step": 7}
    tries.info = replace(tries.info, heartbeat_details=[before])
    last: list[list[Any]] = [[before]]
    tries.on_heartbeat = lambda *details: last.__setitem__(0, [*details])
    for _ in range(3):
        with pytest.raises(ApplicationError):
            await tries.run(works.monitor, order)
        tries.info = replace(tries.info, heartbeat_details=last[0])  # as the server hands them on
    assert server.signals == [("taken_over", {"worker": "worker 2", "earlier": "worker 1"})]
    assert last == [[{**before, WATCHED_BY: "worker 2"}]], "what the earlier worker saw is kept"
