"""The agent on an interpreter that lacks private modules of CPython: it uses the public ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from everstep.agent.processes import rank_exec

WITHOUT = """
import _ctypes, _operator, ctypes, hmac, os, signal, sys
del _ctypes.call_function, _operator._compare_digest
sys.modules["_signal"] = None
"""
"""What the public modules need of the private ones is imported before."""


def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_functions_of_the_c_library_are_called() -> None:
    done = run(
        f"{WITHOUT}"
        "from everstep.agent.processes import libc\n"
        "print(libc.HAS_PARTS, libc.call('getpid') == os.getpid())"
    )
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_tokens_are_compared() -> None:
    done = run(
        f"{WITHOUT}"
        "from everstep.agent import server\n"
        "print(server.compare_digest is hmac.compare_digest)"
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("before", ["", WITHOUT], ids=["CPython", "another"])
def test_a_rank_starts_with_its_life_tied_to_the_agents(before: str, tmp_path: Path) -> None:
    tied = (
        "import ctypes, signal\nn = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(n))\n"
    )
    shows = f"{tied}print(n.value, signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)"
    source = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "words = [sys.executable, '-I', '-S', '-c', *sys.argv[1:2], str(os.getpid()), '2', *sys.argv[2:]]\n"
        "raise SystemExit(subprocess.run(words).returncode)"
    )
    command = ("18", str(tmp_path), sys.executable, "-c", shows)
    done = run(source, before + rank_exec.SOURCE, *command)
    assert (done.stdout, done.stderr, done.returncode) == ("9 True\n", "", 0)
