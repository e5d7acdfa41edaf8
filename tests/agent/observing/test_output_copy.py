"""What ranks print is also what their container prints."""

from __future__ import annotations

import os

from everstep.agent.observing.output_copy import MOST, OutputCopy, RankCopy
from everstep.protocol import wire
from tests.agent.pod import Pod, until
from tests.support.patience import HUNG_S

LAST_WORDS = """
import signal, sys, time

def end(*_):
    print(*(f"line {number}" for number in range(10_000)), sep="\\n", flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_an_agent_prints_what_its_ranks_print(idle: Pod) -> None:
    pod = idle.start("--copy-output")
    pod.run("print('first', flush=True); import sys; sys.stderr.write('no end')")
    until(lambda: "no end\n" in pod.log_text(), what="the rank's output")
    lines = [line for line in pod.log_text().splitlines() if line.startswith("[g")]
    assert lines == ["[g1 rank 0] first", "[g1 rank 0] no end"]


def test_what_ranks_print_while_their_agent_ends_is_copied_too(idle: Pod) -> None:
    """The container's log is all that is left of it: the rank's own goes with the pod."""
    log, rank_log = idle.home / "agent.log", idle.home / "logs" / "g1-r0.log"
    os.mkfifo(log)  # it takes 64 KB until it is read
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    pod = idle.start("--copy-output")
    pod.run(LAST_WORDS)
    until(rank_log.exists, what="the rank's own log")
    until(lambda: rank_log.read_text() == "ready\n", what="the rank")
    pod.agent.terminate()
    until(lambda: not (pod.home / wire.SOCKET).exists(), what="the end of the agent")
    os.set_blocking(reader, True)
    with os.fdopen(reader) as copied:
        lines = [line for line in copied if line.startswith("[g1 rank 0] line ")]
    assert len(lines) == 10_000


def test_without_it_an_agent_prints_nothing_of_them(idle: Pod) -> None:
    pod = idle.start()
    pod.run("print('first', flush=True)")
    log = pod.home / "logs" / "g1-r0.log"
    until(lambda: log.exists() and log.read_text() == "first\n", what="the rank's output")
    assert "first" not in pod.log_text()


def test_a_log_that_takes_nothing_holds_up_no_rank_and_says_what_is_missing() -> None:
    reader, writer = os.pipe()
    copy = OutputCopy(writer)
    rank = RankCopy(copy, generation=2, rank=5)
    line = b"x" * 1000 + b"\n"
    for _ in range(2 * MOST // len(line)):
        rank.write(line)
    received = b""
    while b"left out" not in received:
        received += os.read(reader, MOST)
        rank.write(b"last\n")
    assert received.startswith(b"[g2 rank 5] xxx")
    while not received.endswith(b"[g2 rank 5] last\n"):
        received += os.read(reader, MOST)
    copy.flush(HUNG_S)
    os.close(reader)
    missing = received.partition(b"[everstep: ")[2].partition(b" bytes")[0]
    assert 0 < int(missing) < 2 * MOST


def test_a_line_without_end_is_copied_in_parts() -> None:
    reader, writer = os.pipe()
    copy = OutputCopy(writer)
    RankCopy(copy, generation=1, rank=0).write(b"y" * 20_000)
    copy.flush(HUNG_S)
    assert os.read(reader, 100_000) == b"[g1 rank 0] " + b"y" * (16 * 1024) + b"\n"
