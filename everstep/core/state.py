"""The state of a job: everything that has to outlive a worker, a run or a reset. Values only.

One `JobState` is carried from event to event and from run to run. It has what the rules need and no more;
what people read of a job is in its chronicle. It stays small however long the job lives: every list in it
has a bound, every total is a counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from everstep.core.bounds import short_id
from everstep.core.counting.lasting import Lasting
from everstep.core.counting.occurrences import Occurrence
from everstep.core.deciding.decision import (
    Checking,
    Decision,
    Isolation,
    Outcome,
    Plan,
    RollbackCount,
    RunEnd,
)
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass
from everstep.core.loop.job_events import JobEvent
from everstep.core.seeing.job_warnings import JobWarning
from everstep.core.slots import BySlot, Slots
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.core.waits import WaitCause
from everstep.core.world import Checkpoint, JobRef, PodState, Snapshot

COMMAND_IDS_KEPT = 1_000
FACT_IDS_KEPT = 500
"""Enough to recognise a fact that another check or watch reports again."""
OCCURRENCES_KEPT = 200


class Mode(StrEnum):
    """What the loop does now. What follows what is drawn in `lifecycle`; users see `views.shown_state`."""

    PENDING = "pending"  # the next phase begins in a new run of the workflow
    LAUNCHING = "launching"
    WATCHING = "watching"
    DECIDING = "deciding"
    RECOVERING = "recovering"
    READING = "reading"  # looks at the cluster once, as it is unknown what runs there
    REPORTING = "reporting"  # sends the quarantine the isolations that it did not get in time
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"  # removes what is left of the job on the cluster
    ENDED = "ended"


class Slot(NamedTuple):
    """One slot as last observed, with how often it got a pod and how often its command was run in that.

    A named tuple, as a large job has a thousand: without the names of the fields they take half the space.
    """

    node: str
    uid: str
    state: PodState = PodState.PENDING
    schedule_count: int = 1
    process_start_count: int = 0


def absent(slot: Slot) -> Slot:
    """The slot once it is scaled away."""
    return slot._replace(state=PodState.ABSENT, uid="", node="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The pace of this job as its steps showed it; forgotten when the number of nodes changes."""

    longest_gap_s: float = 0.0  # between two steps
    longest_start_s: float = 0.0  # from the start of the processes to the first step
    first_step_at: float | None = None  # the first ever, at this number of nodes
    checkpoint_seen: bool = False
    steps_seen: bool = False
    save_every_s: float | None = None  # the usual time between two checkpoints
    steps_from: str = ""  # what the first step was found in, where no log pattern is given


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMark:
    """The furthest point ever reached: progress is only what lies beyond it."""

    checkpoint: int | None = None  # the highest number (`Checkpoint.order_number`)
    step: int | None = None
    remembered: int | None = None  # the newest step of which every rank had a whole snapshot
    saved_at: float | None = None  # the newest time of checkpoints without a number
    healthy_generation: int = 0  # the newest generation that ran for `healthy_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """From the first fact until training runs again."""

    n: int
    started_at: float
    decision: Decision
    failures: int = 0  # levels of which a step failed
    worker: int | None = None  # the slot of its first fault
    answered: tuple[Isolation, ...] = ()  # by the quarantine, which may have held them back


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What one phase has spent and counted. Each phase starts with a clean one."""

    used: Mapping[str, int] = field(default_factory=dict)  # reserved and spent units per budget
    # Restarts in a row without progress:
    series: Mapping[str, int] = field(default_factory=dict)  # of each series
    no_progress: int = 0  # of the owners that `no_progress_restarts` counts
    spacing: int = 0  # of any owner: the row of `SPACING_S` for the next restart
    escalation: Mapping[FaultClass, int] = field(default_factory=dict)  # of each class
    by_node: Mapping[str, int] = field(default_factory=dict)  # that no progress in memory ends
    early: int = 0  # that ended before a step
    last_end: RunEnd | None = None  # how the last run ended, and how many before it did the same
    rollbacks: RollbackCount = field(default_factory=RollbackCount)

    mark: ProgressMark = field(default_factory=ProgressMark)
    recoveries: int = 0  # the newest record's n
    # What the newest restart reserved, by its n; several if a Recovery was lost and tried again.
    bills: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    incidents: int = 0
    restarts: int = 0  # executed levels, of any kind
    reschedules: int = 0  # those of them with new pods
    failed: int = 0  # those of them that failed: the next level followed, or the end
    bad_sizes: tuple[int, ...] = ()  # numbers of nodes that do not work
    prefetched: tuple[int, ...] = ()  # those that were tried beside the training, and work
    sizes_since: int = 0  # generation from which such tries count: older ones ran another program
    checking: Checking = field(default_factory=Checking)  # of numbers that went wrong
    no_standby: bool = False  # once no standby was ready in time
    grown_in_vain: int = 0  # restarts in a row for more nodes that got none
    grown_in_vain_at: float | None = None  # the end of the newest of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """A phase that is over."""

    name: str
    state: str
    last_checkpoint_step: int | None
    restarts: int
    ledger: Ledger
    reschedules: int = 0
    isolated_nodes: tuple[str, ...] = ()
    limits: Mapping[str, int | None] = field(default_factory=dict)  # set_budget overrides


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a job, or a step of it, waits for before it can go on."""

    what: str
    since: float | None = None  # None: unknown
    until: float | None = None  # then it goes on without, or fails; None: it has no limit
    # A `WaitReason`, as it was reported; empty: by a version that had none.
    reason: str = ""

    @classmethod
    def of(cls, cause: WaitCause, **times: float | None) -> Wait:
        return cls(what=cause.sentence, reason=cause.reason, **times)


class AvoidedNode(NamedTuple):
    """A node on which the job is not placed again. Its own quarantine keeps isolated nodes from all jobs."""

    node: str
    why: str
    since: float
    in_maintenance: bool = False  # only as long as its cordon or taint lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """A hang that was only noted, and when it was reported."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An operator's accepted command that the loop has yet to carry out."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The whole state of a TrainingJob."""

    job: JobRef
    spec: JobSpec
    mode: Mode = Mode.PENDING
    phase_index: int = 0
    now: float = 0.0  # the newest time of the backend
    cursor: str = ""
    generation: int = 0
    first_generation: int = 0  # above 1: jobs of this ID ran before
    slots: Mapping[int, Slot] = field(default_factory=dict)
    resume: Checkpoint | None = None  # with which this generation started
    snapshot: Snapshot | None = None  # from which its ranks began, in place of `resume`
    step: int | None = None  # the newest, which may be of an earlier generation
    stepped_in: int = 0  # the generation of that step
    saved: Checkpoint | None = None  # the newest one
    remembered: int | None = None  # the newest step of which every rank had a whole snapshot
    running_since: float | None = None
    alive_until: float | None = None  # until when every slot since then showed signs of life
    phase_started_at: float | None = None
    first_step_at: float | None = None  # of this generation
    learned: Learned = field(default_factory=Learned)
    ledger: Ledger = field(default_factory=Ledger)
    incident: Incident | None = None
    plan: Plan | None = None  # the one being carried out
    lost_plan: Plan | None = None  # of a Recovery without outcome, until the cluster is read
    repeats: int = 0  # how often a launch or a pause without outcome was begun again
    pending_facts: tuple[Fact, ...] = ()  # that the next decision answers
    outcome: Outcome | None = None  # of the plan that just ended, until it is decided upon
    can: tuple[str, ...] = ()  # capabilities that every rank declares
    older_ranks: BySlot[int] = field(default_factory=dict)  # rank -> generation of its process
    lost_containers: Slots = ()  # slots whose container is not there any more
    unreachable: Slots = ()  # slots that are silent
    waiting: Wait | None = None
    suspected: Suspected | None = None  # until something moves
    warnings: tuple[JobWarning, ...] = ()  # what is wrong while it goes on, each until it is over
    isolated: Mapping[str, str] = field(default_factory=dict)  # node -> why, by this job
    deferred: tuple[Isolation, ...] = ()  # isolations still to be sent to the quarantine
    avoided: tuple[AvoidedNode, ...] = ()  # nodes on which it is not placed again
    avoid_devices: tuple[tuple[str, int], ...] = ()
    last_choice: tuple[str, ...] = ()  # nodes that it left as runs ended there again, newest last
    seen_ids: tuple[str, ...] = ()  # of answered facts
    applied_ids: tuple[str, ...] = ()  # of carried out commands
    occurrences: tuple[Occurrence, ...] = ()  # of device faults, for the rules that count them
    lasting: Lasting = ()  # faults of nodes that concern the job once they have lasted
    limits: Mapping[str, int | None] = field(default_factory=dict)  # set_budget overrides
    commands: tuple[Command, ...] = ()
    ending: str | None = None  # a key of views.ENDED_STATE, once decided
    ending_reason: str = ""
    stop_grace_s: float | None = (
        None  # for ranks to save what they have, before the job is cleared away
    )
    paused_reason: str = ""
    unstopped: Wait | None = None  # for processes that did not confirm their end in a pause
    finished: tuple[PhaseResult, ...] = ()
    runs: int = 0  # starts of all processes in this phase
    events: tuple[JobEvent, ...] = ()  # of the turn under way; `advance` hands them out

    @property
    def phase(self) -> PhaseSpec:
        return self.spec.phases[self.phase_index]

    @property
    def avoid(self) -> tuple[str, ...]:
        """The names of the nodes on which it is not placed again."""
        return tuple(avoided.node for avoided in self.avoided)

    @property
    def generation_step(self) -> int | None:
        """The newest step of this generation, None until its first one."""
        return self.step if self.stepped_in == self.generation else None

    @property
    def checkpoint_step(self) -> int | None:
        return None if self.saved is None else self.saved.step

    @property
    def active(self) -> tuple[int, ...]:
        absent = PodState.ABSENT
        return tuple(sorted([n for n, slot in self.slots.items() if slot.state is not absent]))


def phase_result(state: JobState, shown_as: str) -> PhaseResult:
    """The result of the current phase as it is now, under this state."""
    return PhaseResult(
        name=state.phase.name,
        state=shown_as,
        last_checkpoint_step=state.checkpoint_step,
        restarts=state.ledger.restarts,
        reschedules=state.ledger.reschedules,
        ledger=state.ledger,
        isolated_nodes=tuple(state.isolated),
        limits=state.limits,
    )


def with_ledger(state: JobState, **changes: Any) -> JobState:
    return replace(state, ledger=replace(state.ledger, **changes))


def remember_ids(
    ids: tuple[str, ...], new: tuple[str, ...], *, most: int = COMMAND_IDS_KEPT
) -> tuple[str, ...]:
    return (ids + new)[-most:]


def is_applied(state: JobState, command_id: object) -> bool:
    """Whether a command with this ID was accepted before."""
    return short_id(str(command_id)) in state.applied_ids


def happened(state: JobState, *events: JobEvent) -> JobState:
    """The state with these events added to those of the turn under way."""
    return replace(state, events=(*state.events, *events))
