"""The step `resume` over a backend of agents, and the requests that agents get meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from everstep.backends.agents.client.link import REQUEST_S, Link
from everstep.backends.agents.client.watch import Agents
from everstep.core.deciding.decision import StepOrder, StepResult
from everstep.core.levels import FaultClass, Step
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.backends.lab import Run
from tests.support.builders import running, sighting


@dataclass
class CountedLink(Link):
    """Writes down the path of each command before it is sent. `is_older`: of the release before this one."""

    link: Link
    commands: list[str]
    is_older: bool = False

    async def request(
        self, method: str, path: str, body: Any = None, *, within_s: float = REQUEST_S
    ) -> dict[str, Any]:
        if method == "POST":
            self.commands.append(path)
        answer = await self.link.request(method, path, body, within_s=within_s)
        if self.is_older:
            answer.pop("listing", None)
        return answer

    def close(self) -> None:
        self.link.close()


def commands_to(agents: Agents, *, are_older: bool = False) -> list[str]:
    """The paths of all commands that these agents get from now on."""
    commands: list[str] = []
    for watched in agents.by_uid.values():
        watched.link = CountedLink(watched.link, commands, are_older)
    return commands


async def resumed(job: Run, *, older_than_step: int | None = None) -> StepResult:
    """What the step comes to in the newest generation of the job."""
    lifecycle_job = running()
    lifecycle_job.see(sighting(FaultClass.CRASH))
    plan = lifecycle_job.plan
    phase = replace(plan.phase, model_dir=job.model_dir, checkpoints_path=job.checkpoints_path)
    remedy = replace(plan.remedy, older_than_step=older_than_step)
    order = StepOrder(
        step=Step.RESUME,
        plan=replace(plan, job=job.ref, phase=phase, remedy=remedy),
        generation=job.generation,
        since=await job.backend.clock(),
        cursor=job.cursor,
        active=job.slots,
    )
    return await perform(StepContext(backend=job.backend, quarantine=QuarantineInMemory()), order)
