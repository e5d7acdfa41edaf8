"""The activities as workflows call them: name, arguments and result, which mypy checks at each call.

Their bodies are in the package `activities`, whose clients and backends no workflow imports. That each
signature is the one of its body is shown by tests/workflows/test_signatures.py. A name is in the histories of
jobs, so it stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from temporalio import activity

from everstep.chronicle.publishing import Publication, PublishedUpTo
from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import CountOrder
from everstep.core.deciding.decision import Decision, Isolation, StepOrder, StepResult
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.levels import Step
from everstep.core.recovering.quarantine import Quarantine
from everstep.core.seeing.watch_report import WatchOrder, WatchReport
from everstep.core.spec import JobSpec
from everstep.core.world import ClusterReached, GoneState, JobRef, SaveOrder, SaveState

# -- Local activities: pure functions ---------------------------------------------------------------


@activity.defn(name="compile")
def compile_document(document: Any) -> JobSpec:
    raise NotImplementedError


@activity.defn(name="patch")
def patch(document: Any, fragment: dict[str, Any]) -> Any:
    raise NotImplementedError


@activity.defn(name="decide")
def decide(inputs: DecisionInput) -> Decision:
    raise NotImplementedError


# -- On the queue of a cluster ----------------------------------------------------------------------

StepActivity = Callable[[StepOrder], Awaitable[StepResult]]


def _step(step: Step) -> StepActivity:
    @activity.defn(name=str(step))
    async def carry_out(order: StepOrder) -> StepResult:
        raise NotImplementedError

    return carry_out


STEPS: Mapping[Step, StepActivity] = {step: _step(step) for step in Step}
"""An activity for each step of a plan."""


@activity.defn(name="monitor")
async def monitor(order: WatchOrder) -> WatchReport:
    raise NotImplementedError


@activity.defn(name="look")
async def look(order: WatchOrder) -> WatchReport:
    raise NotImplementedError


@activity.defn(name="clear")
async def clear(job: JobRef, grace_s: float, key: str | None = None) -> GoneState:
    raise NotImplementedError


@activity.defn(name="hand_over")
async def hand_over(
    job: JobRef, cluster: str, isolations: tuple[Isolation, ...]
) -> tuple[str, ...]:
    raise NotImplementedError


@activity.defn(name="reach")
async def reach() -> ClusterReached:
    raise NotImplementedError


@activity.defn(name="adopt")
async def adopt(job: JobRef, generation: int, folders: dict[str, str]) -> str:
    raise NotImplementedError


@activity.defn(name="end_recovery")
async def end_recovery(workflow_id: str, job: str, plan: str | None = None) -> str:
    raise NotImplementedError


@activity.defn(name="count_faults")
async def count_faults(order: CountOrder) -> tuple[FaultCount, ...]:
    raise NotImplementedError


@activity.defn(name="devices_of")
async def devices_of(node: str) -> tuple[int, ...]:
    raise NotImplementedError


@activity.defn(name="request_save")
async def request_save(order: SaveOrder, within_s: float) -> SaveState:
    raise NotImplementedError


@activity.defn(name="publish")
async def publish(publication: Publication) -> PublishedUpTo:
    raise NotImplementedError


@activity.defn(name="keep_swept")
async def keep_swept(cluster: str) -> list[str]:
    raise NotImplementedError


@activity.defn(name="earlier_quarantine")
async def earlier_quarantine() -> Quarantine:
    raise NotImplementedError


@activity.defn(name="marks")
async def cluster_isolations() -> dict[str, str]:
    raise NotImplementedError


@activity.defn(name="mark")
async def isolate_on_cluster(node: str, reason: str) -> None:
    raise NotImplementedError


@activity.defn(name="release_mark")
async def release_on_cluster(node: str) -> None:
    raise NotImplementedError
