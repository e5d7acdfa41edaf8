"""A job on the server: found by its ID, queried while it is open, read from its memo afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)

from everstep.client.connection import UnlessAbsent
from everstep.client.exit_codes import Exit, Failed
from everstep.client.jobs import answers
from everstep.core import names
from everstep.dialects import job_memo

_S = WorkflowExecutionStatus

CLOSED: Mapping[WorkflowExecutionStatus, str] = {
    _S.COMPLETED: "completed",
    _S.FAILED: "failed",
    _S.TIMED_OUT: "failed",
    _S.CANCELED: "stopped",
    _S.TERMINATED: "stopped",
}
"""The state of a job whose workflow closed without saying one itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A TrainingJob, and how it looked when it was found."""

    client: Client
    description: WorkflowExecutionDescription
    until: datetime | None = None
    """When the next job of this ID was submitted; None for the newest."""

    @property
    def id(self) -> str:
        return self.description.id

    @property
    def is_open(self) -> bool:
        return self.description.status is _S.RUNNING

    @property
    def first_run_id(self) -> str:
        """The run that was submitted. Runs that continued as new, or were reset, go on from it."""
        return self.description.raw_info.first_run_id or self.description.run_id

    async def began(self) -> datetime | None:
        """When the job was submitted; None if the server has forgotten its first run."""
        if self.first_run_id == self.description.run_id:
            return self.description.start_time
        with UnlessAbsent():
            first = self.client.get_workflow_handle(self.id, run_id=self.first_run_id)
            return (await first.describe()).start_time
        return None

    @property
    def closed_as(self) -> str:
        """The state that the end of the workflow alone implies."""
        return CLOSED.get(self.description.status or _S.RUNNING, "failed")

    def attribute(self, name: str) -> Any:
        """A search attribute, None if it was never set."""
        pairs = self.description.typed_search_attributes.search_attributes
        return next((pair.value for pair in pairs if pair.key.name == name), None)

    async def memo(self, key: str) -> Any:
        """What the job left when it closed, None if it had no time for that."""
        value = await self.description.memo_value(key, None)
        report = await self.description.memo_value("report", None)
        return job_memo.read(key, value, report) if report else value

    async def end(self) -> str:
        """The state that the job itself reported: the workflow of a stopped job completes too."""
        left = await self.memo("status") or {}
        return str(left.get("state", self.closed_as))

    async def query(self, query: str, argument: Any = None) -> Any:
        """The living workflow's answer."""
        return await answers.send_query(self.client, self.id, query, argument)

    async def answer(self, query: str) -> Any:
        """Its answer while it lives, then what it left instead; None if it had no time for that."""
        return await (self.query(query) if self.is_open else self.memo(query))

    async def update(
        self, update: str, argument: Mapping[str, Any], *, takes_s: float = 0.0
    ) -> Any:
        """The answer to an update. Its id, a fresh one where it has none, makes a repeated one count once.

        `takes_s`: how long the answer may take once a worker has the update.
        """
        if not self.is_open:
            end = await self.end()
            raise Failed(Exit.USAGE, f"{self.id} has ended ({end}): {update} is too late")
        update_id = str(argument.get("id") or uuid.uuid4().hex)
        return await answers.send_update(
            self.client,
            self.id,
            update,
            {**argument, "id": update_id},
            own_id=update_id,
            takes_s=takes_s,
        )

    async def document(self) -> Any:
        """What this run began with; runs that go on from another one carry it along."""
        handle = self.client.get_workflow_handle(self.id, run_id=self.description.run_id)
        async for begun in handle.fetch_history_events(page_size=1):
            payloads = begun.workflow_execution_started_event_attributes.input.payloads
            arguments = await self.description.data_converter.decode(payloads)
            carried = arguments[0] if arguments and isinstance(arguments[0], dict) else {}
            return carried.get("document", carried)
        return {}

    async def failure(self) -> str | None:
        """Why the workflow failed or was terminated: the message of the failure or of the terminate call."""
        if self.description.status not in (_S.FAILED, _S.TERMINATED):
            return None
        try:
            await self.client.get_workflow_handle(self.id, run_id=self.description.run_id).result()
        except WorkflowFailureError as error:
            why = str(getattr(error.cause, "message", None) or error.cause)
            is_whole = self.description.status is _S.FAILED or why.startswith("terminated")
            return why if is_whole else f"terminated: {why}"
        return None


async def find(client: Client, job_id: str) -> FoundJob:
    """The newest run of this job; `Failed` if there is none."""
    job = await look_up(client, job_id)
    if job is None:
        hint = "`everstep list` shows all there are"
        place = f"namespace {client.namespace}"
        raise Failed(Exit.NOT_FOUND, f"there is no job {job_id} in {place}; {hint}")
    return job


async def look_up(client: Client, job_id: str, *, run_id: str | None = None) -> FoundJob | None:
    """The newest run of this job, or the one with this run ID; None if there is none."""
    description: WorkflowExecutionDescription | None = None
    with UnlessAbsent():
        description = await client.get_workflow_handle(job_id, run_id=run_id).describe()
    if description is None:
        return None
    if description.workflow_type != names.TRAINING_JOB:
        kind = description.workflow_type
        raise Failed(Exit.NOT_FOUND, f"{job_id} is a {kind} and no job; give the ID of a job")
    return FoundJob(client=client, description=description)
