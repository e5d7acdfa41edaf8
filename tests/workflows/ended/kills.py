"""Incidents during which something is killed, compared with the same incidents in peace."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep.core.levels import Level
from tests.support import moments
from tests.support.devserver import DevServer
from tests.support.moments import Incident, Moment, Trace
from tests.support.scene import differences
from tests.support.stage import StageOfProcesses, document

AT_A_TIME = 4
"""Runs at once: each has a worker and a cluster of its own, and there are few cores."""

BODY = document(env={"STEPS": "60"})


def ascend_job(**labels: str) -> dict[str, Any]:
    """The same job as an AscendJob of a Master and three Workers."""
    script = {"STEPS": "60", "STEP_S": "1", "CHECKPOINT_EVERY": "10"}
    container = {
        "name": "ascend",
        "command": ["train"],
        "env": [{"name": name, "value": value} for name, value in script.items()],
        "resources": {"limits": {"huawei.com/Ascend910": 8}},
    }
    role = {"template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "demo", "labels": labels},
        "spec": {"replicaSpecs": {"Master": role, "Worker": {**role, "replicas": 3}}},
        "everstep": {"checkpoints": {"path": "out/ckpt"}},
    }


CRASH = Incident(
    body=BODY, faults=["at 35s kill demo 2 exit 1"], begins_s=34, levels=(Level.IN_PLACE,)
)
DEVICE = Incident(
    body=BODY, faults=["at 35s device n1 0 80E01801 heals"], begins_s=34, levels=(Level.IN_PLACE,)
)
NUMERIC = Incident(
    body=BODY,
    faults=[
        f'at {s}s fact demo numeric.nan rank=2 node=n2 message="loss is NaN"' for s in (48, 63)
    ],
    begins_s=47,
    levels=(
        Level.ROLLBACK,
        Level.ROLLBACK,
    ),
)
"""The job goes back twice, further the second time."""
NODE = Incident(body=BODY, faults=["at 35s node-down n2"], begins_s=34, levels=(Level.POD,))
DOWNGRADE = Incident(
    body=BODY,
    faults=["heal-takes n1 0 2h", "at 35s device n1 0 80E01801 heals"],  # longer than we wait
    begins_s=34,
    levels=(
        Level.IN_PLACE,
        Level.POD,
    ),
)
"""A restart in place fails after ten minutes; the pod level follows."""
ELASTIC = {"min": 2, "wanted": 4}
RESIZES = {"rules": [{"match": {"exit_code": [7]}, "action": "resize"}]}
RESIZE = Incident(
    body=document(nodes=ELASTIC, recovery=RESIZES, env={"STEPS": "60"}),
    faults=["at 35s kill demo 2 exit 7"],
    begins_s=34,
    levels=(Level.ELASTIC,),
)
SCALING = Incident(
    body=document(nodes=ELASTIC, env={"STEPS": "160"}),
    faults=[
        "at 20s node-down n4",
        "at 20s node-down n5",
        "at 35s node-down n2",
        "at 120s add-node n6",
    ],
    begins_s=34,
    levels=(
        Level.POD,
        Level.ELASTIC,
        Level.ELASTIC,
    ),
)
"""There is no spare: a new pod has no place, three go on, until there is room for the fourth."""

SUB_HEALTHY = Incident(
    body=ascend_job(**{"fault-scheduling": "force", "subHealthyStrategy": "hotSwitch"}),
    faults=["at 35s device n2 0 80818C06"],
    begins_s=34,
    levels=(Level.POD,),
)
"""A backup pod stands by on n4 before the job pauses."""

SPARED = Incident(
    body=document(spares=1), faults=["at 35s node-down n2"], begins_s=34, levels=(Level.POD,)
)
"""A pod stands by on n4 before the node is lost, and another one on n5 after that."""

HANG = Incident(
    body=document(env={"STEPS": "60"}, limits={"hang_s": 20}),
    faults=["at 35s hang demo 2"],
    begins_s=34,
    levels=(Level.SUSPENSION,),
)
PREEMPTED = Incident(body=BODY, faults=["at 35s preempt demo"], begins_s=34, levels=(Level.JOB,))
"""All pods are removed, and created again."""

KEEPS = document(processes_per_node=2, env={"STEPS": "60", "LIBRARY": "1"})
"""Its ranks run the train library, so they may go on when others end."""
SLOW_TO_HEAL = "heal-takes n1 0 2h"

SURVIVORS = Incident(
    body=KEEPS, faults=["at 35s node-down n2"], begins_s=34, levels=(Level.PROCESS,)
)
KEPT_DEVICE = Incident(
    body=KEEPS,
    faults=["at 35s device n1 0 80E01801 heals"],
    begins_s=34,
    levels=(Level.PROCESS_ONLINE,),
)
NOT_HEALED = Incident(
    body=KEEPS,
    faults=[SLOW_TO_HEAL, "at 35s device n1 0 80E01801 heals"],
    begins_s=34,
    levels=(
        Level.PROCESS_ONLINE,
        Level.PROCESS,
        Level.IN_PLACE,
    ),
)
CONNECTION = Incident(
    body=KEEPS,
    faults=["at 35s fact demo network.collective rank=2 node=n1"],
    begins_s=34,
    levels=(Level.OPERATOR_ONLINE,),
)
CRASHES = ["at 35s kill demo 2 exit 1", "at 41s kill demo 2 exit 1", "at 47s kill demo 2 exit 1"]
NO_PROGRESS = Incident(
    body=BODY,
    faults=CRASHES,
    begins_s=34,
    levels=(
        Level.IN_PLACE,
        Level.POD,
        Level.JOB,
    ),
)
"""The third restart waits before it begins."""
UNWRITABLE = ["at 35s storage demo unwritable", "at 2m storage demo writable"]
STORAGE = Incident(body=BODY, faults=UNWRITABLE, begins_s=34, levels=(Level.IN_PLACE,))
NODE_AND_STORAGE = Incident(
    body=BODY, faults=["at 35s node-down n2", *UNWRITABLE], begins_s=34, levels=(Level.POD,)
)

Row = tuple[Incident, Sequence[Moment]]


@dataclass(kw_only=True)
class Kills:
    """Kills the only worker at each moment, and starts it again."""

    server: DevServer
    home: Path
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    hand_overs: list[float] = field(default_factory=list)

    async def run(self, incident: Incident, kills: Sequence[Moment]) -> Trace:
        """What is left of the incident; undisturbed if there are no moments."""
        async with self.turn, self.stage() as stage:
            job, clock = await moments.until_incident(stage, incident)
            coming = list(kills)
            if coming:
                await coming[0].arm(stage)
            await clock.let_go()
            while coming:
                await coming.pop(0).reached(stage)
                await self.kill(stage)
                if coming:
                    await coming[0].arm(stage)
                self.hand_overs.append(await self.bring_back(stage))
            return await moments.trace(stage, job)

    @asynccontextmanager
    async def stage(self) -> AsyncIterator[StageOfProcesses]:
        namespace = await self.server.new_namespace("kill")
        home = self.home / namespace
        home.mkdir()
        async with StageOfProcesses(self.server, namespace, home) as stage:
            yield stage

    async def kill(self, stage: StageOfProcesses) -> None:
        stage.worker.kill9()
        await moments.until_nothing_is_held(stage)
        await stage.admin.release()

    async def bring_back(self, stage: StageOfProcesses) -> float:
        """How long it takes from then until the job goes on."""
        calls = await moments.calls_of_jobs(stage)
        await stage.worker.start()
        return await moments.until_it_goes_on(stage, calls)

    def say_how_long(self) -> None:
        """Printed when pytest runs with `-s`."""
        took = self.hand_overs
        median = statistics.median(took)
        sys.stdout.write(
            f"\n{len(took)} hand-overs: median {median:.1f} s, longest {max(took):.1f} s\n"
        )


@dataclass(kw_only=True)
class ServerKills(Kills):
    """Kills the server at each moment; every run has one of its own, with its database in a file."""

    @asynccontextmanager
    async def stage(self) -> AsyncIterator[StageOfProcesses]:
        home = self.home / f"run-{time.monotonic_ns()}"
        home.mkdir()
        async with await DevServer.start(db_file=home / "temporal.db") as server:
            namespace = await server.new_namespace("kill")
            async with StageOfProcesses(server, namespace, home) as stage:
                yield stage

    async def kill(self, stage: StageOfProcesses) -> None:
        """The step under way gets its answer while the worker that would report it is away."""
        stage.server.kill()
        await stage.admin.release()

    async def bring_back(self, stage: StageOfProcesses) -> float:
        calls = await moments.calls_of_jobs(stage)
        await stage.server.restart()
        return await moments.until_it_goes_on(stage, calls)


async def compare(kills: Kills, rows: Sequence[Row]) -> Mapping[str, list[str]]:
    """Each row whose trace differs from its incident's in peace, and where."""
    incidents = {id(incident): incident for incident, _ in rows}
    peaceful = Kills(server=kills.server, home=kills.home, turn=kills.turn)
    async with asyncio.TaskGroup() as group:
        expected = {
            key: group.create_task(peaceful.run(incident, ()))
            for key, incident in incidents.items()
        }
        tasks = [group.create_task(kills.run(incident, when)) for incident, when in rows]
    levels = {key: [r["level"] for r in task.result().restarts] for key, task in expected.items()}
    assert levels == {key: list(incident.levels) for key, incident in incidents.items()}
    differ = {
        ", ".join(map(str, when)): differences(_plain(expected[id(incident)]), _plain(task))
        for (incident, when), task in zip(rows, tasks, strict=True)
    }
    return {when: what for when, what in differ.items() if what}


def _plain(task: asyncio.Task[Trace]) -> dict[str, Any]:
    return asdict(task.result())
