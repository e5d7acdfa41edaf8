"""A webhook: one small POST for each notice. Written out here, so that no answer can hold up more than it.

No redirect is followed and no proxy is used: the address has to be that of whoever takes the notices.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from everstep.steps.telling import TAKEN_WITHIN_S

LOG = logging.getLogger(__name__)

PORTS: Mapping[str, int] = {"http": 80, "https": 443}
LINE_KEPT = 200


def problem(url: str) -> str | None:
    """Why this cannot be the address of a webhook, if so."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in PORTS or not parts.hostname:
        return "give an address that begins with http:// or https:// and names a host"
    if any(not c.isprintable() or c.isspace() for c in url):
        return "an address has no spaces or control characters"
    if parts.username is not None:
        return "no name or password in the address; a token has a setting of its own"
    return None


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
    is_taking: bool = field(default=True, init=False)  # only changes are worth a line in the log

    async def take(self, message: Mapping[str, str]) -> bool:
        """Whether it answered in time that it took the message."""
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                answer = await self._posted(json.dumps(message).encode())
        except TimeoutError:
            return self._noted(f"no answer within {TAKEN_WITHIN_S:g} s")
        except (OSError, ValueError, EOFError) as error:
            return self._noted(str(error) or type(error).__name__)
        return self._noted(None if _is_taken(answer) else f"it answered {answer!r}")

    def _noted(self, trouble: str | None) -> bool:
        if self.is_taking and trouble is not None:
            LOG.warning("the webhook takes no notices, they wait: %s", trouble)
        self.is_taking = trouble is None
        return self.is_taking

    async def _posted(self, body: bytes) -> str:
        """The first line of the answer."""
        parts = urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or PORTS[parts.scheme]
        reader, writer = await asyncio.open_connection(
            parts.hostname, port, ssl=secure, limit=64 * 1024
        )
        try:
            writer.write(self._head(len(body)) + body)
            await writer.drain()
            return (await reader.readline()).decode("latin-1").strip()[:LINE_KEPT]
        finally:
            writer.transport.abort()

    def _head(self, length: int) -> bytes:
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            "Connection: close",
        ]
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def _is_taken(answer: str) -> bool:
    """Any 2xx."""
    words = answer.split()
    return len(words) > 1 and words[0].startswith("HTTP/") and words[1][:1] == "2"
