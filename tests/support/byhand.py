"""Workflows ended and reset by hand, at a moment at which a call to the cluster is held."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from everstep.core import names
from tests.support import moments
from tests.support.devserver import DevServer
from tests.support.moments import Incident, Moment
from tests.support.patience import HUNG_S
from tests.support.stage import Handle, Stage, document
from workflows import options

BUDGET = {"hardware": {"limit": 5, "levels": ["in_place", "pod", "job"], "owners": ["infra"]}}
BODY = document(env={"STEPS": "60"}, recovery={"budgets": BUDGET})
NODE = Incident(body=BODY, faults=["at 35s node-down n2"], begins_s=34)
DEVICE = Incident(body=BODY, faults=["at 35s device n1 0 80E01801 heals"], begins_s=34)


@asynccontextmanager
async def at(
    server: DevServer,
    namespace: str,
    home: Path,
    incident: Incident,
    moment: Moment,
    *,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Stage, Handle]]:
    """The job at that moment of its incident; the caller of the verb waits for the answer."""
    async with Stage(server, namespace, home, env=env) as stage:
        yield stage, await brought_to(stage, incident, moment)


async def brought_to(stage: Stage, incident: Incident, moment: Moment) -> Handle:
    job, clock = await moments.until_incident(stage, incident)
    await moment.arm(stage)
    await clock.let_go()
    await moment.reached(stage)
    return job


LAST = 1_000_000
UPDATES = ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE


async def reset(handle: WorkflowHandle[Any, Any], *, to: int = 1, updates: bool = True) -> str:
    """To the end of its nth workflow task, or its last, as `temporal` does it; the new run.

    Without `updates`, those accepted after that point are not applied again.
    """
    done = 0
    event_id = 0
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            done, event_id = done + 1, event.event_id
            if done == to:
                break
    client = _client_of(handle)
    reply = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason="by hand",
            request_id=f"{handle.id}-{to}",
            workflow_task_finish_event_id=event_id,
            reset_reapply_exclude_types=[] if updates else [UPDATES],
        )
    )
    return reply.run_id


def _client_of(handle: WorkflowHandle[Any, Any]) -> Client:
    return handle._client  # the only way from a handle back to its service


async def closed(stage: Stage, workflow: str) -> WorkflowExecutionStatus | None:
    """How the workflow ended, once it has; None if it never began.

    A requested child begins a little later, and never if its parent ends before.
    """
    handle = stage.client.get_workflow_handle(workflow)
    try:
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        return (await handle.describe()).status
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None


def restarts_of(report: dict[str, Any]) -> list[tuple[str, str, dict[str, int]]]:
    restarts = report["phases"][0]["restarts"]
    return [(r["level"], r["recover_result"], r["bills"]) for r in restarts]


async def ended_as(job: Handle) -> BaseException | None:
    with pytest.raises(WorkflowFailureError) as failure:
        await job.result()
    return failure.value.cause


async def starts(stage: Stage) -> list[str]:
    return [e.what for e in await stage.admin.effects() if e.what.startswith("start")]


async def assert_one_life(stage: Stage, report: Mapping[str, Any]) -> None:
    """The job went through, whatever was reset: nothing was done twice, and nothing is left."""
    assert report["status"] == "Completed"
    assert report["phases"][0]["last_checkpoint_step"] == 60
    began = await starts(stage)
    assert len(set(began)) == len(began), "no start was carried out twice"
    assert await stage.fake.leftovers() == ()


BY_HAND = {"EVERSTEP_JANITOR": "false"}
"""A worker whose cluster only the test sweeps: the janitor comes at any time."""


async def sweep(stage: Stage) -> list[str]:
    """What the janitor does every few seconds."""
    return await swept(stage.client, stage.cluster)


async def swept(client: Client, cluster: str = "local") -> list[str]:
    """The jobs whose leftovers one sweep removes."""
    removed: list[str] = await client.execute_activity(
        "sweep",
        cluster,
        result_type=list[str],
        id=f"sweep-{uuid.uuid4()}",
        task_queue=names.cluster_queue(cluster),
        start_to_close_timeout=timedelta(seconds=HUNG_S),
        heartbeat_timeout=options.HEARTBEAT,
    )
    return removed


async def isolated_nodes(stage: Stage) -> list[str]:
    return [node.name for node in await stage.fake.nodes() if node.isolated]
