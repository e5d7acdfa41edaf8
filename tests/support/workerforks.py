"""Workers forked from a process that has imported `worker`: a start of one costs its imports no second time.

One such process for each backend begins with the first worker that a test process starts, and dies with it.
`python -m tests.support.workerforks BACKEND SOCKET` is that process. A connection to its socket carries one
worker: a line of JSON with its log, environment and folder; a line with its process number; and, once it has
ended, a line with its exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NoReturn

from tests.support.child import Child, die_with_parent
from tests.support.patience import HUNG_S

ROOT = Path(__file__).resolve().parents[2]
READY = "forks workers"
AGENTS_PYTHON = "AGENTS_PYTHON"
"""Variable with the path of the Python that the worker starts agents with, instead of its own."""


class Fork:
    """A forked worker, with what `Child` calls of a `Popen`."""

    def __init__(self, address: str, request: Mapping[str, object]) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(address)
        self._link.sendall(json.dumps(request).encode() + b"\n")
        self._lines = self._link.makefile("r")
        self.pid = int(self._lines.readline())
        self._returncode: int | None = None

    def poll(self) -> int | None:
        has_ended = self._returncode is not None or select.select([self._link], [], [], 0)[0]
        return self.wait() if has_ended else None

    def wait(self) -> int:
        if self._returncode is None:
            # Without a code the process that forked it has been killed, and it with that one.
            self._returncode = int(self._lines.readline() or -signal.SIGKILL)
            self._lines.close()
            self._link.close()
        return self._returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


_servers: dict[str, tuple[Child, str]] = {}
"""The process that forks the workers of each backend, and its socket."""


async def forked(backend: str, *, log: Path, env: Mapping[str, str]) -> Child:
    """A new worker. The first one of its backend takes as long as any: the process that forks them begins."""
    if backend not in _servers or _servers[backend][0].returncode is not None:
        _servers[backend] = _started(backend)
    server, place = _servers[backend]

    async def is_ready() -> bool:
        return READY in server.output()

    await server.until(is_ready, within_s=HUNG_S)
    request = {"log": str(log), "env": dict(env)}
    return Child([], name="worker", log=log, begin=lambda: Fork(place, request))


def _started(backend: str) -> tuple[Child, str]:
    opened = tempfile.TemporaryDirectory(prefix="everstep-test-")
    atexit.register(opened.cleanup)
    place = str(Path(opened.name, "socket"))
    settings = ("EVERSTEP_", "TEMPORAL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    server = Child(
        [sys.executable, "-m", "tests.support.workerforks", backend, place],
        name=f"forks of {backend} workers",
        log=Path(opened.name, "log"),
        env={**env, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT,
    )
    return server, place


# -- The process that forks ---------------------------------------------------------------------


def serve(backend: str, place: str) -> Callable[[], None]:
    """Fork workers; what it returns runs in a fork, as `python -m worker` would."""
    with socket.socket(socket.AF_UNIX) as listener, DefaultSelector() as selector:
        listener.bind(place)
        listener.listen()
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector.register(listener, EVENT_READ)
        selector.register(woken, EVENT_READ)
        links: dict[int, socket.socket] = {}
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    _report_ended(links)
                    continue
                link, _ = listener.accept()
                with link.makefile("r") as lines:
                    request = json.loads(lines.readline())
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (link, woken, wakes, *links.values()):
                        each.close()
                    return lambda: become(request)
                links[pid] = link
                link.sendall(f"{pid}\n".encode())


def _report_ended(links: dict[int, socket.socket]) -> None:
    for pid in list(links):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with links.pop(pid) as link:
                link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def become(request: Mapping[str, Any]) -> NoReturn:
    """The worker with this log and environment."""
    import worker

    die_with_parent()
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [worker.__file__]
    sys.executable = request["env"].get(AGENTS_PYTHON, sys.executable)
    worker.main()
    sys.exit(0)


def main() -> None:
    backend, place = sys.argv[1:]
    importlib.import_module("worker")
    from everstep import backends

    backends.settings_class(backend)
    gc.collect()
    gc.freeze()
    serve(backend, place)()


if __name__ == "__main__":
    main()
