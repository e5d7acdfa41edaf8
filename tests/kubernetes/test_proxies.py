"""The way to an API server behind a proxy, as the environment of kubectl names it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from everstep.backends.kubernetes.api import KubernetesApi, Refused, Unreachable


@asynccontextmanager
async def behind_a_proxy(
    answer: Callable[[web.Request], web.Response], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubernetesApi]:
    """An API server that is reached by a proxy, which answers by itself."""

    async def respond(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    monkeypatch.setenv("http_proxy", f"http://{host}:{port}")
    try:
        async with KubernetesApi(Configuration(host="http://api.example.test")) as api:
            yield api
    finally:
        await runner.cleanup()


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def answer(request: web.Request) -> web.Response:
        urls.append(str(request.url))
        return web.json_response({"gitVersion": "v1"})

    async with behind_a_proxy(answer, monkeypatch) as api:
        assert await api.get("/version") == {"gitVersion": "v1"}
    assert urls == ["http://api.example.test/version"]


async def test_an_error_page_of_a_proxy_is_a_refusal_in_whatever_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(_: web.Request) -> web.Response:
        return web.Response(status=502, body="passerelle incorrecte à réessayer".encode("latin-1"))

    async with behind_a_proxy(answer, monkeypatch) as api:
        with pytest.raises(Refused, match="passerelle incorrecte") as refusal:
            await api.get("/version")
    assert refusal.value.status == 502


@pytest.mark.parametrize("text", ["null", "3", "[1]", "<html>", ""])
async def test_an_answer_that_is_no_object_counts_as_none(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_a_proxy(lambda _: web.Response(text=text), monkeypatch) as api:
        with pytest.raises(Unreachable, match="the answer is no JSON object"):
            await api.get("/version")
