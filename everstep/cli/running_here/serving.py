"""The command `dev`: server and worker of this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated, Literal

import typer

from everstep import processes
from everstep.agent.observing import hardware
from everstep.client.home import home, made_home
from everstep.client.serving.metrics_page import MetricsPage
from everstep.client.serving.served import served
from everstep.client.serving.working import Machine

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


AllowOtherUsers = Annotated[
    bool,
    typer.Option(
        "--allow-other-users",
        envvar="EVERSTEP_ALLOW_OTHER_USERS",
        help="Serve although other users of this machine could start jobs as you.",
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
    async with served(machine) as shared:
        server = shared.place
        print(f"server  {server.address}")
        print(f"ui      {server.ui}")
        print(f"state   {home()}")
        print(f"nodes   {machine.nodes} with {machine.devices} each ({machine.devices.why})")
        if page is not None:
            print(page)
        print(f"in another terminal: export TEMPORAL_ADDRESS={server.address}")
        print("Ctrl-C ends the server and the worker; training goes on.", flush=True)
        await asyncio.Event().wait()
