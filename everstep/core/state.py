"""What a job believes: everything that has to outlive a worker, a run, a reset. Values only.

One `JobState` is carried from event to event and from run to run. It stays small however long the
job lives: every list in it has a bound, every total a counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from everstep.core.decision import (
    Decision,
    Isolation,
    Occurrence,
    Outcome,
    Plan,
    RunEnd,
    Waited,
)
from everstep.core.facts import Fact
from everstep.core.job_warnings import JobWarning
from everstep.core.levels import FaultClass
from everstep.core.spec import JobSpec, PhaseSpec
from everstep.core.world import Checkpoint, Entry, JobRef, PodState

RECORDS_KEPT = 50
IDS_KEPT = 1_000
FACTS_KNOWN = 500
"""A fact that was told and is told again (by a check, by another watcher) is among the newest."""
CHANGES_KEPT = 2_000
"""So many changed places, over all records, are kept; a job of 1,000 pods may move twice a day."""
OCCURRENCES_KEPT = 200
STARTS_KEPT = 50
HAPPENINGS_KEPT = 50


class Mode(StrEnum):
    """Where the loop is. `views.shown_state` says which of the pinned state names it shows."""

    PENDING = "pending"
    LAUNCHING = "launching"
    WATCHING = "watching"
    DECIDING = "deciding"
    RECOVERING = "recovering"
    READING = "reading"
    TELLING = "telling"  # isolations that the quarantine could not be told in time
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    ENDED = "ended"


class Slot(NamedTuple):
    """One slot as last seen, with how often it was scheduled and its command was run there.

    There are a thousand of them in a large job: as rows, without the names, they take half the space.
    """

    node: str
    uid: str
    state: PodState = PodState.PENDING
    schedule_count: int = 1
    process_start_count: int = 0


class Start(NamedTuple):
    """One start of all processes, and how that run of them ended."""

    phase: str
    generation: int
    at: float
    nodes: int
    is_same_place: bool = False  # in the containers of the run before
    first_step_at: float | None = None
    ended_at: float | None = None
    why: str = ""  # it ended, where no record says it
    worker: int | None = None  # the slot that caused the end


class Happening(NamedTuple):
    """Something that a job's user may want to hear of. `happenings.KINDS` says what each kind is."""

    number: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the steps taught about this job's pace; forgotten when the world size changes."""

    longest_gap_s: float = 0.0
    longest_start_s: float = 0.0
    first_step_at: float | None = None  # ever, at this world size
    checkpoint_seen: bool = False
    steps_seen: bool = False
    save_every_s: float | None = None  # the usual time between two checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The furthest point ever reached: progress is only what lies beyond it."""

    checkpoint: int | None = None  # of those that count up
    step: int | None = None
    saved_at: float | None = None  # of those of which only the time tells which is newer
    healthy_generation: int = 0  # this generation already ran healthily for long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """From the first fact until training runs again."""

    n: int
    started_at: float
    decision: Decision
    failures: int = 0  # levels of which a step failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One restart, as the history keeps it. `views` gives it the pinned JSON shape."""

    n: int
    incident: int
    phase: str
    decision: Decision
    generation_from: int
    result: str = "recovering"
    ended_at: float | None = None
    generation_to: int | None = None
    bills: Mapping[str, int] = field(default_factory=dict)
    isolated: bool = False
    before: Mapping[int, str] = field(default_factory=dict)
    after: Mapping[int, str] = field(default_factory=dict)
    resume_step: int | None = None
    evidence: str | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    refused_by: str | None = None  # the budget that refused this level
    end_reason: str | None = None  # where no level was left after this one: what was tried in vain
    worker: int | None = None  # the slot that the fault was in, or on whose node
    ended: str | None = None  # "ended before a step", of what it had started
    notes: tuple[str, ...] = ()
    waited: tuple[Waited, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What one phase has spent and counted. Each phase starts with a clean one."""

    used: Mapping[str, int] = field(default_factory=dict)  # reserved and spent units per budget
    series: Mapping[str, int] = field(default_factory=dict)
    no_progress: int = 0  # restarts in a row without progress, of the owners that count
    spacing: int = 0  # the same of any owner: how long the next restart waits
    escalation: Mapping[FaultClass, int] = field(default_factory=dict)
    mark: Mark = field(default_factory=Mark)
    recoveries: int = 0  # the newest record's n
    incidents: int = 0
    restarts: int = 0  # executed levels, of any kind
    reschedules: int = 0  # those of them that placed pods anew
    last_end: RunEnd | None = None  # and how often in a row without progress
    early: int = 0  # restarts in a row that ended before a step
    records: tuple[Record, ...] = ()


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
    stages_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """A hang that nothing is done about, and when it was told."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An operator's accepted command that the loop has yet to carry out."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """All that a TrainingJob knows."""

    job: JobRef
    spec: JobSpec
    mode: Mode = Mode.PENDING
    phase_index: int = 0
    now: float = 0.0  # the newest time told by the backend
    cursor: int = 0
    generation: int = 0
    first_generation: int = 0  # above 1: jobs of this ID ran before
    slots: Mapping[int, Slot] = field(default_factory=dict)
    resume: Checkpoint | None = None
    step: int | None = None
    stepped_in: int = 0  # the generation in which a step was seen last
    saved: Checkpoint | None = None  # the newest one
    running_since: float | None = None
    alive_until: float | None = None  # the last sign of life of the stillest slot since then
    phase_started_at: float | None = None
    first_step_at: float | None = None  # of this generation
    learned: Learned = field(default_factory=Learned)
    ledger: Ledger = field(default_factory=Ledger)
    incident: Incident | None = None
    plan: Plan | None = None  # the one being carried out
    lost_plan: Plan | None = None  # a Recovery's that told no outcome, until the world is read
    repeats: int = 0  # how often a launch or a pause told no outcome and was begun anew
    pending_facts: tuple[Fact, ...] = ()
    outcome: Outcome | None = None  # of the plan that just ended, until it is decided upon
    library: bool = False  # every rank speaks through the train library
    gone: tuple[int, ...] = ()  # slots whose container is not there any more
    unreachable: tuple[int, ...] = ()  # slots we know to be silent
    waiting_for: str | None = None
    suspected: Suspected | None = None  # of a hang that was only noted, until something moves
    warnings: tuple[JobWarning, ...] = ()  # what is wrong while it goes on, each until it is over
    isolated: Mapping[str, str] = field(default_factory=dict)  # node -> why, by this job
    deferred: tuple[Isolation, ...] = ()  # isolations still to be told to the quarantine
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    seen_ids: tuple[str, ...] = ()
    applied_ids: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    limits: Mapping[str, int | None] = field(default_factory=dict)  # set_budget overrides
    commands: tuple[Command, ...] = ()
    ending: str | None = None  # a key of views.ENDED_STATE, once decided
    ending_reason: str = ""
    stop_grace_s: float | None = None
    paused_reason: str = ""
    finished: tuple[PhaseResult, ...] = ()
    stages_s: Mapping[str, float] = field(default_factory=dict)  # totals of this phase
    runs: int = 0  # starts of all processes in this phase
    journal: tuple[Entry, ...] = ()  # still to be written beside the model
    journal_number: int = 0  # the newest entry's
    created_at: float | None = None  # when it first heard of its cluster
    first_run: str = ""  # of the workflow: what happened keeps its identity over later ones
    started_at: float | None = None  # the first start of all processes
    starts: tuple[Start, ...] = ()
    exits: Mapping[int, int] = field(default_factory=dict)  # slot -> exit code, of the newest start
    happenings: tuple[Happening, ...] = ()
    happening_number: int = 0  # the newest one's
    told: int = 0  # the newest happening that was told to whoever wants to hear of it

    @property
    def phase(self) -> PhaseSpec:
        return self.spec.phases[self.phase_index]

    @property
    def checkpoint_step(self) -> int | None:
        return None if self.saved is None else self.saved.step

    @property
    def living(self) -> tuple[int, ...]:
        return tuple(
            sorted(n for n, slot in self.slots.items() if slot.state is not PodState.ABSENT)
        )


def with_ledger(state: JobState, **changes: Any) -> JobState:
    return replace(state, ledger=replace(state.ledger, **changes))


def remember_ids(
    known: tuple[str, ...], new: tuple[str, ...], *, kept: int = IDS_KEPT
) -> tuple[str, ...]:
    return (known + new)[-kept:]


def add_record(ledger: Ledger, record: Record) -> Ledger:
    return replace(ledger, recoveries=record.n, records=_bounded((*ledger.records, record)))


def update_record(ledger: Ledger, n: int, **changes: Any) -> Ledger:
    """The ledger with the record `n` changed; a record too old to be kept is left alone."""
    changed = tuple(replace(r, **changes) if r.n == n else r for r in ledger.records)
    return replace(ledger, records=_bounded(changed))


def find_record(ledger: Ledger, n: int) -> Record | None:
    return next((record for record in ledger.records if record.n == n), None)


def newest_records(finished: tuple[PhaseResult, ...]) -> tuple[PhaseResult, ...]:
    """The results of all phases with the newest records; older ones live on in their Recoveries."""
    left, kept = RECORDS_KEPT, []
    for result in reversed(finished):
        records = result.ledger.records[-left:] if left else ()
        left -= len(records)
        kept.append(replace(result, ledger=replace(result.ledger, records=records)))
    return tuple(reversed(kept))


def _bounded(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The newest records; where they say too much about places, older ones keep only the count."""
    kept: list[Record] = []
    left = CHANGES_KEPT
    for record in reversed(records[-RECORDS_KEPT:]):
        left -= len(record.after)
        kept.append(record if left >= 0 or not record.after else _without_places(record))
    return tuple(reversed(kept))


def _without_places(record: Record) -> Record:
    note = f"{len(record.after)} slots changed their place; the Recovery's own result names them"
    return replace(record, before={}, after={}, notes=(*record.notes, note))
