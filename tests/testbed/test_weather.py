"""The poor ways to an API server are real for a client of ours: each mood shows as what it is.

The API server here is a stand-in that counts; that a real one is reached so, each course of chaos shows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable
from tests.support.patience import HUNG_S
from tests.testbed.weather import RETRY_AFTER_S, Mood, Weather

LATE_S = 0.2


@dataclass
class Server:
    """Creates each object of a request, and sends a watch what is put into `events`."""

    created: list[Any] = field(default_factory=list)
    events: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.created.append(await request.json())
            return web.json_response({"kind": "Pod", "token": request.headers["Authorization"]})
        if "watch" not in request.query:
            return web.json_response({"path": request.raw_path})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(await self.events.get())


@asynccontextmanager
async def behind_weather() -> AsyncIterator[tuple[Server, Weather, KubernetesApi]]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Weather(f"http://127.0.0.1:{runner.addresses[0][1]}") as weather:
            configuration = Configuration(host=f"http://127.0.0.1:{weather.port}")
            configuration.api_key = {"BearerToken": "Bearer secret"}
            async with KubernetesApi(configuration) as api:
                yield server, weather, api
    finally:
        await runner.cleanup()


async def test_in_clear_weather_requests_pass_with_their_token_and_path() -> None:
    async with behind_weather() as (server, weather, api):
        answer = await api.create("/pods", {"name": "a"})
        assert answer["token"] == "Bearer secret"
        listed = await api.get("/pods/a%2Fb", {"labelSelector": "a=b"})
        assert listed == {"path": "/pods/a%2Fb?labelSelector=a%3Db"}
        assert (server.created, weather.met) == ([{"name": "a"}], 0)


async def test_a_busy_server_refuses_every_other_request_and_names_when_to_come_again() -> None:
    async with behind_weather() as (server, weather, api):
        weather.turn(Mood.BUSY)
        with pytest.raises(Refused, match="too many requests") as refusal:
            await api.create("/pods", {})
        assert (refusal.value.status, refusal.value.retry_after_s) == (429, RETRY_AFTER_S)
        await api.create("/pods", {})
        assert (len(server.created), weather.met) == (1, 1)


async def test_a_torn_answer_is_of_a_request_that_was_carried_out() -> None:
    async with behind_weather() as (server, weather, api):
        weather.turn(Mood.TORN)
        with pytest.raises(Unreachable):
            await api.create("/pods", {})
        assert (len(server.created), weather.met) == (1, 1)


async def test_a_slow_server_answers_late() -> None:
    async with behind_weather() as (_, weather, api):
        weather.turn(Mood.SLOW, late_s=LATE_S)
        began = time.monotonic()
        await api.get("/pods")
        assert time.monotonic() - began >= LATE_S
        assert weather.met == 1


async def test_a_half_open_watch_brings_nothing_until_it_ends_while_requests_are_answered() -> None:
    async with behind_weather() as (server, weather, api), asyncio.timeout(HUNG_S):
        watch = api.watch("/pods", {}, silence_s=HUNG_S)
        server.events.put_nowait(b'{"n": 1}\n')
        assert await anext(watch) == {"n": 1}
        weather.turn(Mood.HALF_OPEN)
        server.events.put_nowait(b'{"n": 2}\n')
        while not weather.met:  # it was sent, and reached no client
            await asyncio.sleep(0.005)
        await api.get("/pods")
        coming = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not coming.done()
        weather.turn(Mood.CLEAR)
        with pytest.raises(Unreachable):
            await coming
