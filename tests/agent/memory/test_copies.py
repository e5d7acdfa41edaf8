"""An agent sends snapshots of its ranks to one on another node; a new pod's agent fetches them there."""

from __future__ import annotations

import contextlib
import json
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.memory.held_memory import MEMORY
from everstep.protocol import rank_memory, wire
from tests.agent.memory.test_snapshots import ENV, held_steps, train
from tests.agent.pod import FOREVER, TELL, Pod, Refused, signal_to

MakePod = Callable[[str], Pod]


@pytest.fixture
def pods(pyz: Path, tmp_path: Path) -> Iterator[MakePod]:
    """Makes pods on other nodes."""
    made: list[Pod] = []

    def make(name: str) -> Pod:
        made.append(Pod(pyz, tmp_path / name, f"{tmp_path.name}-{name}"))
        return made[-1].start()

    yield make
    for pod in made:
        pod.end()


def agent_of(pod: Pod, slot: int = 1) -> wire.Neighbour:
    return {"slot": slot, "uid": pod.uid, "address": f"unix:{pod.home}"}


def runs(pod: Pod, script: str, to: Pod | None, *, generation: int = 1, **more: Any) -> list[int]:
    """Runs the script in a rank with this neighbour."""
    env = (
        ENV
        if "snapshot_step" not in more
        else {**ENV, rank_memory.SNAPSHOT_STEP: str(more["snapshot_step"])}
    )
    neighbour = None if to is None else agent_of(to)
    return pod.runs(script, generation=generation, env=env, neighbour=neighbour, **more)


def copied(pod: Pod, rank: int, step: int) -> wire.AgentState:
    """The state of this agent once it has the copy."""
    return pod.until(lambda state: (rank, step) in steps(state))


def steps(state: wire.AgentState) -> list[tuple[int, int]]:
    return [(one["rank"], one["step"]) for one in state["copies"]]


def test_a_new_pod_goes_on_from_the_copy_at_a_neighbour(pods: MakePod) -> None:
    lost, neighbour = pods("lost"), pods("neighbour")
    runs(lost, train(5), neighbour)
    copied(neighbour, 0, 5)
    lost.end()
    new = pods("new")
    fetch = [{"rank": 0, "held_by": agent_of(neighbour)}]
    runs(new, train(6), neighbour, generation=2, snapshot_step=5, fetch=fetch)
    assert new.file("began-2-0") == "5 5"
    copied(neighbour, 0, 6)


def test_what_a_killed_rank_kept_last_is_sent_all_the_same(pods: MakePod) -> None:
    """Also where it had no time to compute the checksum."""
    pod, neighbour = pods("pod"), pods("neighbour")
    script = f"""{TELL}
import os
from everstep.train import buffers, run
buffers.Buffer._add_checksum = lambda *_: None
run.restore()
run.snapshot(1, bytes(1000))
os.kill(os.getpid(), 9)
"""
    runs(pod, script, neighbour)
    copied(neighbour, 0, 1)


def test_a_start_drops_the_copies_of_a_training_that_was_left(pods: MakePod) -> None:
    pod, neighbour = pods("pod"), pods("neighbour")
    runs(pod, train(5), neighbour)
    copied(neighbour, 0, 5)
    neighbour.runs(FOREVER, generation=2)
    assert neighbour.state()["copies"] == []


def test_the_copy_from_which_all_ranks_resume_stays(pods: MakePod) -> None:
    """The new pod may fetch it after the agent that holds it has started its own ranks."""
    pod, neighbour = pods("pod"), pods("neighbour")
    runs(pod, train(5), neighbour)
    copied(neighbour, 0, 5)
    neighbour.runs(FOREVER, generation=2, snapshot_step=5)
    assert steps(neighbour.state()) == [(0, 5)]


def test_a_script_that_goes_back_takes_back_its_copies(pods: MakePod) -> None:
    pod, neighbour = pods("pod"), pods("neighbour")
    script = f"""{TELL}
import os, time
from everstep.train import run
run.restore()
run.snapshot(100, 100)
tell("made", 100)
while not os.path.exists(os.path.join(os.environ["HOMEDIR"], "back")): time.sleep(0.01)
run.snapshot(50, 50)
{FOREVER}"""
    runs(pod, script, neighbour)
    copied(neighbour, 0, 100)
    (pod.home / "back").touch()
    assert steps(copied(neighbour, 0, 50)) == [(0, 50)]


def test_a_start_without_the_copy_it_needs_fails(pods: MakePod) -> None:
    new, neighbour = pods("new"), pods("neighbour")
    fetch = [{"rank": 0, "held_by": agent_of(neighbour)}]
    new.run(FOREVER, generation=2, snapshot_step=5, fetch=fetch)
    state = new.until(lambda s: s["run"] is not None and s["run"]["failed"])
    assert state["run"] is not None
    assert "the copy of rank 0 at slot 1 cannot be fetched" in state["run"]["failed"]


def test_a_start_whose_neighbour_is_gone_fails(pods: MakePod) -> None:
    new, neighbour = pods("new"), pods("neighbour")
    neighbour.agent.kill()
    neighbour.agent.wait()
    fetch = [{"rank": 0, "held_by": agent_of(neighbour)}]
    new.run(FOREVER, generation=2, snapshot_step=5, fetch=fetch)
    state = new.until(lambda s: s["run"] is not None and s["run"]["failed"])
    assert state["run"] is not None


def test_a_neighbour_that_is_gone_is_a_note_and_no_failure(pods: MakePod) -> None:
    pod, neighbour = pods("pod"), pods("neighbour")
    neighbour.agent.kill()
    neighbour.agent.wait()
    runs(pod, train(5), neighbour)
    pod.file("made-1-0")
    pod.until(lambda state: "slot 1 holds no copy of the snapshots" in " ".join(state["notes"]))
    assert "everstep: slot 1 holds no copy of the snapshots" in pod.log()


def test_memory_that_a_rank_cuts_off_is_a_note(pods: MakePod) -> None:
    pod, neighbour = pods("pod"), pods("neighbour")
    script = f"""
import contextlib, os
from everstep.train import run
run._rank()._link.report_snapshot = lambda: None
run.restore()
run.snapshot(1, bytes(10_000))
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        if "everstep-snapshot" in os.readlink(f"/proc/self/fd/{{name}}"):
            os.ftruncate(int(name), 4096)
{FOREVER}"""
    runs(pod, script, neighbour)
    pod.until(lambda state: "the memory of rank 0 is cut off" in " ".join(state["notes"]))
    assert neighbour.state()["copies"] == []


IN_STEP = """
import os, time
from everstep.train import run
me, other = os.environ["ME"], os.environ["OTHER"]

def made_by(other):
    try:
        with open(other) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0

run.restore()
step = 0
while True:
    step += 1
    run.snapshot(step, bytes(1000))
    with open(me, "w") as file:
        file.write(str(step))
    while made_by(other) < step - 1:
        time.sleep(0.001)
    time.sleep(0.01)
"""


def test_ranks_keep_a_step_that_a_neighbour_has_copies_of_while_newer_copies_lag(
    pods: MakePod, tmp_path: Path
) -> None:
    """The agent of one pod gets no time, and its rank goes on. That pod may be lost next."""
    late, other = pods("late"), pods("other")
    for pod, to in ((late, other), (other, late)):
        env = {**ENV, "ME": str(tmp_path / pod.uid), "OTHER": str(tmp_path / to.uid)}
        pod.run(IN_STEP, env=env, neighbour=agent_of(to), pods=2, leads=pod is other)
    for pod in (late, other):
        pod.until(lambda state: len(state["snapshots"]) == rank_memory.BUFFERS_MOST)
    with suspended(late.agent.pid):
        newest = max(held_steps(other.state()))[1]
        state = other.until(lambda state: max(held_steps(state))[1] > newest + 20)
    assert {*steps(state)} & {*held_steps(state)}
    other.until(lambda state: max(steps(state))[1] > newest + 20)


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    signal_to(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_to(pid, signal.SIGCONT)


# -- Single requests ------------------------------------------------------------------------------


CONTENT = bytes(range(200)) * 5


def part(pod: Pod, **changes: Any) -> bytes:
    """A whole copy in one part, with other fields."""
    content: bytes = changes.pop("content", CONTENT)
    usual: wire.CopyPart = {
        "to": pod.uid,
        "run": 1,
        "rank": 7,
        "world": 8,
        "step": 3,
        "generation": 1,
        "index_bytes": 10,
        "content_bytes": len(CONTENT),
        "age_s": 1.0,
        "offset": 0,
        "checksum": zlib.crc32(CONTENT),
        "newest": None,
        "pinned": [],
    }
    return json.dumps({**usual, **changes}).encode() + b"\n" + content


def sent(pod: Pod, **changes: Any) -> int:
    """The status of the answer."""
    try:
        pod.ask("POST", wire.COPY, raw=part(pod, **changes))
    except Refused as refused:
        return refused.status
    return 200


def test_a_part_that_is_sent_twice_does_nothing_twice(pod: Pod) -> None:
    assert [sent(pod), sent(pod)] == [200, 200]
    assert steps(copied(pod, 7, 3)) == [(7, 3)]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"to": "another"}, wire.STALE),
        ({"offset": 10, "content": CONTENT[10:]}, wire.STALE),
        ({"checksum": 1}, 400),
        ({"checksum": None}, 400),
        ({"content": CONTENT + b"more"}, 400),
        ({"content": CONTENT[:-1]}, 200),
        ({"content_bytes": 2**50, "index_bytes": 0}, wire.NO_STORAGE),
        ({"content_bytes": -1}, 400),
        ({"index_bytes": 5000}, 400),
        ({"rank": "7"}, 400),
        ({"step": -1}, 400),
    ],
    ids=str,
)
def test_what_is_not_a_whole_copy_is_none(pod: Pod, changes: dict[str, Any], status: int) -> None:
    assert sent(pod, **changes) == status
    assert pod.state()["copies"] == []


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"no JSON\n", b"[]\n"])
def test_nonsense_is_refused(pod: Pod, content: bytes) -> None:
    with pytest.raises(Refused) as refused:
        pod.ask("POST", wire.COPY, raw=content)
    assert refused.value.status == 400


def test_a_copy_of_a_run_that_was_left_is_refused(pod: Pod) -> None:
    pod.runs(FOREVER, generation=2)
    assert sent(pod, run=1) == wire.STALE
    assert sent(pod, run=2) == 200


def reported(pod: Pod, **changes: Any) -> Any:
    """The answer to a report on what is pinned, or the status of the refusal."""
    report: dict[str, Any] = {
        "to": pod.uid,
        "run": 1,
        "slot": 1,
        "number": 4,
        "step": 7,
        "next_from": 9,
        "done": 1,
        "has": None,
        "is_missed": False,
        "newest": 9,
        **changes,
    }
    try:
        return pod.ask("POST", wire.COPY_PINS, raw=json.dumps(report).encode() + b"\n")
    except Refused as refused:
        return refused.status


def test_a_report_on_what_is_pinned_counts_in_its_own_run_alone(pod: Pod) -> None:
    nothing = {"number": 0, "step": None, "next_from": None}
    assert reported(pod) == nothing, "no ranks were started yet"
    pod.runs(FOREVER, generation=2)
    assert reported(pod, run=1) == wire.STALE
    assert reported(pod, run=3) == nothing
    assert reported(pod, run=2) == {"number": 4, "step": 7, "next_from": 9}
    assert reported(pod, run=2, number=3, step=5) == {"number": 4, "step": 7, "next_from": 9}
    assert reported(pod, run=2, to="another") == wire.STALE
    for changes in ({"step": -1}, {"number": "4"}, {"newest": 2**60}, {"is_missed": None}):
        assert reported(pod, run=2, **changes) == 400, changes


def test_a_copy_of_the_same_run_that_came_before_its_start_stays(pod: Pod) -> None:
    """Agents start their ranks one after the other."""
    assert sent(pod, run=2) == 200
    pod.runs(FOREVER, generation=2)
    assert steps(pod.state()) == [(7, 3)]


def test_a_token_of_another_job_is_refused(pod: Pod) -> None:
    for method, path in (("POST", wire.COPY), ("GET", wire.COPY), ("GET", wire.COPY_PART)):
        with pytest.raises(Refused) as refused:
            pod.ask(method, path, token="another job's")
        assert refused.value.status == wire.UNAUTHORIZED


def test_the_newest_two_whole_copies_stay(pod: Pod) -> None:
    for step in (1, 2, 3):
        sent(pod, step=step)
    assert sorted(steps(copied(pod, 7, 3))) == [(7, 2), (7, 3)]
    sent(pod, step=4, content=CONTENT[:10])  # it overwrites the older one, and is not whole
    assert steps(pod.stopped(2)) == [(7, 3)]


def test_memory_of_copies_does_not_add_up(pods: MakePod) -> None:
    pod, neighbour = pods("pod"), pods("neighbour")
    for generation in range(1, 6):
        (pid,) = runs(pod, train(5), neighbour, generation=generation)
        copied(neighbour, 0, 5)
        signal_to(pid, signal.SIGKILL)
        neighbour.runs(FOREVER, generation=generation)
        assert memories(neighbour) <= rank_memory.BUFFERS


def memories(pod: Pod) -> int:
    """How many memories without a name the agent holds."""
    count = 0
    for handle in Path(f"/proc/{pod.agent.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed just now
            count += str(handle.readlink()).startswith(MEMORY)
    return count
