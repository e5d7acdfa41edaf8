"""A device whose code lasts is released though its job has ended: by what the cluster shows of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from activities.janitor_activities import JanitorActivities
from activities.quarantine_client import TemporalQuarantine
from everstep.backends.fake.settings import EPOCH
from everstep.core import names
from everstep.core.counting.reports import CountOrder
from everstep.core.facts import Fact
from everstep.core.spec import RepeatRule
from everstep.faults.rules import duration_rules, frequency_rules
from everstep.steps.counting import (
    count_faults,
)
from everstep.steps.step_run import StepContext
from tests.support.devserver import DevServer
from tests.support.moments import StandingClock
from tests.support.patience import HUNG_S
from tests.support.stage import Stage

LINK = "81078603"
((_, LONGER_THAN_S, SOUND_FOR_S, _),) = duration_rules()
RULE = frequency_rules()[LINK]


class Cluster:
    """Its clock stands; jobs that have ended reported device faults to its quarantine."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.clock = stage, StandingClock(stage.fake)
        self.book = stage.client.get_workflow_handle(names.quarantine_id("local"))

    async def report(self, *nodes: str) -> None:
        """Report the code of device 1 of these nodes, as a job there does before it answers."""
        now = await self.stage.fake.clock()
        facts = [
            Fact(id=node, kind="device.fault", at=now, node=node, device=1, code=LINK)
            for node in nodes
        ]
        quarantine = TemporalQuarantine(
            client=self.stage.client, patience=timedelta(seconds=HUNG_S)
        )
        order = CountOrder(
            cluster="local",
            job="a",
            facts=tuple(facts),
            repeats=(RepeatRule(RULE.times, RULE.window_s, (LINK,), RULE.release_s),),
            durations=duration_rules(),
        )
        await count_faults(StepContext(backend=self.stage.fake, quarantine=quarantine), order)

    async def isolate_long_faults(self, *nodes: str) -> None:
        """Have device 1 of these nodes isolated. The cluster shows the code on the first node alone."""
        await self.clock.hold()
        await self.stage.admin.fault(f"device {nodes[0]} 1 {LINK}")
        await self.report(*nodes)
        await self.pass_time(LONGER_THAN_S + 1.0)
        await self.until_isolated(*(f"{node}/1" for node in nodes))

    async def pass_time(self, seconds: float) -> None:
        await self.clock.pass_to(await self.stage.fake.clock() - EPOCH + seconds)

    async def sweep(self) -> None:
        """Two janitors sweep at once, as after one was cut off from its server."""
        fake, client = self.stage.fake, self.stage.client
        janitors = [JanitorActivities(backend=fake, client=client, server="") for _ in range(2)]
        sweeps = (ActivityEnvironment().run(janitor.sweep, "local") for janitor in janitors)
        await asyncio.wait_for(asyncio.gather(*sweeps), HUNG_S)

    async def isolated(self) -> list[str]:
        return sorted(row["name"] for row in await self.book.query("nodes"))

    async def until_isolated(self, *devices: str) -> None:
        """Sweep until only these devices are isolated; on a busy machine the quarantine may be late."""
        while await self.isolated() != [*devices]:
            await self.sweep()


async def test_a_device_is_released_once_the_cluster_shows_its_code_no_more(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path, env={"EVERSTEP_JANITOR": "false"}) as stage:
        cluster = Cluster(stage)
        # An operator reported the code of n2: the cluster never showed it.
        await cluster.isolate_long_faults("n1", "n2")
        await cluster.sweep()
        await cluster.pass_time(SOUND_FOR_S + 1.0)
        await cluster.sweep()
        assert await cluster.isolated() == ["n1/1", "n2/1"]
        await stage.admin.fault("clear n1 1")
        await cluster.sweep()
        await cluster.sweep()
        await cluster.pass_time(SOUND_FOR_S - 1.0)
        await cluster.sweep()
        assert await cluster.isolated() == ["n1/1", "n2/1"]
        await cluster.pass_time(2.0)
        await cluster.until_isolated("n2/1")


async def test_a_code_that_comes_back_before_its_device_is_sound_keeps_it_isolated(
    server: DevServer, namespace: str, tmp_path: Path
) -> None:
    async with Stage(server, namespace, tmp_path, env={"EVERSTEP_JANITOR": "false"}) as stage:
        cluster = Cluster(stage)
        await cluster.isolate_long_faults("n1")
        await stage.admin.fault("clear n1 1")
        await cluster.sweep()
        await cluster.pass_time(SOUND_FOR_S / 2)
        await stage.admin.fault(f"device n1 1 {LINK}")
        await cluster.report("n1")
        await cluster.pass_time(2 * SOUND_FOR_S)
        await cluster.sweep()
        assert await cluster.isolated() == ["n1/1"]
        await stage.admin.fault("clear n1 1")
        await cluster.sweep()
        await cluster.pass_time(SOUND_FOR_S + 1.0)
        await cluster.until_isolated()
