"""A job that is adopted on the machine where processes of its earlier books still live."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.processes import members, proc
from everstep.agent.storage import fence
from everstep.backends.local.reconciling import adopting
from everstep.backends.local.reconciling.liveness import agent_of
from everstep.core.errors import CommandRejected
from tests.agent.pod import is_running, until
from tests.backends.lab import Run, uids_of
from tests.backends.local_lab import SHORT_FENCE_S, LocalLab
from tests.backends.verbs import NEVER_ENDS
from tests.support.marks import marked


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """Where the kernel gives pods no PID namespace."""
    (tmp_path / "bare").mkdir()
    lab = await LocalLab.open(tmp_path / "bare", has_namespace=False)
    yield lab
    await lab.end()


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[LocalLab]:
    """The books that adopt."""
    lab = await LocalLab.open(tmp_path / "other", fence_s=SHORT_FENCE_S)
    yield lab
    await lab.end()


async def begun(lab: LocalLab, *command: str, name: str = "demo") -> Run:
    """A job of one slot that runs without end; `command` instead of the usual trainer."""
    job = Run(lab, id=name, slots=(0,), env=NEVER_ENDS)
    await job.new_generation("launch")
    await job.stop()
    await job.place()
    await job.fence()
    await job.start(command=command or lab.command)
    job.books = await lab.backend.identity()
    return job


async def processes_of(lab: LocalLab, job: Run) -> list[int]:
    """The agent of the job and everything below it."""
    (uid,) = uids_of(await job.observe_now()).values()
    agent = agent_of(lab.backend.settings.folder(uid).path)
    assert agent is not None
    return [agent.pid, *proc.below(agent.pid, proc.all_processes())]


async def adopted(other: LocalLab, job: Run, *folders: str) -> str:
    folder_names = dict.fromkeys(folders or (job.model_dir,), "model_dir")
    return await other.backend.ensure_adopted(
        job.ref, generation=job.generation, folders=folder_names
    )


async def test_stopped_processes_of_the_earlier_books_are_ended(
    local_lab: LocalLab, other: LocalLab
) -> None:
    """No fence reaches them: agent, warden and rank sleep together and may continue at any time."""
    job, bystander = await begun(local_lab), await begun(local_lab, name="demo-0")
    asleep, other_pids = (
        await processes_of(local_lab, job),
        await processes_of(local_lab, bystander),
    )
    assert len(asleep) >= 3, "an agent, a warden, a rank"
    await local_lab.leave()
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    assert await adopted(other, job) == await other.backend.identity()
    assert [pid for pid in asleep if is_running(pid)] == []
    assert all(map(is_running, other_pids)), "another job of the same books"


async def test_a_trainer_without_parents_is_ended(bare: LocalLab, other: LocalLab) -> None:
    """The kernel ends a rank with its agent; a trainer below a rank that is a shell lives on."""
    job = await begun(bare, "/bin/sh", "-c", "sleep 600; true")
    trainer = await sleeping(bare, job)
    await all_but(bare, job, trainer)
    (uid,) = uids_of(await job.observe_now()).values()
    await bare.leave()
    until(lambda: marked(uid) == [trainer])
    await adopted(other, job)
    assert not is_running(trainer)


async def test_nothing_outlives_an_agent_that_has_a_namespace(local_lab: LocalLab) -> None:
    """Not even a process that left its parents, its session and its environment."""
    if not namespaces_are_allowed():
        pytest.skip("the kernel gives us no PID namespace")
    script = "setsid env -i sleep 600 & setsid true; exec sleep 1000"
    job = await begun(local_lab, "/bin/sh", "-c", script)
    trainer = await sleeping(local_lab, job)
    await all_but(local_lab, job, trainer)
    until(lambda: not is_running(trainer))


def namespaces_are_allowed() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


async def sleeping(lab: LocalLab, job: Run) -> int:
    """The process that the job's command started."""
    command = [b"sleep", b"600"]
    while True:
        for pid in await processes_of(lab, job):
            if proc.command_line(pid) == command:
                return pid
        await asyncio.sleep(0.01)


async def all_but(lab: LocalLab, job: Run, trainer: int) -> None:
    """End the others in one moment."""
    other_pids = [pid for pid in await processes_of(lab, job) if pid != trainer]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in other_pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


async def test_an_adoption_is_refused_while_a_process_cannot_be_ended(
    local_lab: LocalLab, other: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await begun(local_lab)
    await local_lab.leave()
    with monkeypatch.context() as patch:
        patch.setattr(adopting, "END_S", 0.0)
        patch.setattr(proc, "send", lambda *_args, **_more: None)
        with pytest.raises(CommandRejected, match=r"of job demo run on this machine .*end them"):
            await adopted(other, job)
    await adopted(other, job)
    assert members.of_pods(lambda uid: uid.endswith(job.books)) == []


@pytest.mark.parametrize(
    "is_away",
    [
        pytest.param(False, id="there"),
        pytest.param(True, id="away at the adoption"),
    ],
)
@pytest.mark.long
@pytest.mark.short_fence
async def test_the_folder_of_an_adopted_job_is_free_once_it_has_ended(
    local_lab: LocalLab, other: LocalLab, tmp_path: Path, is_away: bool
) -> None:
    """After restarts too, each of which removes older fences there.

    Only this one restarts an adopted job and ends it. In one row its folder is away.
    """
    first = await begun(local_lab)
    await local_lab.leave()
    where: dict[str, Any] = {"model_dir": first.model_dir, "checkpoints_path": None}
    job = Run(other, slots=(0,), generation=1, books=first.books)
    job.books = await adopted(other, job, str(tmp_path) if is_away else first.model_dir)
    for key in ("adopted", "restart"):
        await fenced(job, key, **where)
    await job.gone()
    for later in (Run(other, slots=(0,), run="run-2"), Run(other, id="another", slots=(0,))):
        await fenced(later, "launch", **where)
        await later.gone()
        assert fence.read(first.model_dir)[later.id, other.backend.books_id].released


async def fenced(job: Run, key: str, **where: Any) -> None:
    """A generation above all that its folders hold."""
    while True:
        above = job.generation
        job.generation = await job.backend.ensure_generation(job.ref, key, above=above)
        await job.stop()
        await job.place()
        if not (await job.backend.ensure_fenced(job.fence_order(**where))).newer:
            return await job.fence(**where)
