"""Updates of a running job: applied once, refused with a sentence, harmless when wrong.

The moments are exact: time stands still during an update, and verbs of the cluster are
held while it is in the middle of a restart.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowUpdateStage
from temporalio.common import RawValue
from temporalio.exceptions import CancelledError

from activities.local_activities import LocalActivities
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from tests.support.at_work import actor, at_work, submit, thinker
from tests.support.moments import Event, StandingClock
from tests.support.patience import HUNG_S
from tests.support.rows import recovery, row_of
from tests.support.scene import (
    Scene,
    refusal,
    restarts_of,
    tell,
    unreadable,
    until,
    until_state,
)
from tests.support.stage import document

BUDGETS = {
    "hardware": {"limit": 9, "levels": ["in_place", "pod", "job"], "owners": ["infra"]},
    "any": {"limit": 9, "levels": ["in_place", "pod", "job"]},
}
DEVICE = {"kind": "device.fault", "node": "n1", "device": 0, "code": "80E01801"}


def body(name: str, **spec: Any) -> dict[str, Any]:
    recovery = {"budgets": BUDGETS, **spec.pop("recovery", {})}
    return document(name, env={"STEPS": "60", **spec.pop("env", {})}, recovery=recovery, **spec)


def used(report: dict[str, Any]) -> dict[str, int]:
    return {name: b["used"] for name, b in report["phases"][-1]["budgets"].items()}


# -- Reported faults ----------------------------------------------------------------------------


def quick(row: Any, *long_rows: Any) -> list[Any]:
    """Rows of which the others take their turn with the long tests: what differs is decided in the core."""
    return [row, *(pytest.param(*each, marks=pytest.mark.long) for each in long_rows)]


@pytest.mark.parametrize(
    "fields", quick({"id": "pager-17"}, ({},), ({"at": 1767225634.0},)), ids=str
)
async def test_a_fault_reported_three_times_is_one_incident_and_one_bill(
    scene: Scene, fields: dict[str, Any]
) -> None:
    job = await scene.running(body(f"thrice-{len(fields)}-{'id' in fields}"))
    await asyncio.gather(*(tell(job, "report_fault", **DEVICE, **fields) for _ in range(2)))
    await until_state(job, "recovering")
    await scene.clock.pass_to(50)
    await tell(job, "report_fault", **DEVICE, **fields)
    report = await scene.end(job)

    assert restarts_of(report) == [("device", "in_place", "success")]
    assert used(report) == {"hardware": 1, "any": 1}


async def test_a_restart_that_is_requested_during_one_joins_it(scene: Scene) -> None:
    """Else the ranks that have just begun end once more."""
    job = await scene.running(body("joined"))
    await tell(job, "report_fault", **DEVICE)
    await until_state(job, "recovering")
    answer = await tell(job, "restart", id="a")
    assert answer["joined"] == "restart 1 (in_place)"
    assert (await tell(job, "restart", id="a"))["again"]
    harder = await tell(job, "restart", level="job")
    assert harder["joined"] is None
    report = await scene.end(job)
    assert restarts_of(report) == [
        ("device", "in_place", "success"),
        ("planned", "job", "success"),
    ]


async def test_a_fault_of_a_device_that_its_node_does_not_have_is_refused(scene: Scene) -> None:
    job = await scene.running(body("no-device"))
    why = "report_fault: n1 has no device 8; it has 8"
    refused = await refusal(job, "report_fault", {**DEVICE, "device": 8})
    assert refused.endswith(why)
    await job.signal("report_fault", {**DEVICE, "device": 9})
    await job.signal("report_fault", {**DEVICE, "device": 7})
    await until_state(job, "recovering")
    events = [event["message"] for event in await job.query("events")]
    assert f"the signal report_fault was refused: {why.replace('8', '9', 1)}" in events
    report = await scene.end(job)
    assert [r["fault"]["device"] for r in report["phases"][0]["restarts"]] == [7]


@pytest.mark.long
async def test_a_late_fact_of_an_older_generation_changes_nothing(scene: Scene) -> None:
    """Which facts are late is decided in the core."""
    job = await scene.running(body("late"), faults=["at 35s kill late 2 exit 1"])
    await scene.clock.pass_to(45)
    await until(job, lambda status: bool(status["generation"] == 2))
    before = await scene.admin.effects()
    await scene.admin.fault("fact late process.exited generation=1 slot=2 rank=2 exit_code=1")
    await scene.clock.pass_to(50)
    assert await scene.admin.effects() == before
    report = await scene.end(job)

    assert restarts_of(report) == [("crash", "in_place", "success")]


@pytest.mark.long
async def test_a_report_about_a_node_that_the_job_has_left_is_only_noted(scene: Scene) -> None:
    """Which node the job has left is decided in the core."""
    job = await scene.running(body("left"), faults=["at 35s node-down n2"])
    await scene.clock.pass_to(50)
    await tell(job, "report_fault", kind="node.down", node="n2", id="late")
    report = await scene.end(job)

    assert restarts_of(report) == [("node", "pod", "success")]
    assert used(report) == {"hardware": 1, "any": 1}


# -- In the middle of a restart -----------------------------------------------------------------


@pytest.mark.parametrize("verb", quick("ensure_placed", ("ensure_stopped",), ("ensure_fenced",)))
async def test_a_stop_during_a_recovery_ends_the_job_and_restarts_nothing(
    scene: Scene, verb: str
) -> None:
    """The step under way may still end well; the one after it never begins."""
    name = verb.replace("_", "-")
    job = await scene.running(body(name), faults=["at 35s node-down n2"])
    await scene.held_at(verb)
    before = len(await scene.admin.effects())
    await tell(job, "stop", reason="enough")
    row = await recovery(scene.stage.client, job)
    cancelled = Event(row, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    await cancelled.reached(scene.stage)
    await scene.admin.release()
    report = await scene.end(job)

    assert (report["status"], report["reason"]) == ("Terminated", "enough")
    assert restarts_of(report) == [("node", "pod", "terminated")]
    assert report["phases"][0]["isolated_nodes"] == ["n2"]
    assert "node n2 is isolated: node on n2: n2 is down" in [
        event["message"] for event in report["events"]
    ]
    later = [effect.what for effect in (await scene.admin.effects())[before:]]
    assert not [what for what in later if what.startswith("start")]
    assert await scene.stage.fake.leftovers() == ()
    assert (await job.query("status"))["state"] == "stopped"
    assert await row_of(scene.stage.client, row) == ("CANCELED", "stopped", "cancelled")
    assert await row_of(scene.stage.client, job.id) == ("COMPLETED", "stopped", "terminated")


@pytest.mark.long
async def test_a_call_that_outlives_the_stop_of_its_job_comes_too_late(scene: Scene) -> None:
    """Only this one has a call that goes on after its job has ended."""
    job = await scene.running(body("too-late"), faults=["at 35s node-down n2"])
    await scene.admin.hold("ensure_placed", late=True)
    await scene.clock.let_go()
    await scene.admin.wait_held()
    await tell(job, "stop")
    report = await scene.end(job)
    await scene.admin.release()

    assert (report["status"], restarts_of(report)) == (
        "Terminated",
        [("node", "pod", "terminated")],
    )
    assert await scene.stage.fake.leftovers() == ()


@pytest.mark.long
async def test_a_budget_set_and_a_pause_during_a_recovery_are_carried_out(scene: Scene) -> None:
    """Only this one sends commands that wait for a restart; the quick one stops it."""
    job = await scene.running(body("midway"), faults=["at 35s node-down n2"])
    await scene.held_at("ensure_placed")
    await tell(job, "set_budget", name="any", limit=3)
    await tell(job, "pause", reason="the power goes")
    await scene.admin.release()
    paused = await until_state(job, "paused")
    assert paused["reason"] == "the power goes"
    assert paused["budgets"]["any"] == {"limit": 3, "used": 1}
    await tell(job, "resume")
    report = await scene.end(job)

    assert report["status"] == "Completed"
    assert {(cls, level) for cls, level, _ in restarts_of(report)} == {("node", "pod")}
    assert restarts_of(report)[-1][2] == "success"
    assert used(report) == {"hardware": 1, "any": 1}
    assert report["phases"][0]["budgets"]["any"]["limit"] == 3
    assert report["phases"][0]["isolated_nodes"] == ["n2"]


# -- Pausing ------------------------------------------------------------------------------------


async def test_faults_during_a_pause_are_answered_at_resume(scene: Scene) -> None:
    job = await scene.running(body("pausing"))
    await tell(job, "pause")
    await until_state(job, "paused")
    await scene.admin.fault("node-down n2")
    await tell(job, "report_fault", **DEVICE)
    await scene.clock.pass_to(600)
    assert (await job.query("status"))["state"] == "paused"
    assert await job.query("restarts") == []
    await tell(job, "resume")
    report = await scene.end(job)

    assert report["status"] == "Completed"
    assert restarts_of(report) == [("node", "pod", "success")]
    assert report["phases"][0]["isolated_nodes"] == ["n2"]
    assert used(report) == {"hardware": 1, "any": 1}


@pytest.mark.long
async def test_a_pause_during_the_launch_waits_for_resume(scene: Scene) -> None:
    """Only this one pauses a launch; the quick one pauses a job that runs."""
    await scene.admin.hold("ensure_placed")
    job = await scene.submitted(body("early"))
    await scene.admin.wait_held()
    await tell(job, "pause", reason="not yet")
    await scene.admin.release()
    await until_state(job, "paused")
    await scene.clock.pass_to(100)
    assert (await job.query("status"))["state"] == "paused"
    await tell(job, "resume")
    report = await scene.end(job)

    assert report["status"] == "Completed"


@pytest.mark.long
async def test_a_job_paused_twice_at_once_is_paused_once(scene: Scene) -> None:
    """Only this one pauses a paused job."""
    job = await scene.running(body("twice"))
    await tell(job, "pause")
    assert "paused already" in await refusal(job, "pause", {})
    await until_state(job, "paused")
    await tell(job, "resume")
    report = await scene.end(job)

    assert [cls for cls, _, _ in restarts_of(report)] == ["planned"]


# -- Restarts and changed documents -------------------------------------------------------------


@pytest.mark.parametrize("level", quick("job", ("in_place",), ("pod",)))
async def test_a_restart_is_made_as_asked_and_costs_nothing(scene: Scene, level: str) -> None:
    job = await scene.running(body(f"restart-{level.replace('_', '-')}"))
    await tell(job, "restart", level=level, reason="new firmware")
    await until_state(job, "recovering")
    report = await scene.end(job)

    assert restarts_of(report) == [("planned", level, "success")]
    assert used(report) == {"hardware": 0, "any": 0}
    assert "new firmware" in report["phases"][0]["restarts"][0]["reason"]


async def test_a_hot_update_waits_for_the_next_restart_unless_told_now(scene: Scene) -> None:
    job = await scene.running(body("hot"))
    await tell(job, "hot_update", patch={"env": {"STEPS": "80"}}, by="ada@node")
    assert (await job.query("status"))["generation"] == 1
    await tell(job, "hot_update", patch={"env": {"CHECKPOINT_EVERY": "5"}}, when="now")
    await until_state(job, "recovering")
    report = await scene.end(job)

    assert restarts_of(report) == [("planned", "in_place", "success")]
    assert report["phases"][0]["last_checkpoint_step"] == 80
    job_document = await job.query("document")
    assert job_document["document"]["spec"]["env"]["STEPS"] == "80"
    assert [(each["what"], each["when"], each["by"]) for each in job_document["changes"]] == [
        (["env.STEPS"], "next_restart", "ada@node"),
        (["env.CHECKPOINT_EVERY"], "now", None),
    ]
    note = "the document was changed by ada@node: env.STEPS; it holds from the next restart on"
    assert note in [event["message"] for event in report["events"]]


@pytest.mark.parametrize("nodes", quick(1, (3,), (5,)))
async def test_another_number_of_nodes_now_makes_all_pods_anew(scene: Scene, nodes: int) -> None:
    job = await scene.running(body(f"resized-{nodes}"))
    old = {pod["uid"] for pod in (await job.query("status"))["pods"]}
    await tell(job, "hot_update", patch={"nodes": nodes}, when="now")
    await until_state(job, "recovering")
    assert restarts_of(await scene.end(job)) == [("planned", "job", "success")]
    pods = (await job.query("status"))["pods"]
    assert [pod["state"] for pod in pods] == ["exited"] * nodes + ["absent"] * (4 - nodes)
    assert not old & {pod["uid"] for pod in pods}


class HeldPatch:
    """The first change of a document is held until `go_on`."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    @activity.defn(name="patch")
    def patch(self, document: Any, fragment: dict[str, Any]) -> Any:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(HUNG_S)
        return LocalActivities().patch(document, fragment)


async def test_a_hot_update_waits_for_the_one_before_and_both_are_applied(client: Client) -> None:
    backend, held = FakeBackend(FakeSettings(nodes=6)), HeldPatch()
    other_activities = [each for each in LocalActivities().all() if each.__name__ != "patch"]
    async with at_work(thinker(client, held.patch, *other_activities), actor(client, backend)):
        await StandingClock(backend).hold()
        job = await submit(client, body("both"))
        first = asyncio.ensure_future(tell(job, "hot_update", patch={"env": {"STEPS": "80"}}))
        assert await asyncio.to_thread(held.begun.wait, HUNG_S)
        second = await job.start_update(
            "hot_update",
            {"patch": {"env": {"CHECKPOINT_EVERY": "7"}}},
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
        )
        held.go_on.set()
        await asyncio.wait_for(asyncio.gather(first, second.result()), HUNG_S)
        env = (await job.query("document"))["document"]["spec"]["env"]
        assert (env["STEPS"], env["CHECKPOINT_EVERY"]) == ("80", "7")


WRONG_PATCHES = {
    "nods: unknown key": {"nods": 3},
    "env": {"env": ["A"]},
    "patch.cluster": {"cluster": "east"},
    "patch.phases.0.name": {"phases": [{"name": "new"}]},
    "command": {"command": None},
}


# -- Once and only once -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args"),
    quick(
        ("restart", {"level": "pod"}),
        ("hot_update", {"patch": {"env": {"STEPS": "70"}}, "when": "now"}),
        ("report_fault", DEVICE),
    ),
    ids=str,
)
async def test_a_command_with_an_id_is_applied_once_however_often_it_is_sent(
    scene: Scene, name: str, args: dict[str, Any]
) -> None:
    job = await scene.running(body(f"once-{name.replace('_', '-')}"))
    answers = await asyncio.gather(*(tell(job, name, id="mine", **args) for _ in range(5)))
    assert sorted(answer["again"] for answer in answers) == [False, True, True, True, True]
    await until_state(job, "recovering")
    await scene.clock.pass_to(50)
    assert (await tell(job, name, id="mine", **args))["again"]
    report = await scene.end(job)

    assert len(restarts_of(report)) == 1


# -- Refusals -----------------------------------------------------------------------------------


def raw(text: str) -> RawValue:
    """JSON as the `temporal` CLI sends it, whatever it says."""
    return unreadable(text.encode())


REFUSALS: list[tuple[str, Any, str]] = [
    ("pause", "now", "pause takes one JSON object, not str"),
    ("pause", ["now"], "pause takes one JSON object, not list"),
    ("pause", 7, "pause takes one JSON object, not int"),
    ("pause", {"why": "x"}, "pause: unknown key 'why'; its keys are id, reason"),
    ("pause", {"reason": 3}, "pause: reason may not be 3"),
    ("pause", {"id": 3}, "pause: id may not be 3"),
    ("resume", {}, "the job is not paused"),
    ("stop", {"grace_s": -1}, "stop: grace_s may not be negative"),
    ("stop", raw('{"grace_s": 1e999}'), "stop: grace_s may not be negative, nor more than a day"),
    ("stop", {"reason": "x" * 1_900_000}, "stop: reason has more than 2000 characters (1900000)"),
    ("stop", {"grace_s": "long"}, "stop: grace_s may not be 'long'"),
    ("stop", {"grace_s": True}, "stop: grace_s may not be True"),
    ("restart", {"level": "fail"}, "restart: level is one of in_place, pod, job"),
    ("restart", {"level": ["pod"]}, "restart: level may not be ['pod']"),
    ("report_fault", {}, "report_fault: kind is a dotted word, such as node.down"),
    ("report_fault", {"kind": "down"}, "report_fault: kind is a dotted word, such as node.down"),
    ("report_fault", {"kind": "node.down", "device": "0"}, "report_fault: device may not be '0'"),
    ("report_fault", {"kind": "node.down", "at": "noon"}, "report_fault: at is seconds or a time"),
    (
        "report_fault",
        raw('{"kind": "node.down", "at": 1e999}'),
        "report_fault: at is a time from 1970 to 9999, in seconds, not inf",
    ),
    ("hot_update", {}, "hot_update: patch is a fragment of the document's spec"),
    ("hot_update", {"patch": []}, "hot_update: patch may not be []"),
    *(("hot_update", {"patch": patch, "when": "now"}, key) for key, patch in WRONG_PATCHES.items()),
    (
        "hot_update",
        {"patch": {"nodes": 2}, "when": "later"},
        "hot_update: when is now or next_restart",
    ),
    (
        "set_budget",
        {"name": "none", "limit": 1},
        "set_budget: no budget 'none'; this phase has hardware, any",
    ),
    (
        "set_budget",
        {"name": "any"},
        "set_budget: limit is a whole number from 0 to 1000000, or null for none",
    ),
    ("set_budget", {"name": "any", "limit": -1}, "set_budget: limit is a whole number from 0"),
    ("set_budget", {"name": "any", "limit": 1.5}, "set_budget: limit may not be 1.5"),
    *(
        (name, unreadable(), "the argument is not readable JSON")
        for name in (
            "pause",
            "resume",
            "stop",
            "restart",
            "report_fault",
            "hot_update",
            "set_budget",
        )
    ),
    ("pause", unreadable(b"[" * 10_000), "the argument is not readable JSON"),
    ("pause", unreadable(encoding=b"binary/unheard-of"), "the argument is not readable JSON"),
    ("pause", unreadable(b"\xff\xfe"), "the argument is not readable JSON"),
]


async def test_every_refusal_is_a_sentence_and_harms_nothing(scene: Scene) -> None:
    job = await scene.running(body("refusals"))
    refusals = [(name, arg, await refusal(job, name, arg)) for name, arg, _ in REFUSALS]
    wrong = {
        f"{name} {argument}": f"{sentence} instead of {expected}"
        for (name, argument, sentence), (_, _, expected) in zip(refusals, REFUSALS, strict=True)
        if expected not in sentence
    }
    assert wrong == {}
    patch = {"id": "mine", "patch": {"nods": 3}}
    assert "nods" in await refusal(job, "hot_update", patch)
    answer = await tell(job, "hot_update", id="mine", patch={"env": {"STEPS": "50"}})
    assert answer["again"] is False, "a refused command may be sent again with the same id"
    report = await scene.end(job)

    assert (report["status"], restarts_of(report)) == ("Completed", [])


async def test_what_comes_too_late_is_refused_too(scene: Scene) -> None:
    job = await scene.running(body("ending"))
    await scene.admin.hold("ensure_gone", job="ending")
    await scene.clock.let_go()
    await scene.admin.wait_held()
    for name in ("pause", "resume", "stop", "restart"):
        assert "the job is ending (Completed)" in await refusal(job, name, {})
    await scene.admin.release()
    assert (await scene.end(job))["status"] == "Completed"


# -- Before, during, after ----------------------------------------------------------------------


QUESTIONS: list[list[Any]] = [[], [None], [{}], [{"n": 1}], ["what?"], [unreadable()]]


@pytest.mark.usefixtures("no_other_writer")
async def test_a_job_whose_cluster_nobody_serves_can_be_asked_and_cancelled(scene: Scene) -> None:
    job = await scene.stage.submit(body("nowhere", cluster="nowhere"))
    for argument in QUESTIONS:
        status = await job.query("status", *argument)
        assert (status["id"], status["state"]) == ("nowhere", "pending")
        assert await job.query("restarts", *argument) == []
        explained = await job.query("explain", *argument)
        assert explained["text"].splitlines()[0] == "no restart yet"
    for name in ("report_fault", "hot_update"):
        assert f"{name}: " in await refusal(job, name, {})
    await job.cancel()
    with pytest.raises(WorkflowFailureError) as failed:
        await job.result()
    assert isinstance(failed.value.cause, CancelledError)


async def test_a_job_can_be_asked_at_any_time_with_and_without_an_argument(scene: Scene) -> None:
    job = await scene.running(body("asked"), faults=["at 35s node-down n2"])
    await scene.held_at("ensure_placed")
    states = {(await job.query("status", *q))["state"] for q in QUESTIONS}
    assert states == {"recovering"}
    assert {(await job.query("status"))["recovery"]} == {"asked/main/recovery-1-pod-node-n2"}
    await scene.admin.release()
    await scene.end(job)
    for q in QUESTIONS:
        assert (await job.query("status", *q))["state"] == "completed"
        assert [r["n"] for r in await job.query("restarts", *q)] == [1]
        assert "n2 is down" in (await job.query("explain", *q))["text"]
    assert "no such restart" in (await job.query("explain", {"n": 9}))["text"]
