"""Fetches the copies of its ranks' snapshots from another agent, before a start that resumes from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from everstep.agent.future import Future, in_thread
from everstep.agent.memory.copies import Copy
from everstep.agent.memory.held_memory import HeldMemory
from everstep.agent.memory.neighbour_link import Credentials, NeighbourLink, Refused
from everstep.protocol import wire

if TYPE_CHECKING:
    from everstep.agent.agent import Agent


class Fetching:
    """Fetches for one start at a time."""

    def __init__(self, agent: Agent, credentials: Credentials) -> None:
        self._agent = agent
        self._credentials = credentials
        self._generation: int | None = None  # of the start that it fetches for

    def before(self, command: wire.RunCommand, start: Callable[[str], None]) -> None:
        """Fetch what the command names, then call `start` with what is missing: no text if nothing is.

        The same command again changes nothing meanwhile. In the agent's loop.
        """
        generation, step = command["generation"], command["snapshot_step"]
        missing = [] if step is None else self._missing(command["fetch"], step)
        if self._generation == generation:
            return
        if not missing or step is None:
            start("")
            return
        self._generation = generation
        fetched = in_thread(partial(_fetch_all, missing, step, self._credentials))
        finish = partial(self._finish, generation, start)
        fetched.add_done_callback(lambda done: self._agent.loop.hand_over(partial(finish, done)))

    def _missing(self, fetches: Sequence[wire.Fetch], step: int) -> list[wire.Fetch]:
        """Those that this agent does not hold itself."""
        held = self._agent.snapshots.steps
        return [one for one in fetches if step not in held(one["rank"])]

    def _finish(
        self, generation: int, start: Callable[[str], None], done: Future[dict[int, HeldMemory]]
    ) -> None:
        error = done.exception(0)
        held = {} if error is not None else done.result(0)
        is_current = self._generation == generation
        self._generation = None if is_current else self._generation
        if not is_current or self._agent.generation > generation:
            for memory in held.values():
                memory.close()
            return
        for rank, memory in held.items():
            self._agent.snapshots.hold(rank, 0, memory)
            self._agent.snapshots.restoring.add(rank)
        start("" if error is None else str(error))


def _fetch_all(
    fetches: Sequence[wire.Fetch], step: int, credentials: Credentials
) -> dict[int, HeldMemory]:
    """Memory by rank. Raises OSError."""
    held: dict[int, HeldMemory] = {}
    links: dict[str, NeighbourLink] = {}
    try:
        for fetch in fetches:
            address = fetch["held_by"]["address"]
            link = links.setdefault(address, NeighbourLink(address, credentials))
            held[fetch["rank"]] = _fetched(link, fetch, step)
    except BaseException:
        for memory in held.values():
            memory.close()
        raise
    finally:
        for link in links.values():
            link.close()
    return held


def _fetched(link: NeighbourLink, fetch: wire.Fetch, step: int) -> HeldMemory:
    """The copy in memory of this agent. Raises OSError with the rank, the slot and why."""
    where = f"the copy of rank {fetch['rank']} at slot {fetch['held_by']['slot']}"
    query = f"rank={fetch['rank']}&step={step}"
    copy: Copy | None = None
    try:
        header: Any = json.loads(link.get(f"{wire.COPY}?{query}"))
        copy = Copy(header)
        while copy.received < header["content_bytes"]:
            part = link.get(f"{wire.COPY_PART}?{query}&offset={copy.received}")
            if not part:
                raise OSError("it ends early")
            copy.add(memoryview(part))
        copy.finish(header["checksum"])
    except (OSError, Refused, ValueError, KeyError) as error:
        if copy is not None:
            copy.memory.close()
        raise OSError(f"{where} cannot be fetched: {error}") from None
    return copy.memory
