"""Server and worker of this machine while a command runs: `dev` is that alone, until Ctrl-C.

Both are processes of ours: they end with us, whatever ends us. Agents and training go on without them,
and the next `dev` or `run` finds them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from everstep import processes
from everstep.agent.observing import hardware
from everstep.cli.cluster import other_users
from everstep.cli.cluster.other_users import AllowOtherUsers
from everstep.cli.exits import Exit, Failed
from everstep.cli.running_here import sharing
from everstep.cli.running_here.holding import HeldLock, ServerAddress
from everstep.cli.running_here.observing import MetricsPage
from everstep.cli.running_here.sharing import SharedServer
from everstep.cli.running_here.working import Machine, Worker, children_ended, kept_alive
from everstep.cli.state import home, made_home
from everstep.processes import ProcessFailed

LOOK_S = 0.2
PORT_MAX = 65_535

NodesOption = Annotated[
    int,
    typer.Option("--nodes", min=1, envvar="EVERSTEP_NODES", help="Virtual nodes of this machine."),
]
DeviceCount = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=0,
        envvar="EVERSTEP_DEVICES",
        help="Devices of each node; else as many as are found, or 8 simulated ones.",
    ),
]
DeviceKind = Annotated[
    Literal["auto", "none", "nvidia", "ascend", "simulated"],
    typer.Option(
        "--accelerator", envvar="EVERSTEP_ACCELERATOR", help="Their kind; auto: what is found."
    ),
]


def dev(
    nodes: NodesOption = 1,
    devices: DeviceCount = None,
    accelerator: DeviceKind = "auto",
    *,
    port: Annotated[
        int, typer.Option(min=1, max=PORT_MAX, help="Where the server listens.")
    ] = 7233,
    ui_port: Annotated[
        int, typer.Option(min=1, max=PORT_MAX, help="Where its web UI listens.")
    ] = 8233,
    observe: Annotated[
        bool, typer.Option("--observe", help="Serve metrics too, for a local Prometheus.")
    ] = False,
    allow_other_users: AllowOtherUsers = False,
) -> None:
    """Serve this machine: a Temporal server with its UI and a worker, until Ctrl-C.

    Everything that has to last is in EVERSTEP_HOME (~/.everstep): the server's database, the
    cluster database, agents and their logs. Training goes on while neither `dev` nor `run` serves.

    The server accepts every user of this machine. As root, `dev` does not start where other users exist.
    """
    here = hardware.devices(accelerator, devices)
    machine = Machine(
        nodes=nodes, devices=here, port=port, ui_port=ui_port, allows_others=allow_other_users
    )
    asyncio.run(_serve(machine, MetricsPage.begin(made_home()) if observe else None))


async def _serve(machine: Machine, page: MetricsPage | None) -> None:
    processes.end_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with served(machine) as server:
        print(f"server  {server.address}")
        print(f"ui      {server.ui}")
        print(f"state   {home()}")
        print(f"nodes   {machine.nodes} with {machine.devices} each ({machine.devices.why})")
        if page is not None:
            print(page)
        print(f"in another terminal: export TEMPORAL_ADDRESS={server.address}")
        print("Ctrl-C ends the server and the worker; training goes on.", flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def served(machine: Machine, *, shares: bool = False) -> AsyncIterator[ServerAddress]:
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
        async with kept_alive(server.ensure_alive, every_s=LOOK_S):
            await _begin(worker, server)
            async with kept_alive(worker.ensure_alive, every_s=LOOK_S):
                yield server.place


async def _server(machine: Machine, directory: Path, *, shares: bool) -> SharedServer:
    match await sharing.held_or_found(directory):
        case HeldLock() as held:
            nodes = None if shares else machine.nodes
            return await sharing.begin(
                directory, held, port=machine.port, ui_port=machine.ui_port, nodes=nodes
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
