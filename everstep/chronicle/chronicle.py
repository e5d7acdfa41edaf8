"""The values of a job's chronicle: what is kept of a job for people to read, and how far it is published.

`fold` makes it from the job's events; each topic has a module that adds to it. The workflow carries it beside
the state from run to run, so every list in it has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everstep.core.deciding.decision import Decision, Waited
from everstep.core.facts import Detail
from everstep.core.levels import RESCHEDULING
from everstep.core.world import AgentWork

RECORDS_KEPT = 50
CHANGES_KEPT = 2_000
"""How many changes of a slot's node are kept, over all records: a job of 1,000 pods may move twice."""
STARTS_KEPT = 50
HAPPENINGS_KEPT = 50
CHANGES_OF_DOCUMENT_KEPT = 20
ENTRIES_KEPT = 30
"""While nothing can be written, the oldest lines are dropped: what a restart did is in its Recovery too."""


class Start(NamedTuple):
    """One start of all processes, and how that run of them ended."""

    phase: str
    generation: int
    at: float
    nodes: int
    is_same_place: bool = False  # in the containers of the run before
    first_step_at: float | None = None
    ended_at: float | None = None
    why: str = ""  # reason of the end, unless a record has it
    worker: int | None = None  # slot that caused the end
    starting_step: int | None = None  # None: unknown
    step: int | None = None  # newest step seen before the end
    paused_at: float | None = None  # a pause after the end, before another start


class StartOrigin(NamedTuple):
    """From where a start goes on."""

    step: int | None  # None: unknown
    path: str | None  # the checkpoint that it loads
    text: str  # that and what it passes over, in words


class PhaseSpan(NamedTuple):
    """When a phase began to wait for its places, and when it ended."""

    began_at: float
    ended_at: float | None = None


class DocumentChange(NamedTuple):
    """A change of the job's document."""

    at: float
    what: tuple[str, ...]  # `limits.hang_s=600`, one key each
    is_now: bool  # a restart brings it about; else the next one does
    by: str | None = None


class Happening(NamedTuple):
    """An event of a job for its user. `happenings.KINDS` describes each kind."""

    number: int
    at: float
    kind: str
    text: str
    generation: int = 0  # of the ranks that a restart started
    waiting_reason: str = ""  # a `WaitReason`, of a wait that the event is about


class QueuedSpan(NamedTuple):
    """A span of the job's trace that has ended and was not exported yet. `spans` makes them."""

    key: str  # unique within the job; the span's ID is made from it
    parent: str  # key of the parent; empty: none
    name: str
    began: float
    ended: float
    number: int = 0
    is_error: bool = False
    attributes: Mapping[str, str | int | bool] = {}
    evidence: tuple[str, ...] = ()  # facts of a restart, exported as events
    stages_s: Mapping[str, float] = {}  # seconds of each stage of a restart, in order
    works: tuple[AgentWork, ...] = ()  # work of agents in these stages


class Traced(NamedTuple):
    """How much of a phase has a span."""

    restart: int = 0
    incident: int = 0
    run_at: float = -1.0  # start of the newest run that has a span
    has_phase: bool = False


SummaryValue = Detail | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectFiles:
    """Files beside run.log that tools of the dialect read."""

    # Fields of the phase in summary.json. With them `Entry.row` is a complete row: `run` is not added.
    summary: Mapping[str, SummaryValue]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # their contents, by name
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of run.log, and what summary.json is to say of a run. `journal` makes them."""

    number: int = 0
    phase: str
    model_dir: str | None
    began: float  # start of the phase; its folder is named after it
    at: float
    run: int  # run of this line; 0: none
    text: str
    about: int = 0  # run of `row`; 0: that of this line
    # Known fields of a run in summary.json.
    row: Mapping[str, SummaryValue] = field(default_factory=dict)
    workdir: str | None = None  # must exist: it is not created for a folder in it
    dialect_files: DialectFiles | None = None  # None: the dialect has no files of its own
    restart: str = ""  # the restart that ends with this line, in a whole sentence
    result: str = ""  # result of that restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Reused:
    """What a restart did not have to make: processes that went on, pods that stood by."""

    kept_ranks: str = ""  # as ranges
    # Slots that got a spare -> seconds in which that had stood up, before it was needed.
    stood_up_s: Mapping[int, float] = field(default_factory=dict)


NOTHING_REUSED = Reused()


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
    bills: Mapping[str, int] = field(default_factory=dict)  # budget -> units
    isolated: bool = False
    # Slot -> node, of the slots that moved:
    before: Mapping[int, str] = field(default_factory=dict)
    after: Mapping[int, str] = field(default_factory=dict)
    resume_step: int | None = None
    resume_path: str | None = None
    resume_from: str | None = None  # ranks, snapshot, neighbour or checkpoint
    newer_checkpoints: str = ""  # that the start passed over, in words
    evidence: str | None = None  # folder with stacks and logs, collected before the kill
    stages_s: Mapping[str, float] = field(default_factory=dict)
    refused_by: str | None = None  # budget that refused this level
    end_reason: str | None = None  # what was tried in vain, if no level was left after this one
    worker: int | None = None  # slot of the fault, or on the node of the fault
    ended: str | None = None  # how the run that it started ended: "ended before a step"
    step: int | None = None  # newest step of the run that it ended
    notes: tuple[str, ...] = ()
    waited: tuple[Waited, ...] = ()
    works: tuple[AgentWork, ...] = ()  # work of agents; dropped once the restart has its span
    reused: Reused | None = None

    @property
    def places_pods(self) -> bool:
        """Whether the restart gave slots new pods. A rollback does only where it leaves a node."""
        return self.decision.level in RESCHEDULING or "place" in self.stages_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChronicle:
    """The phase under way, or the last one."""

    name: str
    model_dir: str | None
    workdir: str | None = None
    began: float
    run: int = 0  # number of the newest start of all processes
    # Fields of that run in summary.json.
    row: Mapping[str, SummaryValue] = field(default_factory=dict)
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """What a job adds to the counters of all jobs. `totals` makes it."""

    restarts: Mapping[str, int] = field(default_factory=dict)  # `class/level/result` -> restarts
    # Stage -> bucket -> number of stages, and the sum of their seconds.
    stages: Mapping[str, Mapping[int, tuple[int, float]]] = field(default_factory=dict)
    ended: str = ""  # how the job ended; empty while it has not
    # Use (wait, training, down, lost, paused) -> seconds, of the runs before `Chronicle.timed`.
    time_s: Mapping[str, float] = field(default_factory=dict)
    lost_s: Mapping[str, float] = field(default_factory=dict)  # `class/down`, `class/again`
    lost_steps: int | None = 0  # steps that were done again; None: unknown for some run
    budgets: Mapping[str, int] = field(default_factory=dict)  # budget -> units used


@dataclass(frozen=True, slots=True, kw_only=True)
class Chronicle:
    """The history of a job, folded from its events."""

    # What `status` and `history` show.
    first_run: str = ""  # ID of the workflow's first run: part of the identity of an event
    created_at: float | None = None
    started_at: float | None = None  # first start of all processes
    phases: Mapping[str, PhaseSpan] = field(default_factory=dict)
    phase: PhaseChronicle | None = None  # None before the first one
    records: tuple[Record, ...] = ()
    stages_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # totals per phase
    starts: tuple[Start, ...] = ()
    origin: StartOrigin | None = None  # of the newest start
    exits: Mapping[int, int] = field(default_factory=dict)  # slot -> exit code, of the newest start
    changes: tuple[DocumentChange, ...] = ()  # newest changes of the document

    # Lines of run.log that are still to be written: `journal`.
    entries: tuple[Entry, ...] = ()
    entry_number: int = 0  # number of the newest entry
    entries_lost: int = 0  # number of entries that were dropped unwritten

    # Events for the user, of which notices are made: `happenings`.
    happenings: tuple[Happening, ...] = ()  # newest ones, published or not
    happening_number: int = 0  # number of the newest one
    sent: int = 0  # number of the newest one that was published
    wanted_events: tuple[str, ...] = ()  # names of the events to publish; empty: all of them

    # Counters of all jobs: `totals`, `time_totals`.
    totals: JobTotals = field(default_factory=JobTotals)
    settled: int = 0  # records of the phase up to this number are in the totals
    timed: float | None = None  # start of the oldest run whose time is not in the totals
    first_steps: int = 0  # number of first steps seen
    totals_sent: str = ""  # fingerprint of the totals that were sent last
    first_steps_sent: int = 0  # number of first steps in the totals that were sent last
    is_end_counted: bool = False  # whether totals were sent that show the end of the job
    is_exported: bool = False  # whether the worker that published last exports metrics or traces

    # Spans that are still to be exported: `spans`.
    spans: tuple[QueuedSpan, ...] = ()
    span_number: int = 0  # number of the newest span
    traced: Traced = field(default_factory=Traced)
    is_traced: bool = False  # whether the job itself has its span
