"""Server and worker of this machine, for the time of a block.

Both are processes of ours: they end with us, whatever ends us. Agents and training go on without them,
and the next block finds them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import made_home
from everstep.client.serving import other_users, sharing
from everstep.client.serving.holding import HeldLock
from everstep.client.serving.sharing import SharedServer
from everstep.client.serving.working import Machine, Worker, children_ended, kept_alive
from everstep.processes import ProcessFailed

POLL_S = 0.2


@asynccontextmanager
async def served(machine: Machine, *, shares: bool = False) -> AsyncIterator[SharedServer]:
    """Run the server of this machine and a worker during the block.

    If that server runs already it is shared if allowed, else this is an error.
    """
    other_users.warn_or_refuse(allowed=machine.allows_others)
    directory = made_home()
    with contextlib.ExitStack() as later, children_ended():
        server = await _server(machine, directory, shares=shares)
        later.callback(server.end)
        worker = Worker(machine, server.variables, is_alone=server.is_own, is_of_run=shares)
        later.enter_context(worker.log_kept_if_failed())
        async with kept_alive(server.ensure_alive, every_s=POLL_S):
            await _begin(worker, server)
            async with kept_alive(worker.ensure_alive, every_s=POLL_S):
                yield server


async def _server(machine: Machine, directory: Path, *, shares: bool) -> SharedServer:
    match await sharing.held_or_found(directory):
        case HeldLock() as held:
            nodes = None if shares else machine.nodes
            ports = {"port": machine.port, "ui_port": machine.ui_port}
            return await sharing.begin(
                directory, held, **ports, nodes=nodes, is_permanent=not shares
            )
        case place if shares:
            return SharedServer(directory, place)
        case place:
            served = f"{directory} is served already, at {place.address}"
            hint = "use that one, end it first, or set EVERSTEP_HOME to another folder"
            raise Failed(Exit.USAGE, f"{served}; {hint}")


async def _begin(worker: Worker, server: SharedServer) -> None:
    """It is ready. If it failed because the server went meanwhile, it is begun again."""
    while True:
        was_own = server.is_own
        try:
            return await worker.ensure_alive()
        except ProcessFailed:
            if server.is_own == was_own and await server.answers():
                raise
        await server.until_answers()
