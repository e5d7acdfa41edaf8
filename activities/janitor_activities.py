"""The janitor's sweep: what is on the cluster, whose workflow still lives, and what goes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_activities import until_gone
from activities.earlier_quarantine import STATE
from activities.heartbeat import Heartbeat, heartbeating
from everstep.backends.base import Backend
from everstep.core import names
from everstep.core.counting import fault_spans
from everstep.core.counting.reports import REPORT_MOST
from everstep.core.errors import StaleGeneration
from everstep.core.recovering.quarantine import DeviceReport
from everstep.core.world import Leftover

LIVING = f"WorkflowType = '{names.TRAINING_JOB}' AND ExecutionStatus = 'Running'"
SWEPT_EVERY_S = 3.0
"""The processes of a terminated job run on for so long at most, and then until they are ended.

A sweep gives each job as long again; what is not gone by then is the next one's.
"""
REMOVED_MOST = 1_000
"""Jobs in an answer: more would not fit into what a server takes."""
EXPIRED_EVERY = 20
"""Sweeps, a minute of them, between two looks at what was isolated until some time."""
ANSWER = timedelta(seconds=3)
"""Time limit of the quarantine's answer: what terminated jobs left waits meanwhile."""
UNANSWERED = (
    RPCError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorActivities:
    """Needs the cluster and the server: a job is gone only if both say so."""

    backend: Backend
    client: Client
    server: str  # this one, as the cluster's records name it
    failures: dict[str, str] = field(default_factory=dict)
    """The error that was logged last of each workflow: a job that stays or a quarantine that refuses."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """The ID of the update that the quarantine of a cluster has not answered. A server keeps few of these."""

    def all(self) -> list[Any]:
        return [self.sweep, self.keep_swept]

    @activity.defn(name="sweep")
    async def sweep(self, cluster: str) -> list[str]:
        """Removes the leftovers of every job whose workflow is closed or unknown; their IDs."""
        async with heartbeating() as heartbeat:
            removed = await self._sweep(heartbeat)
            await self._expire(cluster)
        return removed

    @activity.defn(name="keep_swept")
    async def keep_swept(self, cluster: str) -> list[str]:
        """Sweeps again and again until something was there to be removed; whose it was."""
        async with heartbeating() as heartbeat:
            for time in itertools.count():
                if removed := await self._sweep(heartbeat):
                    return removed[:REMOVED_MOST]
                if time % EXPIRED_EVERY == 0:
                    await self._expire(cluster)
                await _while_serving(SWEPT_EVERY_S)
                heartbeat.beat()
        raise AssertionError("there is no last number")

    async def _sweep(self, heartbeat: Heartbeat) -> list[str]:
        if not (left := await self.backend.leftovers()):
            return []
        heartbeat.beat()
        # The list may lag behind, so it only saves requests: a job that is not in it is described.
        running = await self._living()
        suspects = [each for each in left if each.job.id not in running]
        removed = await asyncio.gather(*(self._remove(each, heartbeat) for each in suspects))
        return [
            each.job.id for each, is_removed in zip(suspects, removed, strict=True) if is_removed
        ]

    async def _living(self) -> set[str]:
        """Read off the rows as they come: to unpack all that each job shows costs more than the sweep."""
        ids: set[str] = set()
        request = ListWorkflowExecutionsRequest(namespace=self.client.namespace, query=LIVING)
        while True:
            page = await self.client.workflow_service.list_workflow_executions(request, retry=True)
            ids.update(row.execution.workflow_id for row in page.executions)
            if not page.next_page_token:
                return ids
            request.next_page_token = page.next_page_token

    async def _remove(self, left: Leftover, heartbeat: Heartbeat) -> bool:
        """Removes what an ended run left, and returns whether all of it is gone.

        A job that cannot be removed, or not yet, keeps none of the others: the next sweep goes on with it.
        """
        job = left.job.id
        try:
            is_removed = await self._ensure_removed(left, heartbeat)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is of this job alone
            self._log_failure(job, f"what job {job} left could not be removed", error)
            return False
        self.failures.pop(job, None)
        return is_removed

    def _log_failure(self, workflow_id: str, what: str, error: BaseException) -> None:
        """Log why something failed, once for each reason in a row."""
        if self.failures.get(workflow_id) != str(error):
            activity.logger.warning("%s: %r", what, error)
        self.failures[workflow_id] = str(error)

    async def _ensure_removed(self, left: Leftover, heartbeat: Heartbeat) -> bool:
        """Remove what an ended run left, in its name: the backend refuses that once a newer run began."""
        heartbeat.beat(left.job.id)
        if not await self._is_over(left):
            return False
        try:
            state = await until_gone(self.backend, left.job, heartbeat.beat, within_s=SWEPT_EVERY_S)
        except StaleGeneration:
            return False
        return state.done

    async def _is_over(self, left: Leftover) -> bool:
        """Whether no run lives. Unknown is not dead: only a clear answer of the job's own server counts."""
        newest = await self._status(left.job.id, None)
        if newest is WorkflowExecutionStatus.RUNNING:
            return False
        is_known = newest is not None and await self._status(left.job.id, left.job.run) is not None
        return is_known or left.server in ("", self.server)

    async def _status(self, job: str, run: str | None) -> WorkflowExecutionStatus | None:
        """The status of the run; None if this server has no such run."""
        try:
            description = await self.client.get_workflow_handle(job, run_id=run).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        return description.status

    async def _expire(self, cluster: str) -> None:
        """Have the quarantine release what is over. Where it does not, the next minute tries again."""
        quarantine = self.client.get_workflow_handle(names.quarantine_id(cluster))
        await self._report_ended_codes(quarantine)
        request = {"now": await self.backend.clock()}
        update_id = self.unanswered.pop(cluster, None) or str(uuid4())
        try:
            await quarantine.execute_update("expire", request, id=update_id, rpc_timeout=ANSWER)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            _raise_if_cancelled(error)
            self.unanswered[cluster] = update_id
            activity.logger.info("the quarantine of cluster %s gives no answer", cluster)
        except (RPCError, WorkflowUpdateFailedError) as error:
            _raise_if_cancelled(error)
            if not _is_not_found(error):
                what = f"the quarantine of cluster {cluster} releases nothing by time"
                self._log_failure(quarantine.id, what, error.__cause__ or error)
        else:
            self.failures.pop(quarantine.id, None)

    async def _report_ended_codes(self, quarantine: WorkflowHandle[Any, Any]) -> None:
        """Report the codes that isolate a device and that the cluster shows no more.

        A job reports them only while it runs there. What the quarantine missed is in the next report.
        """
        try:
            book = await quarantine.query("state", result_type=STATE, rpc_timeout=ANSWER)
            spans = () if book is None else fault_spans.shown_by_cluster(book.spans)
            if not spans:
                return
            now = await self.backend.clock()
            ended = fault_spans.ended_on(spans, await self.backend.nodes(), at=now)[:REPORT_MOST]
            if ended:
                report = DeviceReport(sound=ended, now=now)
                await quarantine.execute_update("note_faults", report, rpc_timeout=ANSWER)
        except UNANSWERED as error:
            _raise_if_cancelled(error)
            if not _is_not_found(error):
                activity.logger.info("no code was reported as over: %r", error)


def _raise_if_cancelled(error: Exception) -> None:
    """Raise the cancel of the running call, of which the client makes another error."""
    if (call := asyncio.current_task()) is not None and call.cancelling():
        raise asyncio.CancelledError from error


def _is_not_found(error: Exception) -> bool:
    return isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND


async def _while_serving(seconds: float) -> None:
    """Waits for this time, or raises once the worker shuts down, so that another one takes over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await activity.wait_for_worker_shutdown()
        over = "this worker ends, another one goes on"
        raise ApplicationError(over, category=ApplicationErrorCategory.BENIGN)  # no log of it
