"""The way to an API server behind a proxy, as the environment of kubectl names it."""

from __future__ import annotations

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from everstep.backends.kubernetes.api import KubernetesApi


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        urls.append(str(request.url))
        return web.json_response({"gitVersion": "v1"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    monkeypatch.setenv("http_proxy", f"http://{host}:{port}")
    try:
        async with KubernetesApi(Configuration(host="http://api.example.test")) as api:
            assert await api.get("/version") == {"gitVersion": "v1"}
    finally:
        await runner.cleanup()
    assert urls == ["http://api.example.test/version"]
