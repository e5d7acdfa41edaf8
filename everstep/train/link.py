"""The connection of a rank to its agent: a socket that carries short messages and handles of memory."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from everstep.protocol import rank_memory

ANSWER_S = 10.0
"""Longest wait for an answer of the agent. Its loop answers within milliseconds, unless it is suspended."""


def connected(folder: str) -> socket.socket:
    """A connection to the agent of this folder, by a handle: the path of a socket has at most 107 bytes."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(ANSWER_S)
    handle = os.open(folder, os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{handle}/{rank_memory.SOCKET}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(handle)
    return connection


class Link:
    """One connection, as the rank of the environment. Every method raises OSError if the agent is gone."""

    def __init__(self, folder: str, token: str, rank: int) -> None:
        self._socket = connected(folder)
        self._rank = rank
        self._token = token
        # The time-out of the first one makes each of its calls wait until the agent reads.
        self._unhurried = socket.socket(fileno=os.dup(self._socket.fileno()))
        self._unhurried.setblocking(False)

    def hello(self, position: int) -> list[int]:
        """Introduce the rank with the memory of its position. Returns the memory of earlier snapshots."""
        return self._ask({"do": "hello", "rank": self._rank, "token": self._token}, [position])

    def keep(self, index: int, handle: int) -> None:
        """Have the agent hold the memory of a buffer."""
        self._ask({"do": "keep", "index": index}, [handle])

    def release(self, index: int) -> None:
        """Have the agent release the memory of a buffer."""
        self._ask({"do": "release", "index": index}, [])

    def declare(self, capabilities: list[str]) -> None:
        """Declare everything that the rank can do."""
        self._ask({"do": "declare", "can": capabilities}, [])

    def save_with(self) -> None:
        """Have the agent read how this rank saves, from the file in its folder."""
        self._ask({"do": "save_with"}, [])

    def stepped(self) -> None:
        """Have the agent read the position. Waits for nothing: an agent that is busy reads it later."""
        self._send_now({"do": "stepped"})

    def report_snapshot(self) -> None:
        """Report that there is a new snapshot. Waits for nothing: an agent that is busy finds it later."""
        self._send_now({"do": "kept"})

    def note(self, text: str) -> None:
        """Leave a note for people in the state of the agent."""
        self._send_now({"do": "note", "text": text[:500]})

    def close(self) -> None:
        self._unhurried.close()
        self._socket.close()

    def _send_now(self, message: dict[str, Any]) -> None:
        try:
            self._unhurried.send(json.dumps(message).encode())
        except BlockingIOError:
            return

    def _ask(self, message: dict[str, Any], handles: list[int]) -> list[int]:
        """Send a message and return the handles of its answer. A failure ends the connection.

        An answer that came later would be taken for that to the next message.
        """
        try:
            return self._answer_to(message, handles)
        except OSError:
            self.close()
            raise

    def _answer_to(self, message: dict[str, Any], handles: list[int]) -> list[int]:
        socket.send_fds(self._socket, [json.dumps(message).encode()], handles)
        content, received, _, _ = socket.recv_fds(
            self._socket, rank_memory.MESSAGE_MOST, rank_memory.BUFFERS_MOST
        )
        for handle in received:
            os.set_inheritable(handle, False)
        if not content:
            raise ConnectionResetError("the agent has closed the connection")
        if refused := json.loads(content).get("refused"):
            raise PermissionError(refused)
        return received
