"""A job for which nothing happens says what it waits for, and can be ended all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from activities import cluster_activities
from activities.cluster_activities import ClusterActivities
from activities.quarantine_client import TemporalQuarantine
from activities.recovery_ids import end_recovery
from everstep.backends.base import NO_FOLDERS
from everstep.backends.fake.backend import Admin, FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.chronicle import shapes
from everstep.core import names
from everstep.core.counting.occurrences import FaultCount
from everstep.core.errors import BackendUnavailable
from everstep.core.loop import lifecycle
from everstep.core.recovering.quarantine import DeviceReport, QuarantineAnswer, Request
from everstep.core.state import JobState
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import GoneState, JobRef, NodeView, Observation, PlaceOrder, PlaceState
from everstep.steps.step_run import QuarantineClient, QuarantineUnreachable
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.scene import restarts_of, until, until_it_waits_for, until_state
from tests.support.stage import Handle, document
from tests.workflows.test_counted_faults import manifest
from workflows import attributes, options

ROUNDED_S = 0.001
"""Times in a report are cut to milliseconds."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the usual pauses between two tries of a call; the fifth try would come after 7.5 s."""
    for call in (options.CALL, options.FIRST_CALL):
        soon = replace(call["retry_policy"], initial_interval=timedelta(milliseconds=100))
        monkeypatch.setitem(call, "retry_policy", soon)


@pytest.mark.usefixtures("no_other_writer")
async def test_a_job_on_a_cluster_without_a_worker_says_so_and_can_be_stopped(
    client: Client,
) -> None:
    async with at_work(thinker(client)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "a worker of cluster local")
        assert (status["state"], status["waiting_reason"]) == ("pending", "NoWorker")
        stopped_from = time.time()
        await job.execute_update("stop", {"reason": "wrong cluster"})
        report = await job.result()
    assert report["status"] == "Terminated"
    assert_ended_after(report, stopped_from)


@pytest.mark.usefixtures("no_other_writer")
async def test_a_job_stopped_while_it_waits_for_nodes_ends_when_it_is_stopped(
    client: Client,
) -> None:
    """Its cluster reports no time while nodes are missing: nothing of the job runs."""
    backend = FakeBackend(FakeSettings(nodes=1))
    await Admin(backend).advance(time.time() - EPOCH)
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document())
        await until_it_waits_for(job, "room for")
        stopped_from = time.time()
        await job.execute_update("stop", {"reason": "too small"})
        report = await job.result()
    assert_ended_after(report, stopped_from)


@pytest.mark.usefixtures("no_other_writer")
async def test_a_launch_that_waits_for_its_checkpoints_is_one_event(client: Client) -> None:
    """As after `submit --again` where the folder is gone: an operator has to bring it back."""
    backend = FakeBackend(FakeSettings(nodes=1))
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document())
        await until_it_waits_for(job, "room for")
        plan = lifecycle.plan_key(await job.query("state", result_type=JobState))
        what = "the checkpoints to be there again: out has none"
        notice = {"plan": plan, "what": what, "reason": "CheckpointsMissing"}
        for _ in range(2):  # by a step that is tried again
            await job.signal("waiting", notice)
            await until_it_waits_for(job, what)
        events = await job.query("events")
        await job.execute_update("stop", {})
        await job.result()
    assert [e["message"] for e in events if e["event"] == "JobWaiting"] == [f"waiting for {what}"]


def assert_ended_after(report: Mapping[str, Any], at: float) -> None:
    """The report and its last event have this time or a later one."""
    times = (report["ended_at"], report["events"][-1]["time"])
    assert min(map(shapes.seconds, times)) >= at - ROUNDED_S


async def test_a_command_sent_before_the_document_is_read_waits_for_it(client: Client) -> None:
    job = await submit(client, document())
    pending = asyncio.ensure_future(job.execute_update("stop", {}))
    async with at_work(thinker(client), actor(client, FakeBackend(FakeSettings(nodes=6)))):
        stopped = await pending
        report = await job.result()
    assert stopped["accepted"]
    assert report["status"] == "Terminated"


async def test_a_command_sent_before_the_document_is_read_is_judged_by_it(
    client: Client,
) -> None:
    job = await submit(client, document())
    pending = asyncio.ensure_future(
        job.execute_update("set_budget", {"name": "no such", "limit": 1})
    )
    async with at_work(thinker(client), actor(client, FakeBackend(FakeSettings(nodes=6)))):
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await pending
        await job.execute_update("stop", {})
        await job.result()
    assert "no such" in str(refused.value.cause)


class Buggy(FakeBackend):
    """A backend with a bug of ours in one verb."""

    is_repaired = False

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        if not self.is_repaired:
            raise KeyError("a bug of ours")
        return await super().ensure_placed(order)


async def test_a_step_that_fails_for_a_bug_of_ours_is_visible_and_goes_on_once_it_is_mended(
    client: Client,
) -> None:
    backend = Buggy(FakeSettings(nodes=6))
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "a bug of ours")
        assert status["waiting_for"].startswith("place, which failed 2 times")
        backend.is_repaired = True
        report = await job.result()
        assert report["status"] == "Completed"
        assert (await job.query("status"))["waiting_for"] is None


class Lingering(FakeBackend):
    """A backend on which something of a job stays for a while."""

    wait: WaitCause | None = None

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        state = await super().ensure_gone(job, grace_s=grace_s)
        return GoneState(done=False, wait=self.wait) if self.wait else state


async def test_a_job_that_ends_shows_what_its_end_waits_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod on a node that is silent, or a quota that leaves no room to release the folders."""
    monkeypatch.setattr(cluster_activities, "END_SHOWN_S", 0.0)
    backend = Lingering(FakeSettings(nodes=6))
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document(env={"STEPS": "100000000"}))
        await until_state(job, "running")
        backend.wait = WaitKind.POD_GONE.of("pod demo-1")
        await job.execute_update("stop", {"reason": "enough", "grace_s": 0})
        await until_it_waits_for(job, backend.wait.sentence)
        backend.wait = WaitKind.NO_RELEASER.of("exceeded quota")
        await until_it_waits_for(job, backend.wait.sentence)
        backend.wait = None
        report = await job.result()
    assert report["status"] == "Terminated"


class Mute(FakeBackend):
    """A backend that cannot be observed."""

    is_broken = False
    error: Exception = KeyError("no such column")  # a bug of ours

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        if self.is_broken and job.id == "demo":
            raise self.error
        return await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)


@pytest.mark.parametrize(
    "error",
    [Mute.error, pytest.param(BackendUnavailable("no such column"), marks=pytest.mark.long)],
)
async def test_a_job_whose_monitor_cannot_report_does_not_say_that_it_runs(
    client: Client, error: Exception
) -> None:
    """The long row has a cluster out of reach instead of a bug."""
    backend = Mute(FakeSettings(nodes=6))
    backend.error = error
    clock = StandingClock(backend)
    async with at_work(thinker(client), actor(client, backend)):
        await clock.hold()
        calls = await backend.admin.calls()
        job = await submit(client, document())
        while (await backend.admin.calls())["ensure_generation"] == calls["ensure_generation"]:
            await asyncio.sleep(0.01)
        await clock.pass_to(34)
        await until_state(job, "running")
        backend.is_broken = True
        await clock.pass_to(35)
        status = await until_it_waits_for(job, "no such column")
        assert status["waiting_for"] == f"monitor, which failed 4 times: {error}"
        assert status["state"] == "unreachable"
        (event,) = [e for e in await job.query("events") if "no such column" in e["message"]]
        assert event["level"] == "Warning"
        backend.is_broken = False
        await until_state(job, "running")
        await clock.let_go()
        assert (await job.result())["status"] == "Completed"


# -- Activities that no worker begins -------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for what may take a minute."""
    soon = timedelta(seconds=0.5)
    monkeypatch.setattr(options, "TAKEN_WITHIN", soon)
    monkeypatch.setitem(options.FIRST_STEP, "schedule_to_start_timeout", soon)


def actor_without(
    client: Client,
    backend: FakeBackend,
    *missing: str,
    quarantine: QuarantineClient | None = None,
    **more: Any,
) -> Worker:
    """A worker of an earlier version, which does not have these activities."""
    shared = quarantine or TemporalQuarantine(client=client, patience=options.QUARANTINE_PATIENCE)
    every = ClusterActivities(backend=backend, quarantine=shared).all()
    return Worker(
        client,
        task_queue=names.cluster_queue("local"),
        activities=[each for each in every if name_of(each) not in missing],
        **more,
    )


def name_of(function: Callable[..., Any]) -> str:
    definition = activity._Definition.from_callable(function)  # no public way to the name
    assert definition is not None
    return definition.name or ""


ENDLESS = {"STEPS": "1000000000", "CHECKPOINT_EVERY": "100000000"}


async def refusals(job: Handle, what: str) -> int:
    return len([event for event in await job.query("events") if what in event["message"]])


async def listed_state(job: Handle) -> str | None:
    """The job's state in the list of the Temporal UI."""
    return (await job.describe()).typed_search_attributes.get(attributes.KEYS["TrainState"])


@pytest.mark.usefixtures("short")
async def test_a_job_whose_monitor_no_worker_takes_does_not_say_that_it_runs(
    client: Client,
) -> None:
    backend = FakeBackend(FakeSettings(nodes=6))
    job = await submit(client, document(env=ENDLESS))
    async with at_work(thinker(client)):
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
        status = await until_it_waits_for(job, "a worker that takes monitor: none did")
        assert status["state"] == "unreachable"
        await until_it_waits_for(job, "a worker that takes look: none did")
        assert await refusals(job, "takes monitor") == await refusals(job, "takes look") == 1
        assert await listed_state(job) == "unreachable"
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
            await job.execute_update("stop", {})
            report = await job.result()
        assert (report["status"], restarts_of(report)) == ("Terminated", [])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("missing", "state"),
    [("place", "launching"), pytest.param("monitor", "unreachable", marks=pytest.mark.long)],
)
async def test_an_activity_that_the_worker_does_not_have_is_shown_and_tried_again(
    client: Client, missing: str, state: str
) -> None:
    """The long row lacks the activity that watches."""
    backend = FakeBackend(FakeSettings(nodes=6))
    job = await submit(client, document(env=ENDLESS))
    async with at_work(thinker(client)):
        async with at_work(actor_without(client, backend, missing)):
            status = await until_it_waits_for(
                job, f"a worker that has {missing}: Activity function"
            )
            assert status["state"] == state
            assert await refusals(job, f"has {missing}") == 1
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
            await job.execute_update("stop", {})
            assert (await job.result())["status"] == "Terminated"


@pytest.mark.long
@pytest.mark.usefixtures("short")
async def test_a_step_of_a_restart_that_no_worker_has_is_shown_by_its_job(client: Client) -> None:
    """Only this one has a worker that lacks a step of a restart; the quick one lacks one of the launch."""
    backend = FakeBackend(FakeSettings(nodes=6))
    job = await submit(client, document(env=ENDLESS))
    async with at_work(thinker(client)):
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
        async with at_work(actor_without(client, backend, "start")):
            await job.execute_update("restart", {})
            status = await until_it_waits_for(job, "a worker that has start")
            assert status["state"] == "recovering"
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
            await job.execute_update("stop", {})
            report = await job.result()
        assert restarts_of(report) == [("planned", "in_place", "success")]


HBM = "80E01801"


def counted() -> dict[str, Any]:
    """An AscendJob whose device faults the quarantine counts."""
    body = manifest("demo")
    for pod in body["spec"]["replicaSpecs"].values():
        (container,) = pod["template"]["spec"]["containers"]
        container["env"] = [{"name": key, "value": value} for key, value in ENDLESS.items()]
    return body


@pytest.mark.long
@pytest.mark.parametrize(
    "missing",
    [pytest.param((), id="takes"), pytest.param(("count_faults",), id="has")],
)
async def test_device_faults_that_no_worker_counts_are_shown_until_one_does(
    client: Client, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    """One row has no worker at all for what is to be counted.

    Only these have faults that no worker counts; the quick ones have other activities without a worker.
    """
    monkeypatch.setitem(options.FIRST_CALL, "schedule_to_start_timeout", timedelta(seconds=0.5))
    backend = FakeBackend(FakeSettings(nodes=6))
    clock = StandingClock(backend)
    job = await submit(client, counted())
    async with at_work(actor(client, backend)):
        is_watched = False
        while not is_watched:  # by a watch that has nothing else to report
            async with at_work(thinker(client)):
                await until(job, lambda status: status["step"] is not None)
                await clock.hold()
                while not await pending(job, "monitor"):
                    await asyncio.sleep(0.01)
            is_watched = await beats_again(job, "monitor")
        await backend.admin.fault(f"device n1 1 {HBM}")
        await clock.let_go()
        while await pending(job, "monitor"):
            await asyncio.sleep(0.01)
    async with at_work(thinker(client)):
        async with AsyncExitStack() as stack:
            if missing:
                worker = actor_without(client, backend, *missing)
                await stack.enter_async_context(at_work(worker))
            why = f"{'has' if missing else 'takes'} count_faults"
            status = await until_it_waits_for(job, f"a worker that {why}")
            assert (status["state"], await listed_state(job)) == ("recovering", "recovering")
            assert await refusals(job, why) == 1
        async with at_work(actor(client, backend)):
            await until_state(job, "running")
            await job.execute_update("stop", {})
            assert (await job.result())["status"] == "Terminated"


async def pending(job: Handle, name: str) -> bool:
    """Whether an activity of this name has not been completed."""
    return await newest_beat(job, name) is not None


async def beats_again(job: Handle, name: str) -> bool:
    """Whether the activity sends one more heartbeat; one that has returned sends none."""
    before = beat = await newest_beat(job, name)
    while beat is not None and beat == before:
        await asyncio.sleep(0.01)
        beat = await newest_beat(job, name)
    return beat is not None


async def newest_beat(job: Handle, name: str) -> int | None:
    """When the pending activity sent its newest heartbeat, in ns; 0: never; None: it is not pending."""
    described = (await job.describe()).raw_description.pending_activities
    beats = (one.last_heartbeat_time for one in described if one.activity_type.name == name)
    return next((beat.ToNanoseconds() for beat in beats), None)


class Forgetful(FakeBackend):
    """A backend with a bug of ours in one verb."""

    is_repaired = False

    async def nodes(self, job: JobRef | None = None) -> tuple[NodeView, ...]:
        if not self.is_repaired:
            raise KeyError("no such table")
        return await super().nodes(job)


@pytest.mark.long
async def test_device_faults_that_cannot_be_counted_are_shown_until_they_can(
    client: Client,
) -> None:
    """Only this one has a count that fails; the quick ones have a step and a monitor that fail."""
    backend = Forgetful(FakeSettings(nodes=6))
    await backend.admin.fault(f"at 35s device n1 1 {HBM}")
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, counted())
        status = await until_it_waits_for(job, "no such table")
        assert status["waiting_for"].startswith("count_faults, which failed 4 times")
        assert await refusals(job, "no such table") == 1
        backend.is_repaired = True
        await until_state(job, "running")
        await job.execute_update("stop", {})
        assert (await job.result())["status"] == "Terminated"


async def test_a_job_ends_in_order_while_its_device_faults_cannot_be_counted(
    client: Client,
) -> None:
    backend = Forgetful(FakeSettings(nodes=6))
    await backend.admin.fault(f"at 35s device n1 1 {HBM}")
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, counted())
        await until_it_waits_for(job, "no such table")
        await job.execute_update("stop", {})
        assert (await asyncio.wait_for(job.result(), HUNG_S))["status"] == "Terminated"


class Silent:
    """A quarantine that answers nothing; what a job leaves with it gets lost until it is repaired."""

    is_repaired = False

    async def isolate(self, _cluster: str, _request: Request) -> QuarantineAnswer:
        raise QuarantineUnreachable

    async def note_faults(self, _cluster: str, _report: DeviceReport) -> tuple[FaultCount, ...]:
        raise QuarantineUnreachable

    async def hand_over(self, _cluster: str, _request: Request) -> None:
        if not self.is_repaired:
            raise ConnectionError("no way to the quarantine")


@pytest.mark.long
async def test_isolations_that_cannot_be_handed_over_are_shown_by_the_job_that_ends(
    client: Client,
) -> None:
    """Only this one has isolations whose handing over fails."""
    backend, quarantine = FakeBackend(FakeSettings(nodes=6)), Silent()
    await backend.admin.fault("at 35s node-down n2")
    async with at_work(thinker(client), actor(client, backend, quarantine=quarantine)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "no way to the quarantine")
        assert status["waiting_for"].startswith("hand_over, which failed 4 times")
        assert status["state"] == "stopping"
        assert await refusals(job, "no way to the quarantine") == 1
        quarantine.is_repaired = True
        assert (await job.result())["status"] == "Completed"


@pytest.mark.long
async def test_isolations_that_no_worker_hands_over_are_shown_by_the_job_that_ends(
    client: Client,
) -> None:
    """Only this one has a worker without the activity that hands over."""
    backend, quarantine = FakeBackend(FakeSettings(nodes=6)), Silent()
    quarantine.is_repaired = True
    await backend.admin.fault("at 35s node-down n2")
    async with at_work(thinker(client)):
        async with at_work(actor_without(client, backend, "hand_over", quarantine=quarantine)):
            job = await submit(client, document())
            status = await until_it_waits_for(job, "a worker that has hand_over")
            assert (status["state"], await listed_state(job)) == ("stopping", "stopping")
            assert await refusals(job, "has hand_over") == 1
        async with at_work(actor(client, backend, quarantine=quarantine)):
            assert (await job.result())["status"] == "Completed"


class Unsound(FakeBackend):
    """A backend with a bug of ours in two verbs that are no steps."""

    is_repaired = True

    async def clock(self) -> float:
        self._fail_unless_repaired()
        return await super().clock()

    async def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        self._fail_unless_repaired()
        return await super().ensure_adopted(job, generation=generation, folders=folders)

    def _fail_unless_repaired(self) -> None:
        if not self.is_repaired:
            raise KeyError("no such key")


@pytest.mark.long
async def test_a_cluster_whose_time_cannot_be_read_is_shown_until_it_can(client: Client) -> None:
    """Only this one has a cluster without a clock."""
    backend = Unsound(FakeSettings(nodes=6))
    backend.is_repaired = False
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, document())
        status = await until_it_waits_for(job, "no such key")
        assert status["waiting_for"].startswith("reach, which failed 4 times")
        assert status["state"] == "pending"
        assert await refusals(job, "no such key") == 1
        backend.is_repaired = True
        assert (await job.result())["status"] == "Completed"
        assert (await job.query("status"))["waiting_for"] is None


async def test_an_adoption_that_fails_is_shown_until_it_does_not(client: Client) -> None:
    backend = Unsound(FakeSettings(nodes=6))
    clock = StandingClock(backend)
    async with at_work(thinker(client), actor(client, backend)):
        job = await submit(client, counted())
        await until_state(job, "running")
        await clock.hold()  # what a monitor reports would be news of the job, and end the wait
        backend.is_repaired = False
        adoption = asyncio.ensure_future(job.execute_update("adopt", {}))
        status = await until_it_waits_for(job, "no such key")
        assert status["waiting_for"].startswith("adopt, which failed 4 times")
        assert await refusals(job, "no such key") == 1
        backend.is_repaired = True
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await adoption
        assert "nothing to adopt" in str(refused.value.cause)
        await until_state(job, "running")
        await clock.let_go()
        await job.execute_update("stop", {})
        assert (await job.result())["status"] == "Terminated"


class ServerWithoutAnswers:
    """A client whose requests fail, but for signals."""

    def __init__(self) -> None:
        self.signals: list[tuple[str, Mapping[str, Any]]] = []

    def get_workflow_handle(self, workflow_id: str) -> Any:
        async def describe() -> None:
            raise RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")

        async def signal(_name: str, notice: Mapping[str, Any], **_options: Any) -> None:
            self.signals.append((workflow_id, notice))

        return SimpleNamespace(describe=describe, signal=signal)


FAILED = "end_recovery, which failed"


async def test_the_id_of_a_restart_that_cannot_be_freed_is_shown() -> None:
    """The activity runs by itself: no real server refuses this request alone."""
    client = ServerWithoutAnswers()
    attempts = ActivityEnvironment(client=cast("Client", client))
    for attempt in range(1, 6):
        attempts.info = replace(attempts.info, attempt=attempt)
        with pytest.raises(RPCError):
            await attempts.run(end_recovery, "demo/main/recovery-1", "demo", "the plan")
    assert client.signals == [
        (
            "demo",
            {
                "plan": "the plan",
                "what": f"{FAILED} {n} times: no answer",
                "reason": "ActivityFailing",
                "since": None,
                "until": None,
                "is_refusal": n == 4,
            },
        )
        for n in (2, 4)
    ]
