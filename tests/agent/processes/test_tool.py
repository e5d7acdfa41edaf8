"""Output of other programs: complete answers, within a time and a size."""

from __future__ import annotations

import subprocess

import pytest

from everstep.agent.processes import proc, tool
from tests.agent.pod import until

LONG_S = 600.0


class Running(set[int]):
    """Remembers every process it ever held."""

    def __init__(self) -> None:
        self.ever: set[int] = set()

    def add(self, pid: int) -> None:
        super().add(pid)
        self.ever.add(pid)


def run_tool(script: str) -> subprocess.CompletedProcess[str]:
    return tool.ask(("/bin/sh", "-c", script), within_s=LONG_S, running=set())


def test_all_that_it_prints_is_told_with_its_exit_code() -> None:
    answer = run_tool("printf 'one\\ntwo \\377\\n'; echo trouble >&2; exit 3")
    assert (answer.stdout, answer.returncode) == ("one\ntwo �\n", 3)


def test_an_answer_of_the_most_there_may_be_is_whole() -> None:
    assert len(run_tool(f"head -c {tool.ANSWER_BYTES} /dev/zero").stdout) == tool.ANSWER_BYTES


TROUBLE = {
    "prints on and on": ("exec cat /dev/zero", LONG_S, OSError, "prints more than 1048576 bytes"),
    "says nothing": ("exec sleep 600", 0.1, OSError, "does not answer in time"),
    "goes on in silence": ("exec >&-; exec sleep 600", 0.5, OSError, "does not end in time"),
    "leaves somebody behind": ("sleep 600 & exit 0", 0.5, OSError, "does not answer in time"),
}


@pytest.mark.parametrize(
    ("script", "within_s", "error", "reason"), list(TROUBLE.values()), ids=list(TROUBLE)
)
def test_who_takes_too_much_is_ended_with_all_it_started(
    script: str, within_s: float, error: type[Exception], reason: str
) -> None:
    running = Running()
    with pytest.raises(error, match=reason):
        tool.ask(("/bin/sh", "-c", script), within_s=within_s, running=running)
    assert (len(running.ever), len(running)) == (1, 0)
    until(lambda: not any(is_left(process, running) for process in proc.all_processes().values()))


def is_left(process: proc.Process, running: Running) -> bool:
    return process.session in running.ever and process.is_alive


def test_of_one_that_is_not_there_it_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        tool.ask(("/no/such/tool",), within_s=LONG_S, running=set())
