"""The first moments of a process of the job: it ties its life to the agent's, then becomes the command.

Run as `python3 -I -S -c SOURCE PARENT SAYS UMASK WORKDIR COMMAND...`; nothing of it is left afterwards. What
goes wrong is written to the file SAYS, which the kernel closes when the command starts. Every rank waits
for it: `_signal` and `_ctypes` are what `signal` and `ctypes` of CPython wrap, which take longer than all the
rest here. An interpreter that lacks them imports the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from everstep.agent.storage import permissions

SOURCE = """
import os, sys
parent, says, workdir, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4], sys.argv[5:]
os.umask(int(sys.argv[3]))  # the user's: what a rank makes is theirs
os.set_inheritable(says, False)
try:
    try:
        import _signal as signal
        from _ctypes import call_function, dlopen, dlsym
        prctl = lambda *arguments: call_function(dlsym(dlopen(None, 0), "prctl"), arguments)
    except ImportError:
        import ctypes, signal
        prctl = ctypes.CDLL(None).prctl
    os.setsid()
    prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != parent:  # it may have died before we asked
        os._exit(1)
    for number in signal.valid_signals():  # what Python, or who started the agent, ignores
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.chdir(workdir)
    os.execvp(command[0], command)
except OSError as error:
    what = workdir if error.filename == workdir else command[0]
    os.write(says, ("%s: %s" % (what, error.strerror)).encode())
except Exception as error:
    os.write(says, repr(error).encode())
os._exit(127)
"""


def spawn(
    command: Sequence[str], env: dict[str, str], workdir: str, file_actions: list[tuple[Any, ...]]
) -> tuple[int, int]:
    """Start the process. Returns its PID, and the end of a pipe from which to read what went wrong.

    Nothing comes through the pipe if the command started. Raises OSError if there can be no new process.
    """
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    os.set_blocking(read_end, False)
    words = [str(os.getpid()), str(write_end), str(permissions.users_umask()), workdir, *command]
    interpreter = [sys.executable, "-I", "-S", "-c", SOURCE, *words]
    try:
        return os.posix_spawn(sys.executable, interpreter, env, file_actions=file_actions), read_end
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
