"""Ranks that go on over a stop: they keep their process, become of the new generation, and only they do."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.storage import fence
from everstep.agent.storage.fence import Fence
from everstep.protocol import wire
from tests.agent.pod import FOREVER, TELL, Pod, exits, is_running, is_up, signal_to, until

LOADERS = f"""{TELL}
import time
if os.fork() == 0:
    tell("loader-" + os.environ["RANK"], os.getpid())
while True: time.sleep(60)
"""
"""A rank with a process that works for it."""

PARENTLESS = f"""{TELL}
import time
if os.fork() == 0:
    if os.fork() == 0:
        tell("left-" + os.environ["RANK"], os.getpid())
        while True: time.sleep(60)
    os._exit(0)
os.wait()
while True: time.sleep(60)
"""
"""A rank that leaves a process behind in its session."""


def keep_ranks(pod: Pod, generation: int, *keep: int, **more: Any) -> wire.AgentState:
    """Stopped but for these, and proven."""
    pod.stop(generation, keep=keep, **more)
    return pod.until(lambda state: state["stopped_below"] >= generation)


def living(state: wire.AgentState) -> dict[int, tuple[int, int]]:
    """Rank -> its process and the generation in which that was started."""
    ranks = state["run"]["ranks"] if state["run"] is not None else []
    return {r["rank"]: (r["pid"], r["incarnation"]) for r in ranks if r["exited_at"] is None}


def goes_on(pod: Pod, generation: int, *keep: int, ranks: int = 2, **more: Any) -> wire.AgentState:
    """The members run, those that were kept among them."""
    pod.run(FOREVER, generation=generation, ranks=ranks, keep=list(keep), **more)
    return pod.until(lambda s: s["run"] and (s["run"]["started_at"] or s["run"]["failed"]))


@pytest.mark.parametrize("script", [FOREVER, LOADERS, PARENTLESS], ids=["plain", "loaders", "left"])
def test_a_kept_rank_keeps_its_process_and_gets_the_new_generation(pod: Pod, script: str) -> None:
    first, second = pod.runs(script, ranks=2)
    helpers = {
        n: [int(pod.file(f"{kind}-{n}")) for kind in ("loader", "left") if f"{kind}-" in script]
        for n in (0, 1)
    }
    state = keep_ranks(pod, 2, 1, grace_s=5.0, evidence=True)
    assert (state["kept_ranks"], living(state)) == ([1], {1: (second, 1)})
    assert state["run"] is not None
    assert state["run"]["generation"] == 2
    assert not any(map(is_running, [first, *helpers[0]]))
    assert all(map(is_running, helpers[1]))
    assert exits(state) == []

    state = goes_on(pod, 2, 1)
    living_ranks = living(state)
    assert living_ranks[1] == (second, 1)
    assert living_ranks[0][1] == 2
    assert living_ranks[0][0] != first
    assert all(map(is_running, helpers[1]))


def test_the_output_of_a_kept_rank_is_read_on(pod: Pod, tmp_path: Path) -> None:
    goes = tmp_path / "goes"
    script = (
        "import os, time\nprint('step=1', flush=True)\n"
        f"while not os.path.exists({str(goes)!r}): time.sleep(0.01)\n"
        "print('step=2', flush=True)\ntime.sleep(600)\n"
    )
    pod.runs(script, log_pattern=r"step=(?P<step>\d+)")
    pod.until(lambda s: s["run"] and s["run"]["step"] == 1)
    keep_ranks(pod, 2, 0)
    state = goes_on(pod, 2, 0, ranks=1, log_pattern=r"step=(?P<step>\d+)")
    assert state["run"] is not None
    assert state["run"]["step"] is None, "in this generation none was made yet"
    goes.touch()
    pod.until(lambda s: s["run"] and s["run"]["step"] == 2)
    assert "step=2" in pod.log(generation=1), "its output stays where it began"


def test_who_was_kept_ends_with_the_next_stop(pod: Pod) -> None:
    _, second = pod.runs(FOREVER, ranks=2)
    keep_ranks(pod, 2, 1)
    state = keep_ranks(pod, 3)
    assert (state["kept_ranks"], living(state)) == ([], {})
    assert not is_running(second)


def test_the_same_stop_again_changes_nothing(pod: Pod) -> None:
    _, second = pod.runs(FOREVER, ranks=2)
    before = keep_ranks(pod, 2, 1)
    again = keep_ranks(pod, 2, 1)
    assert (again["kept_ranks"], living(again)) == ([1], {1: (second, 1)})
    assert again["news"] == before["news"]


def test_who_is_kept_by_one_stop_and_not_by_the_next_of_its_generation_ends(pod: Pod) -> None:
    _, second = pod.runs(FOREVER, ranks=2)
    keep_ranks(pod, 2, 1)
    pod.stop(2)
    assert pod.until(lambda state: not state["kept_ranks"])["stopped_below"] == 2
    assert not is_running(second)


def test_a_dead_rank_cannot_be_kept(pod: Pod) -> None:
    first, second = pod.runs(FOREVER, ranks=2, stop_siblings=False)
    signal_to(first, signal.SIGKILL)
    pod.until(exits)
    state = keep_ranks(pod, 2, 0, 1)
    assert (state["kept_ranks"], living(state)) == ([1], {1: (second, 1)})


def test_a_rank_that_nobody_knows_cannot_be_kept(pod: Pod) -> None:
    assert keep_ranks(pod, 2, 0)["kept_ranks"] == []


def test_what_a_later_agent_finds_cannot_be_kept(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    pod.agent.kill()
    pod.agent.wait()
    pod.start()
    assert keep_ranks(pod, 2, 0)["kept_ranks"] == []
    assert not is_running(rank)


def test_who_ended_before_the_start_makes_it_fail(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    keep_ranks(pod, 2, 0)
    signal_to(rank, signal.SIGKILL)
    (fact,) = exits(pod.until(exits))
    assert fact["generation"] == 2
    run = goes_on(pod, 2, 0, ranks=2)["run"]
    assert run is not None
    assert run["failed"] == "ranks that were to go on: 0; those that live: none"
    assert pod.until(lambda state: not living(state))["run"]


def test_a_start_that_forgot_who_was_kept_fails(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    keep_ranks(pod, 2, 0)
    run = goes_on(pod, 2, ranks=1)["run"]
    assert run is not None
    assert run["failed"] == "ranks that were to go on: none; those that live: 0"
    until(lambda: not is_running(rank), what="its end")


def test_the_end_of_a_kept_rank_is_told_in_its_new_generation(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    keep_ranks(pod, 2, 0)
    goes_on(pod, 2, 0, ranks=1)
    signal_to(rank, signal.SIGKILL)
    (fact,) = exits(pod.until(exits))
    assert (fact["generation"], fact["rank"], fact["message"]) == (2, 0, "signal 9")


# -- What it says and is told ---------------------------------------------------------------------

SPEAKS = f"""{TELL}
import json, time
folder = os.environ["EVERSTEP_RANK_FOLDER"]
def can(*what):
    with open(folder + "/fresh", "w") as file: json.dump(what, file)
    os.replace(folder + "/fresh", folder + "/capabilities.json")
can("rebuild", "pause")
while not os.path.exists(folder + "/instruction.json"): time.sleep(0.01)
told = json.load(open(folder + "/instruction.json"))
can("rebuild")
tell("told-" + os.environ["RANK"], json.dumps(told))
while True: time.sleep(60)
"""
"""A rank that sends its capabilities and waits for an instruction."""


def can(state: wire.AgentState) -> list[list[str]]:
    assert state["run"] is not None
    return [rank["can"] for rank in state["run"]["ranks"]]


def test_a_rank_says_what_it_can_do_and_a_kept_one_is_told_to_rebuild(pod: Pod) -> None:
    pod.runs(SPEAKS, ranks=2)
    pod.until(lambda s: s["run"] and can(s) == [["pause", "rebuild"]] * 2)
    keep_ranks(pod, 2, 1)
    goes_on(pod, 2, 1, rebuild={"MASTER_PORT": "4321", "EVERSTEP_STATE_FROM": "1"})
    assert json.loads(pod.file("told-1")) == {
        "generation": 2,
        "do": "rebuild",
        "env": {"MASTER_PORT": "4321", "EVERSTEP_STATE_FROM": "1", "RANK": "1"},
    }
    pod.until(lambda s: s["run"] and can(s) == [[], ["rebuild"]])


def test_who_comes_after_a_rank_is_told_nothing_of_what_it_was(pod: Pod) -> None:
    pod.runs(SPEAKS, ranks=1)
    pod.until(lambda s: s["run"] and can(s) == [["pause", "rebuild"]])
    keep_ranks(pod, 2, 0)
    goes_on(pod, 2, 0, ranks=1)
    pod.file("told-0")
    folder = pod.home / wire.RANKS
    assert [path.name for path in folder.iterdir()] == ["g1-r0"]
    keep_ranks(pod, 3)
    assert list(folder.iterdir()) == []
    state = goes_on(pod, 3, ranks=1)
    assert can(state) == [[]]
    assert list((folder / "g3-r0").iterdir()) == []


NONSENSE = ["{", "7", "[1]", '"rebuild"', "[" * 5000, None]


@pytest.mark.parametrize("message", NONSENSE, ids=[str(row)[:8] for row in NONSENSE])
def test_who_speaks_nonsense_can_do_nothing_and_people_are_told(
    pod: Pod, message: str | None
) -> None:
    (rank,) = pod.runs(FOREVER)
    path = pod.home / wire.RANKS / "g1-r0" / wire.CAPABILITIES
    os.mkfifo(path) if message is None else path.write_text(message)
    state = pod.until(lambda s: any("a file of rank 0 is invalid" in n for n in s["notes"]))
    assert can(state) == [[]]
    assert is_running(rank)


# -- Fence and warden -----------------------------------------------------------------------------


def fenced(folder: Path, generation: int) -> None:
    fence.write(str(folder), Fence("demo", "r1", "", generation))


def judged(folder: Path) -> None:
    """The fence was read twice more: by the second time the first was acted on."""
    there = folder / ".everstep"
    for _ in range(2):  # mounted so that a reading is noted once a day: set it back, then look
        os.utime(there, ns=(0, there.stat().st_mtime_ns))
        until(lambda: there.stat().st_atime_ns != 0, what="a reading")


def test_a_kept_rank_outlives_the_fence_of_its_new_generation(pod: Pod, tmp_path: Path) -> None:
    (rank,) = pod.runs(FOREVER, model_dir=str(tmp_path), fence_s=60.0)
    fenced(tmp_path, 1)
    for generation in (2, 3):
        keep_ranks(pod, generation, 0)
        fenced(tmp_path, generation)
        judged(tmp_path)  # before its start, too: nobody but the stop has told the warden by then
        goes_on(pod, generation, 0, ranks=1, model_dir=str(tmp_path), fence_s=60.0)
    judged(tmp_path)
    assert is_running(rank)


def test_a_survivor_that_could_not_be_reached_is_ended_by_its_warden(
    pod: Pod, tmp_path: Path
) -> None:
    (rank,) = pod.runs(FOREVER, model_dir=str(tmp_path), fence_s=60.0)
    fenced(tmp_path, 1)
    signal_to(pod.agent.pid, signal.SIGSTOP)  # so the stop that would keep it never arrives
    fenced(tmp_path, 2)
    until(lambda: not is_running(rank), what="its end")
    signal_to(pod.agent.pid, signal.SIGCONT)
    assert keep_ranks(pod, 2, 0)["kept_ranks"] == []


def test_who_was_kept_ends_by_a_newer_fence(pod: Pod, tmp_path: Path) -> None:
    (rank,) = pod.runs(FOREVER, model_dir=str(tmp_path), fence_s=60.0)
    keep_ranks(pod, 2, 0)
    signal_to(pod.agent.pid, signal.SIGSTOP)
    fenced(tmp_path, 3)
    until(lambda: not is_running(rank), what="its end")
    signal_to(pod.agent.pid, signal.SIGCONT)


def test_who_was_kept_ends_with_its_agent(pod: Pod) -> None:
    (rank,) = pod.runs(FOREVER)
    keep_ranks(pod, 2, 0)
    signal_to(pod.agent.pid, signal.SIGKILL)
    until(lambda: not is_running(rank), what="its end")


def test_a_kept_rank_is_not_asked_for_its_stack_by_a_signal_that_may_end_it(pod: Pod) -> None:
    """Before a kill the others are, where they have a handler for it."""
    script = f"import faulthandler\nfaulthandler.enable()\n{LOADERS}"
    _, second = pod.runs(script, ranks=2)
    pod.file("loader-1")
    state = keep_ranks(pod, 2, 1, evidence=True)
    assert living(state) == {1: (second, 1)}


SILENT = f"""{TELL}
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: None)
tell("ready", os.getpid())
while True: time.sleep(60)
"""
"""A rank that takes all the time that there is to say where it is."""


def test_a_stop_that_comes_after_the_start_of_its_generation_spares_what_it_started(
    pod: Pod,
) -> None:
    """A worker that was suspended may repeat a stop while another has the start carried out."""
    pod.runs(SILENT, env={"EVERSTEP_STACK_SIGNAL": "SIGUSR1"})
    pod.file("ready")
    pod.stop(2, evidence=True)
    pod.run(FOREVER, generation=2)
    pod.stop(2)
    started = living(pod.until(lambda s: is_up(s["run"], 2)))
    pod.stop(2)
    assert living(pod.state()) == started
