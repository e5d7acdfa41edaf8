"""What a backend observes and the orders it carries out: plain values, no behaviour.

An `...Order` carries the job and its generation, so that a backend can refuse one that arrives too late. A
`...State` is the result: done, or what it waits for. Times are seconds on the backend's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple

from everstep.core.facts import Fact
from everstep.core.spec import Accelerator, PrefetchOrder
from everstep.core.waits import WaitCause, WaitKind, sentence_of
from everstep.protocol.exits import RankExit
from everstep.protocol.wire import RunOrder, RunProgress


class PodState(StrEnum):
    """What a pod is, as status shows it."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"  # its ranks were ended by a command
    EXITED = "exited"  # its ranks ended by themselves
    UNREACHABLE = "unreachable"
    LEAVING = "leaving"  # others than Everstep end it; its agent may answer for a while
    LOST = "lost"  # its container is gone
    ABSENT = "absent"  # the slot has no pod


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job and the run of it that makes a call; a reset or resubmitted job is another run."""

    id: str
    run: str
    books: str = ""  # identity of the cluster's database that has the job; empty: not known yet
    first_run: str = ""  # the one that was submitted: the job's trace is named after it
    namespace: str = ""  # of the job's pods, as its document names it; empty: that of the workers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReached:
    """The cluster's answer to a job's first call."""

    now: float
    books: str  # identity of its database


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A job that has anything left on the cluster."""

    job: JobRef  # with the run that took the newest generation: only an order of that run ends it
    server: str = ""  # the Temporal server and namespace of that run; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on durable storage, as its agent judged it: good, bad, or neither for sure."""

    step: int | None  # None: its name has none
    path: str
    bytes: int = 0
    at: float = 0.0
    good: bool = True  # proven to be complete
    is_sure: bool = True  # False: not `good`, but it may be complete all the same
    number: int | None = None  # orders checkpoints; None: the step does, else the time
    doubt: str = ""  # why it is not `good`, in words; empty: it is, or its agent gives no reason

    @property
    def order_number(self) -> int | None:
        """The number that orders checkpoints. None: only their time does."""
        return self.step if self.number is None else self.number

    @property
    def name(self) -> str:
        """How sentences name it."""
        return f"step {self.step}" if self.step is not None else self.path.rpartition("/")[2]

    def is_newer(self, other: Checkpoint) -> bool:
        if self.order_number is None or other.order_number is None:
            return self.at > other.at
        return self.order_number > other.order_number


class CopyPlace(NamedTuple):
    """A rank whose snapshot is gone with its pod, and the slot whose agent holds a copy of it."""

    rank: int
    slot: int


class Snapshot(NamedTuple):
    """The snapshots of one step that all ranks have in memory."""

    step: int
    at: float  # of the last one
    starts: int = 1  # runs in a row that began from them
    copies: tuple[CopyPlace, ...] = ()  # what is fetched first; the other ranks have their own
    survivors: int = 0  # ranks whose process goes on with it; they give it to the others

    @property
    def name(self) -> str:
        """How sentences name it."""
        return f"step {self.step} in memory"


class RankSnapshot(NamedTuple):
    """A whole snapshot of one rank, in the memory of its pod, or a copy of it in that of another one."""

    step: int
    rank: int
    world: int  # number of ranks whose snapshots of this step belong together
    generation: int  # of the process that wrote it
    at: float
    saves: bool = False  # its rank named a function that saves it


def resuming_from(resumed: Checkpoint | Snapshot | None) -> str:
    """The end of a sentence about a start: `, from step 40`."""
    return "" if resumed is None else f", from {resumed.name}"


class PassedOver(NamedTuple):
    """A checkpoint that a start did not load although it is newer than the one that it loads."""

    name: str
    why: str  # empty: it may be good, and an older one was wanted


NEWER_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerCheckpoints:
    """The checkpoints that are newer than the one that a start loads."""

    count: int
    newest: tuple[PassedOver, ...]  # at most NEWER_NAMED of them
    why_there: str = ""  # why they could not be set aside; empty: they were

    @property
    def text(self) -> str:
        """As the end of a sentence: `3 newer ones set aside: step 30, step 20 (cut off), step 10`."""
        reasons = [why for _, why in self.newest]
        names = [
            f"{name} ({why})" if why and why != following else name
            for (name, why), following in zip(self.newest, [*reasons[1:], ""], strict=True)
        ]
        more = f" and {self.count - len(names)} more" if self.count > len(names) else ""
        done = f"not set aside ({self.why_there})" if self.why_there else "set aside"
        ones = "1 newer one" if self.count == 1 else f"{self.count} newer ones"
        return f"{ones} {done}: {', '.join(names)}{more}"


class Unrecognised(NamedTuple):
    """Files under a checkpoints path whose names are not those of a checkpoint."""

    since: float
    number: int
    example: str


class DeviceUse(NamedTuple):
    """What a device of a pod shows of its use and its memory; None: unknown."""

    device: int
    percent: float | None
    memory_mb: float | None
    memory_total_mb: float | None


class PodView(NamedTuple):
    """One pod as observed now. Fields about processes are those of the newest generation started.

    A named tuple, because each observation makes one per pod: a dataclass takes five times as long.
    """

    slot: int
    node: str
    uid: str
    state: PodState
    run: RunProgress = RunProgress()  # as its agent reports it, by the backend's clock
    silent_since: float | None = None  # its agent has not answered since then
    exits: tuple[RankExit, ...] = ()
    ranks: int = 1
    can: tuple[str, ...] = ()  # capabilities that all its ranks declare, in order
    # Ranks whose process an earlier generation started, each with that generation.
    older_ranks: tuple[tuple[int, int], ...] = ()
    unrecognised: Unrecognised | None = None  # files where its checkpoints should be
    prewarm_bytes: int | None = None  # memory of the helper from which its ranks are forked
    prewarm_modules: tuple[str, ...] = ()  # that this helper has imported
    snapshots: tuple[RankSnapshot, ...] = ()
    copies: tuple[RankSnapshot, ...] = ()  # of ranks of other pods
    # Of each rank its number and its steps in the last minutes; None: not all of its ranks show them.
    recent_steps: tuple[tuple[int, int], ...] | None = None
    dead_sidecars: tuple[str, ...] = ()  # containers that failed beside that of its agent
    device_use: tuple[DeviceUse, ...] = ()  # of those that show something, for people

    @property
    def generation(self) -> int:
        """The newest generation that was started in the pod."""
        return self.run.generation

    @property
    def is_done(self) -> bool:
        return len(self.exits) >= self.ranks and all(one.exit.is_good for one in self.exits)


def common(declared: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The capabilities that all of them declare, sorted; none for no ranks."""
    sets = [frozenset(one) for one in {tuple(one) for one in declared}]
    return tuple(sorted(sets[0].intersection(*sets[1:]))) if sets else ()


def newest_whole_step(pods: Iterable[PodView]) -> int | None:
    """The newest step of which every rank has a whole snapshot or a copy, whatever its number will be."""
    ranks_by_step: dict[tuple[int, int, int], set[int]] = {}
    for held in (one for pod in pods for one in (*pod.snapshots, *pod.copies)):
        key = held.step, held.world, held.generation
        ranks_by_step.setdefault(key, set()).add(held.rank)
    whole = (step for (step, world, _), ranks in ranks_by_step.items() if len(ranks) == world)
    return max(whole, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything about one job at one moment, and the facts since the cursor."""

    now: float
    cursor: str
    pods: tuple[PodView, ...] = ()
    checkpoint: Checkpoint | None = None  # the newest good one
    facts: tuple[Fact, ...] = ()
    generation: int = 0  # the newest generation given out for this job


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device of a node: its health and the fault codes it shows."""

    index: int
    health: Literal["ok", "healing", "faulty", "isolated"] = "ok"
    codes: tuple[str, ...] = ()
    job: str | None = None
    isolated: str | None = None  # why the backend keeps new pods off it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the backend observes it. `isolated` is the backend's mark, set by `ensure_isolated`."""

    name: str
    ready: bool = True
    isolated: bool = False
    reason: str = ""
    maintenance: str = ""  # why it gets no new pods for now: a cordon, a taint, a notice
    devices: tuple[DeviceView, ...] = ()
    jobs: tuple[str, ...] = ()
    devices_used: int | None = None  # by jobs; None: `devices` have their jobs
    accelerator: Accelerator = "none"
    slots_free: int = 1  # how many more pods without devices fit here
    lists_codes: bool = False  # `devices` has every code that any device of it shows now


class AgentWork(NamedTuple):
    """A command that the agent of a slot carried out, by the backend's clock."""

    slot: int
    node: str
    name: str  # stop, fence, checkpoints, start
    began: float
    ended: float


WORKS_KEPT = 3
"""Of each kind of work, those that took longest: of a thousand pods they held up the rest."""


def slowest(works: Iterable[AgentWork]) -> tuple[AgentWork, ...]:
    """The few of each name that took longest, by name and slot."""
    ordered = sorted(works, key=lambda work: (work.name, work.began - work.ended, work.slot))
    by_name = groupby(ordered, key=lambda work: work.name)
    longest = (work for _, group in by_name for work in islice(group, WORKS_KEPT))
    return tuple(sorted(longest, key=lambda work: (work.name, work.slot)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """End every process older than `generation`, in these slots (None: all of them).

    `grace_s` above 0 first requests a checkpoint and an exit; 0 kills at once. `evidence` stores stacks
    and last log lines before the kill (at most 1 s). Ranks in `keep` that are alive run on, as members of
    this generation; with `hold_s` above 0 only those that hold within this time.
    """

    job: JobRef
    generation: int
    slots: tuple[int, ...] | None = None
    grace_s: float = 0.0
    evidence: bool = False
    keep: tuple[int, ...] = ()
    hold_s: float = 0.0


class RankPosition(NamedTuple):
    """Where a rank is that holds: it waits for the order to form its group again."""

    rank: int
    completed: int | None  # the step whose state it has; None: it has none, or a part of an update
    copies: tuple[int, ...] = ()  # the ranks with the same state as its own; empty: every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class StopState:
    """`pending` slots did not confirm yet. A pod on a lost node counts as stopped once that is proven.

    `kept_ranks` are the ranks that run on in the stopped slots. A rank of the order's `keep` that is
    missing there once nothing is pending was dead.
    """

    stopped: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    kept_ranks: tuple[int, ...] = ()
    positions: tuple[RankPosition, ...] = ()
    evidence: str | None = None
    works: tuple[AgentWork, ...] = ()

    @property
    def done(self) -> bool:
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class HealState:
    """The state of a device's repair."""

    state: Literal["healing", "healed", "failed"]
    message: str = ""
    began_at: float | None = None  # when it was ordered first, where the cluster records that


class PodRef(NamedTuple):
    """The pod of a slot. A named tuple, as a payload may hold a thousand."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    """Place all of `slots` or none: those in `recreate` in new pods, the others where they are.

    Pods of slots not named are removed. Old pods of `recreate` are removed first. No new pod lands on
    an isolated node, a node of `avoid`, or a device of `avoid_devices` (`(node, index)`); on one of
    `last_choice` it lands only where no other node has room.

    An old pod is removed in two parts. First its processes end, proven, which frees its devices. Then its
    place is cleared (volumes unmounted). New pods are created after both, or with `clearing_s` that long
    after the first, also on the node that is still being cleared. Clearing is never interrupted.
    """

    job: JobRef
    phase: str
    generation: int
    slots: tuple[int, ...]
    recreate: tuple[int, ...]
    spares: tuple[int, ...] = ()  # numbers behind the job's slots, of pods that stand by for any
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    last_choice: tuple[str, ...] = ()
    accelerator: Accelerator = "none"
    accelerators_per_node: int | Literal["all"] = 0
    least: int | None = None  # the least number of slots to go on with; None: all
    priority: int = 0
    reissued: bool = False  # a restarted job queues before new ones
    clearing_s: float | None = None  # None: as long as it takes
    image: str | None = None  # only on Kubernetes, as is `pod_template`
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)  # of the phase: path -> its field


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An answer of a backend that may come before the order is carried out."""

    wait: WaitCause | None = None

    @property
    def waiting_for(self) -> str:
        """The sentence of the wait; empty: nothing is waited for."""
        return sentence_of(self.wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceState(Waiting):
    """The progress of a placement: `pods` of every slot once placed, before that `places`.

    `places` is how many of the slots could live now; None if unknown, then smaller orders are tried.
    """

    placed: bool
    pods: Mapping[int, PodRef] = field(default_factory=dict)
    places: int | None = 0
    # Pods of one slot in a row that failed before their agent answered, though their node took them.
    start_failures: int = 0
    failure: str = ""  # how the newest of them failed
    # Slot -> seconds that its pod took until its agent answered, where a spare pod was taken.
    stood_up_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecheckOrder:
    """Check the nodes of these slots before a user's command runs there."""

    job: JobRef
    generation: int
    slots: tuple[int, ...]
    accelerator: Accelerator = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecheckState:
    """`failures` are facts of kind `precheck.<check>`; `hardware` in their details: a hardware fault.

    `notes` are sentences about what the node lacks and the job can do without.
    """

    done: bool
    failures: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideOrder:
    """Rename these checkpoints, so that no script loads one of them as the newest. Nothing is deleted.

    `resume` is the checkpoint to load. A tracker file that names a later one names `resume` afterwards.
    """

    job: JobRef
    generation: int
    paths: tuple[str, ...]
    resume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """New paths of all checkpoints that the generation renamed, and why others could not be."""

    moved: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOrder:
    """Write the generation where every older process reads it, through the lowest active slot.

    Ranks in `kept_ranks` belong to this generation. Any other process that is still alive ends by the fence.
    """

    job: JobRef
    generation: int
    lowest_slot: int
    run: RunOrder  # the folders of what is to start; the rest of it is empty
    begins: bool = False  # this is the phase's first start
    kept_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointListing:
    """The complete checkpoints of a job, newest first, and the new paths of those that were set aside."""

    checkpoints: tuple[Checkpoint, ...]
    set_aside: tuple[str, ...] | None = None  # by the newest generation; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState(Waiting):
    """Done once every older pod is proven stopped, or has had the time to stop after reading the fence.

    `unwritable` is the storage's error, empty if it has none. `newer` is a newer generation found there:
    nothing is written, and this generation can never be fenced.
    """

    done: bool
    unwritable: str = ""
    newer: int = 0
    no_folder: bool = False  # something else is in the place of a folder, or its workdir is missing
    listing: CheckpointListing | None = None  # read behind the fence by its writer; None: not read
    has_saved_before: bool = False  # an earlier submission of this job ID saved checkpoints here

    @classmethod
    def refused(cls, why: str, *, no_folder: bool = False) -> FenceState:
        wait = WaitKind.STORAGE.of(why)
        return cls(done=False, wait=wait, unwritable=why, no_folder=no_folder)


class SlotStart(NamedTuple):
    """What a start passes to one slot alone. A named tuple, as an order may hold a thousand."""

    node_rank: int
    schedule_count: int
    process_start_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Run the command in every slot. A slot that already runs this generation is left alone.

    Ranks in `kept_ranks` have their process already and get the instruction to rebuild their process group.
    """

    job: JobRef
    phase: str
    generation: int
    run: RunOrder
    slots: Mapping[int, SlotStart]
    restarts: int = 0  # of the phase so far, this one included
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Mapping[str, str] = field(default_factory=dict)  # name: a variable of the worker
    processes_per_node: int = 1
    resume: Checkpoint | None = None
    snapshot: Snapshot | None = None  # in place of `resume`
    accelerator: Accelerator = "none"
    time_scale: float = 1.0  # of the job: above 1 in rehearsals
    kept_ranks: tuple[int, ...] = ()
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for the command to read
    prefetch: PrefetchOrder | None = None
    spares: tuple[int, ...] = ()  # as in `PlaceOrder`: these go on standing by


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOrder:
    """Save the snapshots of one step, which are about to be lost with their pods."""

    job: JobRef
    generation: int  # every older process has ended
    step: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpState:
    """How far that is."""

    done: bool
    saved: tuple[int, ...] = ()  # ranks
    failed: tuple[str, ...] = ()  # why others are not saved


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Send the ranks of this generation a signal on which they save, once for each request."""

    job: JobRef
    generation: int
    request: str
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """What became of a request to save so far."""

    signalled: tuple[int, ...] = ()  # ranks that got the signal
    deaf: tuple[int, ...] = ()  # ranks that have no handler for it: it would end them
    silent: tuple[int, ...] = ()  # slots whose agent has not answered
    saved: Checkpoint | None = None  # the newest one, if it came since the request


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """`started` slots reported the ranks of this generation as started, even if they have exited since.

    `failed` are pending slots that can never start, each with its agent's reason.
    """

    started: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    works: tuple[AgentWork, ...] = ()

    @property
    def done(self) -> bool:
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneState(Waiting):
    """Whether nothing of a job is left on the cluster."""

    done: bool
    saved: Checkpoint | None = None  # its newest whole one, once its ranks had their grace to save
