"""Device faults are reported to the cluster's quarantine, which counts them over all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everstep.core.deciding.decision import FaultCount, Occurrence
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.playbook import row_for
from everstep.core.deciding.repeats import SHARED_WITHIN_S
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass
from everstep.core.recovering.fault_counts import REPORT_MOST, FaultReport
from everstep.core.spec import RepeatRule
from everstep.faults import with_meaning
from everstep.steps.looking import QuarantineUnreachable, StepContext

DEVICE_FAULT = "device.fault"
COUNTED = frozenset({FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOrder:
    """The device faults that a job is about to answer, and the rules of its document."""

    cluster: str
    job: str
    facts: tuple[Fact, ...]
    repeats: tuple[RepeatRule, ...]
    time_scale: float = 1.0


def count_order(given: DecisionInput, *, cluster: str, job: str) -> CountOrder | None:
    """Return what is to be counted before this decision, or None if nothing is.

    Earlier faults of the job go along: one that the quarantine missed is counted then, and none twice.
    """
    new = tuple(fact for fact in given.facts if fact.kind == DEVICE_FAULT)
    if not given.policy.counts_over_jobs or not new:
        return None
    facts = (*(_fact(occurrence) for occurrence in given.occurrences), *new)
    return CountOrder(
        cluster=cluster,
        job=job,
        facts=facts[-REPORT_MOST:],
        repeats=given.policy.repeats,
        time_scale=given.time_scale,
    )


def _fact(occurrence: Occurrence) -> Fact:
    return Fact(
        id="",
        kind=DEVICE_FAULT,
        at=occurrence.at,
        node=occurrence.node,
        device=occurrence.device,
        code=occurrence.code,
    )


async def count_faults(context: StepContext, order: CountOrder) -> tuple[FaultCount, ...]:
    """Return the counts over all jobs; nothing if the quarantine does not answer: the job counts its own."""
    reports = tuple(_reports(order))
    if not reports:
        return ()
    nodes = await context.backend.nodes()
    now = await context.backend.clock()
    try:
        return await context.quarantine.note_faults(
            order.cluster, reports, now=now, cluster_size=len(nodes)
        )
    except QuarantineUnreachable:
        return ()


def _reports(order: CountOrder) -> Iterator[FaultReport]:
    for fact in map(with_meaning, order.facts):
        if fact.node is None or fact.device is None or fact.code is None:
            continue
        rule = next((r for r in order.repeats if not r.codes or fact.code in r.codes), None)
        cls = row_for(fact).cls
        if rule is None or cls not in COUNTED:
            continue
        yield FaultReport(
            node=fact.node,
            device=fact.device,
            code=fact.code,
            at=fact.at,
            job=order.job,
            times=rule.times,
            window_s=rule.window_s / order.time_scale,
            release_s=None if rule.release_s is None else rule.release_s / order.time_scale,
            shared_s=SHARED_WITHIN_S / order.time_scale,
            isolates=cls is not FaultClass.DEVICE_USER,
        )
