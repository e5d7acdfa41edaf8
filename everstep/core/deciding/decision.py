"""Fault, decision, plan, outcome: the values that pass between naming, deciding and recovering.

A decision is complete: a Recovery has nothing left to decide. It is recorded, so that a later change of the
rules never changes what an old job did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from everstep.core.counting.occurrences import Occurrence
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level, Owner, Step
from everstep.core.slots import BySlot, Slots
from everstep.core.spec import PhaseSpec
from everstep.core.world import (
    AgentWork,
    Checkpoint,
    JobRef,
    NewerCheckpoints,
    PodRef,
    Snapshot,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A group of facts with a name. The single-valued places are those of the fact that named it."""

    cls: FaultClass
    kind: str
    at: float
    owner: Owner
    node: str | None = None
    slot: int | None = None
    rank: int | None = None
    device: int | None = None
    code: str | None = None
    code_level: str | None = None  # how grave the reporter calls it, in words of its own
    message: str = ""
    nodes: tuple[str, ...] = ()  # every node of the group
    slots: Slots = ()  # every slot of the group
    is_hardware: bool = False
    proven_nodes: tuple[str, ...] = ()  # others are suspected (silence, repeats)
    # Of a hardware fault: nodes with sound hardware, where only a check of the environment failed.
    sound_nodes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        if self.node is not None:
            return self.node if self.device is None else f"{self.node}/{self.device}"
        return "" if self.slot is None else f"slot {self.slot}"

    @property
    def label(self) -> str:
        """`80E01801 on n2/0`, `crash of rank 3`, as a row of the history shows it."""
        what = self.code or str(self.cls)
        if self.rank is not None and self.code is None:
            return f"{what} of rank {self.rank}"
        return f"{what} on {self.where}" if self.where else what


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """A node to isolate, or one of its devices if the machine has to stay in use."""

    node: str
    reason: str
    device: int | None = None
    proven: bool = True

    def adds_nothing_to(self, earlier: Isolation) -> bool:
        """Whether the earlier one of the same node says as much: a proof adds to a suspicion."""
        return self.node == earlier.node and (earlier.proven or not self.proven)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRef:
    """One device of one node."""

    node: str
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A level that a budget stopped: recorded, never billed."""

    level: Level
    budget: str


class RunEnd(NamedTuple):
    """How a run of all processes ended."""

    when: str | None  # "before a step" or "before a step was seen"; None: at `step`
    step: int | None
    cause: (
        str  # the exception, without what varies from time to time; else `exit code 1`, `signal 9`
    )
    times: int = 1  # so often in a row

    @property
    def where(self) -> str:
        return self.when or f"at step {self.step}"

    @property
    def exception(self) -> str:
        return "" if self.has_exit_code or self.cause.startswith("signal ") else self.cause

    @property
    def has_exit_code(self) -> bool:
        """Whether the script left an exit code and no exception."""
        return self.cause.startswith("exit code ")


class RollbackCount(NamedTuple):
    """How often in a row without progress the job left its newest checkpoint, and for which one."""

    times: int = 0
    # Order number of the checkpoint that the newest of these runs resumed from, if it had one.
    resumed_at: int | None = None
    below: int | None = None  # newer checkpoints could not be set aside: resume below this one only


class Checking(NamedTuple):
    """Whether the next run checks the numbers that it computes, and how the run before ended.

    `after`: with wrong numbers, stuck, or (empty) otherwise.
    """

    is_on: bool = False
    after: Literal["", "wrong", "stuck"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a reaction does: the parts of a decision that follow from its level and fault."""

    steps: tuple[Step, ...] = ()
    isolate: tuple[Isolation, ...] = ()
    avoid: tuple[str, ...] = ()  # nodes that new pods do not get
    last_choice: tuple[str, ...] = ()  # nodes that they get only where no other one has room
    in_maintenance: tuple[str, ...] = ()  # those of them that are avoided while maintenance lasts
    recreate: Slots = ()  # slots that get a new pod
    heal: tuple[DeviceRef, ...] = ()  # devices to reset
    # Facts of these classes end the plan for a new decision.
    gives_way_to: tuple[FaultClass, ...] = ()
    evidence: bool = False  # stacks and logs are collected before the stop
    grace_s: float = 0.0  # ranks may save for so long before they are killed
    space_s: float = 0.0  # wait between stop and start: the last restarts brought no progress
    standby_s: float = 0.0  # a backup pod may take so long to be ready, else training goes on
    older_than_step: int | None = None  # rollback: resume from a checkpoint before this step

    @property
    def places_pods(self) -> bool:
        return Step.PLACE in self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything about one reaction. `lifecycle` applies it, a Recovery carries it out."""

    level: Level
    fault: Fault
    reason: str
    at: float
    new_incident: bool = True
    ladder: tuple[Level, ...] = ()  # what is left below this level
    remedy: Remedy = Remedy()
    bills: Mapping[str, int] = field(default_factory=dict)
    # What this restart adds to in the ledger, until there is progress.
    counts: tuple[str, ...] = ()  # its series
    counts_no_progress: bool = False  # the restarts that end the phase once they are too many
    counts_spacing: bool = False  # the restarts after which the next one waits longer
    counts_as_rollback: bool = False  # a job may go back only so many times in a row
    refused: tuple[Refusal, ...] = ()
    passed_over: tuple[str, ...] = ()  # "in_place: the container of slot 2 is gone"
    seen: tuple[str, ...] = ()  # the weightiest facts, a line each
    instead_of: Level | None = None  # the level this stands in for: it failed, or would be in vain
    other_faults: tuple[Fault, ...] = ()  # of hardware that the same Recovery isolates
    facts_for_later: tuple[str, ...] = ()  # IDs of facts that the next decision answers
    occurrences: tuple[Occurrence, ...] = ()
    waiting_for: str | None = None
    checking: Checking | None = None  # of the numbers, from this restart on; None: as before
    run_end: RunEnd | None = None  # of the run that this decision finds ended
    bad_size: int | None = None  # a number of nodes that did not work: it is not used again
    repeats: int | None = None  # the record whose level this tries again, with the bill of that

    @property
    def is_executed(self) -> bool:
        """Whether a Recovery carries it out; `note` and `fail` are carried out by the job itself."""
        return self.level not in (Level.NOTE, Level.FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRules:
    """How long to wait for places, and with how few the job may go on."""

    wanted: int
    least: int
    spare_s: float  # so long it waits for the wanted number
    wait_s: float | None  # and so long for the least; None: without limit
    bad: tuple[int, ...] = ()  # numbers in between that are known not to work


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often a slot was scheduled and its command run there, counting the start to come."""

    schedule: int = 1
    process_start: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A decision made ready to be carried out: all that its steps need, nothing to look up."""

    key: str  # names the generation: the same plan never gets two
    title: str  # what the history shows, in words
    level: Level
    job: JobRef
    cluster: str
    phase: PhaseSpec
    generation: int  # of the processes running when the plan was made
    since: float
    cursor: str
    slots: BySlot[Counts]  # that are to run
    remedy: Remedy = Remedy()
    known_fact_ids: tuple[str, ...] = ()  # repeated facts are no reason to give way
    keep: Slots = ()  # ranks that go on with their process, as far as they hold
    hold_s: float = 0.0  # so long these have to report where they are
    # The nodes from which all their slots move away; none if no slot stays anywhere.
    left_nodes: tuple[str, ...] = ()
    places: PlaceRules | None = None
    avoid_devices: tuple[tuple[str, int], ...] = ()
    saved_as: str | None = None  # where the newest complete checkpoint of this phase was
    restores: bool = False  # all ranks have snapshots in memory, and would begin from them
    snapshot: Snapshot | None = None  # from which the run before this plan began
    reissued: bool = False  # it places pods of a restarted job, which queues before new ones
    priority: int = 0
    folders: Mapping[str, str] = field(default_factory=dict)  # of the job: path -> its field
    n: int = 0  # number of the record this plan belongs to; 0: a launch
    restarts: int = 0  # of the phase, counting this one
    tried: tuple[int, ...] = ()  # numbers of nodes of which it is known whether they work
    began: float = 0.0  # the phase
    time_scale: float = 1.0

    @property
    def checkpoints_of(self) -> str | None:
        """The phase by a name of its own, where only those count that it saved itself."""
        is_own = self.phase.policy.own_checkpoints
        return f"{self.job.id}/{self.phase.name}/{self.began:.3f}" if is_own else None

    @property
    def starts_ranks(self) -> bool:
        """Whether it ends with ranks that run: a pause and a report to the quarantine do not."""
        return Step.START in self.remedy.steps

    @property
    def keeps_places(self) -> bool:
        """Whether some slot stays in its pod."""
        return len(self.slots) > len(self.remedy.recreate)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """One step of a plan, with the effects of the steps before it that it needs."""

    step: Step
    plan: Plan
    generation: int
    since: float
    cursor: str
    active: Slots
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    kept_ranks: Slots = ()  # ranks that hold since the stop
    resume: Checkpoint | None = None
    snapshot: Snapshot | None = None
    # How long before this step the wait for a spare began: it begins with the stop.
    spare_waited_s: float = 0.0
    above: int = 0  # found on storage: a stop that is repeated takes a generation above this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What a step waited for, and how long."""

    what: str
    s: float
    reason: str = ""  # a `WaitReason`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEffects:
    """The effects of one step, or of all steps of a plan so far."""

    now: float
    cursor: str
    generation: int
    active: Slots
    cause: Fact | None = None  # why it failed
    facts: tuple[Fact, ...] = ()  # new ones that were seen on the way, whatever the end
    pods: Mapping[int, PodRef] = field(default_factory=dict)  # new ones
    # Slot -> seconds that its pod took to stand up, before it was needed: it was a spare.
    stood_up_s: Mapping[int, float] = field(default_factory=dict)
    kept_ranks: Slots = ()  # ranks that go on with their process
    resume: Checkpoint | None = None
    snapshot: Snapshot | None = None  # in place of `resume`, or the state of kept ranks
    newer_saved: NewerCheckpoints | None = None  # than `resume`
    no_snapshot: str = ""  # why memory holds something and no step of all ranks
    evidence: str | None = None
    isolated: tuple[str, ...] = ()
    deferred: tuple[Isolation, ...] = ()
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    waited: tuple[Waited, ...] = ()
    works: tuple[AgentWork, ...] = ()  # of agents
    lost_containers: Slots = ()  # slots found without a container
    newer_remain: bool = False  # what is newer than the chosen checkpoint could not be set aside


StepEnd = Literal["done", "failed", "superseded", "outdated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult(StepEffects):
    """How a step ended, with the effects that the steps before it did not have."""

    end: StepEnd
    newer: int = 0  # a newer generation found on storage


Result = Literal["success", "failed", "superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(StepEffects):
    """How a plan ended, with the effects of all its steps."""

    result: Result
    step: Step | None = None  # where it failed or gave way
    was_started: bool = False  # some rank may have run in the new generation
    stages_s: Mapping[str, float] = field(default_factory=dict)
    prechecked: tuple[float, float] | None = None  # when the pre-check began and when it ended
