"""One training process: its start, its output, its end, and the folder for messages with its agent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from everstep.agent import clock
from everstep.agent.memory.held_memory import HeldMemory
from everstep.agent.observing import quotes, steps
from everstep.agent.observing.logs import LogFile
from everstep.agent.prewarming import fork_server
from everstep.agent.processes import proc, rank_ends, rank_exec
from everstep.agent.storage import files, permissions
from everstep.protocol import bounds, rank_memory, wire
from everstep.protocol.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from everstep.agent.observing.output_copy import RankCopy

PIPE_BYTES = 1024 * 1024
READ = 1024 * 1024
LAST_READS = 16
"""Most reads of a rank's pipe after its end: enough to empty it. A child of the rank may go on writing."""

F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)

CAPABILITIES_MAX = 4096
"""Largest file of capabilities, in bytes. A larger one is ignored."""

LAST_WORDS_MAX = 256 * 1024
"""Largest file of last words, in bytes. They hold a traceback."""


class RankFolder:
    """The folder through which a rank and its agent exchange messages: files, each replaced as a whole.

    The rank writes `capabilities.json`, a list of what it can do, and `error.json`, the error that ended it.
    The agent writes `instruction.json`. Neither waits for the other, and a late reader misses nothing. A
    process that takes the place of another gets a folder of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.can: list[str] = []
        self.problem: str | None = None

    def make(self) -> None:
        """Make the folder. A full disk must not stop a rank; it only loses its channel to the agent."""
        with contextlib.suppress(OSError):
            permissions.ensure_below(self.path.parents[1], self.path)

    def instruct(self, instruction: wire.RebuildRequest | wire.SaveRequest) -> None:
        """Write the instruction for the rank. Raises OSError."""
        files.replace(self.path / wire.INSTRUCTION, json.dumps(instruction))

    def poll(self) -> bool:
        """Read the capabilities; return whether they have changed."""
        before, self.problem = self.can, None
        try:
            capabilities = files.read_json(self.path / wire.CAPABILITIES, CAPABILITIES_MAX)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            self.problem = f"{wire.CAPABILITIES}: {error}"
            return False
        if not isinstance(capabilities, list) or not all(
            isinstance(one, str) for one in capabilities
        ):
            self.problem = f"{wire.CAPABILITIES}: a list of texts is needed"
            return False
        self.can = sorted({bounds.plain(one) for one in capabilities})
        return self.can != before

    def last_words(self) -> str | None:
        """First line of the rank's error message, such as `ValueError: no such thing`."""
        with contextlib.suppress(OSError, ValueError):
            content = files.read_json(self.path / wire.LAST_WORDS, LAST_WORDS_MAX)
            for _ in range(2):  # the message may have a message of its own, beside its traceback
                content = content.get("message") if isinstance(content, dict) else content
            if isinstance(content, str) and content.strip():
                return content.strip().splitlines()[0][: quotes.EXCEPTION_MOST]
        return None

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            for name in (wire.CAPABILITIES, wire.INSTRUCTION, wire.LAST_WORDS, rank_memory.SAVER):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()


PRINTS_STACKS = {"PYTHONFAULTHANDLER": "1"}
"""Python prints the stack of each thread when it crashes, and on the signal before a hung rank is killed."""


class Rank:
    """One training process. `start` or `start_forked` starts it; the loop calls the other methods."""

    copied_by: ClassVar[Callable[[int, int], RankCopy] | None] = None
    """Makes the copy of a rank's output, from generation and rank; an agent sets it before it starts any."""

    def __init__(
        self,
        plan: wire.RankPlan,
        log: Path,
        folder: RankFolder,
        reader: steps.StepReader,
        *,
        incarnation: int,
    ) -> None:
        self.number = plan["rank"]
        self.local = plan["local_rank"]
        self.folder = folder
        self.token = os.urandom(16).hex()
        self.env = {
            **plan["env"],
            wire.RANK_FOLDER: str(folder.path),
            rank_memory.SOCKET_FOLDER: str(folder.path.parents[1]),
            rank_memory.TOKEN: self.token,
        }
        self.incarnation = incarnation
        self.pid = 0
        self.process: proc.Process | None = None  # as it was when it had just been started
        self.started_at: float | None = None
        self.exited_at: float | None = None
        self.ended_between: rank_ends.Span | None = None  # where its end was not seen
        self.exit: Exit | None = None
        self.failed: str | None = None  # why the command could not be executed
        self.is_to_end = False  # the agent ends it, or has ended it
        self.ends_by_command = False  # a command ordered its end: that is no fault
        self.is_forked = False  # from the prewarm helper
        self.first_wrote_at: float | None = None
        self.wrote_at: float | None = None
        self.log = LogFile(log)
        copied_by = type(self).copied_by
        self._position_memory: HeldMemory | None = None  # once the rank has introduced itself
        # Sends an order to the rank; None: it takes none. Raises OSError.
        self.send_order: Callable[[bytes], None] | None = None
        self.copy = None if copied_by is None else copied_by(incarnation, self.number)
        self.reader = reader
        self.output = -1  # where it can be read
        self.start_pipe = -1  # reports whether the command was executed; below 0 once that is known
        self._received = b""

    def environment(self, shared: dict[str, str]) -> dict[str, str]:
        """The environment of the rank. A document may set another file for last words."""
        words = str(self.folder.path / wire.LAST_WORDS)
        return {wire.LAST_WORDS_FILE: words, **PRINTS_STACKS, **shared, **self.env}

    # -- starting ---------------------------------------------------------------------------------

    def start(self, command: list[str], env: dict[str, str], workdir: str) -> None:
        """Start the process. Raises OSError if that fails; `read_start` reports a command that cannot run."""
        writes = self._open_output()
        outputs: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, writes, 1),
            (os.POSIX_SPAWN_DUP2, writes, 2),
        ]
        try:
            environment = self.environment(env)
            self.pid, self.start_pipe = rank_exec.spawn(command, environment, workdir, outputs)
        finally:
            os.close(writes)
        self.process, self.started_at = proc.find(self.pid), clock.now()

    def start_forked(self, pid: int, link: socket.socket, order: bytes) -> None:
        """Turn a standby fork into this rank. Raises OSError if that fails.

        The fork begins only after the answer of the agent. One that is too late gets no answer, and ends
        without having run anything.
        """
        writes = self._open_output()
        try:
            socket.send_fds(link, [fork_server.OUTPUT], [writes])
            message = link.recv(fork_server.MESSAGE_MAX)
            if message != fork_server.READY:
                raise OSError(message.decode(errors="replace") or "it is gone")
            link.sendall(order)
            link.shutdown(socket.SHUT_WR)
        except OSError:
            self.close_output()
            raise
        finally:
            os.close(writes)
        link.setblocking(False)
        self.start_pipe = link.detach()
        self.pid, self.is_forked, self.started_at = pid, True, clock.now()
        self.process = proc.find(pid)

    def _open_output(self) -> int:
        """Open the pipe for the output; returns the end to write to."""
        self.output, writes = os.pipe()
        os.set_blocking(self.output, False)
        with contextlib.suppress(OSError):  # the usual size has to do
            fcntl.fcntl(writes, F_SETPIPE_SZ, PIPE_BYTES)
        return writes

    @property
    def is_started(self) -> bool:
        return self.pid > 0 and self.start_pipe < 0 and self.failed is None

    def read_start(self) -> bool:
        """Read what the start reports; return whether it is over. `failed` then has the error, if any."""
        try:
            piece = os.read(self.start_pipe, 4096)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # a fork that was killed before it read everything
            piece = b""
        if piece:
            self._received += piece
            return False
        os.close(self.start_pipe)
        self.start_pipe = -1
        if self._received:
            self.failed = self._received.decode(errors="replace")
        return True

    # -- output -----------------------------------------------------------------------------------

    def read(self) -> tuple[bool, int | None]:
        """`(whether there may be more, the newest step in what was read)`."""
        try:
            chunk = os.read(self.output, READ)
        except BlockingIOError:
            return False, None
        if not chunk:
            self.close_output()
            return False, None
        self.log.write(chunk)
        if self.copy is not None:
            self.copy.write(chunk)
        self.wrote_at = clock.now()
        self.first_wrote_at = self.first_wrote_at or self.wrote_at
        return True, self.reader.newest(chunk)

    def close_output(self) -> None:
        if self.output >= 0:
            os.close(self.output)
            self.output = -1
            if self.copy is not None:
                self.copy.end()

    def order(self, order: Mapping[str, Any]) -> bool:
        """Send an order to a rank that takes orders. Returns whether it was sent."""
        if self.send_order is None:
            return False
        try:
            self.send_order(json.dumps(order).encode())
        except OSError:
            return False
        return True

    @property
    def position(self) -> rank_memory.Position | None:
        """Where the rank is in its training, or was when it ended; None: it does not report that."""
        memory = self._position_memory
        if memory is None:
            return None
        try:
            return rank_memory.read_position(memory.page())
        except OSError:
            return None

    def write_pins(self, run: int, pins: rank_memory.Pins) -> bool:
        """Write which snapshots the rank must not overwrite. False: it has not introduced itself."""
        if self._position_memory is None:
            return False
        at, content = rank_memory.pins_bytes(run, pins)
        try:
            return os.pwrite(self._position_memory.handle, content, at) == len(content)
        except OSError:
            return False

    @property
    def pinned(self) -> rank_memory.Pinned | None:
        """What the rank made of the newest pins that it has read."""
        if self._position_memory is None:
            return None
        try:
            return rank_memory.read_pinned(self._position_memory.page())
        except OSError:
            return None

    def keep_position(self, memory: HeldMemory) -> None:
        """Read the position from this memory from now on."""
        if self._position_memory is not None:
            self._position_memory.close()
        self._position_memory = memory

    def close(self) -> None:
        """Release what an ended rank holds."""
        self.close_output()
        if self._position_memory is not None:
            self._position_memory.close()
            self._position_memory = None
        self.log.close()
        self.folder.remove()

    # -- the end ----------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self.pid > 0 and self.exited_at is None

    @property
    def ended_badly(self) -> bool:
        return self.exit is not None and not self.exit.is_good

    def date_end(self, span: rank_ends.Span) -> None:
        """Date the end, which was in this time."""
        self.exited_at = span.ended
        self.ended_between = span if span.is_wide else None

    def state(self) -> wire.RankSeen:
        how = self.exit or Exit()
        return {
            "rank": self.number,
            "local_rank": self.local,
            "pid": self.pid,
            "incarnation": self.incarnation,
            "can": self.folder.can,
            "started_at": self.started_at or 0.0,
            "exited_at": self.exited_at,
            "ended_between": self.ended_between,
            "code": how.code,
            "signal": how.signal,
            "recent_steps": None,  # its run fills that in
        }
