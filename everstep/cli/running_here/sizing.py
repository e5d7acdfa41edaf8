"""How large this machine is for a `run`: as large as the job wants, unless `dev` was told how large."""

from __future__ import annotations

from everstep.agent.observing.hardware import Devices
from everstep.cli import connection, machine
from everstep.cli.exits import Exit, Failed
from everstep.cli.running_here import holding
from everstep.cli.running_here.working import Machine
from everstep.cli.state import home
from everstep.core.spec import JobSpec


async def machine_for(spec: JobSpec, *, nodes: int | None, devices: Devices) -> Machine:
    """What of this machine is to be served. It grows beyond what `dev` serves only if that was asked for."""
    wanted = max(phase.nodes for phase in spec.phases)
    served = await _nodes_of_dev() if spec.cluster == machine.USUAL else None
    if served is None:
        return Machine(nodes=nodes or wanted, devices=devices)
    if nodes is not None:
        await machine.own_tools().ensure_nodes(nodes, devices=devices.count)
        return Machine(nodes=nodes, devices=devices)
    least = max(phase.nodes_min for phase in spec.phases)
    if least > served:
        problem = (
            f"{spec.name} needs {least} nodes, and `everstep dev` serves this machine with {served}"
        )
        raise Failed(Exit.USAGE, f"{problem}; --nodes {wanted} adds what is missing, for good")
    return Machine(nodes=min(wanted, served), devices=devices)


async def _nodes_of_dev() -> int | None:
    """How many nodes the machine has while `dev` serves the server that we mean."""
    place = holding.found(home())
    if place is None or place.nodes is None or connection.address() != place.address:
        return None
    with machine.books_can_be_read():
        return max(place.nodes, len(await machine.own_tools().nodes()))
