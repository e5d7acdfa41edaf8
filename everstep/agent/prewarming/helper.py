"""The agent's side of a prewarm helper and its forks: their processes, and messages to and from them."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from everstep.agent.prewarming import fork_server
from everstep.agent.prewarming.helper_spec import HelperSpec
from everstep.agent.processes import proc, rank_exec
from everstep.agent.storage import files
from everstep.protocol import wire

_LOADER: Any = fork_server.__loader__
# Read at once: our own file may be replaced by another version while we run.
SOURCE: str = _LOADER.get_source(fork_server.__name__)
LAST_LINE = 500
_LOG = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
LOG_MOST = 1024 * 1024
FORK_S = 2.0
"""A helper that has not forked by then never will."""
FATAL = b"Fatal Python error: "
"""How Python begins the stack that it prints when it crashes."""


class Helper:
    """The helper process: it has imported the modules, and forks on request."""

    def __init__(self, spec: HelperSpec, uid: str, log: Path) -> None:
        """Start the process. Raises OSError."""
        self.spec = spec
        self.is_ready = False
        self.failed: str | None = None
        self.rss_bytes = 0
        self.standbys: list[Standby] = []
        self.log = log
        self.control, helper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(FORK_S)
        arguments = (str(os.getpid()), spec.script_folder, *spec.modules)
        command = [*spec.interpreter, "-c", SOURCE, *arguments]
        try:
            # Through the start pipe comes why the interpreter could not be executed, if it could not.
            self.pid, self._start_pipe = rank_exec.spawn(
                command,
                {**dict(spec.env), proc.POD: uid},
                spec.workdir,
                [
                    (os.POSIX_SPAWN_DUP2, helper_end.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, _LOG, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
        except OSError:
            self.control.close()
            raise
        finally:
            helper_end.close()

    def read_message(self) -> bool:
        """Read a message of the helper; return whether more may come."""
        try:
            message = self.control.recv(4096)
        except OSError:
            return False
        if message == fork_server.READY and not self.is_ready:
            self.is_ready, self.rss_bytes = True, proc.rss_bytes(self.pid)
        if message.startswith(b"failed: "):
            self.is_ready, self.failed = False, message[8:].decode(errors="replace")
        return bool(message)

    def fork(self, link: int) -> None:
        """Have the helper fork once; the fork gets this end of a link. Raises OSError."""
        socket.send_fds(self.control, [fork_server.FORK], [link])

    def last_words(self) -> str:
        """Why the helper ended: its message, else why it never started, else the last line of its output."""
        if self.failed is not None:
            return self.failed
        output = b""
        with contextlib.suppress(OSError):
            output = os.read(self._start_pipe, 4096)
        if not output:
            with contextlib.suppress(OSError):
                lines = files.read(self.log, LOG_MOST).splitlines()
                stack = next((n for n, line in enumerate(lines) if line.startswith(FATAL)), 0)
                output = b"".join(
                    lines[: stack or None][-1:]
                )  # what was printed before Python's stack
        return output.decode(errors="replace")[-LAST_LINE:] or "it was ended"

    def close(self) -> None:
        self.control.close()
        os.close(self._start_pipe)

    def state(self) -> wire.HelperSeen:
        return {
            "pid": self.pid,
            "modules": list(self.spec.modules),
            "ready": self.is_ready,
            "rss_bytes": self.rss_bytes,
            "standing_by": sum(one.pid > 0 for one in self.standbys),
        }


class Standby:
    """A fork of the helper that waits for the rank that it is to run."""

    def __init__(self, helper: Helper) -> None:
        """Request a fork of the helper. Raises OSError."""
        self.pid = 0
        self.link, helper_end = socket.socketpair()
        self.link.settimeout(FORK_S)
        try:
            helper.fork(helper_end.fileno())
        except OSError:
            self.link.close()
            raise
        finally:
            helper_end.close()

    def receive_pid(self) -> None:
        """Receive the number of the fork's process. Raises OSError if it failed."""
        message = self.link.recv(fork_server.MESSAGE_MAX).decode(errors="replace")
        if not message.isdigit():
            raise OSError(message or "it is gone")
        self.pid = int(message)

    def dismiss(self) -> None:
        """Close the link to the fork, which is not needed, and end it."""
        self.link.close()
        if self.pid:
            proc.end_child(self.pid)
