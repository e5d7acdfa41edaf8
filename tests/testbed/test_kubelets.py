"""How the machines of real kubelets end: without waiting for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.testbed.kubelets.machines import kill_until_none


def test_processes_that_outlive_a_kill_are_named_after_a_time() -> None:
    """A process that was killed and that its parent does not read stays in its cgroup."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child,
        pytest.raises(TimeoutError, match=rf"n1 still has processes {child.pid} "),
    ):
        kill_until_none(lambda: [child.pid], "n1", within_s=0.05)


def test_processes_that_end_are_enough() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        kill_until_none(lambda: [child.pid] if child.poll() is None else [], "n1", within_s=60.0)
        assert child.returncode == -9
