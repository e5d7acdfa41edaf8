"""Agents of hollow pods: one server of this program answers for all of them, and no process trains.

They answer as `everstep.protocol.wire` says, over TLS with the credentials of their job, so that a worker
does all that it does with real ones: a connection, a long poll and a step a second for each.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import tempfile
import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from everstep.protocol import wire
from tests.testbed.api import Json
from tests.testbed.kubelet.container import HollowContainer

STEP_S = 1.0
Body = dict[str, Any]


class HollowAgent:
    """The state of one agent, and its answers."""

    def __init__(self, options: dict[str, str], token: str, end: Callable[[], None]) -> None:
        self.token = token
        self._end = end
        self._options = options
        self._boot = uuid.uuid4().hex
        self._version = self._news = 1
        self._generation = self._stopped_below = 0
        self._run: Body | None = None
        self._command: Body = {}
        self._changed = asyncio.Event()

    async def answer(self, path: str, query: dict[str, str], body: Body) -> Body:
        if path == wire.STATE:
            return await self._polled(query)
        self._generation = max(self._generation, int(body.get("generation", 0)))
        match path:
            case wire.RUN:
                self._start(body)
            case wire.STOP:
                self._stop(body)
            case wire.FENCE:
                return {**_written(body["folders"])}
            case wire.CHECK:
                return {"generation": body["generation"], "done": True, "checks": []}
            case wire.CHECKPOINTS:
                return {"checkpoints": []}
            case wire.SET_ASIDE:
                return {"moved": [], "why": ""}
            case wire.QUIT:
                self._end()
                return {}
            case wire.JOURNAL | wire.RELEASE:
                return {"kept": {}}
            case _:
                raise web.HTTPNotFound(text="{}")
        return self._state()

    async def _polled(self, query: dict[str, str]) -> Body:
        """As an agent does: news at once, progress of the training after a quiet time."""
        since = int(float(query.get("since", "-1")))
        wait_s = min(float(query.get("wait_s", "0")), wire.WAIT_S_MAX)
        quiet_s = min(float(query.get("quiet_s", "0")), wait_s)
        until = time.monotonic() + wait_s
        quiet_until = time.monotonic() + quiet_s
        while not (self._news > since or self._version < since):
            self._step()
            now = time.monotonic()
            if now >= until or (now >= quiet_until and self._version != since):
                break
            self._changed.clear()
            next_poll = quiet_until if now < quiet_until else min(until, now + STEP_S)
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, next_poll - now))
            except TimeoutError:
                continue
        return self._state()

    def _step(self) -> None:
        run = self._run
        if run is None or run["stopped"] or run["started_at"] is None:
            return
        step = int((time.time() - run["started_at"]) / STEP_S)
        if step > (run["step"] or 0):
            run |= {"step": step, "step_at": time.time(), "moved_at": time.time()}
            run["first_step_at"] = run["first_step_at"] or time.time()
            self._version += 1

    def _start(self, command: Body) -> None:
        generation, now = command["generation"], time.time()
        if self._run is not None and self._run["generation"] >= generation:
            return
        ranks = [
            {
                "rank": plan["rank"],
                "local_rank": plan["local_rank"],
                "pid": 1000 + plan["local_rank"],
                "incarnation": generation,
                "can": [],
                "started_at": now,
                "exited_at": None,
                "ended_between": None,
                "code": None,
                "signal": None,
            }
            for plan in command["ranks"]
        ]
        none = (
            *("failed", "step", "step_at", "first_step_at", "output_at", "io_at", "busy_at"),
            *("checkpoint", "saved_at", "save_every_s", "free_bytes", "unmatched_since"),
            *("unrecognised", "prewarmed"),
        )
        self._run = {
            **dict.fromkeys(none),
            "generation": generation,
            "phase": command["phase"],
            "started_at": now,
            "ranks": ranks,
            "stopped": False,
            "longest_gap_s": 0.0,
            "moved_at": now,
            "unread": False,
            "counts": command["counts"],
        }
        self._note()

    def _stop(self, command: Body) -> None:
        generation = command["generation"]
        if self._run is not None and self._run["generation"] < generation:
            self._run["stopped"] = True
            for rank in self._run["ranks"]:
                rank |= {"exited_at": time.time(), "signal": 15}
        self._stopped_below = max(self._stopped_below, generation)
        self._note()

    def _note(self) -> None:
        self._version += 1
        self._news = self._version
        self._changed.set()

    def _state(self) -> Body:
        return {
            "version": self._version,
            "news": self._news,
            "now": time.time(),
            "uid": self._options["--uid"],
            "job": self._options["--job"],
            "slot": int(self._options["--slot"]),
            "node": self._options["--node"],
            "boot": self._boot,
            "generation": self._generation,
            "run": self._run,
            "stopped_below": self._stopped_below,
            "kept_ranks": [],
            "evidence": None,
            "helper": None,
            "notes": [],
            "facts": [],
            "facts_seen": 0,
            "works": [],
        }


def _written(folders: Sequence[str]) -> wire.FenceAnswer:
    """Every fence is written."""
    real = {folder: folder for folder in folders}
    nothing: wire.CheckpointListing = {"checkpoints": [], "set_aside": []}
    return {
        "real": real,
        "newer": 0,
        "is_held": False,
        "taken_by": None,
        "no_folder": "",
        "listing": nothing,
    }


class HollowAgents:
    """The one server, at the address of each pod."""

    def __init__(self) -> None:
        self._agents: dict[str, HollowAgent] = {}  # by address
        self._endings: set[asyncio.Task[None]] = set()
        self._contexts: dict[str, ssl.SSLContext] = {}  # by job: one authority each
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()

    async def serve(self, words: Sequence[str], secret: Json, container: HollowContainer) -> None:
        """Answer for the agent with this command line until its container ends."""
        options = dict(itertools.pairwise(words))
        entries = {name: b64decode(text) for name, text in secret["data"].items()}
        token = entries[wire.TOKEN].decode()
        _, address, port = options["--listen"].split(":")
        self._agents[address] = HollowAgent(options, token, container.kill)
        context = self._contexts.get(token)
        if context is None:
            context = self._contexts[token] = _context(entries)
        site = web.TCPSite(self._runner, address, int(port), ssl_context=context, backlog=8)
        await site.start()
        ending = asyncio.create_task(self._until_ended(address, site, container))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _until_ended(
        self, address: str, site: web.TCPSite, container: HollowContainer
    ) -> None:
        await container.ended()
        del self._agents[address]
        await site.stop()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        address = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        agent = self._agents.get(address)
        if agent is None or request.headers.get("Authorization") != f"Bearer {agent.token}":
            raise web.HTTPForbidden(text="{}")
        body = await request.json() if request.can_read_body else {}
        path, query = request.path, dict(request.query)
        return web.json_response(await agent.answer(path, query, body))


def _context(entries: dict[str, bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    files = (wire.CERTIFICATE, wire.CERTIFICATE_KEY, wire.AUTHORITY)
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            (Path(folder) / name).write_bytes(entries[name])
        certificate, key, authority = (Path(folder) / name for name in files)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    return context
