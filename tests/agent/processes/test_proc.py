"""A family found by looking at newcomers only is the one that the whole table shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from everstep.agent.processes import proc
from tests.support.patience import HUNG_S

CHILD = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-I", "-S", "-c", CHILD]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        table = proc.all_processes()
        proc.kill(table[pid] for pid in proc.below(process.pid, table))
        process.kill()


def line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_newcomers_join_and_strangers_stay_strangers(child: subprocess.Popen[str]) -> None:
    family = proc.Family(child.pid)
    family.now()
    other = subprocess.Popen(["sleep", "60"])
    try:
        grandchild = line(child)
        for _ in range(2):
            assert set(family.now()) == {grandchild}
            assert set(family.now()) == proc.below(child.pid, proc.all_processes())
    finally:
        other.kill()
        other.wait()


def test_who_ended_is_no_family_any_more(child: subprocess.Popen[str]) -> None:
    grandchild = line(child)
    family = proc.Family(child.pid)
    process = family.now()[grandchild]
    proc.send(process, 9)
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    child.wait(timeout=HUNG_S)
    while proc.find(grandchild) is not None:  # until its new parent has waited for it
        pass
    assert family.now() == {}
