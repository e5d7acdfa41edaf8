"""A full or nearly full disk: training goes on, the user is warned, and it recovers by itself."""

from __future__ import annotations

import json
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.agent.agent import STATE_FILE
from everstep.agent.observing.logs import HEAD, TAIL_LEAST, TAIL_MAX
from everstep.protocol import wire
from tests.agent.pod import FOREVER, Pod, exits, until
from tests.support.starving import away

GB = 1 << 30
PRINTS = "import sys\nfor n in range(1, 4): print('step', n, flush=True)\n"


def leave_room(pod: Pod, size: int | None) -> None:
    """So large may a file of the agent become; beyond it a write fails as it does on a full disk."""
    _, most = resource.prlimit(pod.agent.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pod.agent.pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def has_note(state: wire.AgentState, *words: str) -> bool:
    return all(any(word in note for note in state["notes"]) for word in words)


def test_nothing_can_be_written_and_the_run_is_seen_to_its_end(pod: Pod) -> None:
    leave_room(pod, 0)
    pod.run(PRINTS + "raise ValueError('no such thing')")
    state = pod.until(exits)
    assert state["run"] is not None
    assert state["run"]["step"] == 3
    (fact,) = exits(state)
    assert fact["details"]["exception"] == "ValueError: no such thing"
    assert has_note(state, "the log of rank 0 is not complete", "cannot be written")
    assert pod.log_text() == "", "it is a note for people and no fault of ours"


@pytest.mark.parametrize("evidence", [True, False])
def test_a_folder_that_is_away_is_not_made_anew(pod: Pod, *, evidence: bool) -> None:
    """Where it was mounted, say: what is put there meanwhile is in the way of what comes back."""
    pod.runs(FOREVER)
    with away(pod.home.parent) as elsewhere:
        place, pod.home = pod.home, elsewhere / pod.home.name
        state = pod.stopped(2, evidence=evidence)
        pod.run(PRINTS, generation=3)
        assert pod.until(exits)["run"] is not None
        assert state["stopped_below"] == 2
        assert not place.parent.exists()
    pod.home = place


def test_evidence_that_cannot_be_kept_holds_up_no_stop(pod: Pod) -> None:
    leave_room(pod, 0)
    (rank,) = pod.runs(FOREVER)
    state = pod.stopped(2, evidence=True)
    assert state["stopped_below"] == 2
    assert rank not in pod.marked()


def test_once_there_is_room_again_everything_is_kept_again(pod: Pod) -> None:
    leave_room(pod, 0)
    pod.run(PRINTS, generation=1)
    pod.until(lambda s: s["run"] and s["run"]["ranks"] and s["run"]["ranks"][0]["code"] == 0)
    leave_room(pod, None)
    pod.stopped(2)
    pod.run(PRINTS, generation=2)
    pod.until(lambda s: s["run"] and s["run"]["generation"] == 2 and s["run"]["step"] == 3)
    until(lambda: pod.log(generation=2) == "step 1\nstep 2\nstep 3\n", what="the log")
    until(lambda: json.loads((pod.home / STATE_FILE).read_text())["generation"] == 2)


def test_log_that_was_cut_off_by_a_full_disk_says_so(pod: Pod) -> None:
    """The last piece is written in part; the system reports that by a number, not by an error."""
    leave_room(pod, 4096)
    pod.run("import os; os.write(1, b'x' * 5000)")
    state = pod.until(
        lambda s: s["run"] and s["run"]["ranks"] and s["run"]["ranks"][0]["code"] == 0
    )
    assert has_note(state, "the log of rank 0 is not complete")


@pytest.mark.long
def test_gigabyte_of_output_never_takes_more_than_its_share_of_the_disk(pod: Pod) -> None:
    """Only so much is rewritten of a bounded log while its size is read."""
    script = (
        "import os\nprint('first', flush=True)\nline = b'x' * 1023 + b'\\n'\n"
        "for n in range(1024):\n    os.write(1, b'step %d\\n' % n)\n"
        "    for _ in range(64): os.write(1, line * 16)\nprint('last')"
    )
    sizes: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            sizes.append(bytes_used(pod.home / wire.LOGS))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        pod.run([sys.executable, "-c", script])
        state = pod.until(exits)
    finally:
        ended.set()
        looking.join()
    assert state["run"] is not None
    assert state["run"]["ranks"][0]["code"] == 0
    assert state["run"]["step"] == 1023
    assert 0 < max(sizes) <= HEAD + TAIL_MAX + (2 << 20)
    assert bytes_used(pod.home / wire.LOGS) >= HEAD + TAIL_LEAST - (1 << 20)
    assert pod.log(offset=0).startswith("first\nstep 0\n")
    assert pod.log(offset=-5) == "last\n"
    written = pod.ask("GET", f"{wire.LOG}?rank=0&generation=1&offset=-1")["next"]
    assert written > GB


def bytes_used(folder: Path) -> int:
    """The bytes of all files in it. Files that give way to others meanwhile count for nothing."""
    size = 0
    for file in folder.glob("*"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def test_an_agent_keeps_as_much_of_a_log_as_it_was_given(idle: Pod) -> None:
    pod = idle.start("--log-mb", "10")
    pod.run([sys.executable, "-c", "import sys; sys.stdout.write('x' * (20 << 20))"])
    pod.until(exits)
    assert HEAD < bytes_used(pod.home / wire.LOGS) <= 11 << 20
