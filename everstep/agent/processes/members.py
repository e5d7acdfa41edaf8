"""Which processes belong to a pod. Its agent, its warden and workers use this module and nothing else.

A process is a member if it is in the cgroup of the pod (where the machine allows one), or in the list in the
pod's folder (the number and start of each process that the agent saw), or has the pod's mark in its
environment, or descends from a member, or is in a session that a member leads.

Without a cgroup a process whose environment may not be read, and which could be a member, is unknown: as long
as it lives, the end of the pod is not proven. If the processes cannot be read at all, that is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes import namespace, proc
from everstep.agent.storage import files

FILE = "members"
BOOT = Path("/proc/sys/kernel/random/boot_id")
UID_FLAG = b"--uid"
WARDEN = b"warden"
"""Marks in the command lines of an agent and of its warden; the warden's ends with uid and folder."""
WRITTEN_MOST = 2000
"""Most processes in the list before those that have ended are removed from it."""
LEAVE_S = 10.0
"""Longest wait for processes that are ending in the cgroup."""
AGAIN_S = 0.02
_MOST = 16 * 1024 * 1024
_MORE = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class FoundMembers(NamedTuple):
    members: list[proc.Process]  # zombies too, which no parent has waited for yet
    unknown: list[proc.Process]

    @property
    def living(self) -> list[proc.Process]:
        return [process for process in self.members if process.is_alive]


class MemberList:
    """The list of members in the pod's folder."""

    def __init__(self, boot: str = "", since: int = 0) -> None:
        self.boot = boot
        self.since = since  # start of the pod's first agent: no member is older
        self.cgroups: list[str] = []  # one per agent; "" for one that got none
        self.identities: set[tuple[int, int]] = set()

    @property
    def is_in_cgroups(self) -> bool:
        """Whether every member must be in a cgroup of the pod."""
        return bool(self.cgroups) and all(self.cgroups)

    @staticmethod
    def of(text: str) -> MemberList:
        written = MemberList()
        for line in text.splitlines():
            first, _, rest = line.partition(" ")
            if first == "boot":
                written.boot, _, since = rest.partition(" ")
                written.since = int(since)
            elif first == "cgroup":
                written.cgroups.append(rest)
            elif first.isdigit() and rest.isdigit():  # the last line may be torn
                written.identities.add((int(first), int(rest)))
        return written

    def __str__(self) -> str:
        lines = [f"boot {self.boot} {self.since}", *(f"cgroup {path}" for path in self.cgroups)]
        return "".join(f"{line}\n" for line in (*lines, *map(_line, self.identities)))


def _text(file: Path) -> str:
    return files.read(file, _MOST).decode()


def _line(identity: tuple[int, int]) -> str:
    return "{} {}".format(*identity)


class Members:
    """Finds the processes of one pod."""

    def __init__(self, home: Path, uid: str) -> None:
        self._file = home / FILE
        self._mark = f"{proc.POD}={uid}".encode()
        self._uid = uid
        self._written = MemberList()

    # -- what is written down ---------------------------------------------------------------------

    def begin(self) -> None:
        """Start the list, so that all that the agent starts from now on is found again. Raises OSError."""
        written, boot = self._read(), numbering()
        if written.boot != boot:  # process numbers from before a reboot mean nothing
            this_process = proc.find(os.getpid())
            written = MemberList(
                boot=boot, since=this_process.started if this_process is not None else 0
            )
        written.cgroups = [*dict.fromkeys((*written.cgroups, _join_cgroup(self._uid)))]
        self._written = written
        self._replace()

    def note(self, family: Iterable[proc.Process]) -> None:
        """Add the new ones of these processes to the list. Raises OSError."""
        written = self._written
        if written.is_in_cgroups:
            return
        new = {process.identity for process in family} - written.identities
        if not new:
            return
        if len(written.identities) > WRITTEN_MOST:
            table = proc.all_processes()
            written.identities = {s.identity for s in table.values()} & written.identities
            self._replace()
        with os.fdopen(files.handle(self._file, _MORE), "a") as file:
            file.write("".join(f"{_line(identity)}\n" for identity in new))
        written.identities |= new

    def note_family(self, family: proc.Family) -> None:
        """Add the descendants of a process; for the warden. Raises OSError."""
        if not self._read().is_in_cgroups:
            self.note(family.now().values())

    def leave(self) -> None:
        """Leave the cgroup and remove it. For the last process of the pod.

        A process that was killed stays in it until the kernel has taken it apart, the agent too.
        """
        with contextlib.suppress(OSError):
            self._read()
        paths = [Path(path) for path in self._written.cgroups if path]
        for path in paths:
            with contextlib.suppress(OSError):
                (path.parent / "cgroup.procs").write_text("0")
        _remove(paths)

    def _replace(self) -> None:
        """Write the list. It outlives this process, and not the machine: it is not synced."""
        files.replace(self._file, str(self._written))

    def _read(self) -> MemberList:
        """Read the list, or return the last one if the file is missing. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._written = MemberList.of(_text(self._file))
        return self._written

    # -- who is there -----------------------------------------------------------------------------

    def find(
        self,
        *,
        root: proc.Process | None = None,
        reads_environments: bool = True,
        in_cgroups: bool = True,
    ) -> FoundMembers:
        """Return all members, the root and its descendants included. Raises OSError.

        `reads_environments`: look for the mark there too. Not needed where `root` is a parent of them all.
        `in_cgroups`: count those in the pod's cgroups; that includes the agent and its helpers.
        """
        table, written = proc.all_processes(), self._read()
        seen_before = written.identities if written.boot == numbering() else set()
        identities = {*seen_before, root.identity} if root is not None else seen_before
        pids = {process.pid for process in table.values() if process.identity in identities}
        for path in filter(None, written.cgroups if in_cgroups else ()):
            pids.update(pid for pid in _in_cgroup(path) if pid in table)
        pids = with_families(pids, table)
        unknown: list[proc.Process] = []
        if reads_environments:
            strangers = [process for pid, process in table.items() if pid not in pids]
            marked, unknown = self._marked_and_unknown(
                s for s in strangers if s.started >= written.since
            )
            pids = with_families(pids | marked, table)
        if written.is_in_cgroups or not written.boot:  # all are in cgroups, or no agent ever began
            unknown = []
        doubtful = [s for s in unknown if _may_belong(s, table, pids)]
        return FoundMembers([table[pid] for pid in pids], doubtful)

    def _marked_and_unknown(
        self, strangers: Iterable[proc.Process]
    ) -> tuple[set[int], list[proc.Process]]:
        """Processes that have the mark, and processes whose environment cannot be read."""
        marked, unknown = set(), []
        for process in strangers:
            if not process.is_alive:
                continue
            environment = proc.environment(process.pid)
            if environment is None:
                unknown.append(process)
            elif self._mark in environment and self._mark in environment.split(b"\0"):
                marked.add(process.pid)
        return marked, unknown


def numbering() -> str:
    """Identifies the boot and the PID namespace in which PIDs are valid. Raises OSError."""
    return f"{BOOT.read_text().strip()}/{namespace.identity()}"


def of_pods(uid_matches: Callable[[str], bool]) -> list[proc.Process]:
    """The living processes of the pods whose uid matches, with their agents and wardens. Raises OSError.

    They are found by their marks alone, without the folders of their pods: a process by its environment,
    an agent or a warden by its command line.
    """
    table = proc.all_processes()
    marked = {
        pid for pid, process in table.items() if process.is_alive and uid_matches(_uid_of(pid))
    }
    return [table[pid] for pid in with_families(marked, table) if table[pid].is_alive]


def _uid_of(pid: int) -> str:
    """The pod that the process names; empty if it names none, or may not be read."""
    prefix = f"{proc.POD}=".encode()
    words = (proc.environment(pid) or b"").split(b"\0")
    marks = [word.removeprefix(prefix) for word in words if word.startswith(prefix)]
    command = proc.command_line(pid)
    marks += [uid for flag, uid in zip(command, command[1:]) if flag == UID_FLAG]
    if WARDEN in command:
        marks += command[-2:-1]
    return marks[0].decode(errors="replace") if marks else ""


def with_families(pids: Collection[int], table: dict[int, proc.Process]) -> set[int]:
    """These processes, their descendants, and all in a session that one of them leads."""
    followers: dict[int, list[int]] = {}
    for process in table.values():
        for leader in {process.parent, process.session}:
            followers.setdefault(leader, []).append(process.pid)
    whole, open_ones = set(pids), [*pids]
    while open_ones:
        for pid in followers.get(open_ones.pop(), ()):
            if pid not in whole:
                whole.add(pid)
                open_ones.append(pid)
    return whole


def _may_belong(
    process: proc.Process, table: dict[int, proc.Process], members: Collection[int]
) -> bool:
    """Whether an unreadable process may be a member.

    It is none if it is another user's, or in a session that another process leads: only a descendant of that
    leader can be in it.
    """
    if process.pid in members or not proc.is_of_our_user(process.pid):
        return False
    return process.session == process.pid or process.session not in table


# -- Cgroups ------------------------------------------------------------------------------------


def _join_cgroup(uid: str) -> str:
    """Move into a cgroup of the pod's own, and return it; empty if the machine gives us none."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        folder = _own_cgroup() / f"everstep-{uid}"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text("0")
        if _own_cgroup() == folder:
            return str(folder)
    return ""


def _own_cgroup() -> Path:
    """The cgroup of this process in the unified hierarchy (v2). Raises if there is none to be seen."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line[3:] for line in lines if line.startswith("0::"))
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mount = next(words for words in mounts if words[words.index("-") + 1] == "cgroup2")
    return Path(mount[4]) / Path(path).relative_to(mount[3])


def _in_cgroup(path: str) -> Iterator[int]:
    """Members of it and of what was made below it; none if it was taken away. Raises OSError."""
    above = (Path(path), *Path(path).parents)
    if not any((folder / "cgroup.procs").exists() for folder in above):
        raise FileNotFoundError(f"{path} cannot be seen from here")
    for folder, _, _ in os.walk(path, onerror=_unless_gone):
        try:
            yield from map(int, (Path(folder) / "cgroup.procs").read_text().split())
        except OSError as error:
            _unless_gone(error)


def _unless_gone(error: OSError) -> None:
    """Raise the error unless the cgroup was removed, which has no members then; the kernel may say ENODEV."""
    if not isinstance(error, proc.NO_SUCH_PROCESS) and error.errno != errno.ENODEV:
        raise error


def remove_cgroups(home: Path) -> bool:
    """Remove the cgroups of a pod; whether all are gone. One that has members after LEAVE_S stays."""
    with contextlib.suppress(OSError):
        return _remove([Path(path) for path in MemberList.of(_text(home / FILE)).cgroups if path])
    return True  # no agent ever began here


def _remove(paths: Collection[Path]) -> bool:
    """Wait for the kernel, which takes processes apart for a while after their end is seen."""
    gives_up_at = time.monotonic() + LEAVE_S
    while not _try_to_remove(paths):
        if time.monotonic() > gives_up_at:
            return False
        time.sleep(AGAIN_S)
    return True


def _try_to_remove(paths: Collection[Path]) -> bool:
    """Whether all are gone. The kernel removes an empty one alone."""
    for path in paths:
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    return not any(path.exists() for path in paths)
