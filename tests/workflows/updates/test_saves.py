"""A checkpoint on request: an update that answers which step was saved, beside the watch of the job."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.scene import Scene, refusal, tell, until_state
from tests.support.stage import document


def body(name: str, **env: str) -> dict[str, Any]:
    checkpoints = {"path": f"out/{name}/ckpt", "save_signal": "SIGUSR1"}
    env = {"CHECKPOINT_EVERY": "50", "STEPS": "60", **env}
    return document(name, env=env, checkpoints=checkpoints)


async def test_the_answer_names_the_step_and_the_same_request_has_the_same_answer(
    scene: Scene,
) -> None:
    job = await scene.running(body("saving"))
    first, again = [await tell(job, "checkpoint", id="now-1") for _ in range(2)]
    assert first["saved"]
    assert first["text"] == f"step {first['step']} was saved (step-{first['step']})"
    assert 0 < first["step"] < 50
    assert again == first
    messages = [event["message"] for event in await job.query("events")]
    assert messages.count(f"checkpoint requested: {first['text']}") == 2
    assert (await scene.end(job))["status"] == "Completed"


async def test_a_job_that_cannot_save_says_why_and_goes_on(scene: Scene) -> None:
    job = await scene.running(body("deaf", SAVES_ON_SIGNAL="0"))
    answer = await tell(job, "checkpoint")
    assert not answer["saved"]
    assert "ranks 0-3 have no handler for SIGUSR1" in answer["text"]
    await tell(job, "pause")
    await until_state(job, "paused")
    assert "checkpoint: the job is being paused" in await refusal(job, "checkpoint")
    await tell(job, "resume")
    assert (await scene.end(job))["status"] == "Completed"


async def test_a_restart_ends_the_wait(scene: Scene) -> None:
    job = await scene.running(body("waiting"))
    await scene.admin.hold("ensure_save_requested")
    request = asyncio.create_task(tell(job, "checkpoint", within_s=3600))
    await scene.admin.wait_held()
    await scene.admin.fault("kill waiting 2 exit 1")
    answer = await request
    assert not answer["saved"]
    assert answer["text"] == "whether anything was saved is unknown: the job is recovering now"
    await scene.admin.release()
    assert (await scene.end(job))["status"] == "Completed"
