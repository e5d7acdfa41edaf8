"""A connection to another agent of the job: requests one after the other, by one thread at a time.

What `http.client` needs besides would be most of the memory and the time of the first request.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.agent.storage import files
from everstep.protocol import wire

if TYPE_CHECKING:
    import ssl

ANSWER_S = 10.0
HEAD_MOST = 64 * 1024
HEAD = b"%s %s HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
OK = 200
UNIX, TCP = "unix:", "tcp:"


class Refused(Exception):
    """The other agent refuses the request, with this HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Credentials(NamedTuple):
    """What this agent has for TLS: its folder of certificates; None where agents listen in folders alone."""

    folder: Path | None

    def context(self) -> ssl.SSLContext:
        """Its certificate shows that it is an agent: others let it do no more than copy."""
        import ssl  # takes 10 ms, which an agent without a neighbour saves

        if self.folder is None:
            raise OSError("this agent has no certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.folder / wire.AUTHORITY)
        context.load_cert_chain(self.folder / wire.CERTIFICATE, self.folder / wire.CERTIFICATE_KEY)
        return context

    def token(self) -> bytes:
        if self.folder is None:
            raise OSError("this agent has no token for others")
        return files.read((self.folder / wire.TOKEN).resolve(), wire.SMALL_FILE_MAX).strip()


class NeighbourLink:
    """Sends requests. Every method raises OSError if the other agent does not answer, or Refused."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._token = b""

    def get(self, path: str) -> bytes:
        return self._ask(b"GET", path, b"", memoryview(b""))

    def post(self, path: str, about: Any, content: memoryview) -> bytes:
        """Send JSON, a line end, and bytes."""
        return self._ask(b"POST", path, json.dumps(about).encode() + b"\n", content)

    def _ask(self, method: bytes, path: str, begin: bytes, content: memoryview) -> bytes:
        """Over the idle connection, which the other agent may have closed meanwhile, else over a new one."""
        is_idle = self._socket is not None
        try:
            status, answer = self._exchange(method, path, begin, content)
        except OSError:
            if not is_idle:
                raise
            status, answer = self._exchange(method, path, begin, content)
        if status != OK:
            raise Refused(status, _reason(answer))
        return answer

    def _exchange(
        self, method: bytes, path: str, begin: bytes, content: memoryview
    ) -> tuple[int, bytes]:
        try:
            connection = self._socket or self._connect()
            size = len(begin) + len(content)
            head = HEAD % (method, path.encode(), self._token, size)
            connection.sendall(head + begin)
            connection.sendall(content)
            return self._answer()
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(str(error) or repr(error)) from None

    def _connect(self) -> socket.socket:
        if self._address.startswith(UNIX):
            folder = self._address[len(UNIX) :]
            self._token = files.read(Path(folder) / wire.TOKEN, wire.SMALL_FILE_MAX).strip()
            return self._use(_on_unix(folder))
        host, _, port = self._address[len(TCP) :].rpartition(":")
        self._token = self._credentials.token()
        context = self._credentials.context()
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._use(context.wrap_socket(plain, server_hostname=wire.HOST_NAME))
        except BaseException:
            plain.close()
            raise

    def _use(self, connection: socket.socket) -> socket.socket:
        connection.settimeout(ANSWER_S)
        self._socket, self._reader = connection, connection.makefile("rb")
        return connection

    def _answer(self) -> tuple[int, bytes]:
        status = int(self._line().split(" ", 2)[1])
        length = 0
        while line := self._line():
            name, _, value = line.partition(":")
            length = int(value) if name.lower() == "content-length" else length
        if not 0 <= length <= wire.COPY_PART_MOST + HEAD_MOST:
            raise ValueError(f"an answer of {length} bytes")
        content: bytes = self._reader.read(length)
        if len(content) < length:
            raise OSError("the answer was cut off")
        return status, content

    def _line(self) -> str:
        line: bytes = self._reader.readline(HEAD_MOST)
        if not line.endswith(b"\n"):
            raise OSError("the connection was closed")
        return line.decode("latin-1").rstrip("\r\n")

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._reader.close()
            self._socket.close()
            self._socket = None


def _on_unix(folder: str) -> socket.socket:
    """Connect by a handle of the folder: its path may be too long for an address."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_S)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{handle}/{wire.SOCKET}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(handle)
    return connection


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return "it refuses the request"
