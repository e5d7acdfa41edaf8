"""How far a placement is, in the words of what holds it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everstep.backends.agents.client.watch import Agents
from everstep.backends.kubernetes import gangs
from everstep.backends.kubernetes.books import PodEntry
from everstep.backends.kubernetes.pod_facts import held_by, trouble
from everstep.backends.kubernetes.watch import ClusterWatch
from everstep.core.world import PlaceState, PodRef


def place_state(
    slots: Sequence[int],
    entries: Mapping[int, PodEntry],
    *,
    watch: ClusterWatch,
    agents: Agents,
    refusal: str,
) -> PlaceState:
    """How far these slots are. `refusal`: why the API server or a scheduler takes no more pods now."""
    refs: dict[int, PodRef] = {}
    places, problems, waits = 0, [refusal] if refusal else [], list[str]()
    for slot in slots:
        entry = entries.get(slot)
        pod = watch.pod(entry.uid) if entry is not None else None
        if entry is None or pod is None:
            if failed := "" if entry is None else failure_of(entry):
                problems.append(failed)
            what = f"a place in group {entry.joins} of Kueue" if entry and entry.joins else ""
            waits.append(what or f"a pod for slot {slot} to be created")
            continue
        node, why = pod["spec"].get("nodeName", ""), trouble(pod)
        agent = agents.by_uid.get(entry.uid)
        if agent is not None and agent.state is not None:
            refs[slot] = PodRef(node=node, uid=entry.uid)
        else:
            # A pod whose place is given back ends for that reason.
            if holder := held_by(pod):
                why = f"the finalizer {holder} of others holds it"
            shows_why = why and (holder or not entry.is_withdrawn)
            if problem := f"pod {entry.name}: {why}" if shows_why else failure_of(entry):
                problems.append(problem)
            next_event = "its agent to answer" if node else "the scheduler to choose a node"
            waits.append(f"pod {entry.name}: {next_event}")
        places += bool(node and not why)
    if len(refs) == len(slots):
        return PlaceState(placed=True, pods=refs, places=len(refs))
    problems.sort(key=gangs.is_of_group)  # one pod says why, the others that it is one too few
    unanswered = [entries[slot] for slot in slots if slot in entries and slot not in refs]
    worst = max(unanswered, key=lambda entry: entry.start_failures, default=None)
    return PlaceState(
        placed=False,
        places=places,
        waiting_for=[*problems, *waits][0],
        start_failures=0 if worst is None else worst.start_failures,
        failure="" if worst is None else failure_of(worst),
    )


def failure_of(entry: PodEntry) -> str:
    """What became of the earlier pods of this entry; empty: there were none."""
    if not entry.failures:
        return entry.failure
    times = "once" if entry.failures == 1 else f"{entry.failures} times"
    return f"pod {entry.name}: failed {times} before its agent answered: {entry.failure}"
