"""A webhook: one small POST for each notice, in a thread. No answer can hold up more than that.

Its headers are those of Standard Webhooks: an ID that stays over repeats, the time, and a signature.

No redirect is followed and no proxy is used: the address must be that of the receiver itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from activities.message_templates import MessageTemplate, rendered

LOG = logging.getLogger(__name__)

TAKEN_WITHIN_S = 2.0
"""Time that a receiver has to take a notice."""

SCHEMES = ("http", "https")
LINE_KEPT = 200
THREADS = 4
SECRET_PREFIX = "whsec_"
SECRET_LEAST = 24
"""Bytes of a secret, as Standard Webhooks wants them at least."""


def problem(url: str) -> str | None:
    """Why this cannot be the address of a webhook, if so."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in SCHEMES or not parts.hostname:
        return "give an address that begins with http:// or https:// and names a host"
    if any(not c.isprintable() or c.isspace() for c in url):
        return "an address has no spaces or control characters"
    if parts.username is not None:
        return "no name or password in the address; a token has a setting of its own"
    return None


def secret_bytes(text: str) -> bytes:
    """The key that a secret stands for: base64 after `whsec_`, else its own characters.

    Raises ValueError where it is too short to be one.
    """
    key = text.encode()
    if text.startswith(SECRET_PREFIX):
        with contextlib.suppress(binascii.Error):
            key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    if len(key) < SECRET_LEAST or (text.startswith(SECRET_PREFIX) and key == text.encode()):
        raise ValueError(
            f"a secret is {SECRET_LEAST} characters at least, or {SECRET_PREFIX} and the base64 of "
            f"{SECRET_LEAST} bytes at least"
        )
    return key


def exposes_token(url: str) -> bool:
    """Whether a token sent there could be read on the way: neither secured nor on this machine alone."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_here(parts.hostname or "")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(slots=True, kw_only=True)
class Webhook:
    """Where notices are posted to."""

    url: str
    token: str = ""
    secret: bytes = field(default=b"", repr=False)  # empty: messages are not signed
    template: MessageTemplate | None = None  # None: the message itself is posted
    # The start of the first try in vain since a success, by time.monotonic; None: it took the last notice.
    refusing_since: float | None = field(default=None, init=False)
    # Its own threads: a webhook that hangs delays nothing else.
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS), init=False, repr=False
    )

    async def take(self, message: Mapping[str, Any]) -> bool:
        """Whether it answered in time that it took the message."""
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                answer = await self._posted(str(message["id"]), self._body(message))
        except TimeoutError:
            return self._note(sent_at, f"no answer within {TAKEN_WITHIN_S:g} s")
        except (OSError, ValueError, HTTPException) as error:
            return self._note(sent_at, str(error) or type(error).__name__)
        return self._note(sent_at, None if answer.startswith("2") else f"it answered {answer!r}")

    def unreachable_s(self) -> float:
        """How long it has taken no notice; 0: it took the last one."""
        return 0.0 if self.refusing_since is None else time.monotonic() - self.refusing_since

    def _note(self, sent_at: float, trouble: str | None) -> bool:
        """Whether it took the message. Only changes are worth a line in the log."""
        if trouble is None:
            self.refusing_since = None
        elif self.refusing_since is None:
            LOG.warning("the webhook takes no notices, they wait: %s", trouble)
            self.refusing_since = sent_at
        return trouble is None

    def _body(self, message: Mapping[str, Any]) -> bytes:
        shaped = message if self.template is None else rendered(self.template, message)
        return json.dumps(shaped).encode()

    async def _posted(self, delivery: str, body: bytes) -> str:
        """The status of the answer and its reason. Nothing more of it is read."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TAKEN_WITHIN_S)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, self._request, connection, delivery, body
            )
        finally:
            # An answer that drips must not keep a thread: its reader finds the end.
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _request(self, connection: HTTPConnection, delivery: str, body: bytes) -> str:
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Content-Type": "application/json",
            "Connection": "close",
            **self._delivery_headers(quote(delivery), int(time.time()), body),
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        with contextlib.closing(connection):
            connection.request("POST", target, body, headers)
            answer = connection.getresponse()
            return f"{answer.status} {answer.reason}"[:LINE_KEPT]

    def _delivery_headers(self, delivery: str, at: int, body: bytes) -> dict[str, str]:
        headers = {"webhook-id": delivery, "webhook-timestamp": str(at)}
        if self.secret:
            signed = hmac.new(self.secret, f"{delivery}.{at}.".encode() + body, hashlib.sha256)
            headers["webhook-signature"] = f"v1,{base64.b64encode(signed.digest()).decode()}"
        return headers
