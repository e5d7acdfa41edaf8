"""Device faults are reported to the cluster's quarantine, which counts them over all jobs."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.counting.occurrences import FaultCount
from everstep.core.counting.reports import CountOrder, reports_of, sound_of
from everstep.core.deciding.playbook import row_for
from everstep.core.recovering.quarantine import DeviceReport
from everstep.faults.meanings import with_meaning
from everstep.steps.step_run import QuarantineUnreachable, StepContext


async def count_faults(context: StepContext, order: CountOrder) -> tuple[FaultCount, ...]:
    """Return the counts over all jobs; nothing if the quarantine does not answer: the job counts its own."""
    informed = replace(order, facts=tuple(with_meaning(fact) for fact in order.facts))
    reports = tuple(reports_of(informed, lambda fact: row_for(fact).cls))
    sound = tuple(sound_of(order))
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
