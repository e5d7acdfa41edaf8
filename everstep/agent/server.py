"""HTTP for the agent: one thread per connection, a token on every request, nothing trusted."""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

from everstep.agent.agent import Stale
from everstep.agent.loop import traceback_of
from everstep.protocol import wire

try:  # `hmac` may have it from there, and imports OpenSSL
    from _operator import _compare_digest as compare_digest
except ImportError:  # another interpreter than CPython
    from hmac import compare_digest  # type: ignore[no-redef]  # the same function

if TYPE_CHECKING:
    import ssl

BODY_MAX = 4 * 1024 * 1024
CONNECTIONS_MAX = 64
IDLE_S = 60.0
HANDSHAKE_S = 10.0
AGAIN_S = 0.05

LINE_MOST = 64 * 1024
HEADERS_MOST = 100
METHODS = ("GET", "POST")
JSON, RAW = "application/json", "application/octet-stream"
REASONS = {200: "OK"}

RequestHandler = Callable[[dict[str, Any], dict[str, Any]], Any]
BytesHandler = Callable[[bytes], Any]


class OfBytes(NamedTuple):
    """A handler of bodies that are not JSON."""

    handle: BytesHandler


Routes = Mapping[str, Mapping[str, "RequestHandler | OfBytes"]]
"""Path, method, and what answers it."""


class HttpRefusal(Exception):
    """The request is refused, with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request(NamedTuple):
    """A request of a client. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Last(NamedTuple):
    """An answer after which something is done that may leave no time to answer."""

    answer: Any
    do: Callable[[], object]


class Requests(socketserver.StreamRequestHandler):
    """One connection, over which a client may send requests one after the other.

    What `http.server` does for others besides takes a third of the time in which an agent starts.
    """

    server: Server  # type: ignore[mutable-override]  # nothing else makes one
    timeout: ClassVar[float | None] = IDLE_S

    def handle(self) -> None:
        self.close_connection = False
        self._routes = self.server.routes_of(self.request)
        while not self.close_connection:
            try:
                self._serve()
            except OSError:  # silence for too long, or the client has closed the connection
                return

    def _serve(self) -> None:
        after: Callable[[], object] | None = None
        try:
            if (request := self._request()) is None:
                self.close_connection = True
                return
            body, status = self._answer(request), 200
            if isinstance(body, Last):
                body, after = body
        except HttpRefusal as refused:
            body, status = {"error": str(refused)}, refused.status
        self._send(status, body)
        if after is not None:
            after()

    # -- reading ---------------------------------------------------------------------------------

    def _request(self) -> Request | None:
        """The next request; None: the client sends no more. Its body is read in any case."""
        line = self._line()
        if not line:
            return None
        words = line.split()
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise self._broken(400, "no request of HTTP/1.1")
        headers = self._headers()
        is_last = words[2] == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        self.close_connection = is_last
        if words[0] not in METHODS:
            raise self._broken(501, f"there is no method {words[0]}")
        if headers.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(words[0], words[1], headers, self._body(headers))

    def _line(self) -> str:
        raw = self.rfile.readline(LINE_MOST + 1)
        if len(raw) > LINE_MOST:
            raise self._broken(431, f"a line has at most {LINE_MOST} bytes")
        return raw.decode("latin-1").rstrip("\r\n")

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(HEADERS_MOST):
            line = self._line()
            if not line:
                return headers
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        raise self._broken(431, f"a request has at most {HEADERS_MOST} headers")

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding"):
            raise self._broken(411, "a Content-Length is needed")
        try:
            length = int(headers.get("content-length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= BODY_MAX:
            raise self._broken(413 if length > 0 else 400, f"a body has 0 to {BODY_MAX} bytes")
        body = self.rfile.read(length)
        if len(body) < length:
            raise self._broken(400, "the body is shorter than its Content-Length")
        return body

    def _broken(self, status: int, message: str) -> HttpRefusal:
        """The refusal of what leaves open where the next request begins."""
        self.close_connection = True
        return HttpRefusal(status, message)

    # -- answering -------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Any:
        credentials = request.headers.get("authorization", "")
        if not compare_digest(credentials.encode(), b"Bearer " + self.server.token):
            raise HttpRefusal(wire.UNAUTHORIZED, "the token is missing or wrong")
        try:
            return self._routed(request)
        except Stale as stale:
            raise HttpRefusal(wire.STALE, str(stale)) from None
        except ValueError as error:
            raise HttpRefusal(400, str(error)) from None
        except OSError as error:
            raise HttpRefusal(wire.NO_STORAGE, str(error)) from None
        except HttpRefusal:
            raise
        except Exception as error:  # noqa: BLE001  # silence would look like a lost node
            self.server.note_defect(request, error)
            what = f"a defect of the agent: {type(error).__name__}; its log has more"
            raise HttpRefusal(wire.DEFECT, what) from None

    def _routed(self, request: Request) -> Any:
        parts = urlsplit(request.target)
        methods = self._routes.get(parts.path)
        if methods is None:
            raise HttpRefusal(404, f"there is no {parts.path}")
        if request.method not in methods:
            raise HttpRefusal(405, f"{parts.path} takes {', '.join(methods)}")
        handler = methods[request.method]
        if isinstance(handler, OfBytes):
            return handler.handle(request.body)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return handler(query, _json(request.body))

    def _send(self, status: int, body: Any) -> None:
        """Send the answer in one piece: the kernel holds back a second one until the first is confirmed."""
        is_raw = isinstance(body, bytes)
        kind, payload = (RAW, body) if is_raw else (JSON, json.dumps(body).encode())
        ending = "Connection: close\r\n" if self.close_connection else ""
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Refused')}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(payload)}\r\n{ending}\r\n"
        )
        try:
            self.wfile.write(head.encode() + payload)
        except OSError:
            self.close_connection = True  # the client has closed the connection


def _json(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpRefusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise HttpRefusal(400, "the body is not a JSON object")
    return value


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens at one place."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        listening: socket.socket,
        token: bytes,
        routes: Routes,
        *,
        cannot_serve: Callable[[str], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.token = token
        self._tls = tls
        self.routes = routes
        self._cannot_serve = cannot_serve
        self._defects: set[str] = set()
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        address: Any = listening.getsockname()
        super().__init__(address, Requests, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.socket.listen(self.request_queue_size)

    def routes_of(self, connection: Any) -> Routes:
        """What a client may use. Another agent may only copy: it must not command this one."""
        if self._tls is None:
            return self.routes
        names = [pair for part in connection.getpeercert()["subject"] for pair in part]
        if ("commonName", wire.AGENT_NAME) not in names:
            return self.routes
        return {path: self.routes[path] for path in wire.OF_AGENTS if path in self.routes}

    def verify_request(self, *_: Any) -> bool:
        """No more connections at a time than we have threads for; others find a closed door."""
        return self._free.acquire(blocking=False)

    def get_request(self) -> Any:
        """Accept a connection. Where that fails, it is tried again soon, not at once and without end."""
        try:
            return super().get_request()
        except OSError as error:
            self._cannot_serve(f"no connection is accepted: {error.strerror}")
            time.sleep(AGAIN_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection; without one its room is free again."""
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:
            self._free.release()
            self._cannot_serve(f"a connection is not served: {error}")
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:  # here, so that one slow client keeps no other one waiting
                request.settimeout(HANDSHAKE_S)
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:
            request.close()  # no TLS, or a certificate that is not the job's
        finally:
            self._free.release()

    def note_defect(self, request: Request, error: Exception) -> None:
        """Log where the error was raised, once for each kind of request and error."""
        what = f"{request.method} {urlsplit(request.target).path} failed: {type(error).__name__}"
        if what not in self._defects:
            self._defects.add(what)
            sys.stderr.write(traceback_of(error))
            sys.stderr.flush()
            self._cannot_serve(what)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection; the other connections go on."""

    def serve_in_background(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.5,), daemon=True).start()


def on_unix(name: str) -> socket.socket:
    """A socket in the current folder: a longer path would not fit into an address."""
    Path(name).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(name)
    Path(name).chmod(0o600)
    return listening


def on_tcp(host: str, port: int) -> socket.socket:
    listening = socket.create_server((host, port), family=_family(host))
    # For its connections too: what TLS itself sends must not hold back the answer behind it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
