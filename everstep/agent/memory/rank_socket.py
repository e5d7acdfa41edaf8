"""The socket for ranks: they introduce themselves, hand over memory and report that they made a step.

Everything happens in the agent's loop. A message is short, and an answer is sent or the connection is closed:
no rank can hold up the loop. A rank proves which one it is by its token.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from _operator import _compare_digest as compare_digest
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.agent import Agent
from everstep.agent.memory.held_memory import HeldMemory
from everstep.agent.memory.snapshots import Saver
from everstep.agent.processes.rank import Rank
from everstep.agent.storage import files
from everstep.protocol import bounds, rank_memory, wire

CONNECTIONS_MAX = 256
HANDLES_MOST = 1
SAVER_MOST = 64 * 1024


class Refused(Exception):
    """The message is refused; why goes to the rank."""


class Connection:
    """A connection of a process that says it is a rank."""

    def __init__(self, socket_: socket.socket) -> None:
        self.socket = socket_
        self.rank: Rank | None = None  # once it has proven to be one
        self.takes_orders = False


class RankSocket:
    """Accepts connections of ranks."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._connections: set[Connection] = set()

    def listen(self) -> None:
        """Listen in the folder of the agent, which is its working directory."""
        with contextlib.suppress(FileNotFoundError):
            Path(rank_memory.SOCKET).unlink()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(rank_memory.SOCKET)
        self._listening.listen()
        self._listening.setblocking(False)
        self._agent.loop.watch(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        accepted, _ = self._listening.accept()
        accepted.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            accepted.close()
            return
        connection = Connection(accepted)
        self._connections.add(connection)
        self._agent.loop.watch(accepted.fileno(), partial(self._receive, connection))

    def _close(self, connection: Connection) -> None:
        self._agent.loop.unwatch(connection.socket.fileno())
        self._connections.discard(connection)
        if connection.takes_orders and connection.rank is not None:
            connection.rank.send_order = None
        connection.socket.close()

    def _receive(self, connection: Connection) -> None:
        """Carry out one message. What cannot be read, or answered, ends the connection."""
        handles: list[int] = []
        try:
            content, handles, _, _ = socket.recv_fds(
                connection.socket, rank_memory.MESSAGE_MOST, HANDLES_MOST
            )
            if not content:
                self._close(connection)
                return
            self._serve(connection, _message(content), handles)
        except BlockingIOError:
            return
        except Refused as refused:
            self._answer(connection, {"refused": str(refused)})
            self._close(connection)
        except Exception:  # noqa: BLE001  # of a process that sends anything at all
            self._close(connection)
        finally:
            for handle in handles:
                os.close(handle)

    def _serve(
        self, connection: Connection, message: Mapping[str, Any], handles: list[int]
    ) -> None:
        do = message.get("do")
        if do == "hello":
            self._introduce(connection, message, handles)
            return
        if do == "listen":
            self._send_orders(connection, message)
            return
        if connection.rank is None:
            raise Refused("the rank has to introduce itself first")
        serve = SERVED.get(str(do))
        if serve is None:
            raise Refused(f"there is no message {do}")
        if serve(self._agent, connection.rank, message, handles):
            self._answer(connection, {})

    def _introduce(
        self, connection: Connection, message: Mapping[str, Any], handles: list[int]
    ) -> None:
        """Take the memory of the rank's position; send the buffers of the process that it replaces."""
        rank = self._rank_of(message)
        if any(one.rank is rank and not one.takes_orders for one in self._connections):
            raise Refused(
                "the rank has introduced itself before: a process that it started is none"
            )
        rank.keep_position(HeldMemory.of(_only(handles)))
        connection.rank = rank
        held = self._agent.snapshots.handles(rank.number)
        socket.send_fds(connection.socket, [b"{}"], held)

    def _send_orders(self, connection: Connection, message: Mapping[str, Any]) -> None:
        """Send the orders to this rank over this connection from now on."""
        rank = self._rank_of(message)
        if rank.send_order is not None:
            raise Refused("the rank takes its orders elsewhere")
        connection.rank, connection.takes_orders = rank, True
        rank.send_order = partial(_send, connection.socket)
        self._answer(connection, {})

    def _rank_of(self, message: Mapping[str, Any]) -> Rank:
        run, number, token = self._agent.run, message.get("rank"), message.get("token")
        for rank in run.ranks if run is not None else ():
            is_own = rank.number == number and isinstance(token, str)
            if is_own and rank.is_alive and compare_digest(rank.token, str(token)):
                return rank
        raise Refused("it is no rank of this pod, or its token is not the rank's own")

    def _answer(self, connection: Connection, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            connection.socket.send(json.dumps(answer).encode())


def _send(connection: socket.socket, content: bytes) -> None:
    connection.send(content)


def _message(content: bytes) -> Mapping[str, Any]:
    message = json.loads(content)
    if not isinstance(message, dict):
        raise Refused("a message is an object")
    return message


def _only(handles: list[int]) -> int:
    if len(handles) != 1:
        raise Refused("one handle of memory is needed")
    return handles[0]


# -- Messages: each returns whether the rank waits for an answer ----------------------------------


def _keep(agent: Agent, rank: Rank, message: Mapping[str, Any], handles: list[int]) -> bool:
    agent.snapshots.hold(rank.number, _index_of(message), HeldMemory.of(_only(handles)))
    return True


def _release(agent: Agent, rank: Rank, message: Mapping[str, Any], _handles: list[int]) -> bool:
    agent.snapshots.release(rank.number, _index_of(message))
    return True


def _index_of(message: Mapping[str, Any]) -> int:
    index = message.get("index")
    if type(index) is not int or not 0 <= index < rank_memory.BUFFERS_MOST:
        raise Refused("there is no such buffer")
    return index


def _declare(agent: Agent, rank: Rank, message: Mapping[str, Any], _handles: list[int]) -> bool:
    capabilities = message.get("can")
    if not isinstance(capabilities, list):
        raise Refused("a list of capabilities is needed")
    rank.folder.can = sorted({bounds.plain(str(one)) for one in capabilities})
    if rank_memory.RESTORE in rank.folder.can:
        agent.snapshots.restoring.add(rank.number)
    agent.publish()
    return True


def _stepped(agent: Agent, rank: Rank, _message: Mapping[str, Any], _handles: list[int]) -> bool:
    agent.parts.ranks.read_position(rank)
    return False


def _snapshot_written(
    agent: Agent, _rank: Rank, _message: Mapping[str, Any], _handles: list[int]
) -> bool:
    agent.parts.copier.poll()
    return False


def _save_with(agent: Agent, rank: Rank, _message: Mapping[str, Any], _handles: list[int]) -> bool:
    how = files.read_json(rank.folder.path / rank_memory.SAVER, SAVER_MOST)
    run = agent.run
    env = rank.environment({} if run is None else run.command["env"])
    agent.snapshots.savers[rank.number] = Saver.of(how, env)
    agent.publish()
    return True


def _note(agent: Agent, _rank: Rank, message: Mapping[str, Any], _handles: list[int]) -> bool:
    agent.note(str(message.get("text", "")))
    agent.publish()
    return False


def _held(agent: Agent, rank: Rank, message: Mapping[str, Any], _handles: list[int]) -> bool:
    completed = message.get("completed")
    if completed is not None and type(completed) is not int:
        raise Refused("the number of a step is needed")
    copies = message.get("copies") or []
    if not isinstance(copies, list) or any(type(one) is not int for one in copies):
        raise Refused("numbers of ranks are needed")
    position: wire.RankPosition = {"rank": rank.number, "completed": completed, "copies": copies}
    agent.record_position(int(message["generation"]), position)
    return False


def _interrupted(agent: Agent, rank: Rank, message: Mapping[str, Any], _handles: list[int]) -> bool:
    agent.report_interruption(rank, bounds.plain(str(message.get("why", ""))))
    return False


SERVED: Mapping[str, Callable[[Agent, Rank, Mapping[str, Any], list[int]], bool]] = {
    "keep": _keep,
    "release": _release,
    "declare": _declare,
    "stepped": _stepped,
    "kept": _snapshot_written,
    "save_with": _save_with,
    "note": _note,
    "held": _held,
    "interrupted": _interrupted,
}
