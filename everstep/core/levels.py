"""The closed words: fault classes, owners, levels, steps; and the ladders of a document that says nothing.

Order is meaning: `Level` goes from the gentlest to the hardest, a ladder from what is tried first to
what is tried last, and `STEPS` lists what a level does in the order in which it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class FaultClass(StrEnum):
    """What a fault is called. Everything seen gets one of these names; `UNKNOWN` catches the rest."""

    CRASH = "crash"
    HANG = "hang"
    DEVICE = "device"
    DEVICE_USER = "device_user"
    DEVICE_FATAL = "device_fatal"
    NODE = "node"
    UNREACHABLE = "unreachable"
    PRECHECK = "precheck"
    NETWORK = "network"
    SUBHEALTH = "subhealth"
    SLOW = "slow"
    NUMERIC = "numeric"
    CHECKPOINT = "checkpoint"
    STORAGE = "storage"
    PREEMPTED = "preempted"
    MAINTENANCE = "maintenance"
    PLANNED = "planned"
    UNKNOWN = "unknown"


class Owner(StrEnum):
    """Who can do something about the cause."""

    INFRA = "infra"
    USER = "user"
    OPERATOR = "operator"
    UNKNOWN = "unknown"


class Level(StrEnum):
    """How hard we react, gentlest first."""

    NOTE = "note"  # record the fault, nothing else
    OPERATOR_ONLINE = "operator_online"  # all processes stay and repeat the step that failed
    PROCESS_ONLINE = "process_online"  # the same once the device healed
    PROCESS = "process"  # replace only the faulty process, or its pod; the others wait
    IN_PLACE = "in_place"  # run the command again in the same containers, once the device healed
    SUSPENSION = "suspension"  # the same after a hang: there is nothing to heal
    POD = "pod"  # replace only the pods concerned, elsewhere if their node is isolated
    JOB = "job"  # replace all pods
    ELASTIC = "elastic"  # go on with fewer nodes, grow again when there is room
    ROLLBACK = "rollback"  # resume from an older checkpoint
    FAIL = "fail"  # end the phase, with the reason


class Step(StrEnum):
    """One verb of a reaction. Each is an idempotent activity that calls the backend."""

    STANDBY = "standby"  # create pods beside those that will be left, and see them ready
    SPACE = "space"  # wait a little: the last restarts brought no progress
    STOP = "stop"  # give out the new generation, end every older process
    HEAL = "heal"  # let the device repair itself
    WRITABLE = "writable"  # wait until the storage can be written again
    ISOLATE = "isolate"  # keep all jobs off the faulty nodes
    PLACE = "place"  # remove the pods concerned, reserve and create their successors
    PRECHECK = "precheck"  # look at the place before the user's command runs there
    RESUME = "resume"  # fence, prove the old processes gone, choose the checkpoint
    START = "start"  # start the ranks and see every slot report them started


CAPABILITIES = ("guard", "pause", "rebuild", "restore", "snapshot")
"""A capability that a rank declares through the train library."""

NEEDS: Mapping[Level, frozenset[str]] = {
    Level.OPERATOR_ONLINE: frozenset({"guard", "rebuild"}),
    Level.PROCESS_ONLINE: frozenset({"pause", "rebuild"}),
    Level.PROCESS: frozenset({"pause", "rebuild"}),
}
"""Levels that need this of every rank: passed over until all agents reported it."""

KEEPING = frozenset(NEEDS)
"""Levels that keep processes: these hold, form their group again and go on with the step."""
ALL_STAY = KEEPING - {Level.PROCESS}
"""Levels that keep every process."""

SAME_CONTAINER = frozenset({Level.IN_PLACE, Level.SUSPENSION})
"""Levels that run the command again where it ran: passed over once a container is gone."""

STAYS_WHERE_SOUND = frozenset({Level.PROCESS, Level.ROLLBACK})
"""Levels that keep the pods, except those on broken hardware."""

RESCHEDULING = frozenset({Level.POD, Level.JOB, Level.ELASTIC})
"""Levels that create pods: what status and the search attribute count as restarts."""

HEALS = frozenset({FaultClass.DEVICE, FaultClass.DEVICE_USER})
"""Classes whose devices may repair themselves once nothing runs on them."""

LASTS = HEALS | {
    FaultClass.NODE,
    FaultClass.DEVICE_FATAL,
    FaultClass.PRECHECK,
    FaultClass.MAINTENANCE,
    FaultClass.STORAGE,
    FaultClass.CHECKPOINT,
    FaultClass.NUMERIC,
}
"""Classes that a restart for another reason does not put right: they need an answer of their own."""

NEVER_BILLED = frozenset({FaultClass.PREEMPTED, FaultClass.MAINTENANCE, FaultClass.PLANNED})

_RESCHEDULE = (
    Step.STOP,
    Step.ISOLATE,
    Step.SPACE,
    Step.HEAL,
    Step.WRITABLE,
    Step.PLACE,
    Step.PRECHECK,
    Step.RESUME,
    Step.START,
)

STEPS: Mapping[Level, tuple[Step, ...]] = {
    Level.NOTE: (),
    Level.OPERATOR_ONLINE: (Step.STOP, Step.RESUME, Step.START),
    Level.PROCESS_ONLINE: (Step.STOP, Step.HEAL, Step.RESUME, Step.START),
    Level.PROCESS: tuple(step for step in _RESCHEDULE if step is not Step.WRITABLE),
    Level.IN_PLACE: (Step.STOP, Step.SPACE, Step.HEAL, Step.WRITABLE, Step.RESUME, Step.START),
    Level.SUSPENSION: (Step.STOP, Step.SPACE, Step.RESUME, Step.START),
    Level.POD: (Step.STANDBY, *_RESCHEDULE),
    Level.JOB: _RESCHEDULE,
    Level.ELASTIC: _RESCHEDULE,
    Level.ROLLBACK: tuple(step for step in _RESCHEDULE if step is not Step.WRITABLE),
    Level.FAIL: (),
}
"""What a level may do, in this order; `remedies` leaves out what this fault has no need of."""

LAUNCH_STEPS: tuple[Step, ...] = (Step.STOP, Step.PLACE, Step.PRECHECK, Step.RESUME, Step.START)
"""A launch is what a job-level restart is, without a fault: it clears away an earlier run first."""

_L = Level

LADDERS: Mapping[FaultClass, tuple[Level, ...]] = {
    FaultClass.CRASH: (_L.IN_PLACE, _L.POD, _L.JOB),
    FaultClass.HANG: (_L.SUSPENSION, _L.JOB),
    FaultClass.DEVICE: (_L.IN_PLACE, _L.POD, _L.ELASTIC, _L.JOB),
    FaultClass.DEVICE_USER: (_L.IN_PLACE, _L.JOB),
    FaultClass.DEVICE_FATAL: (_L.POD, _L.ELASTIC, _L.JOB),
    FaultClass.NODE: (_L.POD, _L.ELASTIC, _L.JOB),
    FaultClass.UNREACHABLE: (_L.NOTE,),
    FaultClass.PRECHECK: (_L.POD,),
    FaultClass.NETWORK: (_L.OPERATOR_ONLINE, _L.PROCESS_ONLINE, _L.IN_PLACE, _L.POD, _L.JOB),
    FaultClass.SUBHEALTH: (_L.NOTE,),
    FaultClass.SLOW: (_L.NOTE,),
    FaultClass.NUMERIC: (_L.ROLLBACK,),
    FaultClass.CHECKPOINT: (_L.ROLLBACK,),
    FaultClass.STORAGE: (_L.IN_PLACE,),
    FaultClass.PREEMPTED: (_L.JOB,),
    FaultClass.MAINTENANCE: (_L.JOB,),
    FaultClass.PLANNED: (_L.JOB,),
    FaultClass.UNKNOWN: (_L.IN_PLACE, _L.POD, _L.JOB),
}
"""What each class is answered with where a document does not say otherwise. `fail` at the end is implied."""

LIBRARY_CLASSES = frozenset(
    {FaultClass.CRASH, FaultClass.HANG, FaultClass.DEVICE, FaultClass.NETWORK, FaultClass.NODE}
)
LIBRARY_LEVELS = (Level.PROCESS_ONLINE, Level.PROCESS)
"""With the train library in every rank these come before the first level that ends all processes."""
