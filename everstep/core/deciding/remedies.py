"""From a fault and the level chosen for it to the remedy: what a Recovery has to do, in full.

A remedy lists the steps of the level that are needed here, the slots that get new pods, the nodes and devices
to isolate, avoid or heal, and how long to wait. `answering` chooses the level and calls `remedy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from everstep.core.bounds import MESSAGE_IN_REASON_MOST, cut
from everstep.core.deciding.decision import DeviceRef, Fault, Isolation, Remedy
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.playbook import PRECEDENCE
from everstep.core.facts import NONE_OLDER, SCALE_OUT, Fact, is_reported
from everstep.core.levels import (
    ALL_STAY,
    NEVER_BILLED,
    RESCHEDULING,
    STAYS_WHERE_SOUND,
    STEPS,
    FaultClass,
    Level,
    Owner,
    Step,
)

SPACING_S: tuple[float, ...] = (0.0, 0.0, 5.0, 15.0, 60.0, 300.0)
"""How long a restart waits before it starts, by how many in a row before it were without progress."""

ALWAYS_GIVES_WAY: tuple[FaultClass, ...] = (
    FaultClass.PREEMPTED,
    FaultClass.NODE,
    FaultClass.DEVICE_FATAL,
    FaultClass.UNKNOWN,
)
"""Faults that end any reaction under way: its place is lost, or the job has to decide again."""

MAY_GIVE_WAY: tuple[FaultClass, ...] = (
    FaultClass.DEVICE,
    FaultClass.DEVICE_USER,
    FaultClass.STORAGE,
)
"""Faults that end a reaction to a fault that is less severe than they are."""

OF_SOUND_HARDWARE = frozenset(
    {FaultClass.PRECHECK, FaultClass.MAINTENANCE, FaultClass.SUBHEALTH, FaultClass.SLOW}
)
"""Faults of a node that others may use: a job that moves is not placed there again."""

MAY_BE_HARDWARE = frozenset({FaultClass.CRASH, FaultClass.HANG, FaultClass.UNKNOWN})
"""Classes that say only how a run ended: broken hardware that no monitor reports ends it so as well."""

RUNS_ON_A_NODE = 2
"""Runs that end on one node, no cause known, and are answered there; the next one leaves it."""

LEAVES_EVIDENCE = frozenset(
    {FaultClass.CRASH, FaultClass.HANG, FaultClass.DEVICE, FaultClass.UNKNOWN}
)


def remedy(
    inputs: DecisionInput,
    fault: Fault,
    level: Level,
    facts: tuple[Fact, ...],
    *,
    replaces: tuple[int, ...] = (),
    heals: tuple[DeviceRef, ...] = (),
    other_faults: tuple[Fault, ...] = (),
    is_resized: bool = False,
    waits_for_storage: bool = False,
) -> Remedy:
    """Everything a Recovery of this level needs for this fault and the other hardware faults.

    `waits_for_storage`: the storage cannot be written either.
    """
    faults_to_leave = _faults_to_leave((fault, *other_faults), level, heals)
    isolate = isolations(inputs, faults_to_leave) if faults_to_leave else ()
    slots_to_leave = _slots_on(inputs, (one for one in faults_to_leave if one.is_hardware))
    recreate = _slots_to_recreate(
        inputs, fault, level, replaces=(*replaces, *slots_to_leave), is_resized=is_resized
    )
    kept_off = {isolation.node for isolation in isolate}
    heal = tuple(ref for ref in heals if ref.node not in kept_off)
    space_s = _space_s(inputs, fault)
    stands_by = fault.cls in inputs.policy.stands_by
    avoid = _avoid(fault, level)
    needed: Mapping[Step, Callable[[], bool]] = {
        Step.STANDBY: lambda: stands_by,
        Step.SPACE: lambda: space_s > 0,
        Step.HEAL: lambda: bool(heal),
        Step.WRITABLE: lambda: waits_for_storage or _concerns_storage(inputs, fault),
        Step.ISOLATE: lambda: bool(isolate or inputs.has_deferred),
        Step.PLACE: lambda: level in RESCHEDULING or bool(recreate),
        Step.PRECHECK: lambda: inputs.policy.precheck and (level in RESCHEDULING or bool(recreate)),
    }
    return Remedy(
        steps=tuple(s for s in STEPS[level] if s not in needed or needed[s]()),
        isolate=isolate,
        avoid=avoid,
        last_choice=_last_choice(inputs, fault, level),
        in_maintenance=_in_maintenance(fault, avoid, facts),
        recreate=recreate,
        heal=heal,
        gives_way_to=gives_way_to(fault.cls),
        evidence=fault.cls in LEAVES_EVIDENCE and level not in ALL_STAY,
        grace_s=inputs.grace_s if fault.cls in inputs.policy.saves_before_stop else 0.0,
        space_s=space_s,
        standby_s=inputs.policy.standby_s if stands_by else 0.0,
        older_than_step=_older_than(inputs, level, facts),
    )


def _concerns_storage(inputs: DecisionInput, fault: Fault) -> bool:
    """Whether the fault is one of storage, or the level before in this incident was to wait for storage.

    A place that the cluster takes back is left at once.
    """
    before = inputs.incident.decision.remedy.steps if inputs.incident is not None else ()
    is_open = Step.WRITABLE in before and fault.cls not in NEVER_BILLED
    return fault.cls is FaultClass.STORAGE or is_open


def gives_way_to(cls: FaultClass) -> tuple[FaultClass, ...]:
    """The classes that end a reaction to `cls` early, because they need a coarser one."""
    rank = PRECEDENCE.index(cls)
    heavier = tuple(c for c in MAY_GIVE_WAY if PRECEDENCE.index(c) < rank)
    return ALWAYS_GIVES_WAY + heavier


def _slots_to_recreate(
    inputs: DecisionInput,
    fault: Fault,
    level: Level,
    *,
    replaces: tuple[int, ...] = (),
    is_resized: bool = False,
) -> tuple[int, ...]:
    """The slots that get a new pod at this level. `replaces`: those that need one whatever the fault."""
    if level is Level.JOB:
        return tuple(range(inputs.nodes))
    active = {*inputs.active}
    without_pod = active & {*inputs.lost_containers}
    if is_resized or fault.kind == SCALE_OUT:  # the slots that have a pod keep it
        with_pod = active - without_pod
        return tuple(n for n in range(inputs.nodes) if n not in with_pod)
    if level in STAYS_WHERE_SOUND:
        return tuple(sorted(active & {*replaces, *without_pod}))
    if level not in RESCHEDULING:
        return ()
    faulty: tuple[int, ...] = () if fault.slot is None else (fault.slot,)
    if fault.is_hardware or fault.cls in OF_SOUND_HARDWARE:
        faulty = _slots_on(inputs, (fault,)) or faulty
    elif replaces:
        faulty = ()  # these slots need new pods whatever the fault; no other one gets a pod for it
    recreate = tuple(sorted(active & {*faulty, *replaces, *without_pod}))
    return recreate or inputs.active  # it is unknown which slot is faulty: any may be


def _faults_to_leave(
    faults: tuple[Fault, ...], level: Level, heals: tuple[DeviceRef, ...]
) -> tuple[Fault, ...]:
    """The faults whose nodes the job leaves: at some levels only those of broken hardware."""
    if level in RESCHEDULING:
        return faults
    healing = {(ref.node, ref.device) for ref in heals}
    broken = (one for one in faults if one.is_hardware and (one.node, one.device) not in healing)
    return tuple(broken) if level in STAYS_WHERE_SOUND else ()


def _slots_on(inputs: DecisionInput, faults: Iterable[Fault]) -> tuple[int, ...]:
    """The active slots on the nodes of these faults."""
    nodes = {node for fault in faults for node in fault.nodes}
    return tuple(n for n in inputs.active if inputs.nodes_by_slot.get(n) in nodes)


def isolations(inputs: DecisionInput, faults: tuple[Fault, ...]) -> tuple[Isolation, ...]:
    """The nodes and devices to isolate before pods are placed again, or once the job has failed."""
    before = inputs.incident.decision.remedy.isolate if inputs.incident is not None else ()
    new = tuple(
        Isolation(
            node=node,
            device=fault.device if node == fault.node else None,
            proven=node in fault.proven_nodes,
            reason=f"{fault.label}: {cut(fault.message, MESSAGE_IN_REASON_MOST)}",
        )
        for fault in reversed(faults)  # the main fault last: its reason replaces that of others
        if fault.is_hardware
        for node in fault.nodes
        if node not in fault.sound_nodes
    )
    open_isolations = [i for i in (*before, *new) if i.node not in inputs.isolated]
    proven_nodes = {i.node for i in open_isolations if i.proven}
    by_node = {i.node: replace(i, proven=i.node in proven_nodes) for i in open_isolations}
    return tuple(by_node.values())


def _avoid(fault: Fault, level: Level) -> tuple[str, ...]:
    """The sound nodes of the fault: others may use them, this job is not placed there again."""
    if fault.cls not in OF_SOUND_HARDWARE or level not in RESCHEDULING:
        return ()
    return fault.sound_nodes if fault.is_hardware else fault.nodes


def _last_choice(inputs: DecisionInput, fault: Fault, level: Level) -> tuple[str, ...]:
    """The node where a run ended again without progress: it may be broken though nothing says so.

    It is no reason to isolate the node, nor to wait for another one: the script may be the cause.
    """
    node = suspected_node(fault)
    if node is None or level not in RESCHEDULING:
        return ()
    is_again = inputs.escalation.get(fault.cls, 0) > 0 or leaves_node(inputs, fault)
    return (node,) if is_again else ()


def suspected_node(fault: Fault) -> str | None:
    """The node of a run that ended without a known cause: it may be broken though nothing says so."""
    is_suspect = fault.cls in MAY_BE_HARDWARE and fault.owner is Owner.UNKNOWN
    return fault.node if is_suspect else None


def leaves_node(inputs: DecisionInput, fault: Fault) -> bool:
    """Whether so many runs ended on this node since the last checkpoint that the next one begins elsewhere.

    A job of one node has no other one that went well beside it: there its script is as likely the cause.
    """
    node = suspected_node(fault)
    return node is not None and inputs.nodes > 1 and inputs.by_node.get(node, 0) >= RUNS_ON_A_NODE


SHOWN_BY_CLUSTER = ("maintenance.", "pod.drained")


def _in_maintenance(
    fault: Fault, avoid: tuple[str, ...], facts: tuple[Fact, ...]
) -> tuple[str, ...]:
    """Those of the nodes whose maintenance the cluster itself shows, so that it also shows its end.

    An operator's report, or a rule of the document that names the class, is nothing that the cluster shows.
    """
    if fault.cls is not FaultClass.MAINTENANCE:
        return ()
    by_cluster = {
        fact.node
        for fact in facts
        if fact.kind.startswith(SHOWN_BY_CLUSTER) and not is_reported(fact)
    }
    return tuple(node for node in avoid if node in by_cluster)


def _space_s(inputs: DecisionInput, fault: Fault) -> float:
    """How long to wait before the restart; the next level of an open incident waits no more."""
    if not inputs.policy.spaced or fault.cls in NEVER_BILLED or inputs.incident is not None:
        return 0.0
    return SPACING_S[min(inputs.spacing, len(SPACING_S) - 1)]


def _older_than(inputs: DecisionInput, level: Level, facts: tuple[Fact, ...]) -> int | None:
    """Resume from a checkpoint before this step. None: from the newest one.

    A rollback resumes from before the bad checkpoint if one is known, else from before the newest. A coarser
    level after a rollback keeps its limit, unless there was no older checkpoint. So do later restarts if the
    rollback could not set newer checkpoints aside (`back.below`).
    """
    if level is not Level.ROLLBACK:
        if inputs.step_failure is not None and inputs.step_failure.kind == NONE_OLDER:
            return None
        incident = inputs.incident
        return (
            inputs.rollbacks.below if incident is None else incident.decision.remedy.older_than_step
        )
    steps = [f.details["step"] for f in facts if f.family == "checkpoint" and "step" in f.details]
    bad_steps = [step for step in steps if isinstance(step, int)]
    newest = None if inputs.saved is None else inputs.saved.order_number
    candidates = [n for n in (newest, inputs.rollbacks.resumed_at) if n is not None]
    return min(bad_steps or candidates, default=None)
