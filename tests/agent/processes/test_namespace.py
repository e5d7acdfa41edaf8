"""The PID namespace of a pod: what its first process sees, and what becomes of a refusal."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENTER = """
import os, subprocess, sys
from everstep.agent.processes import namespace
{refusal}
before = os.getpid()
number = namespace.enter()
is_same = os.getpid() == before
subprocess.run(["true"], check=True)  # the kernel lets it go on forking
print(number is not None, is_same, os.getpid(), os.readlink("/proc/self"), flush=True)
sys.exit(7)
"""
REFUSALS = {
    "no namespace": "namespace.CLONE_NEWPID = 1",
    "no mount": "namespace.MS_SLAVE |= 1 << 18  # private too: the kernel takes one of them",
}


def entered(refusal: str = "") -> list[str]:
    """Whether it entered, whether it is the same process, its number and that in `/proc`."""
    command = [sys.executable, "-c", ENTER.format(refusal=refusal)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 7, ended.stderr
    return ended.stdout.split()


def test_the_first_process_sees_its_own_numbers_and_its_code_is_passed_on() -> None:
    has_entered, is_same, number, in_proc = entered()
    if has_entered == "False":
        pytest.skip("the kernel gives us no PID namespace")
    assert (is_same, number, in_proc) == ("False", "1", "1")


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_a_process_that_is_refused_goes_on_as_it_is(refusal: str) -> None:
    has_entered, is_same, number, in_proc = entered(refusal)
    assert (has_entered, is_same) == ("False", "True")
    assert number == in_proc
