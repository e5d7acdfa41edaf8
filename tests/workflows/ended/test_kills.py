"""A worker killed with SIGKILL at any moment of an incident leaves no trace in what is remembered.

Every row of the tables is a moment, or two. At each one the only worker is killed and started again;
books, records, placements, isolations and effects have to be those of a run in which no process was
killed. The same for the server. Only processes that are killed lose what they had not reported yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.core.levels import STEPS, Level, Step
from tests.support.devserver import DevServer
from tests.support.moments import Begun, Call, Event, Incident, Moment, until_incident
from tests.support.rows import recovery
from tests.workflows.ended.kills import (
    CONNECTION,
    CRASH,
    DEVICE,
    DOWNGRADE,
    HANG,
    KEPT_DEVICE,
    NO_PROGRESS,
    NODE,
    NODE_AND_STORAGE,
    NOT_HEALED,
    NUMERIC,
    PREEMPTED,
    RESIZE,
    SCALING,
    SPARED,
    STORAGE,
    SUB_HEALTHY,
    SURVIVORS,
    Kills,
    Row,
    ServerKills,
    compare,
)

OF_THE_NODE = "demo/main/recovery-1-pod-node-n2"
RESIZED, SHRUNK, GROWN = (
    "demo/main/recovery-1-elastic-crash-n2",
    "demo/main/recovery-2-elastic-node-n2",
    "demo/main/recovery-3-elastic-planned",
)
HEALING, DOWNGRADED = (
    "demo/main/recovery-1-in_place-device-n1",
    "demo/main/recovery-2-pod-device-n1",
)


def at_steps(recovery: str, *steps: Step) -> Sequence[Sequence[Moment]]:
    """A row for each of these steps of a Recovery."""
    return [[Begun(f"demo/main/{recovery}", step)] for step in steps]


def both_sides(*verbs: str, nth: int = 1) -> Sequence[Sequence[Moment]]:
    """A row for before and one for after each verb."""
    return [[Call(verb, "before", nth)] for verb in verbs] + [
        [Call(verb, "after", nth)] for verb in verbs
    ]


MOMENTS: dict[str, tuple[Incident, Sequence[Sequence[Moment]]]] = {
    "a crash": (
        CRASH,
        [
            *both_sides("observe", "check", "ensure_stopped", "ensure_started"),
            [Event("demo", "START_CHILD_WORKFLOW_EXECUTION_INITIATED")],
        ],
    ),
    "a device that heals": (
        DEVICE,
        [
            *both_sides("ensure_generation", "ensure_healed", "ensure_fenced", "checkpoints"),
            [Call("observe", "after")],
            [Call("ensure_healed", "after", 2)],
            [Call("ensure_started", "after", 2)],
            [Call("ensure_healed", "before", late=True)],
            [Event(HEALING, "ACTIVITY_TASK_COMPLETED", 2)],
        ],
    ),
    "a lost node": (
        NODE,
        [
            *both_sides("observe", "ensure_generation", "ensure_stopped", "nodes"),
            *both_sides("ensure_isolated", "ensure_placed", "ensure_fenced", "checkpoints"),
            *both_sides("ensure_started"),
            [Call("nodes", "before", 2)],
            [Call("ensure_placed", "after", 2)],
            [Call("ensure_started", "after", 2)],
            [Call("ensure_generation", "before", late=True)],
            [Call("ensure_placed", "before", late=True)],
            [Call("ensure_started", "before", late=True)],
            [Event("demo", "CHILD_WORKFLOW_EXECUTION_STARTED")],
            [Event("demo", "CHILD_WORKFLOW_EXECUTION_COMPLETED")],
            [Event(OF_THE_NODE, "WORKFLOW_EXECUTION_STARTED")],
            [Event(OF_THE_NODE, "WORKFLOW_EXECUTION_COMPLETED")],
            [Event(OF_THE_NODE, "ACTIVITY_TASK_SCHEDULED")],
            [Event(OF_THE_NODE, "ACTIVITY_TASK_COMPLETED", 3)],
        ],
    ),
    "numbers that go wrong twice": (
        NUMERIC,
        [
            *both_sides("ensure_generation", "ensure_stopped"),
            *both_sides("checkpoints", "ensure_set_aside"),
            *both_sides("ensure_set_aside", nth=2),
            [Call("ensure_started", "before")],
            [Event("demo", "CHILD_WORKFLOW_EXECUTION_COMPLETED")],
        ],
    ),
    "fewer nodes, as a rule says": (
        RESIZE,
        [
            *both_sides("ensure_generation", "ensure_stopped", "ensure_placed"),
            *both_sides("ensure_fenced", "ensure_started"),
            [Event(RESIZED, "WORKFLOW_EXECUTION_COMPLETED")],
        ],
    ),
    "fewer nodes, and all of them again": (
        SCALING,
        [
            *([Event(SHRUNK, "ACTIVITY_TASK_SCHEDULED", step)] for step in (1, 2, 3, 4)),
            [Event(SHRUNK, "WORKFLOW_EXECUTION_COMPLETED")],
            *([Event(GROWN, "ACTIVITY_TASK_SCHEDULED", step)] for step in (1, 2, 3, 4)),
            [Event(GROWN, "WORKFLOW_EXECUTION_COMPLETED")],
        ],
    ),
    "a backup pod": (
        SUB_HEALTHY,
        [
            *both_sides("ensure_standby"),
            [Call("ensure_standby", "before", late=True)],
            [Call("ensure_standby", "after"), Call("ensure_standby", "after")],
            [Call("ensure_placed", "before")],
            [Call("ensure_placed", "after")],
        ],
    ),
    "a spare": (
        SPARED,
        [
            *both_sides("ensure_placed", "ensure_standby"),
            [Call("ensure_placed", "before", late=True)],
            [Call("ensure_placed", "after"), Call("ensure_standby", "after")],
        ],
    ),
    "a hang": (
        HANG,
        [
            *both_sides("ensure_generation", "ensure_stopped", "ensure_fenced", "checkpoints"),
            *both_sides("ensure_started"),
        ],
    ),
    "a job that makes room": (
        PREEMPTED,
        [
            *both_sides("ensure_generation", "ensure_stopped", "ensure_placed"),
            *both_sides("ensure_fenced", "ensure_started"),
        ],
    ),
    "a failed connection, and all processes stay": (
        CONNECTION,
        [
            *at_steps("recovery-1-operator_online-network-n1", Step.STOP, Step.RESUME, Step.START),
            *both_sides("ensure_generation", "ensure_stopped", "ensure_fenced", "ensure_started"),
        ],
    ),
    "a device that heals below its processes": (
        KEPT_DEVICE,
        at_steps("recovery-1-process_online-device-n1", *STEPS[Level.PROCESS_ONLINE]),
    ),
    "a lost node, and the other processes stay": (
        SURVIVORS,
        [
            *at_steps("recovery-1-process-node-n2", Step.STOP, Step.ISOLATE, Step.PLACE),
            *at_steps("recovery-1-process-node-n2", Step.RESUME, Step.START),
            *both_sides("ensure_stopped", "ensure_placed", "ensure_started"),
        ],
    ),
    "a device that does not heal in time": (
        NOT_HEALED,
        at_steps("recovery-2-process-device-n1", Step.STOP, Step.HEAL),
    ),
    "three crashes without progress": (
        NO_PROGRESS,
        [
            *at_steps("recovery-2-pod-crash-n2", Step.PLACE, Step.RESUME),
            *at_steps("recovery-3-job-crash-n4", Step.SPACE),
        ],
    ),
    "a storage that cannot be written": (
        STORAGE,
        at_steps("recovery-1-in_place-storage", Step.WRITABLE),
    ),
    "a lost node, and no storage": (
        NODE_AND_STORAGE,
        at_steps("recovery-1-pod-node-n2", Step.WRITABLE),
    ),
    "a downgrade, twice": (
        DOWNGRADE,
        [
            [Call("ensure_generation", "after"), Call("ensure_generation", "after")],
            [Call("ensure_healed", "before", 2), Call("ensure_placed", "after")],
            [Call("ensure_healed", "after", 2), Call("ensure_started", "after")],
            [Call("ensure_healed", "after"), Call("ensure_isolated", "before")],
            [
                Event(HEALING, "WORKFLOW_EXECUTION_FAILED"),
                Event(DOWNGRADED, "WORKFLOW_EXECUTION_STARTED"),
            ],
            [
                Event("demo", "CHILD_WORKFLOW_EXECUTION_FAILED"),
                Event("demo", "CHILD_WORKFLOW_EXECUTION_COMPLETED"),
            ],
        ],
    ),
}


SERVER: list[Row] = [
    (CRASH, [Call("check", "after")]),
    (DEVICE, [Call("ensure_healed", "after")]),
    (NODE, [Call("observe", "after")]),
    (NODE, [Call("ensure_generation", "after")]),
    (NODE, [Call("ensure_isolated", "before")]),
    (NODE, [Call("ensure_started", "after")]),
    (NODE, [Event(OF_THE_NODE, "WORKFLOW_EXECUTION_COMPLETED")]),
    (DOWNGRADE, [Call("ensure_stopped", "after"), Call("ensure_placed", "after")]),
]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MOMENTS)
async def test_a_worker_killed_at_any_moment_leaves_no_trace(
    server: DevServer, tmp_path: Path, name: str
) -> None:
    incident, rows = MOMENTS[name]
    kills = Kills(server=server, home=tmp_path)
    assert await compare(kills, [(incident, row) for row in rows]) == {}
    kills.say_how_long()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_server_killed_at_any_moment_leaves_no_trace(
    server: DevServer, tmp_path: Path
) -> None:
    kills = ServerKills(server=server, home=tmp_path)
    assert await compare(kills, SERVER) == {}
    kills.say_how_long()


@pytest.mark.long
async def test_a_cluster_that_answers_slowly_is_no_dead_worker(
    server: DevServer, tmp_path: Path
) -> None:
    """The check takes longer than a heartbeat may; the monitor does without it and is not repeated."""
    async with Kills(server=server, home=tmp_path).stage() as stage:
        job, clock = await until_incident(stage, CRASH)
        check = Call("check", "before")
        await check.arm(stage)
        await clock.let_go()
        await check.reached(stage)
        await Event(await recovery(stage.client, job), "WORKFLOW_EXECUTION_STARTED").reached(stage)
        await stage.admin.release()
        assert (await job.result())["status"] == "Completed"
        history = await job.fetch_history()
        started = [e.activity_task_started_event_attributes for e in history.events]
        assert {attributes.attempt for attributes in started} <= {0, 1}
