"""What happens to a job, recorded where it happens: the one stream that all that people read is made from.

A closed union. `lifecycle.advance` hands out the events of each turn of the loop; `everstep/chronicle`
folds them into records, run.log, notices and views. No rule reads one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.core.deciding.decision import Decision, Result, Waited
from everstep.core.facts import Fact
from everstep.core.slots import Slots
from everstep.core.world import AgentWork, Checkpoint, NewerCheckpoints, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """All of them have a time: the newest of the backend, unless the thing has its own."""

    at: float


# -- Life -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBegan(_Event):
    """A run of the workflow drives the job from here on; the first one created it."""

    job: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticesWanted(_Event):
    """The names of the events that the document wants notices of from here on; none: of all events."""

    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChanged(_Event):
    """An operator changed the job's document."""

    what: tuple[str, ...]  # `limits.hang_s=600`, one key each
    is_now: bool  # a restart brings it about; else the next one does
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegan(_Event):
    """A phase waits for its places."""

    phase: str
    model_dir: str | None
    workdir: str | None = None
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnded(_Event):
    """The first start of a phase came to its end, well or not."""

    generation: int
    result: Result
    nodes: int
    stages_s: Mapping[str, float]
    works: tuple[AgentWork, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Event):
    """All processes were started again."""

    run: int  # how often in this phase
    generation: int
    slots: tuple[int, ...]
    nodes: tuple[str, ...]
    starting_step: int | None  # None: unknown
    resume: Checkpoint | None
    snapshot: Snapshot | None = None  # in place of `resume`
    newer_saved: NewerCheckpoints | None = None  # than `resume`
    no_snapshot: str = ""  # why memory holds something and no step of all ranks
    checks_numbers: bool = False
    waited: tuple[Waited, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepSeen(_Event):
    """The newest start made its first step, at this time."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(_Event):
    reason: str
    step: int | None = None
    saved: Checkpoint | None = None  # the newest checkpoint then


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_Event):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded(_Event):
    """A phase is over: completed, failed or stopped."""

    state: str
    reason: str
    step: int | None
    saved: Checkpoint | None = None
    worker: int | None = None  # the slot that caused it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding(_Event):
    """Nothing follows but clearing away."""

    ending: str
    reason: str
    step: int | None
    saved: Checkpoint | None = None


# -- What was seen --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prechecked(_Event):
    """The nodes were examined before a start."""

    began: float
    slots: tuple[int, ...]
    failed: tuple[Fact, ...]
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesEnded(_Event):
    """Processes of these workers ended, otherwise than well."""

    ends: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllEndedWell(_Event):
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsFound(_Event):
    """Steps were found in what ranks print, though the document has no pattern for them."""

    taken_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequested(_Event):
    """Ranks were to save now, and what came of it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningBegan(_Event):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningOver(_Event):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(_Event):
    """The job came further than ever, and so restarts without progress are counted from zero."""

    saved: Checkpoint | None  # what says so; None: its steps, or a long healthy run
    step: int | None
    before: int  # restarts without progress until then
    after: int


# -- What was decided, and what came of it --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRefused(_Event):
    """A budget is used up: the decision went past this level."""

    n: int
    incident: int
    decision: Decision  # with the refused level in it
    budget: str
    generation: int
    worker: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecided(_Event):
    """A Recovery begins."""

    n: int
    incident: int
    decision: Decision
    generation: int
    worker: int | None
    step: int | None
    was_running: bool
    saved: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultNoted(_Event):
    """Nothing is done about it."""

    decision: Decision
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp(_Event):
    """No level is left: the phase fails."""

    decision: Decision
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEnded(_Event):
    """What came of a Recovery, as far as it is known."""

    n: int
    result: str
    resume_step: int | None = None
    resume: Checkpoint | None = None
    snapshot: Snapshot | None = None  # in place of `resume`
    kept_ranks: Slots = ()  # ranks that went on with their process
    newer_saved: NewerCheckpoints | None = None  # than `resume`
    generation: int | None = None  # that was started
    isolated: bool | None = None  # None: as was decided
    before: Mapping[int, str] = field(default_factory=dict)
    after: Mapping[int, str] = field(default_factory=dict)
    evidence: str | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    waited: tuple[Waited, ...] = ()
    works: tuple[AgentWork, ...] = ()
    stood_up_s: Mapping[int, float] = field(default_factory=dict)  # of spares that were taken

    @property
    def standby_s(self) -> float:
        """How long training went on while a backup pod got ready."""
        return self.stages_s.get("standby", 0.0)

    @property
    def stopped_nothing(self) -> bool:
        """Whether no backup pod was ready, so that training goes on."""
        return "standby" in self.stages_s and "stop" not in self.stages_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BillReturned(_Event):
    """Units went back: after a failure to budgets that count successes, after a standby in vain to all."""

    n: int
    budgets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIsolated(_Event):
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged(_Event):
    """A worker watches the job that another one watched."""

    worker: str
    earlier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAwaited(_Event):
    """A plan began to wait for storage or checkpoints, and its decision did not announce that."""

    text: str
    waiting_reason: str  # a `WaitReason`


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused(_Event):
    """A request was refused whose sender gets no answer, or an activity of the job was, which waits."""

    text: str
    waiting_reason: str = ""  # a `WaitReason` of the wait


JobEvent = (
    RunBegan
    | NoticesWanted
    | DocumentChanged
    | PhaseBegan
    | LaunchEnded
    | Started
    | FirstStepSeen
    | Paused
    | Resumed
    | PhaseEnded
    | JobEnding
    | Prechecked
    | ProcessesEnded
    | AllEndedWell
    | StepsFound
    | SaveRequested
    | WarningBegan
    | WarningOver
    | Progressed
    | LevelRefused
    | RestartDecided
    | FaultNoted
    | GivenUp
    | RestartEnded
    | BillReturned
    | NodeIsolated
    | WorkerChanged
    | StorageAwaited
    | RequestRefused
)
