"""Plays a scenario for real: workflows on the Temporal server, activities on the fake cluster.

`Durable` is the driver. The cluster runs in this process, so that a test reads its clock and its effects
directly. Its clock moves only while all jobs on it wait in `observe`. The operator of the scenario counts as
one of them, so no time passes while its command is on the way to the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio import activity, workflow
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
)

from activities.local_activities import LocalActivities
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.base import NO_FOLDERS
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.backends.fault_lines import When
from everstep.core import names
from everstep.core.counting.occurrences import FaultCount
from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision, Outcome, Plan
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.recovering.quarantine import DeviceReport, QuarantineAnswer, Request
from everstep.core.spec import JobSpec
from everstep.core.world import GoneState, JobRef, Observation
from everstep.dialects import job_memo
from everstep.steps.step_run import QuarantineUnreachable
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.playing.scenario import JOB, OPERATOR, Cue, Note, Played, Scenario
from tests.support.playing.simulated import PromptBackend, spec_of
from tests.support.playing.transcript import status_line
from workflows import options
from workflows.node_quarantine import NodeQuarantine
from workflows.recovery import Recovery
from workflows.training_job import TrainingJob

POLL_S = 0.005


@dataclass(kw_only=True)
class RecordingActivities:
    """The local activities: they compile any document to the scenario's job, and record each decision."""

    scenario: Scenario
    decisions: list[Decision] = field(default_factory=list)

    @activity.defn(name="compile")
    async def compile(self, _document: Any) -> JobSpec:
        return spec_of(self.scenario)

    @activity.defn(name="decide")
    async def decide(self, inputs: DecisionInput) -> Decision:
        self.decisions.append(decide(inputs))
        return self.decisions[-1]


@dataclass(kw_only=True)
class ClosableQuarantine:
    """The client of the real quarantine, which a scenario can make unreachable."""

    quarantine: TemporalQuarantine
    is_open: bool = True

    async def isolate(self, cluster: str, request: Request) -> QuarantineAnswer:
        if not self.is_open:
            raise QuarantineUnreachable
        return await self.quarantine.isolate(cluster, request)

    async def hand_over(self, cluster: str, request: Request) -> None:
        await self.quarantine.hand_over(cluster, request)

    async def note_faults(self, cluster: str, report: DeviceReport) -> tuple[FaultCount, ...]:
        if not self.is_open:
            raise QuarantineUnreachable
        return await self.quarantine.note_faults(cluster, report)


class BackendWithOperator(PromptBackend):
    """A fake cluster in which no time passes for the operator before the job begins and after it ended."""

    def prepare(self) -> None:
        self.begun = asyncio.Event()
        self.is_over = False
        self.looking = 0

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        generation = await super().ensure_generation(job, key, folders=folders, above=above)
        if job.id == JOB:
            self.begun.set()
        return generation

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        if job != OPERATOR:
            return await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)
        await self.begun.wait()
        if self.is_over:
            await asyncio.Event().wait()  # until the scenario ends the operator
        self.looking += 1
        try:
            return await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)
        finally:
            self.looking -= 1

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        """The operator goes first: from here on the job alone holds the clock."""
        if not self.is_over:
            self.is_over = True
            while self.looking:
                await asyncio.sleep(0)
            await super().ensure_gone(OPERATOR)
        return await super().ensure_gone(job, grace_s=grace_s)


PUBLISH = "publish"
"""The activity that runs beside all others."""


class ActivityCounter(Interceptor):
    """Counts the activities that run now, by the run of their workflow."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002  # the name is the interface's
    ) -> ActivityInboundInterceptor:
        return _Counting(next, self.runs)


class _Counting(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, runs: Counter[str]) -> None:
        super().__init__(following)
        self._runs = runs

    async def execute_activity(
        self,
        input: ExecuteActivityInput,  # noqa: A002  # the name is the interface's
    ) -> Any:
        run = activity.info().workflow_run_id or ""
        self._runs[run] += 1
        try:
            return await super().execute_activity(input)
        finally:
            self._runs[run] -= 1


FORGOTTEN: dict[str, tuple[int, ...]] = {}
"""By namespace, the restarts whose outcome is lost."""


@workflow.defn(name=names.RECOVERY)
class ForgetfulRecovery:
    """A Recovery that does its work and, where its scenario says so, loses its outcome."""

    @workflow.run
    async def run(self, plan: Plan) -> Outcome:
        is_reported = plan.n not in FORGOTTEN[workflow.info().namespace]
        with nullcontext() if is_reported else suppress(ApplicationError):
            outcome = await Recovery().run(plan)
            if is_reported:
                return outcome
        raise ApplicationError("nobody is told", non_retryable=True)


class Durable:
    """The driver. Use it as a context: its workers end with it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.backend = BackendWithOperator()
        self.backend.prepare()
        self.running = ActivityCounter()

    async def set_up(self, scenario: Scenario) -> None:
        self.backend.build(FakeSettings(nodes=scenario.nodes, devices=scenario.devices))
        self.scenario = scenario
        self.activities = RecordingActivities(scenario=scenario)
        FORGOTTEN[self.client.namespace] = scenario.forgotten
        self.quarantine = ClosableQuarantine(
            quarantine=TemporalQuarantine(client=self.client, patience=options.QUARANTINE_PATIENCE)
        )

    async def fault(self, line: str) -> None:
        await self.backend.admin.fault(line)

    async def run(self) -> None:
        async with at_work(*self._workers()):
            job = await submit(self.client, self.scenario.document, job_id=JOB)
            with suppress(WorkflowFailureError):  # a failed job; its report is in the memo
                await job.result()
        self.memo = await (await job.describe()).memo()

    def _workers(self) -> tuple[Worker, Worker]:
        patch = LocalActivities().patch
        common: dict[str, Any] = {
            "max_heartbeat_throttle_interval": options.HEARTBEAT_THROTTLE / 10,
            "default_heartbeat_throttle_interval": options.HEARTBEAT_THROTTLE / 10,
        }
        workflow_worker = thinker(
            self.client,
            self.activities.compile,
            self.activities.decide,
            patch,
            workflows=[TrainingJob, NodeQuarantine, ForgetfulRecovery],
            activity_executor=ThreadPoolExecutor(max_workers=1),
        )
        cluster_worker = actor(
            self.client,
            self.backend,
            quarantine=self.quarantine,
            interceptors=[self.running],
            **common,
        )
        return workflow_worker, cluster_worker

    # -- the operator ----------------------------------------------------------------------------

    async def act(self, cue: Cue) -> str:
        if cue.verb == "show":
            return status_line(await self._status())
        if cue.verb == "lose":
            return await self._lose()
        if cue.verb == "quarantine":
            self.quarantine.is_open = cue.name == "back"
            return ""
        if cue.verb == "release":
            quarantine = self.client.get_workflow_handle(names.quarantine_id("local"))
            await quarantine.execute_update("release", {"node": cue.name})
            return ""
        return await self._tell(cue)

    async def _status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = await self.client.get_workflow_handle(JOB).query("status")
        return status

    async def _tell(self, cue: Cue) -> str:
        job = self.client.get_workflow_handle(JOB)
        before = await self._pending()
        try:
            answer = await job.execute_update(cue.name, dict(cue.args))
        except WorkflowUpdateFailedError as error:
            return f"refused: {getattr(error.cause, 'message', error.cause)}"
        if answer["ends_what_is_running"]:
            await until(lambda: self._has_changed(before))
        return ""

    async def _lose(self) -> str:
        recovery = (await self._status())["recovery"]
        if recovery is None:
            return "there is none"
        before = await self._pending()
        handle = self.client.get_workflow_handle(recovery)
        run = (await handle.describe()).run_id
        await handle.terminate()
        await until(lambda: self._has_changed(before))
        await until(lambda: self._is_idle(run))  # its step ends at its next heartbeat
        return "its outcome never arrives"

    async def _is_idle(self, run: str) -> bool:
        return self.running.runs[run] == 0

    async def _has_changed(self, before: object) -> bool:
        return await self._pending() != before

    async def _pending(self) -> object:
        """The pending activities and children of the job: they change when it does something else."""
        description = await self.client.get_workflow_handle(JOB).describe()
        raw = description.raw_description
        children = [child.workflow_id for child in raw.pending_children]
        return (
            description.status is WorkflowExecutionStatus.RUNNING,
            description.run_id,
            tuple(p.activity_id for p in raw.pending_activities if p.activity_type.name != PUBLISH),
            tuple(children),
        )

    # -- afterwards ------------------------------------------------------------------------------

    async def played(self, notes: tuple[Note, ...]) -> Played:
        return Played(
            decisions=tuple(self.activities.decisions),
            restarts=tuple(job_memo.restarts_of(self.memo["report"])),
            status=job_memo.read("status", self.memo["status"], self.memo["report"]),
            report=self.memo["report"],
            effects=await self.backend.admin.effects(),
            notes=notes,
        )

    def has_happened(self, when: When) -> bool:
        state = self.backend.cluster.state
        if when.step is not None:
            return not any((a.job, a.step) == (when.job, when.step) for a in state.awaited)
        seen_last = datetime.fromisoformat(self.memo["status"]["as_of"]).timestamp() - EPOCH
        ended_at = max(seen_last, *(effect.at for effect in state.effects))
        return (when.at_s or 0.0) <= ended_at


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the claim is true. The time-out of the test ends one that never is."""
    while not await claim():
        await asyncio.sleep(POLL_S)
