"""How far a placement is, in the words of what holds it up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from everstep.backends.agents.client.watch import Agents
from everstep.backends.kubernetes import gangs
from everstep.backends.kubernetes.api import Json
from everstep.backends.kubernetes.books import PodEntry
from everstep.backends.kubernetes.pod_facts import held_by, wait_of
from everstep.backends.kubernetes.room import isolated_for
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.core.recovering.placement import isolation_hint
from everstep.core.waits import WaitCause, WaitKind
from everstep.core.world import PlaceState, PodRef


def place_state(
    slots: Sequence[int],
    entries: Mapping[int, PodEntry],
    *,
    watch: ClusterWatch,
    agents: Agents,
    refusal: WaitCause | None,
) -> PlaceState:
    """How far these slots are. `refusal`: why the API server or a scheduler takes no more pods now."""
    refs: dict[int, PodRef] = {}
    places, problems, waits = 0, [refusal] if refusal else [], list[WaitCause]()
    for slot in slots:
        entry = entries.get(slot)
        pod = watch.pod(entry.uid) if entry is not None else None
        if entry is None or pod is None:
            if failed := "" if entry is None else failure_of(entry):
                problems.append(WaitKind.POD_FAILING.of(failed))
            joins = entry.joins if entry else ""
            waits.append(WaitKind.PLACE_IN_GROUP.of(joins) if joins else WaitKind.NEW_POD.of(slot))
            continue
        node, why = pod["spec"].get("nodeName", ""), wait_of(pod)
        agent = agents.by_uid.get(entry.uid)
        if agent is not None and agent.state is not None:
            refs[slot] = PodRef(node=node, uid=entry.uid)
        else:
            # A pod whose place is given back ends for that reason.
            if holder := held_by(pod):
                why = WaitKind.POD_HELD.of(entry.name, holder)
            if why and (holder or not entry.is_withdrawn):
                problems.append(why)
            elif failed := failure_of(entry):
                problems.append(WaitKind.POD_FAILING.of(failed))
            waits.append((WaitKind.AGENT if node else WaitKind.SCHEDULER).of(entry.name))
        places += bool(node and not why)
    if len(refs) == len(slots):
        return PlaceState(placed=True, pods=refs, places=len(refs))
    problems = gangs.with_own_problems_first(problems)
    unanswered = [entries[slot] for slot in slots if slot in entries and slot not in refs]
    worst = max(unanswered, key=lambda entry: entry.start_failures, default=None)
    return PlaceState(
        placed=False,
        places=places,
        wait=[*problems, *waits][0],
        start_failures=0 if worst is None else worst.start_failures,
        failure="" if worst is None else failure_of(worst),
    )


_NO_NODE = frozenset({WaitKind.UNSCHEDULED, WaitKind.FITS, WaitKind.GROUP})


def with_isolated(
    state: PlaceState, pods: Iterable[Json], nodes: Iterable[Json], isolated: Collection[str]
) -> PlaceState:
    """The state, with the isolated nodes in its wait where the scheduler finds no node for one of the pods.

    In the scheduler's words they are nodes that do not match.
    """
    if not isolated or state.wait is None or state.wait.kind not in _NO_NODE:
        return state
    pod = next((one for one in pods if not one["spec"].get("nodeName")), None)
    hint = "" if pod is None else isolation_hint(isolated_for(pod, nodes, isolated))
    return replace(state, wait=replace(state.wait, hints=(hint,))) if hint else state


def failure_of(entry: PodEntry) -> str:
    """What became of the earlier pods of this entry; empty: there were none."""
    if not entry.failures:
        return entry.failure
    times = "once" if entry.failures == 1 else f"{entry.failures} times"
    return f"pod {entry.name}: failed {times} before its agent answered: {entry.failure}"
