"""Who belongs to a pod: asked here by its agent, by its warden and by workers, and nowhere else.

Each of these is enough: to be in the cgroup of the pod, where the machine gives us one; to be written
down in its folder, by number and start, as seen by its agent; to carry its mark in the environment; to
descend from one of those, or to be in a session that one of them leads.

Without a cgroup it counts who may not be asked for its environment and could be one of them: that is
unknown, and while it lives nothing is proven. What cannot be looked at at all is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from everstep.agent.processes import namespace, proc
from everstep.agent.storage import files

FILE = "members"
BOOT = Path("/proc/sys/kernel/random/boot_id")
AGENT_UID = b"--uid"
WARDEN = b"warden"
"""In the command lines of an agent and of its warden, whose last words are uid and folder."""
WRITTEN_MOST = 2000
"""So many are written down before those who ended are left out."""
_MOST = 16 * 1024 * 1024
_MORE = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class FoundMembers(NamedTuple):
    members: list[proc.Seen]  # zombies too: nobody has waited for them yet
    unknown: list[proc.Seen]

    @property
    def living(self) -> list[proc.Seen]:
        return [process for process in self.members if process.is_alive]


@dataclass
class MemberList:
    """What the folder says."""

    boot: str = ""
    since: int = 0  # the first agent of the pod started then: nobody of the pod is older
    cgroups: list[str] = field(default_factory=list)  # empty ones of agents that got none
    seen: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_in_cgroups(self) -> bool:
        """Whether nobody of the pod can be elsewhere."""
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
                written.seen.add((int(first), int(rest)))
        return written

    def __str__(self) -> str:
        lines = [f"boot {self.boot} {self.since}", *(f"cgroup {path}" for path in self.cgroups)]
        return "".join(f"{line}\n" for line in (*lines, *map(_line, self.seen)))


def _text(file: Path) -> str:
    return files.read(file, _MOST).decode()


def _line(identity: tuple[int, int]) -> str:
    return "{} {}".format(*identity)


class Members:
    """Of one pod."""

    def __init__(self, home: Path, uid: str) -> None:
        self._file = home / FILE
        self._mark = f"{proc.POD}={uid}".encode()
        self._uid = uid
        self._written = MemberList()

    # -- what is written down ---------------------------------------------------------------------

    def begin(self) -> None:
        """An agent begins: whatever it starts from now on is to be found again. Raises OSError."""
        written, boot = self._read(), numbering()
        if written.boot != boot:  # numbers and starts of another life of the machine tell nothing
            this_process = proc.look(os.getpid())
            written = MemberList(
                boot=boot, since=this_process.started if this_process is not None else 0
            )
        written.cgroups = [*dict.fromkeys((*written.cgroups, _joined(self._uid)))]
        self._written = written
        self._replace()

    def note(self, family: Iterable[proc.Seen]) -> None:
        """Write down who is new among these. Raises OSError."""
        written = self._written
        if written.is_in_cgroups:
            return
        new = {process.identity for process in family} - written.seen
        if not new:
            return
        if len(written.seen) > WRITTEN_MOST:
            table = proc.everybody()
            written.seen = {s.identity for s in table.values()} & written.seen
            self._replace()
        with os.fdopen(files.handle(self._file, _MORE), "a") as file:
            file.write("".join(f"{_line(identity)}\n" for identity in new))
        written.seen |= new

    def note_family(self, family: proc.Family) -> None:
        """The same for a root, by somebody beside its agent. Raises OSError."""
        if not self._read().is_in_cgroups:
            self.note(family.now().values())

    def leave(self) -> None:
        """Whoever asks is the last: the cgroup is left and taken away, unless there is somebody in it."""
        for path in filter(None, self._written.cgroups):
            with contextlib.suppress(OSError):
                (Path(path).parent / "cgroup.procs").write_text("0")
        remove_cgroups(self._file.parent)

    def _replace(self) -> None:
        """It outlives us, not the machine."""
        files.replace(self._file, str(self._written))

    def _read(self) -> MemberList:
        """Raises OSError. A folder that is away, or where nobody began, says what it said last."""
        with contextlib.suppress(FileNotFoundError):
            self._written = MemberList.of(_text(self._file))
        return self._written

    # -- who is there -----------------------------------------------------------------------------

    def look(
        self, *, root: proc.Seen | None = None, asks: bool = True, in_cgroups: bool = True
    ) -> FoundMembers:
        """Everybody, the root and its descendants included. Raises OSError.

        `asks`: for their environment, too. Whoever is the parent of all that is left need not.
        `in_cgroups`: the agent, if there is one, and what it has for itself are in there.
        """
        table, written = proc.everybody(), self._read()
        seen_before = written.seen if written.boot == numbering() else set()
        identities = {*seen_before, root.identity} if root is not None else seen_before
        pids = {process.pid for process in table.values() if process.identity in identities}
        for path in filter(None, written.cgroups if in_cgroups else ()):
            pids.update(pid for pid in _in_cgroup(path) if pid in table)
        pids = with_families(pids, table)
        unknown: list[proc.Seen] = []
        if asks:
            strangers = [process for pid, process in table.items() if pid not in pids]
            marked, unknown = self._marked_and_unknown(
                s for s in strangers if s.started >= written.since
            )
            pids = with_families(pids | marked, table)
        if written.is_in_cgroups or not written.boot:  # nobody is elsewhere, or nobody ever began
            unknown = []
        doubtful = [s for s in unknown if _may_belong(s, table, pids)]
        return FoundMembers([table[pid] for pid in pids], doubtful)

    def _marked_and_unknown(
        self, strangers: Iterable[proc.Seen]
    ) -> tuple[set[int], list[proc.Seen]]:
        """Those that carry the mark, and those that cannot be asked."""
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
    """Where and since when the numbers of processes mean what they mean. Raises OSError."""
    return f"{BOOT.read_text().strip()}/{namespace.identity()}"


def of_pods(is_meant: Callable[[str], bool]) -> list[proc.Seen]:
    """The living processes of the pods with such a uid, with their agents and wardens. Raises OSError.

    They are found by their marks alone, without the folders of their pods: a process by its environment,
    an agent or a warden by its command line.
    """
    table = proc.everybody()
    marked = {pid for pid, process in table.items() if process.is_alive and is_meant(_uid_of(pid))}
    return [table[pid] for pid in with_families(marked, table) if table[pid].is_alive]


def _uid_of(pid: int) -> str:
    """The pod that the process names; empty if it names none, or may not be read."""
    prefix = f"{proc.POD}=".encode()
    words = (proc.environment(pid) or b"").split(b"\0")
    marks = [word.removeprefix(prefix) for word in words if word.startswith(prefix)]
    command = proc.command_line(pid)
    marks += [uid for flag, uid in zip(command, command[1:]) if flag == AGENT_UID]
    if WARDEN in command:
        marks += command[-2:-1]
    return marks[0].decode(errors="replace") if marks else ""


def with_families(found: Collection[int], table: dict[int, proc.Seen]) -> set[int]:
    """With their descendants, and whoever is in a session that one of them leads."""
    followers: dict[int, list[int]] = {}
    for process in table.values():
        for leader in {process.parent, process.session}:
            followers.setdefault(leader, []).append(process.pid)
    whole, open_ones = set(found), [*found]
    while open_ones:
        for pid in followers.get(open_ones.pop(), ()):
            if pid not in whole:
                whole.add(pid)
                open_ones.append(pid)
    return whole


def _may_belong(seen: proc.Seen, table: dict[int, proc.Seen], found: Collection[int]) -> bool:
    """Not if it is another user's, or in a session that a stranger leads: one is only born into that."""
    if seen.pid in found or not proc.is_of_our_user(seen.pid):
        return False
    return seen.session == seen.pid or seen.session not in table


# -- Cgroups ------------------------------------------------------------------------------------


def _joined(uid: str) -> str:
    """A cgroup of the pod's own, which we are in from now on; empty if the machine gives us none."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        folder = _own_cgroup() / f"everstep-{uid}"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text("0")
        if _own_cgroup() == folder:
            return str(folder)
    return ""


def _own_cgroup() -> Path:
    """Where we are in the hierarchy that is for everything (v2). Raises if there is none to be seen."""
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
    """Only an empty one can be removed; in that very moment the kernel calls it no device."""
    if not isinstance(error, proc.GONE) and error.errno != errno.ENODEV:
        raise error


def remove_cgroups(home: Path) -> None:
    """Nobody belongs to the pod any more. A cgroup that is not empty stays."""
    with contextlib.suppress(OSError):
        for path in filter(None, MemberList.of(_text(home / FILE)).cgroups):
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
