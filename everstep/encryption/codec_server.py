"""The codec server: opens payloads for the Temporal UI and the `temporal` command line, over HTTP.

`answer` decides about a request and is pure but for the codec; `serve` is the HTTP around it. A page of
another origin gets nothing, whatever name leads here; without a token only loopback is served.
"""

from __future__ import annotations

import hmac
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads

from everstep.core.errors import PayloadClosed
from everstep.encryption.codec import Codec

BODY_MOST = 32 * 1024 * 1024
WAIT_S = 30.0
"""Time that a connection has to send its request."""

HEADERS_OF_PAGES = "authorization, caller-type, content-type, temporal-namespace, x-namespace"
PRIVATE_NETWORK = "private-network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which requests are answered."""

    origins: frozenset[str] = frozenset()
    """Pages that may read the answers: `https://temporal.example.com`."""
    token: str = ""
    """What a request has to show; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as far as it matters; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What is answered."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(request: Request, rules: Rules, codec: Codec) -> Response:
    """The answer to a request."""
    origin = request.headers.get("origin")
    if origin is not None and origin not in rules.origins:
        return Response(status=403, text=f"pages of {origin} are not let in; --origin names a page")
    shared = {} if origin is None else _for_pages(origin, request.headers)
    if request.method == "OPTIONS":
        return Response(status=204, headers=shared)
    if not _is_allowed(request.headers.get("authorization", ""), rules):
        wants = {"WWW-Authenticate": "Bearer", **shared}
        return Response(
            status=401, text="give the token: Authorization: Bearer TOKEN", headers=wants
        )
    change = _change(request, codec)
    if change is None:
        text = "POST payloads as JSON to /decode or /encode"
        return Response(status=404, text=text, headers=shared)
    try:
        payloads = Parse(request.body, Payloads()).payloads
        changed = Payloads(payloads=[change(payload) for payload in payloads])
    except (ParseError, UnicodeDecodeError, RecursionError):
        text = "the body is no JSON of payloads: {payloads: [{metadata: {}, data: ...}]}"
        return Response(status=400, text=text, headers=shared)
    except PayloadClosed as error:
        return Response(status=400, text=str(error), headers=shared)
    headers = {"Content-Type": "application/json", **shared}
    return Response(status=200, text=MessageToJson(changed, indent=None), headers=headers)


def _is_allowed(authorization: str, rules: Rules) -> bool:
    expected = f"Bearer {rules.token}"
    return not rules.token or hmac.compare_digest(
        authorization.encode(errors="replace"), expected.encode()
    )


def _change(request: Request, codec: Codec) -> Callable[[Payload], Payload] | None:
    """What is done to each payload. A namespace may stand before the last part of the path."""
    if request.method != "POST":
        return None
    changes = {"decode": codec.decrypted, "encode": codec.encrypted}
    return changes.get(request.path.partition("?")[0].rsplit("/", 1)[-1])


def _for_pages(origin: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    """What lets a page of the origin read the answer, and of no other."""
    allowed = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "POST, OPTIONS",
        "Access-Control-Allow-Headers": HEADERS_OF_PAGES,
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    # A page of the internet that reads from loopback.
    if f"access-control-request-{PRIVATE_NETWORK}" in headers:
        allowed[f"Access-Control-Allow-{PRIVATE_NETWORK.title()}"] = "true"
    return allowed


class CodecServer(ThreadingHTTPServer):
    """Listens from its beginning. Raises OSError if another process listens there."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], rules: Rules, codec: Codec) -> None:
        self.rules, self.codec = rules, codec
        super().__init__(address, _Handler)

    def serve_until_signal(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: threading.Thread(target=self.shutdown).start())
        self.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = WAIT_S
    server_version, sys_version = "everstep", ""

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_MOST:
            self._respond(
                Response(status=413, text=f"a body has its length, up to {BODY_MOST} bytes")
            )
            return
        self._answer(self.rfile.read(int(length)))

    def do_OPTIONS(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self, body: bytes = b"") -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(method=self.command, path=self.path, headers=headers, body=body)
        assert isinstance(self.server, CodecServer)
        self._respond(answer(request, self.server.rules, self.server.codec))

    def _respond(self, response: Response) -> None:
        content = response.text.encode()
        self.send_response(response.status)
        kind = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
        for name, value in {**kind, **response.headers, "Content-Length": len(content)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is logged: a request shows who reads which job."""
