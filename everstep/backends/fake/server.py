"""The fake cluster in a process of its own, which outlives any worker that is killed.

`python -m everstep.backends.fake.server --nodes 5` prints its address and serves until it is ended. A
connection carries one call: a line, and a line with the answer. A call whose connection is lost is dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields

from everstep.backends.fake import calls
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class FakeServer:
    """Serves one cluster to any number of clients."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
        """Serve inside the block, at the address that it gets. At its end all connections are closed."""
        server = await asyncio.start_server(self._connected, host, port, limit=calls.LINE_LIMIT)
        bound_host, bound_port, *_ = server.sockets[0].getsockname()
        try:
            yield bound_host, bound_port
        finally:
            await close_listener(server)
            await asyncio.sleep(0)  # one that was just accepted becomes a connection
            await self._close()

    async def _close(self) -> None:
        for connection, writer in self._connections.items():
            connection.cancel()
            writer.transport.abort()  # one that is cancelled before its first step closes nothing itself
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets are closed

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections[connection] = writer
        connection.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks: list[asyncio.Task[bytes]] = []
        try:
            line = await reader.readline()
            call = asyncio.create_task(self._answer(line))
            end = asyncio.create_task(reader.read())  # of the connection
            tasks += [call, end]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                writer.write(call.result())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _end(writer)

    async def _answer(self, line: bytes) -> bytes:
        try:
            verb, args = calls.read_call(line)
            return calls.write_answer(verb, await self.backend.call(verb, **args))
        except Exception as error:  # noqa: BLE001  # the edge: the caller gets whatever it is
            return calls.write_error(error)


async def close_listener(server: asyncio.Server) -> None:
    """Close it once every accepted connection has its transport.

    asyncio makes the transport one step after it has accepted, and a server that is closed in between
    refuses it: the socket would stay open, with nothing left that could close it.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)
    server.close()


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close the connection, and return once its socket is closed."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def serve(address: str, settings: FakeSettings, faults: Sequence[str] = ()) -> None:
    """Print the address and serve until cancelled."""
    host, _, port = address.rpartition(":")
    if host not in LOOPBACK:
        raise ValueError(f"--listen {address}: the fake cluster serves this machine only")
    backend = FakeBackend(settings)
    for line in faults:
        await backend.admin.fault(line)
    async with FakeServer(backend).listening(host, int(port)) as (bound_host, bound_port):
        sys.stdout.write(f"everstep fake cluster ready {bound_host}:{bound_port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everstep.backends.fake.server")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--fault", action="append", default=[], metavar="LINE")
    for setting in fields(FakeSettings):
        option = "--" + setting.name.replace("_", "-")
        parser.add_argument(option, type=type(setting.default), default=setting.default)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = vars(_parser().parse_args(arguments))
    address, faults = options.pop("listen"), options.pop("fault")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(address, FakeSettings(**options), faults))


if __name__ == "__main__":
    main()
