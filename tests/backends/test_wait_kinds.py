"""Every kind of wait comes from the code that waits, with its sentence and its reason."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import TypeAdapter
from temporalio.testing import ActivityEnvironment

from activities.visibility import visible
from everstep.backends.agents import job_end, releasing
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.base import Backend
from everstep.backends.kubernetes import pod_facts
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.backend import KubernetesBackend
from everstep.backends.kubernetes.books import PodEntry
from everstep.backends.kubernetes.manifest import KUEUE_GROUP, KUEUE_QUEUE, KUEUE_SIZE
from everstep.backends.kubernetes.placing.place_state import place_state
from everstep.backends.rules import fencing, placing
from everstep.chronicle import views
from everstep.core.deciding.decision import DeviceRef, StepOrder
from everstep.core.errors import BackendUnavailable, NoAgentAvailable, WrongCluster
from everstep.core.levels import FaultClass, Step
from everstep.core.loop import lifecycle
from everstep.core.loop.next_actions import PlanEnded
from everstep.core.recovering import recovery
from everstep.core.state import Wait
from everstep.core.waits import WaitCause, WaitKind, WaitReason, known_reason
from everstep.core.world import (
    CheckpointListing,
    FenceState,
    GoneState,
    HealState,
    JobRef,
    Observation,
    PrecheckState,
    StartState,
)
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.backends.objects_in_memory import (
    JOB,
    ObjectsInMemory,
    Request,
    launched,
    order_of,
    refused,
)
from tests.backends.test_releaser import COMMAND, after_the_last_pod
from tests.backends.test_rules import FENCE, OLD, asking, node, order, with_device
from tests.support.builders import ScriptedJob, fact, job_spec, outcome, running, sighting
from tests.support.builders import pod as pod_view

Produced = WaitCause | Wait | None
RECORDS = Path(__file__).parents[2] / "docs" / "records.md"

# -- The whole job --------------------------------------------------------------------------------


@dataclass
class SignalledJob:
    """A client and a handle that keep the newest signal."""

    notice: dict[str, Any] = field(default_factory=dict)

    def get_workflow_handle(self, _job: str) -> SignalledJob:
        return self

    async def signal(self, _name: str, notice: dict[str, Any], **_options: Any) -> None:
        self.notice = notice


async def failing(error: Exception) -> Wait:
    """What an activity reports that failed for the second time."""

    async def work() -> None:
        async with visible("place", "demo", "plan"):
            raise error

    job = SignalledJob()
    environment = ActivityEnvironment(client=cast("Any", job))
    environment.info = replace(environment.info, attempt=2)
    with pytest.raises(Exception, match=re.escape(str(error))):
        await environment.run(work)
    return Wait(what=job.notice["what"], reason=known_reason(job.notice["reason"]))


def of_a_pause() -> Wait | None:
    job = running()
    job.command("pause")
    job.interrupted()
    cause = fact("agent.unreachable", slot=1, message="slot 1 is silent")
    job._advance(PlanEnded(outcome=outcome(job.plan, "failed", Step.STOP, cause)))
    return job.state.waiting


def of_silence() -> Wait | None:
    job = running()
    job.see(sighting(FaultClass.UNREACHABLE))
    return job.state.waiting


# -- Steps ----------------------------------------------------------------------------------------


class Reported(Exception):
    """The step has reported its wait, and that is all."""


@dataclass
class SlowCluster:
    """A cluster that is ready with nothing, or with all but the last of a step's verbs."""

    listed: Exception | None = None

    async def clock(self) -> float:
        return 1_000.0

    async def observe(self, _job: Any, **_details: Any) -> Observation:
        pods = (pod_view(0), pod_view(1))
        return Observation(now=2_000.0, cursor="c", generation=2, pods=pods)

    async def check_storage(self, _job: Any) -> str:
        return "read-only"

    async def ensure_healed(self, *_order: Any, **_details: Any) -> HealState:
        return HealState(state="healing", began_at=2_000.0)

    async def ensure_prechecked(self, _order: Any) -> PrecheckState:
        return PrecheckState(done=False)

    async def ensure_started(self, _order: Any) -> StartState:
        return StartState(pending=(0,))

    async def ensure_fenced(self, _order: Any) -> FenceState:
        listing = None if self.listed else CheckpointListing(checkpoints=(), set_aside=())
        return FenceState(done=True, listing=listing, has_saved_before=True)

    async def checkpoints(self, _job: Any) -> tuple[()]:
        raise self.listed or AssertionError("the listing came with the fence")


async def of_step(
    step: Step, *, is_launch: bool = False, listed: Exception | None = None
) -> Wait | None:
    job = ScriptedJob(spec=job_spec()) if is_launch else running()
    if not is_launch:
        job.see(sighting(FaultClass.CRASH))
    started = recovery.next_step(recovery.begin(job.plan))
    assert isinstance(started, StepOrder)
    remedy = replace(started.plan.remedy, heal=(DeviceRef(node="n0", device=1),))
    limits = replace(started.plan.phase.limits, start_s=10_000.0, requeue_s=10_000.0)
    plan = replace(started.plan, remedy=remedy, phase=replace(started.plan.phase, limits=limits))
    reported = list[Wait]()

    async def send_wait(wait: Wait | None) -> None:
        if wait is not None:
            reported.append(wait)
            raise Reported

    context = StepContext(
        backend=cast("Backend", SlowCluster(listed)),
        quarantine=QuarantineInMemory(),
        send_wait=send_wait,
    )
    with pytest.raises(Reported):
        await perform(context, replace(started, step=step, plan=plan, since=1_000.0, active=(0, 1)))
    return reported[0]


# -- Ends -----------------------------------------------------------------------------------------

POD = Pod(uid="u0", job="demo", slot=0, node="n0", generation=1)


async def of_end(*, is_begun_again: bool = False) -> WaitCause | None:
    """The end of a job whose ranks are about to end, or of which a generation was begun meanwhile."""
    books = SimpleNamespace(
        record=JobRecord(id="demo", newest=1, folders=("/f",)),
        refuse_others=lambda _ref: None,
        refuse_unknown=lambda _generation: None,
        pods=lambda: [] if is_begun_again else [POD],
        leaving=list,
        identity="books",
    )

    async def change(_job: str, work: Callable[[Any], Any]) -> Any:
        answer = work(books)
        if is_begun_again:
            books.record = replace(books.record, newest=2)
        return answer

    async def never() -> Any:
        raise AssertionError("the pods are not removed yet")

    books.change = change
    cluster = cast("Any", SimpleNamespace(books=books))
    state: GoneState = await job_end.ensure_gone(
        cluster,
        JobRef(id="demo", run="r1"),
        grace_s=1.0,
        remove_pods=never,
        release_folders=lambda _end: never(),
    )
    return state.wait


async def of_ranks_that_end(monkeypatch: pytest.MonkeyPatch) -> WaitCause | None:
    async def ending(*_order: Any, **_details: Any) -> Pod:
        return POD

    monkeypatch.setattr(releasing, "release", ending)
    return await of_end()


def of_held_pod() -> WaitCause:
    watch = SimpleNamespace(pod=lambda _uid: pod(deleted=True))
    backend = SimpleNamespace(watch=watch, _has_ended=lambda _entry: True)
    return KubernetesBackend._left_of(cast("KubernetesBackend", backend), ENTRY)


# -- Kubernetes -----------------------------------------------------------------------------------

ENTRY = PodEntry(name="train-0-g1", slot=0, generation=1, uid="u0")
GROUP_LABELS = {KUEUE_GROUP: "train-g1"}


def pod(*, node_name: str = "", deleted: bool = False, **status: Any) -> Json:
    metadata: dict[str, Any] = {"name": "train-0-g1", "labels": GROUP_LABELS}
    metadata["annotations"] = {KUEUE_SIZE: "2"}
    if deleted:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["other/holds"]}
    return {"metadata": metadata, "spec": {"nodeName": node_name}, "status": status}


def unscheduled(reason: str, message: str = "no room") -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(conditions=[condition])


def of_pod(there: Json | None, **entry: Any) -> WaitCause | None:
    return of_pods(there, **entry)


def of_pods(
    *there: Json | None, problem: WaitCause | None = None, **entry: Any
) -> WaitCause | None:
    """What the placement of a pod for each slot waits for, beside the `problem` of their group."""
    watch = SimpleNamespace(pod=lambda uid: there[int(uid[1:])])
    agents = SimpleNamespace(by_uid={})
    entries = {slot: replace(ENTRY, uid=f"u{slot}", **entry) for slot in range(len(there))}
    return place_state(
        [*entries], entries, watch=cast("Any", watch), agents=cast("Any", agents), refusal=problem
    ).wait


async def of_refused_pod(message: str) -> WaitCause | None:
    api = ObjectsInMemory()
    placer = await launched(api)

    def refuse(request: Request) -> None:
        if request.method == "POST" and request.path.endswith("/pods"):
            raise refused(403, message, "Forbidden")

    api.before = refuse
    state, _ = await placer.ensure_placed(order_of(0))
    return state.wait


async def of_group() -> WaitCause | None:
    api = ObjectsInMemory()
    placer = await launched(api)
    await placer.ensure_placed(order_of(0, 1))
    for group in api.of("podgroups").values():
        condition = {"type": "PodGroupInitiallyScheduled", "status": "False"}
        group["status"] = {"conditions": [{**condition, "message": "2 pods, 1 node"}]}
    state, _ = await placer.ensure_placed(order_of(0, 1))
    return state.wait


async def of_queue() -> WaitCause | None:
    placer = await launched(ObjectsInMemory())
    template = {"metadata": {"labels": {KUEUE_QUEUE: "team"}}}
    placement = replace(order_of(0), pod_template=template)
    await placer.ensure_placed(order_of(0))
    stored = await placer.books.read(JOB.id)
    watch = cast("Any", SimpleNamespace(pod=lambda _uid: unscheduled("SchedulingGated")))
    return await replace(placer.queues, watch=watch).problem(placement, stored)


async def of_releaser(message: str = "", *, calls: int = 1) -> WaitCause | None:
    api = ObjectsInMemory()
    releaser = await after_the_last_pod(api)

    def refuse(request: Request) -> None:
        if message and request.method == "POST" and request.path.endswith("/pods"):
            raise refused(403, message, "Forbidden")

    api.before = refuse
    answers = [await releaser.release(COMMAND) for _ in range(calls)]
    return answers[-1]


QUOTA = "exceeded quota: few"
NO_RIGHT = "cannot create resource"
ISOLATED = node("n0", isolated=True)
BROKEN = with_device("n0", health="faulty")
BROKEN_AND_ISOLATED = with_device("n0", health="faulty", isolated="a person")
TWO_DEVICES = order((0,), accelerators_per_node=2)
AHEAD = asking(order(job=JobRef(id="another", run="r1")), node("n0"), node("n1"))

Producer = Callable[[], Produced | Awaitable[Produced]]
PRODUCERS: Mapping[WaitKind, Producer] = {
    WaitKind.WORKER: lambda: lifecycle.opened(JobRef(id="demo", run="r"), job_spec()).waiting,
    WaitKind.FAILING: lambda: failing(BackendUnavailable("no way")),
    WaitKind.BOOKS: lambda: failing(WrongCluster.strange("demo")),
    WaitKind.ANSWERS: of_silence,
    WaitKind.STOP: of_a_pause,
    WaitKind.TURN: lambda: (
        replace(asking(order((0,)), node("n0")), claims=(AHEAD,)).waiting_state().wait
    ),
    WaitKind.ROOM: lambda: asking(order((0,)), node("n0", slots_free=0)).waiting_state().wait,
    WaitKind.ISOLATED_ROOM: lambda: asking(order((0,)), ISOLATED).waiting_state().wait,
    WaitKind.NEVER_FITS: lambda: asking(order((0, 1)), node("n0")).waiting_state().wait,
    WaitKind.DEVICE: lambda: asking(TWO_DEVICES, BROKEN).waiting_state().wait,
    WaitKind.ISOLATED_DEVICE: lambda: asking(TWO_DEVICES, BROKEN_AND_ISOLATED).waiting_state().wait,
    WaitKind.POD_READY: lambda: placing.standby_state([], ["u0 on n0"], {}).wait,
    WaitKind.POD_GONE: lambda: (
        asking(order((0,)), node("n0"), node("n1"), leaving=(OLD,)).waiting_state().wait
    ),
    WaitKind.QUEUED: of_queue,
    WaitKind.PLACE_IN_GROUP: lambda: of_pod(None, joins="train-g1"),
    WaitKind.QUOTA: lambda: of_refused_pod(QUOTA),
    WaitKind.REFUSED: lambda: of_refused_pod(NO_RIGHT),
    WaitKind.GROUP: of_group,
    WaitKind.NEW_POD: lambda: of_pod(None),
    WaitKind.SCHEDULER: lambda: of_pod(pod()),
    WaitKind.AGENT: lambda: of_pod(pod(node_name="n0")),
    WaitKind.UNSCHEDULED: lambda: of_pod(unscheduled("Unschedulable")),
    WaitKind.GATED: lambda: of_pod(unscheduled("SchedulingGated")),
    WaitKind.FITS: lambda: of_pod(unscheduled("Schedulable")),
    WaitKind.POD_FAILED: lambda: of_pod(pod(phase="Failed")),
    WaitKind.POD_FAILING: lambda: of_pod(None, failures=2, failure="exit code 1"),
    WaitKind.POD_HELD: lambda: of_pod(pod(deleted=True)),
    WaitKind.HELD_POD_GONE: of_held_pod,
    WaitKind.NEW_GENERATION: lambda: of_end(is_begun_again=True),
    WaitKind.RELEASE: of_releaser,
    WaitKind.RELEASER: lambda: of_releaser(calls=2),
    WaitKind.NO_RELEASER: lambda: of_releaser(NO_RIGHT),
    WaitKind.NO_RELEASER_QUOTA: lambda: of_releaser(QUOTA),
    WaitKind.FENCE: lambda: fencing.to_be_written(FENCE).wait,
    WaitKind.PROOF: lambda: (
        fencing.state(["u0"], may_have_unknown_pods=False, holds_at=9.0, now=1.0).wait
    ),
    WaitKind.UNKNOWN_PODS: lambda: (
        fencing.state([], may_have_unknown_pods=True, holds_at=9.0, now=1.0).wait
    ),
    WaitKind.STORAGE: lambda: FenceState.refused("read-only").wait,
    WaitKind.WRITABLE: lambda: of_step(Step.WRITABLE),
    WaitKind.CHECKPOINTS: lambda: of_step(Step.RESUME),
    WaitKind.CHECKPOINTS_AT_LAUNCH: lambda: of_step(Step.RESUME, is_launch=True),
    WaitKind.LISTING: lambda: of_step(Step.RESUME, listed=NoAgentAvailable("no agent answers")),
    WaitKind.HEAL: lambda: of_step(Step.HEAL),
    WaitKind.PRECHECK: lambda: of_step(Step.PRECHECK),
    WaitKind.START: lambda: of_step(Step.START),
}


@pytest.mark.parametrize("kind", WaitKind)
async def test_each_kind_of_wait_comes_from_the_code_that_waits(
    kind: WaitKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is WaitKind.RANKS_END:
        wait: Any = await of_ranks_that_end(monkeypatch)
    else:
        wait = PRODUCERS[kind]()
        wait = await wait if isinstance(wait, Awaitable) else wait
    assert wait is not None
    sentence = wait.what if isinstance(wait, Wait) else wait.sentence
    pattern = "(.*)".join(map(re.escape, kind.template.split("{}")))
    assert re.fullmatch(pattern, sentence), sentence
    assert wait.reason == kind.reason
    assert isinstance(wait, Wait) or wait.kind is kind


TOO_FEW = "whatever a scheduler writes of four that are three"


@pytest.mark.parametrize("reason", ["Schedulable", "Undetermined"])
def test_of_a_gang_of_volcano_the_pod_without_a_place_comes_first(reason: str) -> None:
    fits, lacks = unscheduled(reason, TOO_FEW), unscheduled("Unschedulable")
    wait = of_pods(fits, fits, lacks)
    assert wait == WaitKind.UNSCHEDULED.of("train-0-g1", "no room")
    assert of_pods(fits, fits) == WaitKind.FITS.of("train-0-g1", TOO_FEW)


def test_of_a_gang_of_kubernetes_the_pod_comes_first_that_has_more_to_say_than_its_group() -> None:
    """Its scheduler repeats the message of the group in those of the pods that would fit."""
    group, words = WaitKind.GROUP.of(TOO_FEW), f"not now, {TOO_FEW}"
    fits, lacks = unscheduled("Unschedulable", words), unscheduled("Unschedulable")
    assert of_pods(fits, lacks, problem=group) == WaitKind.UNSCHEDULED.of("train-0-g1", "no room")
    assert of_pods(fits, fits, problem=group) == group


def test_a_group_may_have_more_to_say_than_its_pods_that_would_fit() -> None:
    """Words of a kube-scheduler, which tries to make room for the group after it wrote to the pods."""
    too_few = "minCount (2) cannot be satisfied: 0 scheduled, 1 remaining"
    group = WaitKind.GROUP.of(f"{too_few}, pod group preemption: No preemption victims found")
    fits, lacks = unscheduled("Unschedulable", too_few), unscheduled("Unschedulable")
    wait = of_pods(fits, lacks, problem=group)
    assert wait == WaitKind.UNSCHEDULED.of("train-0-g1", "no room")


def test_each_reason_is_explained_once() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", RECORDS.read_text(), re.MULTILINE)
    assert [row for row in rows if row in [*WaitReason]] == sorted(WaitReason)
    assert {kind.reason for kind in WaitKind} == {*WaitReason}


def test_a_reason_of_a_later_version_is_left_out() -> None:
    assert [known_reason(text) for text in ("Queue", "LaterReason", None)] == ["Queue", "", ""]


def test_waits_that_an_earlier_version_stored_are_read_and_have_no_reason() -> None:
    job = running()
    before = TypeAdapter(Wait).validate_json('{"what": "1 more node", "since": 7.0, "until": null}')
    status = views.status(replace(job.state, waiting=before))
    assert (status["waiting_for"], status["waiting_reason"]) == ("1 more node", None)
    ended = TypeAdapter(GoneState).validate_json('{"done": true, "waiting_for": ""}')
    assert ended == GoneState(done=True)


def test_the_words_of_the_cluster_stay_as_they_are() -> None:
    """Also with the signs that a template has."""
    wait = pod_facts.wait_of(pod(phase="Failed", message="{oops} {0}"))
    assert wait is not None
    assert wait.sentence == "pod train-0-g1: {oops} {0}"
