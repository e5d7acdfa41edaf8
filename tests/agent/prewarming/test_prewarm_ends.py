"""Nothing escapes: however a pod ends, its prewarm helper and the forks end as they should.

Only real processes can escape.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from everstep.agent.processes import proc
from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from everstep.backends.local.reconciling import liveness
from everstep.backends.local.reconciling.liveness import Life
from everstep.protocol import wire
from tests.agent.pod import DAEMON, Pod, exits, is_running, signal_to, until
from tests.agent.prewarming.warm import Warm
from tests.support.patience import HUNG_S


def test_stop_ends_forks_and_all_they_started_but_not_the_helper(warm: Warm) -> None:
    ranks = warm.forked(DAEMON)
    escaped = int(warm.pod.file("escaped"))
    helper = warm.ready()["pid"]
    state = warm.pod.stopped(warm.generation + 1)
    assert not any(is_running(pid) for pid in [*ranks, escaped])
    assert not any(fact["generation"] == 2 for fact in exits(state))
    assert is_running(helper)
    assert len(warm.pod.marked()) == 1 + warm.ready()["standing_by"]
    warm.generation += 1
    warm.forked()


def test_helper_and_forks_carry_the_mark_of_their_pod(warm: Warm) -> None:
    (rank,) = warm.forked()
    waiting = warm.standing_by()
    helper = warm.ready()["pid"]
    assert set(warm.pod.marked()) == {rank, helper, *waiting}


@pytest.mark.long
def test_forks_and_helper_end_with_the_agent(warm: Warm) -> None:
    ranks = warm.forked(DAEMON, ranks=2)
    waiting = warm.standing_by(2)
    escaped, helper = int(warm.pod.file("escaped")), warm.ready()["pid"]
    signal_to(warm.pod.agent.pid, signal.SIGKILL)
    warm.pod.agent.wait()
    pids = [*ranks, escaped, helper, *waiting]
    until(lambda: not any(map(is_running, pids)), what="their end")


@pytest.mark.long
def test_helper_ends_when_the_agent_leaves(warm: Warm) -> None:
    ranks = warm.forked()
    waiting = warm.standing_by()
    helper = warm.ready()["pid"]
    warm.pod.ask("POST", wire.QUIT, {"grace_s": 0.0})
    assert warm.pod.agent.wait(HUNG_S) == 0
    assert not any(map(is_running, [*ranks, helper, *waiting]))


@pytest.mark.long
def test_forks_end_with_the_agent_even_without_a_warden(warm: Warm) -> None:
    ranks = warm.forked(ranks=2)
    helper = warm.ready()["pid"]
    pids = [*ranks, helper, *warm.standing_by(2)]
    stopped = [pid for pid in children(warm.pod) if pid not in pids]
    for pid in stopped:  # the warden
        signal_to(pid, signal.SIGSTOP)
    signal_to(warm.pod.agent.pid, signal.SIGKILL)
    warm.pod.agent.wait()
    until(lambda: not any(map(is_running, pids)), what="their end")
    for pid in stopped:
        signal_to(pid, signal.SIGCONT)


def children(pod: Pod) -> list[int]:
    table = proc.all_processes()
    return [pid for pid, process in table.items() if process.parent == pod.agent.pid]


@pytest.mark.long
def test_sweep_of_the_pod_ends_forks_and_helper(warm: Warm) -> None:
    ranks = warm.forked(DAEMON)
    escaped, helper = int(warm.pod.file("escaped")), warm.ready()["pid"]
    signal_to(warm.pod.agent.pid, signal.SIGSTOP)  # or it would replace the helper
    until(lambda: liveness.sweep(warm.pod.home) is Life.GONE, what="an empty pod")
    assert not any(map(is_running, [*ranks, escaped, helper]))


@pytest.mark.long
def test_next_agent_ends_forks_and_helper_of_a_stopped_one(warm: Warm) -> None:
    """Its lock is gone with it, but nothing else needs to be."""
    ranks = warm.forked(DAEMON)
    escaped, helper = int(warm.pod.file("escaped")), warm.ready()["pid"]
    waiting = warm.standing_by()
    for pid in children(warm.pod):
        if pid not in [*ranks, helper, *waiting]:
            signal_to(pid, signal.SIGKILL)  # the warden; another one takes a moment
    signal_to(warm.pod.agent.pid, signal.SIGKILL)
    warm.pod.agent.wait()
    warm.pod.start()
    warm.pod.until(lambda s: s["stopped_below"] > warm.generation)
    assert not any(map(is_running, [*ranks, escaped, helper, *waiting]))
    assert warm.pod.marked() == []
    warm.start()
    warm.forked()


@pytest.mark.long
def test_newer_fence_ends_forks_and_leaves_the_helper_for_the_next_start(
    warm: Warm, tmp_path: Path
) -> None:
    """A fence is written some time before the start it is for: who looks then must not end the helper."""
    model = tmp_path / "model"
    model.mkdir()
    warm.start(model_dir=str(model), fence_s=60.0)
    fence.write(str(model), Fence("demo", "r1", "", 2))
    (rank,) = warm.forked(model_dir=str(model), fence_s=60.0)
    helper = warm.ready()["pid"]
    signal_to(warm.pod.agent.pid, signal.SIGSTOP)
    fence.write(str(model), Fence("demo", "r1", "", 9))
    until(lambda: not is_running(rank), what="the end of the rank")
    signal_to(warm.pod.agent.pid, signal.SIGCONT)
    fact = exits(warm.pod.until(lambda s: any(f["generation"] == 2 for f in exits(s))))[-1]
    assert fact["details"]["signal"] == signal.SIGKILL
    assert "generation 9 is in the fence" in fact["message"]
    warm.generation = 8
    warm.forked(model_dir=str(model), fence_s=60.0)
    assert warm.ready()["pid"] == helper


@pytest.mark.long
def test_orphans_of_forks_are_reaped(warm: Warm) -> None:
    warm.forked("import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\nos._exit(0)")
    warm.ended()
    until(lambda: not zombies(warm.pod), what="no zombie")


def zombies(pod: Pod) -> list[int]:
    table = proc.all_processes()
    return [p for p in proc.below(pod.agent.pid, table) if not table[p].is_alive]


@pytest.mark.long
def test_helper_is_no_sign_of_life(warm: Warm) -> None:
    warm.modules = ["odd"]
    warm.write("import os\nif os.path.exists('go'):\n    while True: os.getppid()", "odd.py")
    (pod := warm.pod).state()
    (rank,) = warm.forked()
    (pod.home / "go").touch()
    os.kill(rank, signal.SIGSTOP)
    signal_to(warm.ready()["pid"], signal.SIGKILL)  # the next one is busy for ever
    busy = pod.until(lambda s: s["helper"] and not s["helper"]["ready"])["helper"]
    assert busy is not None
    # A look may still see what the rank did before it was stopped.
    until(lambda: used(busy["pid"]) > 250, what="a busy helper", within_s=HUNG_S)
    moved_at = moved(pod)
    before = used(busy["pid"])
    until(lambda: used(busy["pid"]) > before + 120, what="a second more", within_s=HUNG_S)
    assert moved(pod) == moved_at


def moved(pod: Pod) -> float | None:
    run = pod.state()["run"]
    return run["moved_at"] if run is not None else None


def used(pid: int) -> int:
    process = proc.find(pid)
    return process.cpu if process is not None else 0
