"""Requests to the API server in plain JSON, over the official client's transport.

The official client finds the cluster, authenticates and renews tokens. Its models are not used: parsing a pod
into them costs ten times as much as reading its JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.request import getproxies_environment

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import (
    ConfigException,
    kube_config,
    load_incluster_config,
    load_kube_config,
)
from yaml import YAMLError

LOG = logging.getLogger(__name__)

Json = dict[str, Any]
"""An object of the API, as the server wrote it."""

_OF_NO_KUBECONFIG = (YAMLError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What the official client raises where a file has another content or shape."""
_REQUEST_S = 30.0
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""An answer without the content of the object."""
_NO_QUERY: Mapping[str, str] = {}
PAGE = 500
"""Objects in one answer: of thousands it takes an API server long, and a worker reads it at one go."""
_TOKEN = ["BearerToken"]  # what the client calls its one way to authenticate


class Unreachable(Exception):
    """No answer, or half of one: the request may or may not have had its effect."""


class Refused(Exception):
    """The API server answered with an error; the message is its own."""

    def __init__(self, *, status: int, reason: str, message: str, retry_after_s: float) -> None:
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s  # 0 where the server names no time
        super().__init__(f"{message} ({status} {reason})")


async def pages(
    get: Callable[[str, Mapping[str, str]], Awaitable[Json]], path: str, query: Mapping[str, str]
) -> AsyncGenerator[Json]:
    """The answers to a list of a collection, which comes page by page as it was at one moment."""
    query = {**query, "limit": str(PAGE)}
    while True:
        page = await get(path, query)
        yield page
        if not (token := page.get("metadata", {}).get("continue")):
            return
        query["continue"] = token


class KubernetesApi:
    """The API server of one cluster, as one user."""

    def __init__(self, configuration: Configuration) -> None:
        if not getproxies_environment():
            # Looking for one before each request takes two changes of the thread.
            configuration.client_session_kwargs = {"trust_env": False}
        self._client: Any = ApiClient(configuration)
        self._newest_date = ("", 0.0)  # of an answer, and when it came by `time.monotonic`

    @classmethod
    async def from_kubeconfig(cls, path: str | None, *, context: str | None = None) -> Self:
        """Raises ConfigException for a file that is no kubeconfig."""
        configuration = Configuration()
        try:
            await _load(path, context, configuration)
            return cls(configuration)
        finally:
            # The client writes keys to files, which only its TLS context reads, and leaves them to `atexit`:
            # a process that is killed, or ends by `os._exit`, would leave them for good.
            remove_files: Any = kube_config._cleanup_temp_files  # no public way, and no types
            remove_files()

    @classmethod
    def in_cluster(cls) -> Self:
        """Make a client with the service account of the pod that this process runs in."""
        configuration = Configuration()
        load: Any = load_incluster_config  # has no types
        load(client_configuration=configuration)
        return cls(configuration)

    @classmethod
    async def of_operator(cls, path: str | None, *, context: str | None = None) -> Self:
        """As kubectl finds it: with a kubeconfig, else in a pod with its service account."""
        path = path or os.environ.get("KUBECONFIG")
        is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
        if path is None and is_in_pod:
            return cls.in_cluster()
        return await cls.from_kubeconfig(path, context=context)

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, path: str, query: Mapping[str, str] = _NO_QUERY) -> Json:
        return await self._request("GET", path, query)

    async def find(self, path: str) -> Json | None:
        """The object at this path; None if there is none."""
        try:
            return await self.get(path)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def items(self, path: str, query: Mapping[str, str] = _NO_QUERY) -> AsyncGenerator[Json]:
        """The objects of a collection as they were at one moment, which come page by page.

        `Refused` with 410 if the API server no longer has that moment.
        """
        async for page in pages(self.get, path, query):
            for item in page["items"]:
                yield item

    async def exists(self, path: str) -> bool:
        """Whether there is this object, however large."""
        try:
            await self._request("GET", path, _NO_QUERY, accept=_METADATA)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    async def create(self, path: str, body: Json, query: Mapping[str, str] = _NO_QUERY) -> Json:
        """Add an object to a collection. `Refused` with 409 if there is one of its name."""
        return await self._request("POST", path, query, body)

    async def replace(self, path: str, body: Json) -> Json:
        """`Refused` with 409 if the object has another resourceVersion than the body."""
        return await self._request("PUT", path, {}, body)

    async def patch(self, path: str, body: Json) -> Json:
        """Merge into an object (RFC 7386)."""
        return await self._request("PATCH", path, {}, body)

    async def delete(self, path: str, options: Json | None = None) -> None:
        """`options` are fields of `DeleteOptions`. `Refused` with 404 if there is no such object."""
        await self._request("DELETE", path, {}, options)

    @property
    def address(self) -> str:
        return str(self._client.configuration.host)

    def server_time(self) -> float:
        """The clock of the API server, to a second, by its newest answer; ours before the first one."""
        date, came_at = self._newest_date
        if not date:
            return time.time()
        return parsedate_to_datetime(date).timestamp() + time.monotonic() - came_at

    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncGenerator[bytes]:
        """What the server sends, as it comes, until it ends."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S, sock_read=silence_s)
        async with self._response(path, query, limits=limits) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        *,
        accept: str = "",
    ) -> Json:
        limits = aiohttp.ClientTimeout(total=_REQUEST_S)
        async with self._response(
            path, query, limits=limits, method=method, body=body, accept=accept
        ) as response:
            return _decode(await response.read(), path)

    async def watch(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncGenerator[Json]:
        """Events until the server ends the stream. Raises `Unreachable` after a silence of `silence_s`."""
        query = {**query, "watch": "true"}
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S, sock_read=silence_s)
        async with self._response(path, query, limits=limits) as response:
            rest = b""
            async for chunk in response.content.iter_any():  # a line may exceed aiohttp's own limit
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _decode(line, path)

    @contextlib.asynccontextmanager
    async def _response(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        limits: aiohttp.ClientTimeout,
        method: str = "GET",
        body: Json | None = None,
        accept: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            _, url, headers, _, _ = await self._client.param_serialize(
                method, path, query_params=list(query.items()), auth_settings=_TOKEN
            )
            headers["Content-Type"] = _MERGE if method == "PATCH" else "application/json"
            if accept:
                headers["Accept"] = accept
            # The limits go to aiohttp as they are, unlike the pair of numbers that the client documents.
            reply = await self._client.call_api(
                method, url, headers, body=body, _request_timeout=limits
            )
            response: aiohttp.ClientResponse = reply.response
            async with response:
                if date := response.headers.get("Date"):
                    self._newest_date = date, time.monotonic()
                if response.status >= 400:
                    raise _refused(response, await response.text(errors="replace"))
                yield response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            LOG.debug("%s %s: %r", method, path, error)
            what = f"the API server at {self.address} does not answer: {_connection_problem(error)}"
            raise Unreachable(what) from error


_CONNECTION_PROBLEMS: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, "no answer came in time"),
    (aiohttp.ClientConnectorDNSError, "its name cannot be resolved"),
    # Before the numbers of the system: an error of TLS has one of its own.
    (aiohttp.ClientSSLError, "its certificate is not accepted, or TLS fails otherwise"),
    (aiohttp.ServerDisconnectedError, "it ended the connection"),
    (aiohttp.ClientPayloadError, "its answer was cut off"),
)


def _connection_problem(error: Exception) -> str:
    """Why there was no answer, for a user, who need not read the words of the client's library."""
    for kind, words in _CONNECTION_PROBLEMS:
        if isinstance(error, kind):
            return words
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else str(error) or type(error).__name__


def _decode(text: bytes, path: str) -> Json:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):  # a proxy on the way answered
        LOG.debug("%s: the answer is no JSON object: %r", path, text[:400])
        what = f"the answer is no JSON object, so it is not the API server's: {text[:80]!r}"
        raise Unreachable(what)
    return answer


def _refused(response: aiohttp.ClientResponse, text: str) -> Refused:
    try:
        status = json.loads(text)
        reason, message = str(status["reason"]), str(status["message"])
    except (ValueError, KeyError, TypeError):  # a proxy on the way answered
        reason, message = response.reason or "", text[:400]
    return Refused(
        status=response.status,
        reason=reason,
        message=message,
        retry_after_s=_seconds(response.headers.get("Retry-After", "")),
    )


def _seconds(text: str) -> float:
    """The seconds of a Retry-After header; a date in it counts as none."""
    return float(text) if text.isdecimal() else 0.0


async def _load(path: str | None, context: str | None, configuration: Configuration) -> None:
    load: Any = load_kube_config  # has no types
    try:
        await load(path, context=context, client_configuration=configuration)
    except (ConfigException, *_OF_NO_KUBECONFIG) as error:
        lines = str(error).splitlines() if isinstance(error, ConfigException) else []
        what = lines[0] if lines else "no kubeconfig"
        raise ConfigException(f"{path or '~/.kube/config'}: {what}") from None
