"""The prewarm helper: a process that imports what a training script needs, of which ranks are forked.

The agent runs this text with the interpreter of the job's command, and its socket as standard input:
`PYTHON [FLAGS] -c TEXT AGENT_PID FIRST MODULE...`; FIRST is what that interpreter would put first into
`sys.path`. So only the standard library is imported here.

    helper:  import the modules, then for each message FORK of the agent: fork
    fork:    send its process number, receive the output (OUTPUT), send READY, receive the order, run it

The helper refuses if the modules started a thread or opened a device. A rank is forked twice, so that it
becomes a child of the agent. If anything fails before the order has come, the agent starts the rank plainly.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import signal
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
READY, FORK, OUTPUT = b"ready", b"f", b"o"
MESSAGE_MAX = 500
DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri", "/dev/accel")
ADOPTED_S = 0.0001
"""Time between two looks of a fork at whether the agent has become its parent."""
HOST_S = 0.1
"""Longest wait for rank 0 to listen."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp

PROC = Path("/proc/self")

OF_FORKS = ("ctypes", "random")
"""Modules that every fork needs. The agent, which imports this text for the messages, needs none of them."""

HELPER_MAIN = sys.modules["__main__"]
"""Kept: a rank that replaces `__main__` would otherwise destroy the globals of this module."""


def serve() -> Callable[[], None]:
    """Fork until the agent ends. Returns only in a rank, the function that runs its command."""
    agent_pid, script_folder, modules = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    control = _control()
    for name in OF_FORKS:
        importlib.import_module(name)
    _set_title(["everstep-prewarm", *modules])  # in place of this text
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = script_folder
    why = _import_modules(modules)
    gc.collect()
    gc.freeze()  # what is never looked at again stays shared with every rank
    _end_idle_threads()
    while why is None and (why := _why_not_forkable()) is None:
        control.send(READY)
        message, handles, _, _ = socket.recv_fds(control, len(FORK), 1)
        if not message:
            os._exit(0)  # the agent is gone
        if _fork_rank():
            return _become_rank(agent_pid, control, socket.socket(fileno=handles[0]))
        os.close(handles[0])
    control.send(f"failed: {why}".encode()[:4096])
    os.killpg(0, signal.SIGKILL)  # with whatever the modules started
    os._exit(1)


def _control() -> socket.socket:
    """Take the agent's socket off standard input, which becomes empty as that of a rank is."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return control


def _import_modules(modules: list[str]) -> str | None:
    """Import the modules. Returns why one cannot be imported; None: all are."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001  # theirs may raise anything, even SystemExit
            return f"{name}: {type(error).__name__}: {error}"
    sys.stdout.flush()
    sys.stderr.flush()
    return None


def _end_idle_threads() -> None:
    """End the threads that a library ends before each fork, as OpenBLAS of NumPy does with its idle ones."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _why_not_forkable() -> str | None:
    """Why a fork of this process would not work like a process that is started plainly; None: it would."""
    if len(list((PROC / "task").iterdir())) > 1:
        return 'the modules started a thread (OMP_NUM_THREADS: "1" in env may prevent that)'
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        return "the modules started a process"
    for handle in (PROC / "fd").iterdir():
        try:
            target = str(handle.readlink())
        except OSError:
            continue
        if target.startswith(DEVICES):
            return f"the modules opened {target}"
    return None


# -- A rank ---------------------------------------------------------------------------------------


def _fork_rank() -> bool:
    """Fork a child of the agent. True only in the new process, once the agent has adopted it."""
    try:
        between = os.fork()
    except OSError:
        return False  # the agent sees that no fork answers
    if between:
        os.waitpid(between, 0)
        return False
    try:
        between = os.getpid()
        os.setsid()  # the helper may end its group as soon as we are gone: not the rank with it
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(ADOPTED_S)
    except OSError:
        os._exit(1)
    return True


def _become_rank(agent_pid: int, control: socket.socket, link: socket.socket) -> Callable[[], None]:
    """Stand by as a rank until the agent's order comes; return the function that runs its command.

    `control` is the helper's socket to the agent, `link` that of this fork alone.
    """
    try:
        control.close()
        os.setsid()
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent_pid:  # it may have died before the prctl
            raise ProcessLookupError(f"{os.getppid()} is the parent, not {agent_pid}")
        link.send(b"%d" % os.getpid())
        output = _receive_output(link)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        _reseed()
        link.send(READY)
        order = json.loads(_receive_order(link))
    except BaseException as error:  # noqa: BLE001  # nothing of the command ran: it is started plainly
        with contextlib.suppress(OSError):  # the agent has dropped this fork
            link.send(f"{type(error).__name__}: {error}".encode()[:MESSAGE_MAX])
        os._exit(1)
    try:
        run = _prepared_command(order)
    except BaseException as error:  # noqa: BLE001  # reported like a command that cannot be run
        with contextlib.suppress(OSError):
            link.send(_error_text(error, order["workdir"]).encode())
        os._exit(127)
    link.close()
    _wait_for_rank_0()
    return run


def _wait_for_rank_0() -> None:
    """Wait until rank 0 listens: PyTorch retries a refused connection to its store after half a second."""
    port = os.environ.get("MASTER_PORT", "")
    is_here = os.environ.get("MASTER_ADDR") in LOOPBACK and port.isdigit()
    if "torch" not in sys.modules or os.environ.get("RANK", "0") == "0" or not is_here:
        return
    deadline = time.monotonic() + HOST_S
    while time.monotonic() < deadline and not _listens(int(port)):
        time.sleep(0.001)


def _listens(port: int) -> bool:
    """Whether a socket listens there, by the kernel: the store would take a connection for a rank."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTEN and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def _error_text(error: BaseException, workdir: str) -> str:
    if isinstance(error, OSError) and error.filename == workdir:
        return f"{workdir}: {error.strerror}"
    return repr(error)


def _receive_output(link: socket.socket) -> int:
    """The file descriptor for the rank's output. It may come after hours, or never."""
    message, handles, _, _ = socket.recv_fds(link, len(OUTPUT), 1)
    if not message:
        os._exit(0)
    return handles[0]


def _receive_order(link: socket.socket) -> bytes:
    """What to run, as JSON. Raises EOFError if the agent dropped this fork."""
    order = b"".join(iter(lambda: link.recv(65536), b""))
    if not order:
        raise EOFError
    return order


def _bounds() -> list[int]:
    """Where the kernel put the arguments and the environment: begin, end, begin, end."""
    return [int(word) for word in (PROC / "stat").read_bytes().rpartition(b")")[2].split()[45:49]]


def _set_title(words: list[str]) -> None:
    """Let `ps` show these words. The kernel takes a last byte that is not zero as the mark of a title."""
    import ctypes

    begin, end = _bounds()[:2]
    room = end - begin
    text = " ".join(words).encode(errors="surrogateescape").replace(b"\0", b" ")[: room - 2]
    ctypes.memmove(begin, text.ljust(room - 1, b"\0") + b".", room)


def _reseed() -> None:
    """Give every random generator a new seed: forks of one helper would all draw the same numbers."""
    import random

    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _prepared_command(order: dict[str, Any]) -> Callable[[], None]:
    """Set environment, folder and arguments as ordered; return the function that runs the command."""
    os.environ.update(
        order["env"]
    )  # the helper had the rest, and its modules may have changed that
    os.chdir(order["workdir"])
    sys.argv[:] = order["argv"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = order["command"]
    _set_title(order["command"])
    importlib.invalidate_caches()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        setattr(main, "__annotations__", {})  # noqa: B010  # as a name it would be ours
    sys.modules["__main__"] = main
    if order["module"] is not None:
        name = order["module"]
        # What the interpreter itself calls for -m.
        return lambda: runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # private
    return _script(main, order["script"])


def _script(main: types.ModuleType, path: str) -> Callable[[], None]:
    """A function that runs the script as `python PATH` does."""
    absolute = path if path.startswith("/") else f"{Path.cwd()}/{path}"
    main.__file__ = absolute
    setattr(main, "__cached__", None)  # noqa: B010  # no type checker knows it
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", absolute)
    text = Path(absolute).read_bytes()
    return lambda: exec(compile(text, absolute, "exec", dont_inherit=True), main.__dict__)


def _without_own_frames(show: Callable[..., Any]) -> Callable[..., Any]:
    """A function that shows an error as `show` does, its traceback without the frames of this file."""

    def show_rest(kind: Any, error: BaseException, trace: types.TracebackType | None) -> Any:
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        return show(kind, error.with_traceback(trace), trace)

    return show_rest


if __name__ == "__main__":
    run = serve()
    try:
        run()
    except BaseException:
        # The interpreter shows it and ends as it would have.
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise
