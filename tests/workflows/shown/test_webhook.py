"""A worker with a webhook: the notices of a job, whichever process is killed or hangs on the way."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowFailureError

from tests.support.devserver import DevServer
from tests.support.hook import Hook, hooked
from tests.support.scene import until
from tests.support.stage import Stage, StageOfProcesses, document

LONG = document(env={"STEPS": "100000000"})
WANTS_PREEMPTIONS = {
    "kind": "job",
    "metadata": {"name": "demo", "annotations": {"fault-tolerance/job-retry-num": "8"}},
    "algorithm": {"command": "train", "environments": {"STEPS": "100"}},
    "spec": {"resource": {"node_count": 4}, "notification": {"events": ["JobPreempted"]}},
}


def numbers(hook: Hook) -> dict[str, set[str]]:
    """The identities under which each event was taken."""
    return {
        event: {m["id"] for m in hook.accepted if m["event"] == event} for event in set(hook.events)
    }


def is_timer(event: HistoryEvent) -> bool:
    return event.HasField("timer_started_event_attributes")


def messages(hook: Hook) -> dict[str, str]:
    """The worker's settings of the hook."""
    return {"EVERSTEP_WEBHOOK_URL": hook.url, "EVERSTEP_WEBHOOK_TOKEN": "s3cret"}


def staged(server: DevServer, namespace: str, home: Path, hook: Hook) -> Stage:
    return Stage(server, namespace, home, env=messages(hook))


async def test_a_hook_hears_of_a_life_and_of_its_end_before_that(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with hooked() as hook, staged(server, namespace, tmp_path, hook) as stage:
        await stage.admin.fault("at 30s kill demo 2 exit 1")
        job = await stage.submit(document())
        report = await job.result()
        assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobRestarted", "JobCompleted"]
    assert all(len(ids) == 1 for ids in numbers(hook).values())
    keys = {
        f"demo/{job.first_execution_run_id}/{e['number']}" for e in report["events"] if e["event"]
    }
    assert {message["id"].rpartition("-")[0] for message in hook.accepted} == keys
    assert all("Bearer s3cret" in head for head in hook.heads)


@pytest.mark.long
async def test_who_is_killed_before_the_answer_is_followed_by_one_that_tells_the_same_again(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one kills a worker between the message and its answer."""
    async with (
        hooked() as hook,
        StageOfProcesses(server, namespace, tmp_path, env=messages(hook)) as stage,
    ):
        hook.slow_s = 3.0  # it takes at once and answers too late
        await stage.admin.fault("at 30s kill demo 2 exit 1")
        job = await stage.submit(document())
        await hook.until(lambda h: "JobStarted" in h.events)
        stage.worker.kill9()
        hook.slow_s = 0.0
        await stage.worker.start()
        assert (await job.result())["status"] == "Completed"
        lines = await stage.admin.recorded("demo")
    assert hook.events.count("JobStarted") > 1
    assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobRestarted", "JobCompleted"]
    assert all(len(ids) == 1 for ids in numbers(hook).values())
    assert [line.split()[0] for line in lines] == LINES


LINES = ["generation", "restart", "restart", "generation", "progress:", "phase"]
"""How the lines of run.log begin, of a job with one restart."""


@pytest.mark.long
async def test_a_write_that_hangs_holds_up_nobody_and_loses_nothing(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one holds a line of run.log while messages are sent."""
    async with hooked() as hook, staged(server, namespace, tmp_path, hook) as stage:
        await stage.admin.hold("ensure_recorded", job="demo")
        await stage.admin.fault("at 30s kill demo 2 exit 1")
        job = await stage.submit(document())
        assert (await stage.admin.wait_held()).verb == "ensure_recorded"
        await hook.until(lambda h: "JobRestarted" in h.events)
        assert (await job.result())["status"] == "Completed"
        lines = await stage.admin.recorded("demo")
    assert [line.split()[0] for line in lines] == LINES


async def test_what_was_not_taken_goes_from_run_to_run(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    phases = [{"name": "one"}, {"name": "two", "env": {"STEPS": "100000000"}}]
    async with hooked("fails") as hook, staged(server, namespace, tmp_path, hook) as stage:
        job = await stage.submit(document(phases=phases))
        await until(job, lambda status: bool(status["phase"] == "two"))
        hook.mood = "takes"
        await hook.until(lambda h: "JobStarted" in h.events)
        await stage.client.get_workflow_handle("demo").execute_update("stop", {})
        await stage.client.get_workflow_handle("demo").result()
        lines = await stage.admin.recorded("demo")
    assert {m["run"] for m in hook.accepted} == {job.first_execution_run_id}
    assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobTerminated"]
    begun = [line.split()[0] for line in lines]
    assert (begun[:2], begun[-1]) == (["generation", "phase"], "stopped:")


@pytest.mark.long
async def test_what_a_restart_answers_is_told_while_it_is_under_way(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one reads a message while its restart is held."""
    async with hooked() as hook, staged(server, namespace, tmp_path, hook) as stage:
        await stage.admin.fault("at 30s preempt demo")
        await stage.admin.hold("ensure_generation", nth=2, job="demo")  # the first is the launch's
        job = await stage.submit(WANTS_PREEMPTIONS)
        await stage.admin.wait_held()
        await hook.until(lambda h: "JobPreempted" in h.events)
        await stage.admin.release()
        await job.result()
    assert hook.events == ["JobPreempted"]


@pytest.mark.long
async def test_a_hook_that_hangs_holds_up_nobody_and_hears_it_all_once_it_is_back(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """Only this one has a hook that hangs; in a quick one it fails."""
    async with hooked("hangs") as hook, staged(server, namespace, tmp_path, hook) as stage:
        job = await stage.submit(LONG)
        await hook.until(lambda h: len(h.received) > 0)
        await job.execute_update("restart", {"reason": "a test"})
        await until(job, lambda status: (status["generation"] or 0) >= 2)
        assert hook.accepted == []
        hook.mood = "takes"
        await hook.until(lambda h: "JobRestarted" in h.events)
        await job.execute_update("stop", {"reason": "enough"})
        assert (await job.result())["status"] == "Terminated"
    assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobRestarted", "JobTerminated"]


@pytest.mark.long
async def test_a_job_ends_while_its_hook_is_dead(
    server: DevServer, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The only one that waits as long as a job's last words are tried for."""
    async with hooked("fails") as hook, staged(server, namespace, tmp_path, hook) as stage:
        job = await stage.submit(document())
        report = await job.result()
        assert report["status"] == "Completed"
        assert report["phases"][0]["restarts"] == []
        assert "the webhook takes no notices" in caplog.text
        history = await job.fetch_history()
    waits = [e.timer_started_event_attributes for e in history.events if is_timer(e)]
    assert [wait.start_to_fire_timeout.ToSeconds() for wait in waits] == [5, 10]
    assert hook.received
    assert hook.accepted == []


async def test_a_cancelled_job_tells_its_end(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with hooked() as hook, staged(server, namespace, tmp_path, hook) as stage:
        job = await stage.submit(LONG)
        await hook.until(lambda h: "JobStarted" in h.events)
        await job.cancel()
        with pytest.raises(WorkflowFailureError):
            await job.result()
        lines = await stage.admin.recorded("demo")
    assert hook.events == ["JobStarted", "JobTerminated"]
    assert lines[-1].startswith("stopped: ")


TRIES = 2  # that fail before the worker is killed
SECRET = "a long enough sentence to sign with"


def signature(secret: str, head: str, body: bytes) -> str:
    """What the receiver expects of a request with these headers."""
    lines = dict(line.partition(": ")[::2] for line in head.splitlines()[1:] if line)
    signed = f"{lines['webhook-id']}.{lines['webhook-timestamp']}.".encode() + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    assert lines["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"
    return lines["webhook-id"]


@pytest.mark.long
async def test_an_incident_is_told_once_though_the_hook_fails_and_the_worker_is_killed(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    """No word of the hang itself, no second ID, neither secret nor address in the history.

    Only this one reads signatures that a worker made before and after it was killed.
    """
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "everstep_webhook_secret").write_text(f"{SECRET}\n")
    async with hooked() as hook:
        env = {"EVERSTEP_WEBHOOK_URL": hook.url, "EVERSTEP_SECRETS_DIR": str(secrets)}
        async with StageOfProcesses(server, namespace, tmp_path, env=env) as stage:
            await stage.admin.fault("at 30s hang demo 1")
            job = await stage.submit(document())
            await hook.until(lambda h: "JobStarted" in h.events)
            hook.mood, before = "fails", len(hook.received)
            await hook.until(lambda h: len(h.received) >= before + TRIES)
            stage.worker.kill9()
            hook.mood = "takes"
            await stage.worker.start()
            assert (await job.result())["status"] == "Completed"
            history = (await job.fetch_history()).to_json()
    restarted = [m for m in hook.received if m["event"] == "JobRestarted"]
    assert len(restarted) >= TRIES + 1
    assert {m["incident"]["incident"] for m in restarted} == {1}
    assert restarted[0]["incident"]["class"] == "hang"
    assert [m["event"] for m in hook.accepted] == ["JobStarted", "JobRestarted", "JobCompleted"]
    ids = [signature(SECRET, *sent) for sent in zip(hook.heads, hook.bodies, strict=True)]
    assert len(set(ids)) == 3
    assert SECRET not in history
    assert hook.url not in history
