"""A PID namespace for one pod. Its first process is the agent: when it ends, the kernel ends all others.

That holds whatever the others did with their parents, sessions and environments, and however the agent
ended. It needs CAP_SYS_ADMIN. Inside, numbers of processes are others than outside; `/proc` shows those
of the pod alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from everstep.agent.processes import libc

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 16384, 1 << 19
PID_NAMESPACE = "/proc/self/ns/pid"
READY = b"1"


def enter() -> int | None:
    """Go on as the first process of a new namespace, and return the number that it has outside.

    The calling process waits for the new one to end and ends with its code. None where the kernel
    refuses: then it goes on as it is. To be called before any thread is started.
    """
    try:
        before = os.open(PID_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a kernel without them
        return None
    if libc.call("unshare", CLONE_NEWPID) != 0:
        os.close(before)
        return None
    with contextlib.suppress(OSError):  # the machine gives us no process
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            return _begun(write_end)
        os.close(write_end)
        if os.read(read_end, 1) == READY:
            os._exit(_wait(child))
        os.close(read_end)
        os.waitpid(child, 0)
    libc.call("setns", before, CLONE_NEWPID)
    os.close(before)
    return None


def _wait(child: int) -> int:
    """Its code, once it has ended. No file stays open here: a lock lasts as long as one process has it."""
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


def _begun(report_end: int) -> int:
    """Give the new process, which calls this, a `/proc` of its own, or end it."""
    try:
        number = int(Path("/proc/self").readlink().name)  # still that of outside
        os.setsid()
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
        is_refused = (
            libc.call("unshare", CLONE_NEWNS) != 0
            # What is mounted outside later is seen here; nothing that is mounted here is seen there.
            or libc.call("mount", None, b"/", None, MS_REC | MS_SLAVE, None) != 0
            or libc.call("mount", b"proc", b"/proc", b"proc", flags, None) != 0
        )
        if not is_refused:
            os.write(report_end, READY)
            os.close(report_end)
            return number
    except (OSError, ValueError):
        pass
    os._exit(1)


def identity() -> str:
    """The identity of this process's PID namespace; empty where the kernel does not report it."""
    with contextlib.suppress(OSError):
        return str(Path(PID_NAMESPACE).stat().st_ino)
    return ""


def number_inside(pid: int) -> int:
    """The number that a process has in its own namespace; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return pid
    return 0
