"""One stage for all tests of a file: each begins with a new cluster and brings a job of its own.

Starting a cluster and a worker takes seconds, a job on them a fraction of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from everstep.core import names
from tests.support import moments
from tests.support.devserver import DevServer
from tests.support.moments import Incident, StandingClock
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, Stage

Report = Mapping[str, Any]

POLL_S, LONGER, POLL_MOST_S = 0.02, 1.3, 0.2
"""Seconds between two looks at a job: a query costs milliseconds, and some waits last for seconds."""


class Scene:
    """A job in the middle of its life, while time stands still."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.admin = stage.admin
        self.clock = StandingClock(stage.fake)

    async def new_cluster(self, *, nodes: int = 6) -> None:
        """Begin with a cluster that shows nothing of earlier jobs, nor of their quarantine."""
        await self.admin.release()
        await self.admin.reset(nodes=nodes)  # which it can be reached again from
        await self._until_quarantine_is_idle()
        await self.admin.reset(nodes=nodes)

    async def _until_quarantine_is_idle(self) -> None:
        """A job hands its isolations over at its end: the quarantine marks their nodes a moment later."""
        quarantine = self.stage.client.get_workflow_handle(names.quarantine_id(self.stage.cluster))
        async with asyncio.timeout(HUNG_S):
            while await _has_work(quarantine):
                await asyncio.sleep(POLL_S)

    async def running(
        self, body: dict[str, Any], *, until_s: float = 34.0, faults: Sequence[str] = ()
    ) -> Handle:
        """The job, running, at this time of the cluster; the clock stands."""
        incident = Incident(body=body, faults=faults, begins_s=until_s)
        job, self.clock = await moments.until_incident(self.stage, incident)
        return job

    async def submitted(self, body: dict[str, Any]) -> Handle:
        """The job as soon as it is handed in; the clock stands."""
        await self.clock.hold()
        return await self.stage.submit(body)

    async def held_at(self, verb: str) -> None:
        """Let time pass until this verb is called; the call waits for `release`."""
        await self.admin.hold(verb)
        await self.clock.let_go()
        await self.admin.wait_held()

    async def end(self, job: Handle) -> dict[str, Any]:
        """Let time pass for good; the report."""
        await self.clock.let_go()
        return await asyncio.wait_for(job.result(), HUNG_S)


async def _has_work(workflow: WorkflowHandle[Any, Any]) -> bool:
    try:
        description = (await workflow.describe()).raw_description
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return bool(description.pending_activities) or description.HasField("pending_workflow_task")


@asynccontextmanager
async def shared_scene(server: DevServer, home: Path) -> AsyncIterator[Scene]:
    namespace = await server.new_namespace("scene")
    async with Stage(server, namespace, home) as stage:
        yield Scene(stage)


async def tell(job: Handle, name: str, /, **args: Any) -> dict[str, Any]:
    """An update, accepted."""
    answer: dict[str, Any] = await asyncio.wait_for(job.execute_update(name, args), HUNG_S)
    return answer


async def refusal(job: Handle, name: str, *arguments: Any) -> str:
    """An update, refused: the sentence that its sender reads."""
    try:
        answer = await asyncio.wait_for(job.execute_update(name, args=arguments), HUNG_S)
    except WorkflowUpdateFailedError as error:
        return str(error.cause)
    raise AssertionError(f"{name} {arguments} was accepted: {answer}")


NO_ANSWER_YET = {
    # A busy machine was too slow for a workflow task: until it is repeated the server refuses.
    RPCStatusCode.FAILED_PRECONDITION,
    # The query waits for a worker that was killed a moment ago.
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
}
"""How a query fails that is answered later."""


async def until(job: Handle, claim: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status of which the claim is true."""
    look_s = POLL_S
    async with asyncio.timeout(HUNG_S):
        while True:
            try:
                status: dict[str, Any] = await job.query("status")
            except RPCError as error:
                if error.status not in NO_ANSWER_YET:
                    raise
            else:
                if claim(status):
                    return status
            await asyncio.sleep(look_s)
            look_s = min(look_s * LONGER, POLL_MOST_S)


async def until_state(job: Handle, state: str) -> dict[str, Any]:
    return await until(job, lambda status: bool(status["state"] == state))


async def until_it_waits_for(job: Handle, what: str) -> dict[str, Any]:
    return await until(job, lambda status: what in (status.get("waiting_for") or ""))


def unreadable(text: bytes = b'{"reason": ', *, encoding: bytes = b"json/plain") -> RawValue:
    """An argument that claims to be JSON and is not, or that has an unknown encoding."""
    return RawValue(Payload(metadata={"encoding": encoding}, data=text))


def restarts_of(report: Report) -> list[tuple[str, str, str]]:
    """Every restart of the report: class, level, result."""
    return [
        (r["fault"]["class"], r["level"], r["recover_result"])
        for phase in report["phases"]
        for r in phase["restarts"]
    ]


def differences(expected: Any, actual: Any, at: str = "") -> list[str]:
    """Where two plain values differ, a line each."""
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        return [line for k in expected for line in differences(expected[k], actual[k], f"{at}.{k}")]
    if isinstance(expected, list | tuple) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [line for i, (e, f) in pairs for line in differences(e, f, f"{at}[{i}]")]
    return [] if expected == actual else [f"{at}: {expected} became {actual}"]
