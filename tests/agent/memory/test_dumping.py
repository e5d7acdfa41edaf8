"""An agent saves the snapshot of a rank that has ended, by the function that the rank named."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.agent import SAVED_WITHIN_S
from everstep.agent.processes import proc
from everstep.protocol import wire
from everstep.train import saving
from tests.agent.memory.test_snapshots import ENV, runs
from tests.agent.pod import FOREVER, TELL, Pod, Refused, is_running, signal_to, until
from tests.support.patience import HUNG_S

SAVES = f"""{TELL}
import os, sys, time
from everstep.train import run

def save(step, state):
    how = os.environ.get("HOW")
    if how == "fails":
        raise RuntimeError("the disk is on fire")
    if how == "hangs":
        tell("saver", os.getpid())
        time.sleep(600)
    tell(f"saved-{{step}}", f"{{state['weights'][0]}} {{run.is_managed}} {{os.environ['RANK']}}")

if __name__ == "__main__":
    run.restore()
    run.save_with(save)
    for step in (1, 2, 3):
        run.snapshot(step, {{"weights": bytearray([step]) * 1000}})
    tell("made", 3)
    time.sleep(600)
"""


def trained(pod: Pod, how: str = "") -> int:
    """A rank of a script that has made three steps. Returns its process."""
    script = pod.home / "train.py"
    script.write_text(SAVES)
    env = {**ENV, "HOW": how}
    (pid,) = pod.runs(["python3", str(script)], env=env)
    pod.file("made")
    return pid


def dump(pod: Pod, *, generation: int = 2, step: int = 3, within_s: float = HUNG_S) -> Any:
    body: wire.DumpCommand = {"generation": generation, "step": step, "within_s": within_s}
    return pod.ask("POST", wire.DUMP, body)


def dumped(pod: Pod, **changes: Any) -> tuple[list[int], list[str]]:
    until(lambda: bool(dump(pod, **changes)["done"]))
    answer = dump(pod, **changes)
    return answer["saved"], answer["failed"]


def test_the_snapshot_of_a_dead_rank_is_saved_as_its_script_does(pod: Pod) -> None:
    signal_to(trained(pod), signal.SIGKILL)
    pod.until(lambda s: any(fact["kind"] == "process.exit" for fact in s["facts"]))
    assert [one["saves"] for one in pod.stopped(2)["snapshots"]] == [True, True]
    assert dumped(pod) == ([0], [])
    assert pod.file("saved-3") == "3 False 0"


def test_the_step_is_the_one_that_all_ranks_have(pod: Pod) -> None:
    trained(pod)
    pod.stopped(2)
    assert dumped(pod, step=2) == ([0], [])
    assert pod.file("saved-2") == "2 False 0"
    assert not (pod.home / "saved-3").exists()


@pytest.mark.parametrize(
    ("how", "step", "within_s", "why"),
    [
        ("fails", 3, HUNG_S, "rank 0: RuntimeError: the disk is on fire"),
        ("hangs", 3, 0.5, "rank 0: it took longer than 0.5 s"),
        ("", 9, HUNG_S, "rank 0 has no snapshot of step 9"),
    ],
    ids=["fails", "hangs", "another step"],
)
def test_what_is_not_saved_has_its_reason(
    pod: Pod, how: str, step: int, within_s: float, why: str
) -> None:
    trained(pod, how)
    pod.stopped(2)
    assert dumped(pod, step=step, within_s=within_s) == ([], [why])


def test_the_same_order_again_saves_nothing_twice(pod: Pod) -> None:
    trained(pod)
    pod.stopped(2)
    dumped(pod)
    (pod.home / "saved-3").unlink()
    assert dumped(pod) == ([0], [])
    assert not (pod.home / "saved-3").exists()


def test_nothing_is_saved_while_older_ranks_may_run(pod: Pod) -> None:
    trained(pod)
    with pytest.raises(Refused) as refused:
        dump(pod)
    assert refused.value.status == wire.STALE


@pytest.mark.parametrize("command", ["stop", "start"])
def test_what_saves_ends_before_anything_newer_begins(pod: Pod, command: str) -> None:
    """It is a process of the older generation like any other."""
    trained(pod, "hangs")
    pod.stopped(2)
    dump(pod)
    saver = int(pod.file("saver"))
    if command == "stop":
        pod.stopped(3)
    else:
        runs(pod, FOREVER, generation=2)
    assert not is_running(saver)


def test_an_agent_that_is_to_go_waits_for_the_order_to_save(pod: Pod) -> None:
    """As that of an evicted pod: a worker stops all ranks, then has their snapshots saved."""
    trained(pod)
    signal_to(pod.agent.pid, signal.SIGTERM)
    pod.stopped(2)
    assert dumped(pod) == ([0], [])
    pod.agent.wait(HUNG_S)
    assert pod.file("saved-3") == "3 False 0"


def test_an_agent_whose_ranks_were_stopped_goes_at_once(pod: Pod) -> None:
    trained(pod)
    pod.stopped(2)
    began = time.monotonic()
    signal_to(pod.agent.pid, signal.SIGTERM)
    pod.agent.wait(HUNG_S)
    assert time.monotonic() - began < SAVED_WITHIN_S


def savers(pod: Pod) -> list[int]:
    """The processes below the agent that save, also before they have come to the script's function."""
    pids = proc.below(pod.agent.pid, proc.all_processes())
    return [pid for pid in pids if b'"name": "save"' in words_of(pid)]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_saves_ends_though_its_agent_is_stopped(pod: Pod) -> None:
    trained(pod, "hangs")
    pod.stopped(2)
    dump(pod, within_s=1.0)
    signal_to(pod.agent.pid, signal.SIGSTOP)
    try:
        (saver,) = savers(pod)
        until(lambda: not is_running(saver), what="its end")
    finally:
        signal_to(pod.agent.pid, signal.SIGCONT)


def plain(_step: int, _state: Any) -> None:
    """A function that another process can find."""


def test_a_function_that_another_process_cannot_find_is_refused() -> None:
    assert saving.saver(plain)["command"][0]
    with pytest.raises(ValueError, match="is not a function of a module"):
        saving.saver(lambda _step, _state: None)


def test_a_script_that_trains_when_it_is_loaded_is_refused(pod: Pod, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{TELL}\nfrom everstep.train import run\ndef save(step, state): pass\n"
        "try:\n    run.save_with(save)\nexcept ValueError as error:\n    tell('refused', error)\n"
    )
    pod.runs(["python3", str(script)], env=ENV)
    assert "put that below" in pod.file("refused")
