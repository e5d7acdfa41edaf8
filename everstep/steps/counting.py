"""Device faults are reported to the cluster's quarantine, which counts them over all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from everstep.core.deciding.decision import FaultCount, Occurrence
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.playbook import row_for
from everstep.core.deciding.repeats import SHARED_WITHIN_S
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass
from everstep.core.recovering.fault_counts import REPORT_MOST, FaultReport, SoundReport
from everstep.core.recovering.quarantine import DeviceReport
from everstep.core.spec import DurationRule, RepeatRule
from everstep.faults.meanings import with_meaning
from everstep.steps.looking import QuarantineUnreachable, StepContext

DEVICE_FAULT, DEVICE_SOUND = "device.fault", "device.healed"
COUNTED = frozenset({FaultClass.DEVICE, FaultClass.DEVICE_USER, FaultClass.DEVICE_FATAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOrder:
    """The device faults that a job is about to answer, and the rules of its document."""

    cluster: str
    job: str
    facts: tuple[Fact, ...]
    repeats: tuple[RepeatRule, ...]
    durations: tuple[DurationRule, ...] = ()
    time_scale: float = 1.0


def count_order(inputs: DecisionInput, *, cluster: str, job: str) -> CountOrder | None:
    """Return what is to be counted before this decision, or None if nothing is.

    Earlier faults of the job go along: one that the quarantine missed is counted then, and none twice.
    """
    new = tuple(fact for fact in inputs.facts if fact.kind in (DEVICE_FAULT, DEVICE_SOUND))
    if not inputs.policy.counts_over_jobs or not new:
        return None
    lasting = {rule.code for rule in inputs.policy.durations}  # these are reported as they come
    facts = (*(_fact(one) for one in inputs.occurrences if one.code not in lasting), *new)
    return CountOrder(
        cluster=cluster,
        job=job,
        facts=facts[-REPORT_MOST:],
        repeats=inputs.policy.repeats,
        durations=inputs.policy.durations,
        time_scale=inputs.time_scale,
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
    reports, sound = tuple(_reports(order)), tuple(_sound(order))
    if not reports and not sound:
        return ()
    nodes = await context.backend.nodes()
    listed = {
        (node.name, device.index, code)
        for node in nodes
        if node.lists_codes
        for device in node.devices
        for code in device.codes
    }
    report = DeviceReport(
        faults=tuple(
            replace(one, cluster_shows=(one.node, one.device, one.code) in listed)
            for one in reports
        ),
        sound=sound,
        now=await context.backend.clock(),
        cluster_size=len(nodes),
    )
    try:
        return await context.quarantine.note_faults(order.cluster, report)
    except QuarantineUnreachable:
        return ()


def _sound(order: CountOrder) -> Iterator[SoundReport]:
    for fact in order.facts if order.durations else ():
        if fact.kind == DEVICE_SOUND and fact.node is not None and fact.device is not None:
            yield SoundReport(node=fact.node, device=fact.device, at=fact.at, code=fact.code)


def _reports(order: CountOrder) -> Iterator[FaultReport]:
    for fact in map(with_meaning, order.facts):
        if fact.kind != DEVICE_FAULT or fact.node is None or fact.device is None or not fact.code:
            continue
        rule = next((r for r in order.repeats if not r.codes or fact.code in r.codes), None)
        long = next((rule for rule in order.durations if rule.code == fact.code), None)
        cls = row_for(fact).cls
        if rule is None or (cls not in COUNTED and long is None):
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
            longer_than_s=None if long is None else long.longer_than_s / order.time_scale,
            sound_for_s=0.0 if long is None else long.sound_for_s / order.time_scale,
        )
