"""`everstep prune`: only what is proven to have ended, and only what is old."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from everstep.backends.local.database import pods
from everstep.backends.local.logs import label
from everstep.backends.local.pruning import TAKEN_AWAY
from everstep.protocol import wire
from tests.cli.conftest import Cli
from tests.support import books

OLD = 1_700_000_000.0


@pytest.fixture
def home(cli: Cli, tmp_path: Path) -> Path:
    """A state directory with books, and a job's own folder in it."""
    home = tmp_path / "home"
    home.mkdir()
    books.change(home, lambda _: None)
    (home / "jobs" / "demo").mkdir(parents=True)
    (home / "jobs" / "demo" / "run.log").write_text("started")
    return home


def pod(home: Path, uid: str = "p", *, written_at: float = OLD, without: str = "") -> Path:
    """The folder of a pod that ended: with a lock that is free, without a token."""
    folder = home / "agents" / uid
    for inner in (wire.LOGS, "evidence"):
        (folder / inner).mkdir(parents=True)
        (folder / inner / "g1-r0.log").write_text("step 1\n" * 100)
    (folder / wire.LOCK).touch()
    label(folder, job="demo", slot=0)
    if without:
        (folder / without).unlink()
    for path in folder.rglob("*"):
        os.utime(path, (written_at, written_at))
    return folder


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    with (folder / wire.LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def test_logs_and_evidence_of_an_ended_pod_go_and_the_rest_stays(cli: Cli, home: Path) -> None:
    folder = pod(home)
    report = cli("prune", "--dry-run", "--json").json
    assert [row["pod"] for row in report["removed"]] == ["p"]
    assert folder.is_dir()
    page = cli("prune").out
    assert f"1 ended pods, 0.0 MB removed from {home}" in page
    assert "demo" in page
    left = {path.name for path in home.iterdir() if not path.name.startswith("local.db")}
    assert left <= {"agents", "jobs", TAKEN_AWAY}
    assert not folder.exists()
    assert not any((home / TAKEN_AWAY).iterdir())
    assert (home / "jobs" / "demo" / "run.log").exists()
    assert cli("prune", "--json").json["removed"] == []


def test_what_was_written_lately_stays(cli: Cli, home: Path, tmp_path: Path) -> None:
    pod(home, written_at=(tmp_path.stat().st_mtime) - 6 * 86_400)
    assert "1 kept: written lately" in cli("prune").out
    assert len(cli("prune", "--older-than", "5d", "--json").json["removed"]) == 1


def test_old_files_of_ended_jobs_go_too(cli: Cli, home: Path, tmp_path: Path) -> None:
    """They are for `why` and `report` without a server; the job's own records lie in its folders."""
    files = [home / "ended" / f"{job}.json" for job in ("new", "old")]
    files[0].parent.mkdir()
    for path, days in zip(files, (6, 8), strict=True):
        path.write_text("{}")
        written_at = tmp_path.stat().st_mtime - days * 86_400
        os.utime(path, (written_at, written_at))
    report = cli("prune", "--dry-run", "--json").json
    assert [(row["job"], row["bytes"]) for row in report["jobs"]] == [("old", 2)]
    assert files[1].exists()
    assert "files of 1 ended jobs, 0.0 MB removed: old" in cli("prune").out
    assert [path.exists() for path in files] == [True, False]
    assert "ended jobs" not in cli("prune").out


@pytest.mark.parametrize(
    ("without", "token", "why"),
    [(wire.LOCK, False, "not known"), ("", True, "not known")],
    ids=["no lock", "an open door"],
)
def test_unknown_is_not_gone(cli: Cli, home: Path, without: str, token: bool, why: str) -> None:
    folder = pod(home, without=without)
    if token:
        (folder / wire.TOKEN).write_text("x")
    (job_kept,) = cli("prune", "--older-than", "0s", "--json").json["kept"]
    assert job_kept["why"].startswith(why)
    assert folder.is_dir()


def test_of_an_agent_that_lives_nothing_goes(cli: Cli, home: Path) -> None:
    folder = pod(home)
    with lock(folder):
        assert "1 kept: its agent lives" in cli("prune").out
    assert folder.is_dir()


def test_of_a_pod_that_the_cluster_has_nothing_goes(cli: Cli, home: Path) -> None:
    folder = pod(home)
    enter = partial(pods.enter, uid="p", job="demo", slot=0, node="n0", generation=1, devices=())
    books.change(home, enter)
    assert "1 kept: the cluster still has this pod" in cli("prune").out
    assert folder.is_dir()


def test_of_a_pod_whose_processes_live_nothing_goes(cli: Cli, home: Path) -> None:
    folder = pod(home)
    wait = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", wait],
        env={**os.environ, proc.POD: "p"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "1 kept: processes of it live" in cli("prune").out
        process.kill()
    assert folder.is_dir()
    assert "1 ended pods" in cli("prune").out


def test_books_that_cannot_be_read_keep_everything(cli: Cli, home: Path) -> None:
    folder = pod(home)
    (home / "local.db").write_bytes(b"no database, but long enough for a header\n" * 99)
    end = cli("prune")
    assert end.code == 4
    assert "so nothing is removed" in end.sentence
    assert folder.is_dir()


def test_one_that_was_killed_half_way_is_finished(cli: Cli, home: Path) -> None:
    pod(home)
    (home / TAKEN_AWAY / "earlier" / "logs").mkdir(parents=True)
    assert cli("prune").code == 0
    assert not any((home / TAKEN_AWAY).iterdir())


def test_where_nothing_ever_ran_there_is_nothing_to_do(cli: Cli) -> None:
    assert "0 ended pods" in cli("prune").out


@pytest.mark.parametrize("text", ["7", "d", "-1d", "7 days", "9999999d"])
def test_an_age_that_is_none_is_one_sentence(cli: Cli, text: str) -> None:
    end = cli("prune", f"--older-than={text}")
    assert end.code == 2
    assert "give a number and a unit" in end.sentence
