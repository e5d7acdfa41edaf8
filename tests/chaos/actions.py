"""The table of what chaos does: each action, how it is done, and the restarts that it may cost.

A cost is the most Recoveries of a class that one such action may explain; `*` stands for any class. What
costs nothing may restart nothing: no silence, no outage of ours is a reason to stop a training process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.chaos import deeds
from tests.chaos.evidence import Injection
from tests.chaos.on_machine import OnMachine, agents, ranks, wardens, whole_pod
from tests.chaos.plan import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One row of the table."""

    how: deeds.How
    costs: Mapping[str, int] = field(default_factory=dict)


async def carry_out(ground: OnMachine, event: Event) -> str:
    """Do it now, and note what it may cost; what it met, in words."""
    action = ACTIONS[event.action]
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
        )
        ground.injections.setdefault(job, []).append(injection)
    return hit.text


# -- The table --------------------------------------------------------------------------------------

ACTIONS: Mapping[str, Action] = {
    # Processes of a pod.
    "kill a rank": Action(how=deeds.kill(ranks, must_restart=True), costs={"crash": 1}),
    "stop a rank": Action(how=deeds.stop(ranks)),
    "kill an agent": Action(how=deeds.kill(agents), costs={"crash": 1}),
    "stop an agent": Action(how=deeds.stop(agents)),
    "kill a warden": Action(how=deeds.kill(wardens), costs={"crash": 1}),
    "stop a warden": Action(how=deeds.stop(wardens)),
    "kill a pod": Action(how=deeds.kill(whole_pod), costs={"crash": 1}),
    "stop a pod": Action(how=deeds.stop(whole_pod)),
    # Nodes and storage.
    "node down": Action(how=deeds.lose_node(""), costs={"node": 1}),
    "node cut off": Action(how=deeds.lose_node("partition"), costs={"node": 1}),
    "halve a checkpoint": Action(how=deeds.halve_checkpoint, costs={"crash": 1}),
    "unwritable storage": Action(how=deeds.lose_storage, costs={"storage": 1}),
    # Worker and server.
    "kill the worker": Action(how=deeds.kill_worker),
    "stop the worker": Action(how=deeds.lacks("worker", deeds.worker_stands_still)),
    "no descriptors": Action(how=deeds.lacks("worker", deeds.worker_opens_nothing)),
    "kill the server": Action(how=deeds.kill_server),
    "stop the server": Action(how=deeds.lacks("server", deeds.server_stands_still)),
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
    "drain a node": Action(how=deeds.drain, costs={"maintenance": 1}),
    "isolate a node": Action(how=deeds.isolate, costs={"planned": 1}),
    "preempt": Action(how=deeds.rehearse("preempt {job}"), costs={"preempted": 1}),
    "stop and again": Action(how=deeds.stop_and_again),
    "reset": Action(how=deeds.reset_job, costs={"planned": 1, "*": 1}),
    "end a Recovery": Action(how=deeds.terminate_recovery, costs={"planned": 1}),
    # Messages.
    "a late order": Action(how=deeds.late_order),
}
