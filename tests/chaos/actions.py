"""The table of what chaos does: each action, how it is done, and the restarts that it may cost.

A cost is the most Recoveries of a class that one such action may explain; `*` stands for any class. What
costs nothing may restart nothing: no silence, no outage of ours is a reason to stop a training process.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.chaos import deeds, machine_deeds
from tests.chaos.evidence import Injection
from tests.chaos.ground import Ground, Hit
from tests.chaos.on_machine import HAS_DISKS, OnMachine, agents, ranks, wardens, whole_pod
from tests.chaos.plan import Event
from tests.support.starving import stopped, without_descriptors, without_room
from tests.support.wire import Wire
from tests.support.world import HAS_COMPILER
from tests.testbed.disk import Disk

G_contra = TypeVar("G_contra", bound=Ground, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Generic[G_contra]):
    """One row of the table."""

    how: Callable[[G_contra, Event], Awaitable[Hit | None]]
    costs: Mapping[str, int] = field(default_factory=dict)


async def carry_out(action: Action[G_contra], ground: G_contra, event: Event) -> str:
    """Do it now, and note what it may cost; what it met, in words."""
    at = time.time()
    hit = await action.how(ground, event)
    if hit is None:
        return "there was nothing to do it to"
    for job in hit.jobs:
        injection = Injection(
            action=f"{event.action} (event {event.number})",
            at=at,
            may_cost=action.costs,
            must_restart=hit.must_restart,
            forgets=hit.forgets,
        )
        ground.injections.setdefault(job, []).append(injection)
    return hit.text


# -- The table --------------------------------------------------------------------------------------

ANYWHERE: Mapping[str, Action[Ground]] = {
    # Checkpoints.
    "halve a checkpoint": Action(how=deeds.halve_checkpoint, costs={"crash": 1}),
    "change a checkpoint": Action(how=deeds.change_checkpoint, costs={"crash": 3, "checkpoint": 1}),
    # Workers, server, and what lies between.
    "kill a worker": Action(how=deeds.kill_worker),
    "roll back and out": Action(how=deeds.roll_back),
    "stop a worker": Action(how=deeds.weaken_worker(stopped)),
    "no descriptors": Action(how=deeds.weaken_worker(without_descriptors)),
    "a worker's full disk": Action(how=deeds.weaken_worker(without_room)),
    "kill the server": Action(how=deeds.kill_server),
    "stop the server": Action(how=deeds.stop_server),
    "restore the server": Action(how=deeds.restore_server, costs={"planned": 1, "*": 2}),
    "cut the connection": Action(how=deeds.break_wire(Wire.cut)),
    "refuse connections": Action(how=deeds.break_wire(Wire.refuse)),
    "hold the connection": Action(how=deeds.break_wire(Wire.hold)),
    "hold answers": Action(how=deeds.break_wire(Wire.hold_answers)),
    # Planned operations.
    "pause and resume": Action(how=deeds.pause, costs={"planned": 2}),
    "restart in place": Action(
        how=deeds.operate("restart", level="in_place"), costs={"planned": 1}
    ),
    "restart pods": Action(how=deeds.operate("restart", level="job"), costs={"planned": 1}),
    "restart, twice": Action(how=deeds.restart_twice, costs={"planned": 1}),
    "hot update": Action(
        how=deeds.operate("hot_update", patch={"env": {"NOTE": "chaos"}}, when="now"),
        costs={"planned": 1},
    ),
    "checkpoint": Action(how=deeds.operate("checkpoint")),
    "set a budget": Action(how=deeds.operate("set_budget", name="all", limit=99_999)),
    "stop and again": Action(how=deeds.stop_and_again),
    "reset": Action(how=deeds.reset_job, costs={"planned": 1, "*": 1}),
    "end a Recovery": Action(how=deeds.terminate_recovery, costs={"planned": 1}),
}
"""Rows that any cluster has."""

SPOILED_DISK = {"storage": 1, "crash": 1}

AS_ROOT: Mapping[str, Action[OnMachine]] = {
    "a read-only disk": Action(how=machine_deeds.spoil_disk(Disk.read_only), costs=SPOILED_DISK),
    "a disk without room": Action(how=machine_deeds.spoil_disk(Disk.full), costs=SPOILED_DISK),
    "a hanging disk": Action(how=machine_deeds.spoil_disk(Disk.hanging)),
}
"""Rows that need a disk of their own for each job."""

WITH_COMPILER: Mapping[str, Action[OnMachine]] = {
    "step a worker's clock": Action(how=machine_deeds.step_worker_clock),
    "step a node's clock": Action(how=machine_deeds.step_node_clock),
    "storage errors": Action(how=machine_deeds.fail_storage, costs=SPOILED_DISK),
}
"""Rows that need a library of C."""

ON_MACHINE: Mapping[str, Action[OnMachine]] = {
    **ANYWHERE,
    **(AS_ROOT if HAS_DISKS else {}),
    **(WITH_COMPILER if HAS_COMPILER else {}),
    # Processes of a pod.
    "kill a rank": Action(how=machine_deeds.kill(ranks, must_restart=True), costs={"crash": 1}),
    "stop a rank": Action(how=machine_deeds.stop(ranks)),
    "hang a rank": Action(how=machine_deeds.hang(ranks), costs={"hang": 1}),
    "kill an agent": Action(how=machine_deeds.kill(agents), costs={"crash": 1}),
    "stop an agent": Action(how=machine_deeds.stop(agents)),
    "kill a warden": Action(how=machine_deeds.kill(wardens), costs={"crash": 1}),
    "stop a warden": Action(how=machine_deeds.stop(wardens)),
    "kill a pod": Action(how=machine_deeds.kill(whole_pod), costs={"crash": 1}),
    "stop a pod": Action(how=machine_deeds.stop(whole_pod)),
    # Nodes and storage.
    "node down": Action(how=machine_deeds.lose_node(""), costs={"node": 1}),
    "node cut off": Action(how=machine_deeds.lose_node("partition"), costs={"node": 1}),
    "a slow node": Action(how=machine_deeds.slow_node),
    "a full disk": Action(how=machine_deeds.take_room, costs={"crash": 1}),
    "unwritable storage": Action(how=machine_deeds.lose_storage, costs={"storage": 1}),
    # Operations and messages.
    "drain a node": Action(how=machine_deeds.drain, costs={"maintenance": 1}),
    "isolate a node": Action(how=machine_deeds.isolate, costs={"planned": 1}),
    "preempt": Action(how=machine_deeds.rehearse("preempt {job}"), costs={"preempted": 1}),
    "report a node": Action(how=machine_deeds.report_node, costs={"node": 1}),
    "a late order": Action(how=machine_deeds.late_order),
}
"""All rows of the local backend."""
