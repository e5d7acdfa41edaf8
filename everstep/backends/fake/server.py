"""The fake cluster in a process of its own, which outlives any worker that is killed.

`python -m everstep.backends.fake.server --nodes 5` says where it listens and serves until it is
ended. One line is a call, one is its answer; a connection carries one call at a time. A call
whose connection is lost is dropped: who is dead waits for nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from everstep.backends.fake import wire
from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class FakeServer:
    """Serves one cluster to any number of connections."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self._open: set[asyncio.StreamWriter] = set()

    async def hang_up(self) -> None:
        """Close every connection; what was being called is dropped."""
        for writer in tuple(self._open):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, limit=wire.LINE_LIMIT)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        line = asyncio.ensure_future(reader.readline())
        try:
            while said := await line:
                # The next line, or the end of the connection, is awaited beside the call.
                line = asyncio.ensure_future(reader.readline())
                answer = await self._answer_unless_gone(said, line)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            line.cancel()
            self._open.discard(writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer_unless_gone(self, said: bytes, line: asyncio.Future[bytes]) -> bytes | None:
        call = asyncio.ensure_future(self._answer(said))
        await asyncio.wait([call, line], return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            return None
        return call.result()

    async def _answer(self, said: bytes) -> bytes:
        try:
            verb, args = wire.read_call(said)
            return wire.write_answer(verb, await self.backend.call(verb, **args))
        except Exception as error:  # noqa: BLE001  # the edge: whatever it is, the caller is told
            return wire.write_error(error)


async def serve(address: str, settings: FakeSettings, faults: Sequence[str] = ()) -> None:
    """Listen until cancelled; the first line printed says where."""
    host, _, port = address.rpartition(":")
    if host not in LOOPBACK:
        raise ValueError(f"--listen {address}: the fake cluster serves this machine only")
    backend = FakeBackend(settings)
    for line in faults:
        await backend.admin.fault(line)
    server = await FakeServer(backend).listen(host, int(port))
    bound = server.sockets[0].getsockname()
    sys.stdout.write(f"everstep fake cluster ready {bound[0]}:{bound[1]}\n")
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
    given = vars(_parser().parse_args(arguments))
    address, faults = given.pop("listen"), given.pop("fault")
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(address, FakeSettings(**given), faults))


if __name__ == "__main__":
    main()
