"""What was created when, by the API server, is compared with the time by the API server alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate

from aiohttp import web
from kubernetes.aio.client import Configuration

from everstep.backends.kubernetes import manifest
from everstep.backends.kubernetes.api import KubernetesApi
from everstep.backends.kubernetes.books import ConfigMapBooks, Reports
from everstep.backends.kubernetes.releasing import LIVES_S, FolderReleaser
from everstep.protocol import wire
from tests.testbed.kubelet.status import timestamp

AHEAD_S = 61.0
"""So far is the worker's clock ahead of the API server's."""


@asynccontextmanager
async def api_server(*, pod_age_s: float) -> AsyncIterator[tuple[KubernetesApi, list[str]]]:
    """One whose clock is behind, with a pending pod of this age; its API and what was deleted."""
    deleted: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        now = time.time() - AHEAD_S
        name = request.path.rpartition("/")[2]
        if request.method == "DELETE":
            deleted.append(name)
        metadata = {"name": name, "creationTimestamp": timestamp(now - pod_age_s)}
        pod = {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}}
        return web.json_response(pod, headers={"Date": formatdate(now, usegmt=True)})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with KubernetesApi(Configuration(host=f"http://{host}:{port}")) as api:
            yield api, deleted
    finally:
        await runner.cleanup()


def releaser(api: KubernetesApi) -> FolderReleaser:
    books = ConfigMapBooks(
        api, "jobs", "b00c", reports=Reports(service_of=lambda _: ("ready", None))
    )
    settings = manifest.PodSettings(books="b00c", agent="agent")
    agent = {"metadata": {"name": "agent"}}
    return FolderReleaser(api=api, namespace="jobs", books=books, settings=settings, agent=agent)


COMMAND: wire.ReleaseCommand = {
    "cluster": "b00c",
    "job": "ended",
    "generation": 3,
    "folders": ["/storage"],
    "earlier": [],
}


async def test_a_pod_that_releases_folders_has_its_time_where_the_worker_s_clock_is_ahead() -> None:
    async with api_server(pod_age_s=1.0) as (api, deleted):
        assert await releaser(api).release(COMMAND)
    assert not deleted


async def test_a_pod_that_released_no_folder_in_its_time_is_removed() -> None:
    async with api_server(pod_age_s=LIVES_S + 2.0) as (api, deleted):
        assert await releaser(api).release(COMMAND) is None
    assert len(deleted) == 1
