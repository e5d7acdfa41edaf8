"""Agents that are not in the books are ended; agents that are about to be in them are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.processes import proc
from everstep.agent.processes.members import FILE, MemberList
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.local.clearing import end_all
from everstep.backends.local.database import books, pods
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.liveness import Life, agent_of
from tests.backends.lab import Run, uids_of
from tests.backends.local_lab import LocalLab
from tests.support.patience import HUNG_S


async def test_a_pod_made_while_strays_are_looked_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = await LocalLab.open(tmp_path)
    job = Run(lab, slots=(0,), env={"STEPS": "100000"})
    store = lab.backend.store
    read, task = store.run, asyncio.current_task()

    async def then_a_pod_is_made(work: Callable[[Any], Any]) -> Any:
        result = await read(work)
        # The backend itself asks the same now and then, in a task of its own.
        is_our_read = asyncio.current_task() is task and work is pods.all_pods
        if is_our_read and not job.generation:
            await job.launch()
        return result

    try:
        monkeypatch.setattr(store, "run", then_a_pod_is_made)
        await lab.backend.reconciler.end_strays()
        monkeypatch.undo()
        assert job.generation, "a pod was made meanwhile"
        (uid,) = uids_of(await job.observe_now()).values()
        assert lab.backend.settings.folder(uid).life() is Life.ALIVE, "its agent lives"
        await job.step(1)
    finally:
        await lab.end()


@pytest.mark.parametrize("is_stray", [False, True])
async def test_processes_that_do_not_end_keep_the_worker_from_nothing(
    local_lab: LocalLab, monkeypatch: pytest.MonkeyPatch, is_stray: bool
) -> None:
    """To list all processes of a machine takes its time, again and again while one hangs in the kernel."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000"})
    await job.launch()
    (uid,) = uids_of(await job.step(1)).values()
    sweep, answers, threads = liveness.sweep, [Life.ALIVE] * 5, set[threading.Thread]()

    def slow(folder: Path) -> Life:
        threads.add(threading.current_thread())
        return answers.pop() if answers else sweep(folder)

    monkeypatch.setattr(liveness, "sweep", slow)
    if is_stray:
        await local_lab.backend.store.run(lambda db: pods.remove(db, uid))
        await local_lab.backend.reconciler.end_strays()
    else:
        async with asyncio.timeout(HUNG_S):
            await job.gone()
    assert threads
    assert threading.current_thread() not in threads


async def test_older_books_end_no_agent_of_a_generation_that_they_never_gave(
    local_lab: LocalLab,
) -> None:
    """As after a restored copy of the database: pods that are missing in it may be healthy."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "100000"})
    await job.launch()
    (uid,) = uids_of(await job.step(1)).values()
    folder = local_lab.backend.settings.folder(uid)

    def forget(db: Any) -> None:
        books.store(db, JobRecord(id=job.id))
        for pod in pods.uids(db):
            pods.remove(db, pod)

    await local_lab.backend.store.run(forget)
    await local_lab.backend.reconciler.end_strays()
    assert folder.life() is Life.ALIVE
    await local_lab.backend.store.run(lambda db: books.store(db, JobRecord(id=job.id, newest=1)))
    await local_lab.backend.reconciler.end_strays()
    while folder.life() is Life.ALIVE:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("ended_by", ["its backend", "the end of the directory"])
async def test_an_agent_that_ended_leaves_no_zombie_no_cgroup_and_no_warning(
    local_lab: LocalLab, ended_by: str
) -> None:
    job = Run(local_lab, slots=(0,))
    await job.launch()
    (uid,) = uids_of(await job.observe_now()).values()
    folder = local_lab.backend.settings.folder(uid).path
    agent = agent_of(folder)
    assert agent is not None
    cgroups = [path for path in MemberList.of((folder / FILE).read_text()).cgroups if path]
    assert all(Path(path).is_dir() for path in cgroups)
    if ended_by == "its backend":
        await job.gone()
    else:
        await local_lab.leave()
        end_all(local_lab.backend.settings.home)
    while proc.find(agent.pid) is not None:
        await asyncio.sleep(0.02)
    assert not any(Path(path).exists() for path in cgroups)


async def test_a_worker_forgets_pods_that_are_gone(local_lab: LocalLab) -> None:
    """It outlives thousands of them."""
    job = Run(local_lab, slots=(0,))
    await job.launch()
    await job.gone()
    reconciler = local_lab.backend.reconciler
    while reconciler.pods or reconciler.ending or reconciler.spawned:
        await asyncio.sleep(0.02)
