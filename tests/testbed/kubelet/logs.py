"""Answers the API server's requests for the output of containers, as `kubectl logs` makes them."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from tests.testbed.kubelet.pods import PodWorker

PORT = 10250
"""Every node has an address of its own, so that all can use the usual port."""

_FOLLOW_S = 0.05  # between looks at a log that is followed

FindWorker = Callable[[str, str, str], PodWorker | None]
"""Node address, namespace and name to the pod; None if the node has none, or is silent."""


class LogServer:
    """One server for all nodes of a kubelet program."""

    def __init__(self, find_worker: FindWorker, folder: Path) -> None:
        self._find_worker = find_worker
        self._folder = folder
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(*_certificate(self._folder))

    async def listen(self, address: str) -> None:
        """Answer for the node of this address too."""
        await web.TCPSite(self._runner, address, PORT, ssl_context=self._tls).start()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        address = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        where = request.match_info
        worker = self._find_worker(address, where["namespace"], where["pod"])
        if worker is None:
            raise web.HTTPNotFound(text="no such pod on this node")
        log = worker.log(where["container"], previous=request.query.get("previous") == "true")
        if log is None:
            raise web.HTTPNotFound(text=f"container {where['container']} has not started")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with log.open("rb") as file:
            await response.write(_tail(file.read(), request.query.get("tailLines")))
            ends = request.query.get("follow") != "true"
            while not ends:
                await asyncio.sleep(_FOLLOW_S)
                ends = not worker.is_running(where["container"])  # looked at before what it printed
                await response.write(file.read())
        await response.write_eof()
        return response


def _tail(text: bytes, lines: str | None) -> bytes:
    if lines is None:
        return text
    return b"".join(text.splitlines(keepends=True)[-int(lines) :]) if int(lines) else b""


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate signed by itself; the API server does not verify it."""
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    subject = ["-subj", "/CN=process kubelet", "-days", "3650", "-nodes"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    out = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *subject, *out], check=True, capture_output=True
    )
    return certificate, key
