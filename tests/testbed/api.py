"""A thin client of the API server: paths and plain JSON, for tests and for the process kubelet.

It does not retry: a test wants to see an error, the kubelet has its own loop around it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

Json = dict[str, Any]
"""An object of the API, as the server wrote it."""

MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)
"""Errors of the network: the request may or may not have had its effect."""

_REQUEST_S = 30.0


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, *, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"{status} {reason}: {message}")

    @classmethod
    def from_status(cls, status: int, text: str) -> ApiError:
        """From the `Status` object that the server answers with; text that is none is the message."""
        try:
            body = json.loads(text)
            return cls(
                status=status, reason=body.get("reason", ""), message=body.get("message", "")
            )
        except (ValueError, AttributeError):
            return cls(status=status, reason="", message=text[:400])


class Api:
    """One connection pool with the token of one user."""

    def __init__(self, *, url: str, ca_file: Path, token: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(
                ssl=ssl.create_default_context(cafile=str(ca_file)), limit=0
            ),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str, **params: str) -> Json:
        return await self._request("GET", path, params=params)

    async def get_text(self, path: str, **params: str) -> str:
        async with self._session.get(path, params=params) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError.from_status(response.status, text)
            return text

    async def create(self, path: str, body: Mapping[str, Any], **params: str) -> Json:
        return await self._request("POST", path, body=body, params=params)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: object, *, kind: str = MERGE) -> Json:
        return await self._request("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, **options: object) -> Json:
        """`options` are fields of `DeleteOptions`."""
        return await self._request("DELETE", path, body=options or None)

    async def delete_all(self, path: str, **params: str) -> Json:
        """Delete the objects of a collection that `params` select."""
        return await self._request("DELETE", path, params=params)

    async def watch(self, path: str, **params: str) -> AsyncIterator[Json]:
        """Events until the server or the network ends the stream."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S)
        query = {"watch": "true", **params}
        async with self._session.get(path, params=query, timeout=timeout) as response:
            if response.status >= 400:
                raise ApiError.from_status(response.status, await response.text())
            # By chunks: a line may be longer than what the library reads as one.
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Json:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if data is not None else {}
        async with self._session.request(
            method, path, data=data, headers=headers, params=params
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise ApiError.from_status(response.status, text)
            return dict(json.loads(text))
