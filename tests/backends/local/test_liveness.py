"""Alive, gone or not known: gone is only what was seen to have ended."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstep.agent.processes import members, proc
from everstep.backends.local.database.settings_table import setting, store_setting
from everstep.backends.local.database.store import Store
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.liveness import Life
from everstep.core.errors import BackendUnavailable
from everstep.protocol import wire
from tests.backends.lab import Run
from tests.backends.local_lab import LocalLab
from tests.support.starving import away, without_descriptors

UID = "demo-0-g1-c0ffee"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an agent that ended."""
    path = tmp_path / "agents" / UID
    path.mkdir(parents=True)
    (path / wire.LOCK).touch()
    return path


def write_identity(folder: Path, *, late: int = 0) -> None:
    """An agent that began here was the process that tests us."""
    this_process = proc.find(os.getpid())
    assert this_process is not None
    (folder / wire.PID).write_text(f"{this_process.pid} {this_process.started + late}")


def _nothing(_: Path) -> None:
    """Killed before it wrote its identity."""


def _astray(folder: Path) -> None:
    (folder / wire.LOCK).unlink()
    (folder / wire.LOCK).symlink_to(wire.LOCK)


def _piped(folder: Path) -> None:
    (folder / wire.LOCK).unlink()
    os.mkfifo(folder / wire.LOCK)


UNKNOWN: dict[str, Callable[[Path], object]] = {
    "no lock": lambda folder: (folder / wire.LOCK).unlink(),
    "no folder": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "no state directory": lambda folder: folder.parent.rename(folder.parent.with_name("away")),
    "a lock that leads nowhere": _astray,
    "nobody knows who it was": lambda folder: (folder / wire.PID).write_text("it was me"),
    "a pipe that says who it was": lambda folder: os.mkfifo(folder / wire.PID),
    "a pipe for a lock": _piped,
}
ENDED_AGENTS: dict[str, Callable[[Path], object]] = {
    "killed before it said who it is": _nothing,
    "killed while it said who it is": lambda folder: (folder / wire.PID).touch(),
    "its number is somebody else's": lambda folder: write_identity(folder, late=-1),
}


@pytest.mark.parametrize("made", UNKNOWN.values(), ids=UNKNOWN)
def test_what_cannot_be_looked_at_is_not_known(
    folder: Path, made: Callable[[Path], object]
) -> None:
    made(folder)
    assert liveness.of_agent(folder) is Life.UNKNOWN


def test_a_pipe_for_the_list_of_members_says_nothing_of_them(folder: Path) -> None:
    os.mkfifo(folder / members.FILE)
    assert liveness.of_processes(folder) is Life.UNKNOWN


@pytest.mark.parametrize("made", ENDED_AGENTS.values(), ids=ENDED_AGENTS)
def test_a_free_lock_and_no_such_process_are_the_end(
    folder: Path, made: Callable[[Path], object]
) -> None:
    made(folder)
    assert liveness.of_agent(folder) is Life.GONE


def test_a_free_lock_alone_is_not_the_end(folder: Path) -> None:
    """A state directory was put back from a copy: its locks are not those that agents have."""
    write_identity(folder)
    assert liveness.of_agent(folder) is Life.ALIVE
    agent = liveness.agent_of(folder)
    assert agent is not None
    assert agent.pid == os.getpid()


def test_who_has_the_lock_lives(folder: Path) -> None:
    write_identity(folder, late=-1)
    with (folder / wire.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert liveness.of_agent(folder) is Life.ALIVE


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, proc.POD: UID},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_without_descriptors_nothing_is_known(folder: Path, rank: subprocess.Popen[bytes]) -> None:
    with without_descriptors(os.getpid()):
        liveness_results = (
            liveness.of_agent(folder),
            liveness.of_processes(folder),
            liveness.sweep(folder),
        )
    assert liveness_results == (Life.UNKNOWN,) * 3
    assert rank.poll() is None
    assert liveness.of_processes(folder) is Life.ALIVE


def test_what_carries_the_mark_is_swept_until_nothing_is_left(
    folder: Path, rank: subprocess.Popen[bytes]
) -> None:
    assert liveness.sweep(folder) is Life.ALIVE
    rank.wait()
    assert liveness.sweep(folder) is liveness.of_processes(folder) is Life.GONE


def test_a_door_is_not_shut_while_the_state_directory_is_away(folder: Path) -> None:
    """It would be open once that is back."""
    (folder / wire.TOKEN).write_text("x")
    with away(folder.parent), pytest.raises(OSError, match="No such file"):
        liveness.shut(folder)
    assert (folder / wire.TOKEN).exists()
    liveness.shut(folder)
    assert not (folder / wire.TOKEN).exists()


def test_a_pod_whose_agent_nobody_started_is_gone_once_its_door_is_shut(folder: Path) -> None:
    other = folder.with_name("other")
    assert liveness.of_agent(other) is Life.UNKNOWN
    liveness.shut(other)
    assert liveness.of_agent(other) is Life.GONE


async def test_without_descriptors_no_checkpoint_is_missing(local_lab: LocalLab) -> None:
    """An unreadable folder is no reason to start from step 0."""
    job = Run(local_lab, slots=(0,), env={"STEPS": "12", "CHECKPOINT_EVERY": "10"})
    await job.launch()
    await job.see(lambda observation: all(pod.is_done for pod in observation.pods))
    with without_descriptors(os.getpid()), pytest.raises(BackendUnavailable, match="open files"):
        await job.backend.checkpoints(job.ref)
    assert [saved.step for saved in await job.backend.checkpoints(job.ref)] == [10]


async def test_books_that_are_away_or_replaced_are_out_of_reach(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first_store, second_store = Store(home / "local.db"), Store(home / "local.db")
    await first_store.run(lambda db: store_setting(db, "whose", "ours"))
    with away(home):
        with pytest.raises(BackendUnavailable, match="EVERSTEP_HOME was moved"):
            await first_store.run(lambda _: None)
        assert not home.exists(), "nobody makes another one"
        await second_store.run(lambda _: None)
        with pytest.raises(BackendUnavailable, match="was replaced by another file"):
            await first_store.changes()
        second_store.close()
        shutil.rmtree(home)
    assert await first_store.run(lambda db: setting(db, "whose")) == "ours"
    first_store.close()
