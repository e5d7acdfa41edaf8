"""Probes of a container: a command in it, a request or a connection to it, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Self

import aiohttp

from tests.testbed.api import Json
from tests.testbed.kubelet.container import Container

_EVERY_S, _WITHIN_S, _FAILURES_MOST = 10.0, 1.0, 3  # as in Kubernetes
_GOOD = range(200, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe of a container's spec, and where the container is."""

    container: Container
    ip: str
    ports: Mapping[str, int]  # of the container, by name
    spec: Json

    @classmethod
    def of(cls, container_spec: Json, kind: str, container: Container, ip: str) -> Self:
        ports = {
            one["name"]: one["containerPort"]
            for one in container_spec.get("ports", ())
            if "name" in one
        }
        return cls(container=container, ip=ip, ports=ports, spec=container_spec[kind])

    async def verdicts(self) -> AsyncIterator[bool]:
        """What the probe shows, whenever it was shown often enough in a row to count."""
        needed = {
            True: self.spec.get("successThreshold", 1),
            False: self.spec.get("failureThreshold", _FAILURES_MOST),
        }
        await asyncio.sleep(self.spec.get("initialDelaySeconds", 0))
        newest, in_a_row = None, 0
        while True:
            result = await self._passes()
            in_a_row = in_a_row + 1 if result is newest else 1
            newest = result
            if in_a_row >= needed[result]:
                yield result
            await asyncio.sleep(self.spec.get("periodSeconds", _EVERY_S))

    async def _passes(self) -> bool:
        try:
            async with asyncio.timeout(self.spec.get("timeoutSeconds", _WITHIN_S)):
                return await self._try()
        except (TimeoutError, OSError, aiohttp.ClientError):
            return False

    async def _try(self) -> bool:
        match self.spec:
            case {"exec": {"command": command}}:
                return await self.container.run_inside(command) == 0
            case {"httpGet": request}:
                return await self._answers_well(request)
            case {"tcpSocket": request}:
                _, writer = await asyncio.open_connection(*self._address(request))
                writer.close()
                return True
            case _:
                raise OSError(f"no such probe here: {', '.join(self.spec)}")

    async def _answers_well(self, request: Json) -> bool:
        host, port = self._address(request)
        url = f"{request.get('scheme', 'HTTP').lower()}://{host}:{port}{request.get('path', '/')}"
        headers = {one["name"]: one["value"] for one in request.get("httpHeaders", ())}
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as reply,
        ):
            return reply.status in _GOOD

    def _address(self, request: Json) -> tuple[str, int]:
        port = request["port"]
        return request.get("host", self.ip), port if isinstance(port, int) else self.ports[port]
