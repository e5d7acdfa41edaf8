"""Forks of a prewarm helper that are made ahead: they become the next ranks, or nothing at all.

Only real forks can be ended half way.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from everstep.agent.prewarming import fork_server
from everstep.agent.prewarming.helper import FORK_S
from everstep.agent.processes import proc
from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from tests.agent.pod import is_running, signal_to, until
from tests.agent.prewarming.warm import Warm, is_prewarmed, is_stopped, ranks
from tests.support.patience import HUNG_S


@pytest.mark.long
def test_forks_that_stand_by_become_the_ranks(warm: Warm) -> None:
    warm.start(ranks=2)
    waiting = warm.standing_by(2)
    assert set(warm.forked(ranks=2)) == {*waiting}
    assert not set(warm.standing_by(2)) & {*waiting}


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_forks_that_stand_by_no_more_are_replaced(warm: Warm, number: signal.Signals) -> None:
    warm.start(ranks=2)
    one, other = warm.standing_by(2)
    signal_to(one, number)
    until(lambda: is_stopped(one) or not is_running(one))
    began = time.monotonic()
    ranks = warm.forked(ranks=2)
    assert time.monotonic() - began < FORK_S, "somebody waited for it"
    assert other in ranks
    assert one not in ranks
    until(lambda: not is_running(one))


@pytest.mark.long
def test_more_ranks_than_stand_by_are_forked_at_once(warm: Warm) -> None:
    warm.start()
    (waiting,) = warm.standing_by()
    ranks = warm.forked(ranks=3)
    assert waiting in ranks
    assert len(set(ranks)) == 3


SLOW_FORKS = "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep({}))"
"""What comes between two forks has so long to come."""


def between(warm: Warm) -> int:
    """The helper, while a process between two forks is in its group."""
    helper = warm.ready()["pid"]
    until(lambda: any(process.parent == helper for process in proc.all_processes().values()))
    return helper


@pytest.mark.long
def test_an_end_in_the_middle_of_a_fork_leaves_the_helper_alone(warm: Warm) -> None:
    warm.modules = ["odd"]
    warm.write(SLOW_FORKS.format(0.5), "odd.py")
    warm.start()
    helper = between(warm)
    state = warm.start()
    assert is_prewarmed(state), state["notes"]
    assert warm.ready()["pid"] == helper


@pytest.mark.long
def test_a_newer_fence_in_the_middle_of_a_fork_leaves_the_helper_alone(
    warm: Warm, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    fence.write(str(model), Fence("demo", "r1", "", 1))
    warm.modules = ["odd"]
    warm.write(SLOW_FORKS.format(60), "odd.py")
    (rank,) = (rank["pid"] for rank in ranks(warm.start(model_dir=str(model), fence_s=60.0)))
    helper = between(warm)
    fence.write(str(model), Fence("demo", "r1", "", 9))
    until(lambda: not is_running(rank), what="the end of the rank")
    assert warm.ready()["pid"] == helper
    assert is_running(helper)


def test_a_fork_that_nobody_wants_any_more_ends_in_silence() -> None:
    """Nothing of the modules runs at its end, whatever they registered."""
    script = (
        "import atexit, os, socket; from everstep.agent.prewarming import fork_server\n"
        "atexit.register(print, 'at exit'); ours, theirs = socket.socketpair(); theirs.close()\n"
        "fork_server._become_rank(os.getppid(), socket.socket(), ours)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


# -- Whose store it is -------------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port without a listener yet, of a rank that waits for its host as long as it takes."""
    with socket.socket() as used_socket:
        used_socket.bind(("127.0.0.1", 0))
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        monkeypatch.setattr(fork_server, "HOST_S", 60.0)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(used_socket.getsockname()[1]))
        monkeypatch.setenv("RANK", "1")
        yield used_socket


def test_rank_waits_until_its_host_listens(store: socket.socket) -> None:
    waiting = threading.Thread(target=fork_server._wait_for_rank_0)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    store.listen()
    waiting.join(HUNG_S)
    assert not waiting.is_alive()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "0"), ("MASTER_ADDR", "elsewhere"), ("MASTER_PORT", ""), ("torch", "")],
)
def test_rank_does_not_wait_for_what_it_cannot_see(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    if name == "torch":
        monkeypatch.delitem(sys.modules, name)
    else:
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    fork_server._wait_for_rank_0()
    assert time.monotonic() - began < 30.0
