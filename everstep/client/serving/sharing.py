"""The one server of a state directory, shared by all commands that need it at the same time.

The command that holds the lock of the directory (`holding`) runs the server, and the others use it. When that
command ends, another one takes the lock in `ensure_alive` and runs the server again, at the same address and
from the same database: clients and workers notice a short silence.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path

from everstep import devserver
from everstep.client.exit_codes import Exit, Failed
from everstep.client.serving import holding
from everstep.client.serving.holding import HeldLock, ServerAddress
from everstep.devserver import DevServer

POLL_S = 0.1
PATIENCE_S = devserver.START_S + 5.0
"""Seconds until the server of the process that holds the lock has to answer."""

BUSY = (
    "another process holds {lock}, and its server has not answered for {patience:g} s; end it, or set "
    "EVERSTEP_HOME to another folder"
)


class SharedServer:
    """The server of a directory: run by this process (`is_own`), or by another one until that ends."""

    def __init__(
        self,
        directory: Path,
        place: ServerAddress,
        held: HeldLock | None = None,
        server: DevServer | None = None,
    ) -> None:
        self.place = place
        self._directory = directory
        self._held = held
        self._server = server

    @property
    def is_own(self) -> bool:
        return self._held is not None

    @property
    def has_permanent_holder(self) -> bool:
        """Whether the process that runs the server now goes on when this one has ended."""
        place = holding.current(self._directory)
        return not self.is_own and place is not None and place.is_permanent

    def variables(self) -> dict[str, str]:
        """Variables of its worker."""
        return {"TEMPORAL_ADDRESS": self.place.address}

    async def answers(self) -> bool:
        return await devserver.answers(self.place.address)

    async def ensure_alive(self) -> None:
        """Start the server again if this process runs it and it died, or if no process runs it any more."""
        if self._server is not None:
            await self._server.ensure_alive()
        elif held := holding.take(self._directory):
            await self._take_over(held)

    async def until_answers(self) -> None:
        """Wait until the server answers. Raises `Failed` if the holder of the lock does not start it."""
        deadline = time.monotonic() + PATIENCE_S
        while not await self.answers():
            _check_deadline(deadline, self._directory)
            await asyncio.sleep(POLL_S)

    async def _take_over(self, held: HeldLock) -> None:
        """Run the server at the address where it was."""
        self._held = held
        self.place = replace(self.place, nodes=None, is_permanent=False)
        held.write_address(self.place)
        ports = {"port": self.place.port, "ui_port": self.place.ui_port}
        self._server = DevServer(self._directory, **ports, lock=held.handle)
        await self._server.ready()

    def end(self) -> None:
        """End the server if this process runs it. Another process may run it again."""
        if self._server is not None:
            self._server.end()
        if self._held is not None:
            self._held.release()
        self._server = self._held = None


async def begin(
    directory: Path,
    held: HeldLock,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    nodes: int | None = None,
    is_permanent: bool = False,
) -> SharedServer:
    """Run the server in this process, which holds the lock. `is_permanent`: it does not end with a job.

    Without ports it listens where the last one did, as clients may still use that address.
    """
    last = holding.last(directory)
    if port is None and last is not None and not (_is_taken(last.port) or _is_taken(last.ui_port)):
        port, ui_port = last.port, last.ui_port
    try:
        ports = {"port": _free(port), "ui_port": _free(ui_port)}
        server = await devserver.start(directory, **ports, lock=held.handle)
    except BaseException:
        held.release()
        raise
    place = ServerAddress(
        port=server.port, ui_port=server.ui_port, nodes=nodes, is_permanent=is_permanent
    )
    held.write_address(place)
    return SharedServer(directory, place, held, server)


def _free(port: int | None) -> int | None:
    """The port; `Failed` if a process listens there."""
    if port is not None and _is_taken(port):
        problem = f"something listens on port {port} already; is it a server of yours?"
        raise Failed(Exit.USAGE, f"{problem} Choose another with --port or --ui-port")
    return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def held_or_found(directory: Path) -> HeldLock | ServerAddress:
    """The lock, or the address of the server of the process that has it, once that server answers."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if held := holding.take(directory):
            return held
        place = holding.current(directory)
        if place is not None and await devserver.answers(place.address):
            return place
        _check_deadline(deadline, directory)
        await asyncio.sleep(POLL_S)


def _check_deadline(deadline: float, directory: Path) -> None:
    """Raise `Failed` once the deadline is over."""
    if time.monotonic() > deadline:
        lock = directory / holding.LOCK
        raise Failed(Exit.UNREACHABLE, BUSY.format(lock=lock, patience=PATIENCE_S))
