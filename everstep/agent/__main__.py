"""The agent's process: reads its arguments, locks its folder, listens, and works until it has to quit.

python3 -I AGENT.pyz --home DIR --job ID --slot N --node NAME --uid UID [--orphan-s S]
                     [--listen tcp:HOST:PORT] [--credentials DIR] [--inherit]
                     [--copy-output] [--namespace]

In DIR are the token and, for TLS on the port, a certificate, its key and the authority of the clients.
With --inherit a rank gets the environment of the agent and what the run command adds. A relative workdir
is then relative to the folder in which the agent was started.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from everstep.agent.agent import Agent
from everstep.agent.commands import inherited
from everstep.agent.loop import Loop
from everstep.agent.memory.copier import Copier
from everstep.agent.memory.dumping import Dumping
from everstep.agent.memory.fetching import Fetching
from everstep.agent.memory.neighbour_link import Credentials
from everstep.agent.memory.rank_socket import RankSocket
from everstep.agent.observing.evidence import EvidenceCollector
from everstep.agent.observing.logs import HEAD, MB, LogFile
from everstep.agent.observing.npu_watch import NpuWatch
from everstep.agent.observing.output_copy import OutputCopy, RankCopy
from everstep.agent.observing.samples import Samples
from everstep.agent.parts import Parts
from everstep.agent.prewarming.prefetcher import Prefetcher
from everstep.agent.prewarming.prewarm import Prewarm
from everstep.agent.processes import libc, namespace, proc
from everstep.agent.processes.endings import Endings
from everstep.agent.processes.rank import Rank
from everstep.agent.processes.rank_monitor import RankMonitor
from everstep.agent.processes.warden_link import WardenLink
from everstep.agent.routes import Complete, routes
from everstep.agent.server import Routes, Server, on_tcp, on_unix
from everstep.agent.storage import files, permissions
from everstep.protocol import wire

if TYPE_CHECKING:
    import ssl

PR_SET_CHILD_SUBREAPER = 36
LEAVE_S = 10.0
"""Grace that the ranks get when a signal ends the agent."""
COPIED_WITHIN_S = 1.0
"""Longest delay of the agent's exit by a container log that accepts no output."""
LOOKED_AT_S = 1.0
"""A lock held for this long belongs to an agent: a process that only probes it releases it sooner."""


class Options(NamedTuple):
    """The arguments of an agent."""

    home: Path
    job: str
    slot: int
    node: str
    uid: str
    orphan_s: float = wire.ORPHAN_S
    log_mb: float = wire.LOG_MB
    listen: tuple[str, int] | None = None
    credentials: Path | None = None
    inherit: bool = False
    copy_output: bool = False
    namespace: bool = False


def _tcp_address(text: str) -> tuple[str, int]:
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdigit():
        raise ValueError(f"{text} is not tcp:HOST:PORT")
    return host.strip("[]"), int(port)


READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("--home", "--credentials"), Path),
    **dict.fromkeys(("--job", "--node", "--uid"), str),
    **dict.fromkeys(("--orphan-s", "--log-mb"), float),
    "--slot": int,
    "--listen": _tcp_address,
}
"""What reads the value of an argument."""
FLAGS = ("--inherit", "--copy-output", "--namespace")


def arguments(words: Sequence[str]) -> Options:
    """Read the arguments. `argparse` would take a tenth of the agent's start."""
    if "--help" in words:
        sys.stdout.write(__doc__ or "")
        sys.exit()
    fields: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        if word not in FLAGS and name not in READERS:
            _refuse(f"there is no argument {word}")
        try:
            value = word in FLAGS or READERS[name](text if equals else next(rest))
        except StopIteration:
            _refuse(f"{name} needs a value")
        except ValueError as error:
            _refuse(f"{name}: {error}")
        fields[name[2:].replace("-", "_")] = value
    if missing := {*Options._fields} - {*Options._field_defaults} - {*fields}:
        _refuse(f"an argument is missing: {', '.join(sorted(missing))}")
    return Options(**fields)


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"everstep-agent: {why}; --help lists the arguments\n")
    sys.exit(2)


def main() -> None:
    permissions.make_nothing_for_others()
    pyz = Path(sys.argv[0]).absolute()
    options = arguments(sys.argv[1:])
    home = options.home.absolute()
    started_in = Path.cwd()
    credentials = home if options.credentials is None else options.credentials.absolute()
    os.chdir(home)  # so that the paths of socket and lock stay short
    if not _is_first():
        sys.exit(wire.ALREADY)
    try:
        # The files of a Secret are links, which only this folder may have.
        place = (
            Path(wire.TOKEN)
            if options.credentials is None
            else (credentials / wire.TOKEN).resolve()
        )
        token = files.read(place, wire.SMALL_FILE_MAX).strip()
    except OSError as error:
        sys.exit(
            f"{credentials / wire.TOKEN} cannot be read: {error.strerror}; write it before the start"
        )
    if not token:
        sys.exit(f"{credentials / wire.TOKEN} is empty")
    outer_pid = namespace.enter() if options.namespace else None
    pid_in_folder = os.getpid() if outer_pid is None else outer_pid
    _write_identity(pid_in_folder)
    _adopt_orphans()
    agent = _agent(options, home)
    environ = os.environ.copy() if options.inherit else None
    complete = partial(inherited, environ, started_in) if environ is not None else _as_it_is
    secret = None if options.credentials is None else credentials
    agent.connect(_parts(agent, pyz, pid_in_folder, secret))
    if options.copy_output:
        agent.before_exit = partial(_copy_output().flush, COPIED_WITHIN_S)
    _work(options, agent, token, complete)


def _as_it_is(command: wire.RunCommand) -> wire.RunCommand:
    return command


def _copy_output() -> OutputCopy:
    """Copy the output of every rank to standard output from now on."""
    copy = OutputCopy(sys.stdout.fileno())
    Rank.copied_by = lambda generation, rank: RankCopy(copy, generation=generation, rank=rank)
    return copy


def _is_first() -> bool:
    """Whether no other agent uses this folder. A process that probes the lock holds it for a moment only."""
    lock = files.handle(Path(wire.LOCK), os.O_RDWR | os.O_CREAT)  # open until this process ends
    deadline = time.monotonic() + LOOKED_AT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        else:
            return True


def _write_identity(pid_in_folder: int) -> None:
    """Write the agent's PID, as workers see it, and its start time: with both they detect that it ended."""
    process = proc.find(os.getpid())
    identity = f"{pid_in_folder} {process.started if process is not None else 0}"
    files.replace(Path(wire.PID), identity)


def _agent(options: Options, home: Path) -> Agent:
    LogFile.tail_max = int(options.log_mb * MB) - HEAD
    return Agent(
        Loop(),
        home,
        job=options.job,
        slot=options.slot,
        node=options.node,
        uid=options.uid,
        orphan_s=options.orphan_s,
    )


def _parts(agent: Agent, pyz: Path, pid_in_folder: int, credentials: Path | None) -> Parts:
    for ending in (signal.SIGTERM, signal.SIGINT):
        agent.loop.on_signal(ending, lambda: agent.leave(LEAVE_S))
    agent.population.begin()
    certificates = Credentials(credentials)
    return Parts(
        ranks=RankMonitor(agent),
        endings=Endings(agent),
        warden=WardenLink(agent, pyz, pid_in_folder),
        samples=Samples(agent),
        npus=NpuWatch(agent),
        prewarm=Prewarm(agent),
        prefetcher=Prefetcher(agent),
        evidence=EvidenceCollector(agent),
        copier=Copier(agent, certificates),
        fetching=Fetching(agent, certificates),
        dumping=Dumping(agent),
    )


def _work(options: Options, agent: Agent, token: bytes, complete: Complete) -> None:
    agent.begin()

    def polled() -> None:
        agent.polled = time.monotonic()
        agent.parts.warden.polled()

    answers = routes(agent, complete, polled)
    # The port comes first: once the socket answers, the port is open too.
    if options.listen is not None:
        tls = None if options.credentials is None else _tls(options.credentials)
        _serve(agent, on_tcp(*options.listen), token, answers, tls=tls)
    RankSocket(agent).listen()
    _serve(agent, on_unix(wire.SOCKET), token, answers)
    agent.loop.run()


def _tls(credentials: Path) -> ssl.SSLContext:
    """The TLS settings of the port. A client needs a certificate of the job's authority to send a token."""
    import ssl  # takes 10 ms, which a pod without TLS saves

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(credentials / wire.CERTIFICATE, credentials / wire.CERTIFICATE_KEY)
        context.load_verify_locations(credentials / wire.AUTHORITY)
    except OSError as error:  # and its subclass SSLError, for files with invalid content
        sys.exit(f"TLS cannot be set up with the files of {credentials}: {error}")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _serve(
    agent: Agent,
    listening: socket.socket,
    token: bytes,
    answers: Routes,
    *,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Answer connections to this socket. An error of the server goes to the notes and to standard error."""

    def note_once(why: str) -> None:
        if why not in agent.notes:
            agent.note(why)
            sys.stderr.write(f"{why}\n")
            sys.stderr.flush()
            agent.save_state()
            agent.publish()

    def cannot_serve(why: str) -> None:
        agent.loop.hand_over(lambda: note_once(why))

    server = Server(listening, token, answers, cannot_serve=cannot_serve, tls=tls)
    server.serve_in_background()


def _adopt_orphans() -> None:
    """Become the parent of what a rank leaves behind, so that the agent can find and end it."""
    libc.call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    main()
