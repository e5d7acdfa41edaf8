"""The nodes on which a job is not placed again: why, since when, and what ends that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from everstep.core.bounds import cut
from everstep.core.deciding.decision import Decision, Plan, Remedy
from everstep.core.state import AvoidedNode, JobState
from everstep.core.waits import WaitCause
from everstep.core.world import NodeView

AVOIDED_MOST = 100
"""A job avoids at most so many nodes, the newest: its state goes from run to run."""
WHY_MOST = 120
NAMED_MOST = 3
"""The most nodes that a sentence names."""

Avoided = tuple[AvoidedNode, ...]


def with_nodes(state: JobState, plan: Plan, nodes: Iterable[str]) -> Avoided:
    """What the state avoids, and these nodes that the plan avoids.

    A node that is avoided for another reason than its maintenance stays so.
    """
    avoided = {each.node: each for each in state.avoided}
    for node in nodes:
        before, is_serviced = avoided.get(node), node in plan.remedy.in_maintenance
        if before is None or (before.in_maintenance and not is_serviced):
            avoided[node] = AvoidedNode(
                node=node,
                why=_why(state, plan, node),
                since=state.now,
                in_maintenance=is_serviced,
            )
    return tuple(avoided.values())[-AVOIDED_MOST:]


def _why(state: JobState, plan: Plan, node: str) -> str:
    reasons = (i.reason for i in plan.remedy.isolate if i.node == node)
    if (reason := next(reasons, None)) is not None:
        return cut(f"the quarantine has not isolated it: {reason}", WHY_MOST)
    decision = None if state.incident is None else state.incident.decision
    if decision is None or node not in decision.remedy.avoid:
        return "unknown"
    message = decision.fault.message
    return cut(": ".join(filter(None, (str(decision.fault.cls), message))), WHY_MOST)


def avoided_nodes(state: JobState) -> Avoided:
    """What the job avoids now, the plan that is being carried out included."""
    plan = state.plan
    return state.avoided if plan is None else with_nodes(state, plan, plan.remedy.avoid)


def in_maintenance(state: JobState, decision: Decision | None = None) -> tuple[str, ...]:
    """The nodes that a plan avoids only as long as their maintenance lasts."""
    remedy = Remedy() if decision is None else decision.remedy
    lasting = {each.node for each in state.avoided if not each.in_maintenance}
    lasting.update(set(remedy.avoid) - set(remedy.in_maintenance))
    names = dict.fromkeys((*state.avoid, *remedy.in_maintenance))
    return tuple(name for name in names if name not in lasting)


def maintenance_over(names: Iterable[str], nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """Those of the nodes that are in service again, and those that the cluster no longer has."""
    serviced = {node.name for node in nodes if node.maintenance or not node.ready}
    return tuple(name for name in names if name not in serviced)


def without_over(avoided: Avoided, over: Collection[str]) -> Avoided:
    """What is still avoided once the maintenance of these nodes is over."""
    return tuple(each for each in avoided if not (each.in_maintenance and each.node in over))


def released(state: JobState, node: str) -> JobState:
    """The state of a job that no longer avoids the node, nor does a plan or a repeat of its decision."""
    incident, plan = state.incident, state.plan
    if incident is not None:
        decision = incident.decision
        decision = replace(decision, remedy=_without(decision.remedy, node))
        incident = replace(incident, decision=decision)
    return replace(
        state,
        avoided=tuple(each for each in state.avoided if each.node != node),
        incident=incident,
        plan=None if plan is None else replace(plan, remedy=_without(plan.remedy, node)),
    )


def _without(remedy: Remedy, node: str) -> Remedy:
    return replace(
        remedy,
        avoid=tuple(name for name in remedy.avoid if name != node),
        in_maintenance=tuple(name for name in remedy.in_maintenance if name != node),
    )


def until(avoided: AvoidedNode, job: str) -> str:
    """What ends it."""
    if avoided.in_maintenance:
        return "its cordon or taint is removed"
    return f"`everstep release {avoided.node} --job {job}`"


def with_avoided(wait: WaitCause | None, plan: Plan, avoid: Collection[str]) -> WaitCause | None:
    """What a step waits for, with the nodes that it does not use for that."""
    if wait is None or not avoid:
        return wait
    in_service_soon = [name for name in avoid if name in plan.remedy.in_maintenance]
    to_release = [name for name in avoid if name not in plan.remedy.in_maintenance]
    hints = []
    if in_service_soon:
        hints.append(
            f"the job avoids {_listed(in_service_soon)} until the maintenance there is over"
        )
    if to_release:
        hints.append(
            f"the job avoids {_listed(to_release)} until `everstep release NODE --job {plan.job.id}`"
        )
    return replace(wait, hints=tuple(hints))


def _listed(names: Collection[str]) -> str:
    first = ", ".join([*names][:NAMED_MOST])
    more = len(names) - NAMED_MOST
    return f"{first} and {more} more" if more > 0 else first
