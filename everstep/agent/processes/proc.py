"""Processes as the kernel shows them, and signals that never reach another process.

A process is identified by its PID and its start, as PIDs are reused. Every signal is sent by `send`. A
process counts as gone only if the kernel says so: any other error is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
POD = "EVERSTEP_POD"

ENDED = ("Z", "X")
STOPPED = ("T", "t")
NO_SUCH_PROCESS = (FileNotFoundError, ProcessLookupError)

PIDFD_SIGNAL_PROCESS_GROUP = 4
READ = 64 * 1024

PAUSES_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Pauses between looks at whether killed processes are gone. They grow, as one that hangs in the kernel may
stay for minutes, and each look reads all of /proc."""


class Process(NamedTuple):
    """One process at one moment."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    cpu: int  # clock ticks it used so far
    threads: int
    started: int  # clock ticks after boot

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def is_leader(self) -> bool:
        return self.group == self.pid

    @property
    def is_alive(self) -> bool:
        """Whether any code of it can still be carried out: threads may outlive the first one."""
        return self.state not in ENDED or self.threads > 1

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED


def find(pid: int) -> Process | None:
    """The process with this number; None if there is none. Raises OSError if it cannot be read."""
    try:
        raw = _raw(f"{pid}/stat")
    except NO_SUCH_PROCESS:
        return None
    # The name is in brackets and may hold any character, brackets included.
    before, _, after = raw.rpartition(b")")
    words = after.split()
    return Process(
        pid=pid,
        name=before.partition(b"(")[2].decode(errors="replace"),
        state=words[0].decode(),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        cpu=int(words[11]) + int(words[12]),
        threads=int(words[17]),
        started=int(words[19]),
    )


def all_processes() -> dict[int, Process]:
    """Every process of the machine, as far as it may be seen. Raises OSError."""
    table = _processes_of(_numbers())
    # A process whose parent ended while we looked has another parent by now: read it again.
    orphans = [
        process for process in table.values() if process.parent and process.parent not in table
    ]
    for pid in [process.pid for process in orphans]:
        table.pop(pid)
    table.update(_processes_of(process.pid for process in orphans))
    return table


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208


def _processes_of(pids: Iterable[int]) -> dict[int, Process]:
    return {pid: process for pid in pids if (process := find(pid)) is not None}


def below(root: int, table: dict[int, Process]) -> set[int]:
    """All descendants of a process, itself not among them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    pids: set[int] = set()
    to_visit = [root]
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in pids:
                pids.add(child)
                to_visit.append(child)
    return pids


SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")


def is_shell(process: Process) -> bool:
    """Whether it is a shell, also one that a script names as its interpreter."""
    return process.name in SHELLS or Path(program(process.pid)).name in SHELLS


def script_of(pid: int) -> Process | None:
    """The process that runs a rank's script: the rank itself or, where that is a shell, the one it waits for.

    Of several commands of a shell, such as those of a pipe, the only Python. Raises OSError.
    """
    process = find(pid)
    if process is None or not is_shell(process):
        return process
    table = all_processes()
    while is_shell(process):
        children = [each for each in table.values() if each.parent == process.pid]
        pythons = [each for each in children if each.name.startswith("python")]
        candidates = children if len(children) == 1 else pythons
        if len(candidates) != 1:
            break
        process = candidates[0]
    return process


class Family:
    """The descendants of a process, found cheaply again and again.

    Many agents share a machine, so each reads only its descendants and new processes: a process that was none
    stays none. This is good enough for a sample; a proof that none is left needs a look at all processes.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._strangers: set[int] = set()

    def now(self) -> dict[int, Process]:
        """Those that are there; none if they cannot be read."""
        with contextlib.suppress(OSError):
            return self.sample()
        return {}

    def sample(self) -> dict[int, Process]:
        """Those that are there. Raises OSError."""
        present = set(_numbers())
        table = _processes_of(present - self._strangers)
        self._strangers &= present
        descendants = below(self._root, table)
        # A process whose parent ended meanwhile may be a descendant: it is read again next time.
        self._strangers |= {
            p for p, s in table.items() if p not in descendants and s.parent in present
        }
        return {pid: table[pid] for pid in descendants}


def environment(pid: int) -> bytes | None:
    """The environment that the process was started with; None if it may not be read. Raises OSError.

    It is empty if the process has ended. If only its main thread has ended, another thread's is read.
    """
    try:
        raw = _raw(f"{pid}/environ")
        return None if not raw and _is_executing(pid) else raw
    except NO_SUCH_PROCESS:
        return _environment_of_threads(pid)
    except PermissionError:
        return None


def _environment_of_threads(pid: int) -> bytes | None:
    with contextlib.suppress(*NO_SUCH_PROCESS):
        for thread in os.listdir(PROC / str(pid) / "task"):  # noqa: PTH208
            try:
                return _raw(f"{pid}/task/{thread}/environ")
            except NO_SUCH_PROCESS:
                continue
            except PermissionError:
                return None
    return b""


def command_line(pid: int) -> list[bytes]:
    """The words that the process was started with; none if it has ended. Raises OSError."""
    try:
        return _raw(f"{pid}/cmdline").removesuffix(b"\0").split(b"\0")
    except (*NO_SUCH_PROCESS, PermissionError):
        return []


def program(pid: int) -> str:
    """The path of the program that the process executes; empty if it has ended or may not be read."""
    with contextlib.suppress(OSError):
        return os.readlink(f"{PROC}/{pid}/exe")  # noqa: PTH115  # read for every process again and again
    return ""


def _is_executing(pid: int) -> bool:
    """Whether the process is in the middle of an `exec`, and has no environment for a moment."""
    words = _raw(f"{pid}/stat").rpartition(b")")[2].split()
    has_memory, environment_ends = words[20] != b"0", words[48] != b"0"
    return has_memory and not environment_ends


def is_of_our_user(pid: int) -> bool:
    """Whether it runs for the user that we run for. Raises OSError."""
    try:
        users = _raw(f"{pid}/status").partition(b"\nUid:")[2].split(b"\n", 1)[0]
    except NO_SUCH_PROCESS:
        return False
    return str(os.getuid()).encode() in users.split()


def _raw(name: str) -> bytes:
    """Read a file below /proc, as many are read again and again: `open` makes twice as many system calls."""
    handle = os.open(f"{PROC}/{name}", os.O_RDONLY)
    try:
        content = b""
        while piece := os.read(handle, READ):
            content += piece
        return content
    finally:
        os.close(handle)


def send(process: Process, number: int, *, to_group: bool = False) -> None:
    """Signal this very process, or the process group that it leads. Every signal is sent here.

    Nothing happens if the process is gone, even if another has its number, or if it may not be signalled.
    """
    with contextlib.suppress(OSError):
        handle = _handle(process.pid)
        try:
            if _is_same(process):
                _send(handle, process.pid, number, to_group=to_group)
        finally:
            if handle is not None:
                os.close(handle)


def _handle(pid: int) -> int | None:
    """A handle of the process that has this number now; None if the kernel has no handles."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # an old kernel, or too many files
        return None


def _send(handle: int | None, pid: int, number: int, *, to_group: bool) -> None:
    if handle is not None:
        flags = PIDFD_SIGNAL_PROCESS_GROUP if to_group else 0
        try:
            signal.pidfd_send_signal(handle, number, None, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 6.9 knows no groups here
                raise
        else:
            return
    (os.killpg if to_group else os.kill)(pid, number)


def _is_same(process: Process) -> bool:
    now = find(process.pid)
    return now is not None and now.started == process.started


def kill(victims: Iterable[Process]) -> None:
    """SIGKILL to all of them, each with its process group if it leads one.

    The kernel signals a group in one go, so one that keeps forking cannot slip through.
    """
    for process in victims:
        if process.is_leader:
            send(process, signal.SIGKILL, to_group=True)
        send(process, signal.SIGKILL)


def pause_s(looks: int) -> float:
    """The pause after so many looks at whether killed processes have gone: most have within milliseconds."""
    return PAUSES_S[min(looks, len(PAUSES_S)) - 1]


def end_child(pid: int) -> None:
    """Kill a child that was not waited for: no other process gets its number before that."""
    with contextlib.suppress(OSError):
        if (process := find(pid)) is not None:
            kill((process,))


def has_handler(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal. False if it cannot be seen."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt:")), "SigCgt:\t0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def io_bytes(pid: int) -> int | None:
    """Bytes it read and wrote so far, by any means; None if that may not be read."""
    try:
        lines = _raw(f"{pid}/io").splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))


def written_files(pid: int) -> set[str]:
    """Paths that the process has open for writing, as far as that may be seen."""
    paths: set[str] = set()
    handles = PROC / str(pid) / "fd"
    try:
        names = [entry.name for entry in handles.iterdir()]
    except OSError:
        return paths
    for name in names:
        with contextlib.suppress(OSError):
            target = (handles / name).readlink()
            info = (PROC / str(pid) / "fdinfo" / name).read_text()
            if target.is_absolute() and _is_for_writing(info):
                paths.add(str(target))
    return paths


def _is_for_writing(info: str) -> bool:
    flags = next(line for line in info.splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


def has_memory(pid: int) -> bool:
    """Whether the process has not begun to end: the kernel takes its memory first, then its files."""
    try:
        return not _raw(f"{pid}/statm").startswith(b"0 ")
    except OSError:
        return False


def rss_bytes(pid: int) -> int:
    """Memory that is resident, shared pages included; 0 if that may not be read."""
    try:
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
