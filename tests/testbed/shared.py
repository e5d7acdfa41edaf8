"""One control plane for all processes of a test session.

The first process that joins starts a small server, which starts the control plane. Each process keeps a
connection to it. When the last connection is closed, also by a kill, the server kills the control plane and
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.child import ChildFailed
from tests.support.patience import HUNG_S
from tests.testbed.controlplane import BinariesMissing, ClusterAccess, ControlPlane

ROOT = Path(__file__).resolve().parents[2]
_ERROR = "error"  # key of a reply that says why there is no cluster


class NoCluster(Exception):
    """The control plane did not start; the message says why."""


@asynccontextmanager
async def joined(folder: Path) -> AsyncIterator[ClusterAccess]:
    """Use the control plane of this folder; it runs at least until this context ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        async with asyncio.timeout(HUNG_S):
            reader, writer = await _connect(folder)
            reply = await reader.readline()
            while not reply:  # the server was about to end
                writer.close()
                reader, writer = await _connect(folder)
                reply = await reader.readline()
    except TimeoutError:
        log = (folder / "server.log").read_text()
        raise NoCluster(f"no answer within {HUNG_S:g} s; {folder}/server.log: {log}") from None
    try:
        if error := json.loads(reply).get(_ERROR):
            raise NoCluster(error)
        yield ClusterAccess.from_json(reply.decode())
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _connect(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server; start one if none listens. One process at a time does this."""
    with (folder / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.02)
        is_started = False
        while True:
            try:
                return await asyncio.open_unix_connection(_socket(folder))
            except (FileNotFoundError, ConnectionRefusedError):
                if not is_started:
                    is_started = True
                    _start_server(folder)
            await asyncio.sleep(0.01)


def _start_server(folder: Path) -> None:
    """Not as a child, and in a session of its own: it ends by itself, not at Ctrl-C."""
    with (folder / "server.log").open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", sys.executable, "-m", "tests.testbed.shared", str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=True,
        )


def _socket(folder: Path) -> Path:
    return folder / "control.sock"


class _Server:
    """Starts the control plane at once, answers each connection with how to reach it, counts connections."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connections = 0
        self._unused = asyncio.Event()
        self._reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        socket = _socket(self._folder)
        socket.unlink(missing_ok=True)  # of a killed server
        listener = await asyncio.start_unix_server(self._serve, socket)
        starting = asyncio.create_task(self._start_control_plane())
        # The process that started this one connects next; if it was killed, nobody does.
        asyncio.get_running_loop().call_later(HUNG_S, self._end_if_unused)
        await self._unused.wait()
        socket.unlink()
        listener.close()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting

    async def _start_control_plane(self) -> None:
        try:
            control_plane = await ControlPlane.start(self._folder / "control-plane")
        except (BinariesMissing, ChildFailed) as error:
            self._reply.set_result(json.dumps({_ERROR: str(error)}).encode() + b"\n")
            return
        try:
            self._reply.set_result(control_plane.access.to_json().encode() + b"\n")
            await asyncio.Event().wait()  # until cancelled
        finally:
            control_plane.kill()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            closed = asyncio.create_task(reader.read())
            await asyncio.wait({closed, self._reply}, return_when=asyncio.FIRST_COMPLETED)
            if self._reply.done():
                writer.write(self._reply.result())
            await closed
        except ConnectionError:
            pass  # the process was killed
        finally:
            writer.close()
            self._connections -= 1
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._connections == 0:
            self._unused.set()


async def _serve(folder: Path) -> None:
    await _Server(folder).run()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
