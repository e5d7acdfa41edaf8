"""A copy of all objects of one kind that follows the API server: list once, then watch.

The copy is right again after every fault: a server that restarts, a connection that is cut or falls silent,
changes that the server no longer remembers (410). Nothing here reads what the objects mean.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from everstep.backends.kubernetes.api import Json, Refused, Unreachable, pages

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where objects come from: `KubernetesApi`."""

    async def get(self, path: str, query: Mapping[str, str]) -> Json: ...

    def watch(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncGenerator[Json]: ...


SILENCE_S = 150.0
"""Without an event or a bookmark a watch is dead: the server sends a bookmark about every minute."""
GAP_S = 15.0
"""After so long without an event or a bookmark, the server may not have been reached by others either."""


WARN_EVERY_S = 30.0
UNREACHABLE_DOUBLINGS = 1
"""How often the delay doubles while no server answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays before a watch is opened again: they double from the shortest to the longest."""

    shortest_s: float = 0.8
    longest_s: float = 30.0
    healthy_s: float = 60.0
    """After a stream that lasted so long before it failed, delays begin with the shortest again."""
    failures: int = 0
    """Failures in a row."""

    def after(
        self, *, worked_s: float, had_events: bool = False, is_unreachable: bool = False
    ) -> Backoff:
        """The state after one more failure. `worked_s`: how long the stream had lasted.

        `had_events`: it sent events before it failed, as where a proxy ends every stream after a few seconds.
        `is_unreachable`: no server answered. A try costs no server anything then, and what happened meanwhile
        is to be seen as soon as one answers: the delay stays short.
        """
        failures = 1 if had_events or worked_s >= self.healthy_s else self.failures + 1
        if is_unreachable:
            failures = min(failures, UNREACHABLE_DOUBLINGS + 1)
        return Backoff(
            shortest_s=self.shortest_s,
            longest_s=self.longest_s,
            healthy_s=self.healthy_s,
            failures=failures,
        )

    def delay_s(self, *, chance: float, wanted_s: float = 0.0) -> float:
        """Half to all of the delay, by `chance` (0 to 1); `wanted_s` at least, which the server set.

        Chance spreads the workers: they must not all come back to a restarted server at one moment.
        """
        doublings = min(self.failures - 1, 32)  # far beyond any limit, and still a float
        delay_s: float = min(self.shortest_s * 2.0**doublings, self.longest_s)
        return max(wanted_s, delay_s * (0.5 + 0.5 * chance))


class Reflector:
    """Follows the objects that `path` and `query` select.

    `on_change` is called for each difference, with the new form of the object and the old one; None: it is
    gone, or was not there before. `trimmed` drops the fields of an object that are not needed: there may be
    thousands of objects.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        on_change: Callable[[Json | None, Json | None], None],
        query: Mapping[str, str] | None = None,
        trimmed: Callable[[Json], Json] = lambda item: item,
        silence_s: float = SILENCE_S,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.objects: dict[str, Json] = {}
        """The objects by uid, trimmed."""
        self.synchronized = asyncio.Event()
        """Set once the first list is complete."""
        self.contact_at = clock()
        """When the API server last sent an event, a bookmark or a list."""
        self.unbroken_since = self.contact_at
        """When it first sent something after a list, a new stream or a gap: earlier changes may be late."""
        self._source = source
        self._path = path
        self._query = dict(query or {})
        self._on_change = on_change
        self._trimmed = trimmed
        self._silence_s = silence_s
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._version: str | None = None  # to watch from; None: list first
        self._warned_at = float("-inf")
        self._events = 0  # number of all events so far, with bookmarks

    async def run(self) -> None:
        """Follow until cancelled. No error ends this, whether of the network, the server or our own."""
        while True:
            began, events_before = time.monotonic(), self._events
            wanted_s, is_unreachable = 0.0, False
            try:
                if self._version is None:
                    self._version = await self._list()
                await self._watch(self._version)
            except Unreachable as error:
                self._warn_of_outage(error)
                is_unreachable = True
            except Refused as error:
                logger.warning("%s: %s", self._path, error)
                wanted_s = error.retry_after_s
                if error.status == 410:
                    self._version = None
            except Exception:  # else the copy would stand still, and nothing would show it
                logger.exception("%s: what the API server sends makes no sense", self._path)
                self._version = None
            self._backoff = self._backoff.after(
                worked_s=time.monotonic() - began,
                # A stream that ended so that a list is due is a failure, whatever it sent.
                had_events=self._version is not None and self._events > events_before,
                is_unreachable=is_unreachable,
            )
            await asyncio.sleep(self._backoff.delay_s(chance=random.random(), wanted_s=wanted_s))

    def _warn_of_outage(self, error: Unreachable) -> None:
        """Log the error, but not at every try of an outage."""
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            logger.warning("%s", error)

    async def _list(self) -> str:
        """Replace the copy by the whole list, which comes page by page. Returns its version."""
        listed: dict[str, Json] = {}
        version = ""
        async for page in pages(self._source.get, self._path, self._query):
            listed |= {one["metadata"]["uid"]: self._trimmed(one) for one in page["items"]}
            version = str(page["metadata"]["resourceVersion"])
            self._note_contact(is_new=True)
        for uid in self.objects.keys() - listed.keys():
            self._remove(uid)
        for item in listed.values():
            self._put(item)
        self.synchronized.set()
        return version

    async def _watch(self, version: str) -> None:
        """Apply events to the copy until the stream ends; `_version` follows them."""
        query = {
            **self._query,
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(300, 600)),
        }
        stream = self._source.watch(self._path, query, silence_s=self._silence_s)
        is_new = True
        async with aclosing(stream) as events:
            async for event in events:
                self._note_contact(is_new=is_new)
                is_new = False
                self._apply(event["type"], event["object"])

    def _note_contact(self, *, is_new: bool) -> None:
        """Note that the server sent something. `is_new`: it is a list, or the first event of a stream."""
        now = self._clock()
        if is_new or now - self.contact_at >= GAP_S:
            self.unbroken_since = now
        self.contact_at = now

    def _apply(self, kind: str, item: Json) -> None:
        """Apply one event of a watch to the copy."""
        if kind == "ERROR":
            raise Refused(
                status=item.get("code", 0),
                reason=item.get("reason", ""),
                message=item.get("message", ""),
                retry_after_s=0.0,
            )
        if kind == "DELETED":
            self._remove(item["metadata"]["uid"])
        elif kind != "BOOKMARK":
            self._put(self._trimmed(item))
        self._version = item["metadata"]["resourceVersion"]
        self._events += 1

    def _put(self, item: Json) -> None:
        item["metadata"].pop("managedFields", None)
        uid = item["metadata"]["uid"]
        old = self.objects.get(uid)
        # Versions are compared for equality alone: their order means nothing to clients.
        if old and old["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
            return
        self.objects[uid] = item
        if not self._report(item, old):
            del self.objects[uid]
            if old is not None:
                # Its last readable form counts until it is gone, which then is reported.
                self.objects[uid] = old

    def _remove(self, uid: str) -> None:
        if old := self.objects.pop(uid, None):
            self._report(None, old)

    def _report(self, item: Json | None, old: Json | None) -> bool:
        """Call `on_change`; return whether it could read the object. One that it cannot read is logged."""
        try:
            self._on_change(item, old)
        except Exception:  # one object of thousands, which others write
            name = (item or old or {})["metadata"].get("name")
            logger.exception("%s: %s cannot be read", self._path, name)
            return False
        return True
