"""Who is stopped in the middle of a transaction does not hold up the others. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from everstep.backends.local.database import store as database
from everstep.backends.local.database.settings_table import setting, store_setting
from everstep.backends.local.database.store import Db, Store
from everstep.core.errors import BackendUnavailable
from tests.support.books import LOCK_AND_STOP
from tests.support.child import Child
from tests.support.patience import HUNG_S

WRITER = """
import ctypes, os, signal, sys, time
from pathlib import Path
from everstep.backends.local.database.settings_table import store_setting
from everstep.backends.local.database.store import Store

def traced():
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME: SIGCONT does not wake it

def stop(db):
    store_setting(db, "stopped", "it")
    print("is stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

if "traced" in sys.argv:
    traced()
Store(Path(sys.argv[1]))._within(stop)
print("went on", flush=True)
time.sleep(3600)
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "home" / "local.db")
    await store.run(lambda _: None)
    yield store
    store.close()


def _note(db: Db) -> None:
    store_setting(db, "other", "it")


def _names(db: Db) -> list[str]:
    return [name for name in ("other", "stopped") if setting(db, name)]


async def stopped(tmp_path: Path, script: str, *words: str) -> Child:
    """A process that stands still with the database in its hands."""
    command = [sys.executable, "-c", script, str(tmp_path / "home" / "local.db"), *words]
    child = Child(command, name="writer", log=tmp_path / "log", cwd=Path(__file__).parents[3])

    async def stands() -> bool:
        process = proc.find(child.pid)
        return "is stopped" in child.output() and process is not None and process.is_stopped

    await child.until(stands, within_s=HUNG_S)
    return child


async def test_who_is_stopped_while_it_writes_is_woken_and_ends_what_it_began(
    store: Store, tmp_path: Path
) -> None:
    child = await stopped(tmp_path, WRITER)
    await store.run(_note)
    assert await store.run(_names) == ["other", "stopped"]
    assert child.returncode is None
    child.kill()


async def test_who_cannot_be_woken_is_ended_and_nothing_of_its_own_is_written(
    store: Store, tmp_path: Path
) -> None:
    """As under a debugger; the next one finds the books as they were."""
    child = await stopped(tmp_path, WRITER, "traced")
    await store.run(_note)
    assert await store.run(_names) == ["other"]
    _, how = os.waitpid(child.pid, 0)  # who is traced was "ended" for its starter when it stopped
    assert os.WTERMSIG(how) == signal.SIGKILL


async def test_who_is_slow_is_waited_for_and_left_alone(store: Store, tmp_path: Path) -> None:
    """It is not stopped, so it is left alone."""
    slow = WRITER.replace("os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(5)")
    command = [sys.executable, "-c", slow, str(tmp_path / "home" / "local.db")]
    child = Child(command, name="writer", log=tmp_path / "log", cwd=Path(__file__).parents[3])

    async def writes() -> bool:
        return "is stopped" in child.output()

    await child.until(writes, within_s=HUNG_S)
    await store.run(_note)
    assert await store.run(_names) == ["other", "stopped"]
    assert child.returncode is None
    child.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens the books from now on gives up soon where a stranger holds them."""
    monkeypatch.setattr(database, "BUSY_S", 0.5)


@pytest.mark.usefixtures("impatient")
async def test_a_stranger_that_holds_the_books_is_neither_woken_nor_ended(
    store: Store, tmp_path: Path
) -> None:
    child = await stopped(tmp_path, LOCK_AND_STOP)
    with pytest.raises(BackendUnavailable, match="locked"):
        await store.run(_note)
    process = proc.find(child.pid)
    assert process is not None
    assert process.is_stopped
    child.kill()
    await store.run(_note)


async def test_two_in_one_process_take_turns_too(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "home" / "local.db")
    order: list[str] = []

    def slow(_: Db) -> None:
        order.append("begins")
        time.sleep(0.2)
        order.append("ends")

    await asyncio.gather(store.run(slow), other.run(slow))
    other.close()
    assert order == ["begins", "ends"] * 2
