"""What the agent orders a rank whose process outlives a fault: to hold, then to rebuild its group.

    hold     the group is given up. The rank leaves the operation that it is in and reports where it is.
    rebuild  the other ranks are there again: the variables of the new generation.

Both come over a connection of their own, which a thread reads. The thread frees a rank that is blocked in a
collective operation; everything else the rank does itself, between two operations.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everstep.protocol import rank_memory, wire
from everstep.train.link import connected

REPORTED_AFTER_S = 1.0
"""A rank that waits so long for a hold reports what interrupted it: no other rank has ended visibly."""
POLL_S = FREED_EVERY_S = 0.1
SILENT_S = 3600.0
"""Longest wait for an order. The agent ends the rank much earlier, unless no worker decides."""


class Rebuild(NamedTuple):
    """The order to form the group again."""

    generation: int
    env: Mapping[str, str]


class Orders:
    """The orders of the agent to this rank. `free` is called by the thread, at each hold."""

    def __init__(self, environ: Mapping[str, str], free: Callable[[], None]) -> None:
        """Raises OSError if the agent takes no such rank."""
        self._free = free
        self._own_folder = Path(environ[wire.RANK_FOLDER])
        self._changed = threading.Condition()
        self._held = 0  # the newest generation that is held
        self._reported = 0  # the newest one for which the rank has reported where it is
        self._rebuild: Rebuild | None = None
        self._is_gone = False  # the agent
        self._socket = connected(environ[rank_memory.SOCKET_FOLDER])
        token, rank = environ[rank_memory.TOKEN], int(environ["RANK"])
        request = {"do": "listen", "rank": rank, "token": token}
        self._socket.send(json.dumps(request).encode())
        answer = json.loads(self._socket.recv(rank_memory.MESSAGE_MOST) or b'{"refused": "closed"}')
        if refused := answer.get("refused"):
            raise PermissionError(refused)
        threading.Thread(target=self._listen, name="everstep-orders", daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while content := self._next_message():
                self._receive(json.loads(content))
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()

    def _next_message(self) -> bytes:
        """The next message; empty: the agent has closed the connection.

        Until the rank has reported that it holds it is freed again and again: while it forms a group it may
        be between two connections.
        """
        while True:
            self._socket.settimeout(FREED_EVERY_S if self.is_held else None)
            try:
                return self._socket.recv(rank_memory.MESSAGE_MOST)
            except TimeoutError:
                if self.is_held:
                    self._free()

    def _receive(self, order: Mapping[str, Any]) -> None:
        generation = int(order["generation"])
        with self._changed:
            if order["do"] == "hold":
                self._held, self._rebuild = generation, None
            elif generation >= self._held:
                self._rebuild = self._read_rebuild(generation)
            self._changed.notify_all()
        if order["do"] == "hold":
            self._free()

    def _read_rebuild(self, generation: int) -> Rebuild | None:
        """The order in the folder of the rank: its variables may be many. None: a newer one is to come."""
        order = json.loads((self._own_folder / wire.INSTRUCTION).read_text())
        is_this = (order["do"], order["generation"]) == ("rebuild", generation)
        return Rebuild(generation, order["env"]) if is_this else None

    @property
    def is_held(self) -> bool:
        """Whether a hold came for which the rank has not reported yet."""
        return self._held > self._reported

    def await_rebuild(
        self, completed: int | None, why: str, *, copies: Sequence[int] = ()
    ) -> Rebuild | None:
        """Report where this rank is at every hold, until the order to rebuild comes.

        `completed`: the step whose state it has, None: it has none; `why`: what interrupted it; `copies`: the
        ranks that have the same state, none: all. None: the agent is gone, or gives no order.
        """
        position = {"do": "held", "completed": completed, "copies": [*copies]}
        began, is_reported = time.monotonic(), False
        with self._changed:
            while not self._is_gone and (waited_s := time.monotonic() - began) < SILENT_S:
                if self.is_held:
                    self._reported, is_reported = self._held, True
                    self._send({**position, "generation": self._held})
                elif (rebuild := self._rebuild) is not None:
                    self._rebuild = None
                    return rebuild
                elif not is_reported and waited_s >= REPORTED_AFTER_S:
                    is_reported = True
                    self._send({"do": "interrupted", "why": why[:500]})
                self._changed.wait(POLL_S if not is_reported else SILENT_S)
        return None

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps(message).encode())
