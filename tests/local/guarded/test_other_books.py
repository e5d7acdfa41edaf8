"""Workers and a server with less than the job did: only real ranks train on meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.machine import final, undisturbed
from tests.support.rehearsal import Rehearsal, gist, records, small
from tests.support.scene import until, until_it_waits_for
from tests.support.workerproc import WorkerProcess

DATABASE = "temporal.db"
STRANGE = "is not in the cluster database"
STEPS, LONGER, STEP_S = 150, 400, 0.1


@pytest.mark.long
async def test_a_worker_with_another_home_leaves_a_healthy_job_alone(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "alone", steps=STEPS)
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(small(tmp_path / "job", "healthy", steps=STEPS, step_s=STEP_S))
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        r.worker.kill9()
        other = WorkerProcess(
            address=r.server.address,
            namespace="default",
            home=tmp_path / "other",
            backend="local",
        )
        await other.start()
        try:
            assert (await until_it_waits_for(job, STRANGE))["state"] == "unreachable"
            later = min(r.step(generation=1) + 5, STEPS)  # on a busy machine it may be over
            await r.until(lambda: r.step(generation=1) >= later, "it trains on")
        finally:
            other.kill9()
        await r.worker.start()
        report = await r.report(job)
        assert (report["status"], gist(report)) == ("Completed", []), r.summary()
        assert r.newest("healthy") == 1
        assert final(tmp_path / "job") == expected


@pytest.mark.long
async def test_a_job_whose_home_was_removed_goes_on_once_it_is_adopted(tmp_path: Path) -> None:
    """Its ranks train on, unknown to the new books, until the fence ends them: none writes beside others."""
    expected = undisturbed(tmp_path / "alone", steps=LONGER)
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(small(tmp_path / "job", "lost", steps=LONGER, step_s=STEP_S))
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        old = [rank for pod in r.pods("lost") for rank in pod.ranks()]
        r.worker.kill9()
        shutil.rmtree(r.home)
        r.home.mkdir()  # for the log of the next worker
        await r.worker.start()
        assert (await until_it_waits_for(job, STRANGE))["restarts"] == 0
        assert all(Path(f"/proc/{rank}").exists() for rank in old)
        await job.execute_update("adopt", {"reason": "the disk is gone"})
        report = await r.report(job)
        assert report["status"] == "Completed", r.summary()
        assert [level for _, level, _ in gist(report)] == ["job"]
        assert not any(Path(f"/proc/{rank}").exists() for rank in old)
        assert final(tmp_path / "job") == expected


@pytest.mark.long
async def test_a_server_restored_from_a_copy_takes_the_job_over_as_it_runs(tmp_path: Path) -> None:
    """A crash that was counted since is counted once, and has one record, where its restart was under way.

    A restart that was done since is found done; the next of its name has a generation of its own.
    """
    expected = undisturbed(tmp_path / "alone", steps=LONGER)
    async with Rehearsal(tmp_path / "r", nodes=2) as r:
        job = await r.submit(small(tmp_path / "job", "kept", steps=LONGER, step_s=STEP_S))
        await r.until(lambda: r.step(generation=1) >= 2, "step 2")
        copy = copied(r)
        with spoiled(tmp_path / "job" / "out"):
            await r.fault("kill kept 0")
            assert (await until_it_waits_for(job, "its fence is damaged"))["restarts"] == 1
            end_at_once(r)
        await restored(r, copy)
        await r.until(lambda: r.step(generation=3) >= 2, "it trains again")
        status = await until(job, lambda status: status["state"] == "running")
        (only,) = await job.query("restarts")
        assert status["restarts"] == only["n"] == 1
        assert only["fault"]["kind"] == "process.exit"
        end_at_once(r)
        await restored(r, copy)
        then = r.step(generation=3)
        await r.until(lambda: r.step(generation=3) > then + 5, "it trains on")
        await r.fault("kill kept 1")
        report = await r.report(job)
        assert report["status"] == "Completed", r.summary()
        (only,) = records(report)
        assert (only["n"], only["generation"]) == (1, {"from": 3, "to": 4})
        assert min(took for took in only["stages_s"].values() if took is not None) >= 0
        assert final(tmp_path / "job") == expected


def copied(r: Rehearsal) -> Path:
    """What its server has now."""
    copy = r.folder / "copy.db"
    with closing(sqlite3.connect(r.folder / DATABASE)) as db, closing(sqlite3.connect(copy)) as to:
        db.backup(to)
    return copy


def end_at_once(r: Rehearsal) -> None:
    r.worker.kill9()
    r.server.kill()


async def restored(r: Rehearsal, copy: Path) -> None:
    """Server and worker start again with the contents of the copy."""
    for log in ("-wal", "-shm"):
        (r.folder / f"{DATABASE}{log}").unlink(missing_ok=True)
    shutil.copy(copy, r.folder / DATABASE)
    await r.server.restart()
    await r.worker.start()


@contextmanager
def spoiled(folder: Path) -> Iterator[None]:
    """No generation begins to write here."""
    fences = {path: path.read_text() for path in (folder / ".everstep").glob("generation*")}
    for path in fences:
        path.write_text("spoiled")
    yield
    for path, text in fences.items():
        path.write_text(text)
