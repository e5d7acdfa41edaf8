"""What a webhook receives of a job on this machine.

Only `run` as a process starts the worker that needs the webhook's settings.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.hook import hooked
from tests.support.machine import Machine, example


@pytest.mark.long
async def test_run_hands_its_webhook_to_the_worker_and_the_last_event_arrives(
    machine: Machine, tmp_path: Path
) -> None:
    job = example("single", tmp_path / "single", **{'"--steps", "100"': '"--steps", "5"'})
    async with hooked() as hook:
        machine.env.update(EVERSTEP_WEBHOOK_URL=hook.url, EVERSTEP_WEBHOOK_TOKEN="s3cret")
        ended = await asyncio.to_thread(machine.everstep, "run", str(job))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(dict.fromkeys(hook.events)) == ["JobStarted", "JobCompleted"]
    assert {message["job"] for message in hook.accepted} == {"single"}
    assert all("Bearer s3cret" in head for head in hook.heads)
    assert machine.processes() == []
