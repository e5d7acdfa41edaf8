"""HTTP for the agent: one thread per connection, a token on every request, nothing trusted."""

from __future__ import annotations

import hmac
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, urlsplit

from everstep.agent import wire
from everstep.agent.agent import Stale

if TYPE_CHECKING:
    import ssl

BODY_MAX = 4 * 1024 * 1024
CONNECTIONS_MAX = 64
IDLE_S = 60.0
HANDSHAKE_S = 10.0
AGAIN_S = 0.05

RequestHandler = Callable[[dict[str, Any], dict[str, Any]], Any]
Routes = dict[str, dict[str, RequestHandler]]
"""Path, method, and what answers it."""


class HttpRefusal(Exception):
    """The request is refused, with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Last(NamedTuple):
    """An answer after which something is done that may leave no time to answer."""

    said: Any
    do: Callable[[], object]


class Requests(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "everstep-agent"
    sys_version = ""
    server: Server  # type: ignore[mutable-override]  # nothing else makes one
    timeout: ClassVar[float | None] = IDLE_S

    def do_GET(self) -> None:  # the standard library's name
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        after: Callable[[], object] | None = None
        try:
            body, status = self._answer(), 200
            if isinstance(body, Last):
                body, after = body
        except HttpRefusal as refused:
            body, status = {"error": str(refused)}, refused.status
        except Stale as stale:
            body, status = {"error": str(stale)}, wire.STALE
        except ValueError as error:
            body, status = {"error": str(error)}, 400
        except OSError as error:
            body, status = {"error": str(error)}, wire.NO_STORAGE
        self._send(status, body)
        if after is not None:
            after()

    def _answer(self) -> Any:
        body = self._body()  # read in any case: the next request comes behind it
        credentials = self.headers.get("Authorization", "")
        if not hmac.compare_digest(credentials.encode(), b"Bearer " + self.server.token):
            raise HttpRefusal(wire.UNAUTHORIZED, "the token is missing or wrong")
        parts = urlsplit(self.path)
        methods = self.server.routes.get(parts.path)
        if methods is None:
            raise HttpRefusal(404, f"there is no {parts.path}")
        if self.command not in methods:
            raise HttpRefusal(405, f"{parts.path} takes {', '.join(methods)}")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return methods[self.command](query, self._json(body))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise HttpRefusal(411, "a Content-Length is needed")
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= BODY_MAX:
            self.close_connection = True
            status = 413 if length > 0 else 400
            raise HttpRefusal(status, f"a body has 0 to {BODY_MAX} bytes")
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            raise HttpRefusal(400, "the body is shorter than its Content-Length")
        return body

    def _json(self, body: bytes) -> dict[str, Any]:
        if not body:
            return {}
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HttpRefusal(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise HttpRefusal(400, "the body is not a JSON object")
        return value

    def _send(self, status: int, body: Any) -> None:
        payload = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client has closed the connection

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses, in our form."""
        self.close_connection = True
        self._send(code, {"error": explain or message or self.responses.get(code, ("wrong",))[0]})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        """Requests are no news."""


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
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        address: Any = listening.getsockname()
        super().__init__(address, Requests, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.socket.listen(self.request_queue_size)

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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One connection broke; the others go on."""

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
    return socket.create_server((host, port), family=_family(host))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
