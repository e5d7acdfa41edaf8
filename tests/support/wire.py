"""A TCP connection to a server of this machine that a test can cut, refuse and hold, also one way alone."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from everstep.backends.fake.server import close_listener


class Wire:
    """A port in front of the server's. Bytes pass unchanged, so TLS is between the two ends."""

    def __init__(self, server_port: int) -> None:
        self.connections = 0
        """How often a client has connected, also in vain."""
        self.held = 0
        """Pieces of data that wait to be passed on."""
        self._server_port = server_port
        self._requests_pass, self._answers_pass = asyncio.Event(), asyncio.Event()
        self.release()
        self._refuses = False
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, _1: type[BaseException] | None, _2: BaseException | None, _3: TracebackType | None
    ) -> None:
        await close_listener(self._server)
        await asyncio.sleep(0)  # one that was just accepted becomes a connection
        for task in self._connections:
            task.cancel()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        for writer in self._connections.values():
            writer.transport.abort()

    def refuse(self) -> None:
        """End every connection, and new ones at once."""
        self._refuses = True
        self.cut()

    def accept(self) -> None:
        self._refuses = False

    def hold(self) -> None:
        """Pass nothing on, as a stopped process or a lost cable: both ends see silence."""
        self._requests_pass.clear()
        self._answers_pass.clear()

    def hold_answers(self) -> None:
        """Pass on what the client sends, and nothing that the server does: it acts, and nothing shows it."""
        self._answers_pass.clear()

    def release(self) -> None:
        self._requests_pass.set()
        self._answers_pass.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._refuses:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either end is gone, or the test is over
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            async with asyncio.TaskGroup() as group:
                there = group.create_task(self._pass_on(reader, far_writer, self._requests_pass))
                back = group.create_task(self._pass_on(far_reader, writer, self._answers_pass))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
        except* OSError:
            pass  # the connection was cut
        finally:
            far_writer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            self.held += 1
            try:
                await passes.wait()
            finally:
                self.held -= 1
            writer.write(data)
            await writer.drain()
