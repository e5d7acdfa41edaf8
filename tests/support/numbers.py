"""Numbers of processes, given out again to another process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from everstep.agent.processes import proc


def stranger_with_number(pid: int) -> subprocess.Popen[bytes] | None:
    """A process that leads a session of this number; None if another of the machine was quicker."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    while proc.find(pid) is None:
        try:
            last.write_text(str(pid - 1))
        except PermissionError:
            pytest.skip("nobody may say which number is next")
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None
