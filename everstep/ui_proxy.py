"""A proxy before the Temporal UI of this machine, so that no web page but the UI's own can use it.

The UI answers requests for any host name: a web page whose name resolves to loopback could start jobs. So the
UI itself listens at an address that no page can find (`hidden_address`), and the proxy forwards only requests
whose host is loopback and whose origin is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Sequence

HEAD_S = 30.0
"""Time that a browser has to send the head of a request."""
PIECE = 64 * 1024
LOOPBACK = "127.0.0.1"
OUR_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
"""Names that always mean loopback. The port is not checked: it may be forwarded (`ssh -L`)."""

ANSWER = (
    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n"
    "Connection: close\r\n\r\n{text}"
)


def hidden_address() -> str:
    """One of the 16 million addresses of loopback: no page can try them all, with all ports."""
    numbers = (1 + secrets.randbelow(254), secrets.randbelow(256), 1 + secrets.randbelow(254))
    return "127." + ".".join(map(str, numbers))


def refusal(lines: Sequence[str]) -> str | None:
    """Why a request with this head is refused; None: it is forwarded."""
    hosts, origins = _values(lines, "host"), _values(lines, "origin")
    if len(hosts) != 1 or OUR_HOST.fullmatch(hosts[0]) is None:
        return f"this is http://{LOOPBACK} or http://localhost, under no other name"
    if any(origin.partition("://")[2] != hosts[0] for origin in origins):
        return "pages of another origin are not let in"
    return None


def head_for_ui(lines: Sequence[str]) -> bytes:
    """The head as the UI gets it. One request per connection, so that each one is checked."""
    headers = [
        line for line in lines if not line.lower().startswith(("connection:", "keep-alive:"))
    ]
    return "\r\n".join([*headers, "Connection: close", "", ""]).encode("latin-1")


def _values(lines: Sequence[str], name: str) -> list[str]:
    headers = (line.partition(":") for line in lines[1:])
    return [value.strip().lower() for key, _, value in headers if key.strip().lower() == name]


class UiProxy:
    """Listens on loopback from `open` to `close`."""

    def __init__(self, *, port: int, ui_host: str, ui_port: int) -> None:
        self._port = port
        self._ui = (ui_host, ui_port)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; repeatable. Raises OSError if another process listens there."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self._port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(HEAD_S):
                raw = await reader.readuntil(b"\r\n\r\n")
            head = raw.decode("latin-1").split("\r\n")[:-2]
            why = refusal(head)
            if why is not None:
                await _respond(writer, "403 Forbidden", why)
            else:
                await self._forward(head, reader, writer)
        writer.close()

    async def _forward(
        self, head: Sequence[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_ui, to_ui = await asyncio.open_connection(*self._ui)
        except OSError:
            text = "the UI does not answer; try again in a moment"
            await _respond(writer, "502 Bad Gateway", text)
            return
        to_ui.write(head_for_ui(head))
        directions = [
            asyncio.create_task(_pump(reader, to_ui)),
            asyncio.create_task(_pump(from_ui, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            to_ui.close()


async def _respond(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    writer.write(ANSWER.format(status=status, length=len(text) + 1, text=f"{text}\n").encode())
    await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
