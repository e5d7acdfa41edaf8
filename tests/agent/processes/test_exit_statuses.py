"""How processes ended that others waited for, which Linux shows from 6.15 on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.agent.processes import exit_statuses, proc
from everstep.agent.processes.exit_statuses import ExitStatuses
from tests.support.kernel import SHOWS_EXIT_STATUSES


@contextmanager
def command_of_a_shell(command: str) -> Iterator[tuple[proc.Process, subprocess.Popen[str]]]:
    """A process that a shell waits for. It goes on once a line is written to the shell."""
    script = f"sh -c 'echo $$; read _; {command}' 2> /dev/null; echo over; read _"
    begun = ["sh", "-c", script]
    with subprocess.Popen(begun, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        process = proc.find(int(shell.stdout.readline()))
        assert process is not None
        try:
            yield process, shell
        finally:
            shell.kill()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def end(shell: subprocess.Popen[str]) -> None:
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "over\n"


@pytest.mark.parametrize(
    ("end_of_command", "status"), [("exit 143", 143), ("kill -9 $$", -9), ("exit 0", 0)]
)
def test_the_status_of_a_process_below_a_shell_is_read_once(
    end_of_command: str, status: int
) -> None:
    statuses = ExitStatuses()
    with command_of_a_shell(end_of_command) as (process, shell):
        statuses.hold([process])
        assert statuses.take() == [], "it lives"
        end(shell)
        expected = [(process.identity, status)] if SHOWS_EXIT_STATUSES else []
        assert statuses.take() == expected
        assert statuses.take() == []
    statuses.close()


def test_a_child_of_the_agent_is_not_held() -> None:
    """The agent waits for it, and would report its end twice."""
    statuses = ExitStatuses()
    with subprocess.Popen(["true"]) as child:
        process = proc.find(child.pid)
        assert process is not None
        statuses.hold([process])
        child.wait()
        assert statuses.take() == []


def test_another_process_of_the_same_number_is_not_held() -> None:
    statuses = ExitStatuses()
    with command_of_a_shell("exit 3") as (process, shell):
        statuses.hold([process._replace(started=process.started - 1)])
        end(shell)
        assert statuses.take() == []


def test_the_handles_are_bounded_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_statuses, "HANDLES_MOST", 1)
    statuses = ExitStatuses()
    with (
        command_of_a_shell("exit 3") as (process, _),
        command_of_a_shell("exit 4") as (other, other_shell),
    ):
        before = open_files()
        statuses.hold([process, other])
        statuses.hold([process])
        assert open_files() <= before + 1
        end(other_shell)
        assert statuses.take() == []
        statuses.close()
        assert open_files() == before


def test_a_kernel_that_shows_no_status_leaves_the_end_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exit_statuses, "_GET_INFO", 0xFFFF)
    statuses = ExitStatuses()
    with command_of_a_shell("exit 3") as (process, shell):
        statuses.hold([process])
        end(shell)
        assert statuses.take() == []
