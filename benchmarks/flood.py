"""The time that a job needs for 10,000 signals in one activation, as after a flood while no worker ran.

The SDK ends an activation after 2 s. The same signals also go to a workflow that ignores them (`Idle`):
that is the SDK's own time. A job and an `Idle` are run once on a real server and a fake cluster; then the
signals are appended to their histories, and the histories are replayed in turns.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client, WorkflowHistory
from temporalio.common import RawValue
from temporalio.worker import (
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from everstep.core.loop import commands
from everstep.plugin import WORKFLOWS
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.devserver import DevServer
from tests.support.floods import Flood
from tests.support.moments import StandingClock
from tests.support.scene import until_state
from tests.support.stage import document

SIGNALS = 9_980
"""The server takes 10,000 of one run; a few are left for what the job sends itself."""
RUNS = 7
GOAL_S = 1.0
"""Half of the time after which the SDK ends an activation."""
FLOODS: Mapping[str, Flood] = {
    "pause, resume": [("pause", {}), ("resume", {})] * (SIGNALS // 2),
    "restart": [("restart", {"reason": "again"})] * SIGNALS,
    "refused": [("resume", {})] * SIGNALS,
    "unknown": [("halt", {})] * SIGNALS,
}


@workflow.defn(name="Idle")
class Idle:
    """Takes the same signals and does nothing."""

    def __init__(self) -> None:
        for name in commands.KEYS:
            workflow.set_signal_handler(name, self._ignore)

    async def _ignore(self, *_arguments: Any) -> None:
        return

    @workflow.signal(dynamic=True)
    async def unknown(self, _name: str, _arguments: Sequence[RawValue]) -> None:
        return

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


class TimedRunner(WorkflowRunner):
    """The runner without a sandbox, which measures the activation with the most jobs."""

    def __init__(self) -> None:
        self._runner = UnsandboxedWorkflowRunner()
        self.jobs, self.cpu_s, self.wall_s = 0, 0.0, 0.0

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self._runner.create_instance(det)
        activate = instance.activate

        def timed(act: WorkflowActivation) -> WorkflowActivationCompletion:
            cpu, wall = time.thread_time(), time.perf_counter()
            completion = activate(act)
            if len(act.jobs) > self.jobs:
                self.jobs = len(act.jobs)
                self.cpu_s, self.wall_s = time.thread_time() - cpu, time.perf_counter() - wall
            return completion

        instance.activate = timed  # type: ignore[method-assign]
        return instance


async def job_history(client: Client) -> WorkflowHistory:
    """The history of a job that trains."""
    backend = FakeBackend(FakeSettings(nodes=6))
    clock = StandingClock(backend)
    async with at_work(thinker(client), actor(client, backend)):
        await clock.hold()
        job = await submit(client, document())
        await clock.pass_to(34)
        await until_state(job, "running")
    return await job.fetch_history()


async def idle_history(client: Client) -> WorkflowHistory:
    idle = await client.start_workflow("Idle", id="idle", task_queue=names.TASK_QUEUE)
    async with at_work(thinker(client, workflows=[Idle])):
        await idle.query("__stack_trace")
    return await idle.fetch_history()


def flooded(history: WorkflowHistory, flood: Flood) -> WorkflowHistory:
    """The history with the signals appended, and a workflow task that begins after the last one."""
    events = list(history.events)
    for name, argument in flood:
        signal = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
        attributes = signal.workflow_execution_signaled_event_attributes
        attributes.signal_name = name
        attributes.input.payloads.extend(DATA_CONVERTER.payload_converter.to_payloads([argument]))
        events.append(signal)
    scheduled = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
    scheduled.workflow_task_scheduled_event_attributes.attempt = 1
    events.append(scheduled)
    begun = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
    begun.workflow_task_started_event_attributes.scheduled_event_id = len(events)
    begun.workflow_task_started_event_attributes.history_size_bytes = SIGNALS * 100
    events.append(begun)
    for number, event in enumerate(events, start=1):
        event.event_id = number
        event.event_time.CopyFrom(events[0].event_time)
    return WorkflowHistory(workflow_id=history.workflow_id, events=events)


async def replayed(history: WorkflowHistory) -> tuple[float, float, int]:
    """Replay once; returns processor seconds, wall seconds and jobs of the largest activation."""
    gc.collect()  # or garbage of the replay before is collected in this one
    runner = TimedRunner()
    replayer = Replayer(
        workflows=[*WORKFLOWS, Idle],
        workflow_runner=runner,
        data_converter=DATA_CONVERTER,
        debug_mode=True,
    )
    await replayer.replay_workflow(history)
    return runner.cpu_s, runner.wall_s, runner.jobs


def line(name: str, times: Sequence[float]) -> str:
    return f"  {name:<28}{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


async def main() -> int:
    async with await DevServer.start() as server:
        client = await server.connect(await server.new_namespace("flood"))
        quiet = {"the job": await job_history(client), "the SDK alone": await idle_history(client)}
    print(f"{SIGNALS} signals in one activation, s, {RUNS} replays, load {os.getloadavg()[0]:.1f}")
    print(f"{'':<32}{'processor':<24}wall")
    most_s = 0.0
    for name, flood in FLOODS.items():
        histories = [flooded(history, flood) for history in quiet.values()]
        times = [[await replayed(history) for history in histories] for _ in range(RUNS)]
        for who, runs in zip(quiet, zip(*times, strict=True), strict=True):
            cpu_s, wall_s, jobs = zip(*runs, strict=True)
            assert min(jobs) >= SIGNALS, jobs
            print(f"  {f'{name}: {who}':<30}{shown(cpu_s):<24}{shown(wall_s)}", flush=True)
            most_s = max(most_s, statistics.median(cpu_s))
    return 0 if most_s <= GOAL_S else 1


def shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
