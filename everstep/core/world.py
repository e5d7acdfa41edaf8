"""The world as a backend shows it, and the orders it is given: plain values, no behaviour.

An `...Order` carries the job and the generation, so that a backend can refuse one that comes too late. A
`...State` says whether it is done, else what it waits for. Times are seconds on the backend's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from everstep.core.facts import Fact
from everstep.core.spec import Accelerator, PrefetchOrder


class PodState(StrEnum):
    """What a pod is, as status shows it."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job and the run of it that speaks; a reset or resubmitted job is another run."""

    id: str
    run: str
    books: str = ""  # the identity of the cluster's books it is in; empty: it asked nobody yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReached:
    """What a job hears first of its cluster."""

    now: float
    books: str  # their identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A job of which anything is on the cluster."""

    job: JobRef  # with the run that took the newest generation: who ends it has to speak for that one
    server: str = ""  # the Temporal server and namespace of that run, where the cluster knows them


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on durable storage."""

    step: int | None  # None: its name does not tell
    path: str
    bytes: int = 0
    at: float = 0.0
    good: bool = True
    number: int | None = None  # by which it is newer; None: by its step, else by its time

    @property
    def counts(self) -> int | None:
        """What counts up from one checkpoint to the next; None: nothing but time."""
        return self.step if self.number is None else self.number

    @property
    def name(self) -> str:
        """How people are told of it."""
        return f"step {self.step}" if self.step is not None else self.path.rpartition("/")[2]

    def is_newer(self, other: Checkpoint) -> bool:
        if self.counts is None or other.counts is None:
            return self.at > other.at
        return self.counts > other.counts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank of the current generation ended. Killed by a signal: `code` is None."""

    rank: int
    at: float
    code: int | None = None
    signal: int | None = None


class Unrecognised(NamedTuple):
    """Files under a checkpoints path whose names are none of a checkpoint."""

    since: float
    number: int
    example: str


class PodView(NamedTuple):
    """One pod as seen now. Fields about processes speak of `generation`, the newest one told to run.

    Every look makes one for each pod, which as a dataclass takes five times as long.
    """

    slot: int
    node: str
    uid: str
    state: PodState
    generation: int = 0
    silent_since: float | None = None  # its agent has not answered since then
    started_at: float | None = None  # its ranks were reported started (stays after their exit)
    exits: tuple[RankExit, ...] = ()
    ranks: int = 1
    step: int | None = None
    step_at: float | None = None
    first_step_at: float | None = None  # of this generation
    longest_gap_s: float = 0.0  # between two steps of this generation
    moved_at: float | None = None  # last movement of I/O, CPU time or device use
    output_at: float | None = None  # when its ranks printed last
    io_at: float | None = None  # last I/O of any process; None: not known
    busy_at: float | None = None  # last change of its devices' use; None: not known
    unmatched_since: float | None = None  # lines are printed, and none matched the log pattern
    unread: bool = False  # the log pattern was too slow: no more steps are read
    unrecognised: Unrecognised | None = None  # files where its checkpoints should be
    free_bytes: int | None = None  # where its checkpoints are written
    saved_at: float | None = None  # when its newest checkpoint of this generation was noticed
    save_every_s: float | None = None  # the usual time between two of its checkpoints
    can: tuple[str, ...] = ()  # what every rank of it says it can do, in order
    schedule_count: int = 1  # what its processes were told at their start
    process_start_count: int = 0
    prewarm_bytes: int | None = None  # memory of the helper from which its ranks are forked
    older: tuple[tuple[int, int], ...] = ()  # ranks whose process an earlier generation started

    @property
    def is_done(self) -> bool:
        return len(self.exits) >= self.ranks and all(exit.code == 0 for exit in self.exits)


def common(said: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """What all of them say, in order; nothing if nobody is there."""
    sets = [frozenset(one) for one in {tuple(one) for one in said}]
    return tuple(sorted(sets[0].intersection(*sets[1:]))) if sets else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything about one job at one moment, and the facts since the cursor."""

    now: float
    cursor: int
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
    """A node as the backend sees it. `isolated` is the backend's own mark, set by `ensure_isolated`."""

    name: str
    ready: bool = True
    isolated: bool = False
    reason: str = ""
    devices: tuple[DeviceView, ...] = ()
    jobs: tuple[str, ...] = ()
    accelerator: Accelerator = "none"
    slots_free: int = 1  # how many more pods without devices fit here


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """End every process older than `generation`, in these slots (None: all of them).

    `grace_s` above 0 first asks for a checkpoint and an end; 0 kills at once. `evidence` keeps stacks
    and last log lines before the kill (at most 1 s). The ranks to `keep` go on, as members of this
    generation, if they live.
    """

    job: JobRef
    generation: int
    slots: tuple[int, ...] | None = None
    grace_s: float = 0.0
    evidence: bool = False
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopState:
    """`pending` slots did not confirm yet. A pod on a lost node counts as stopped once that is proven.

    `kept` are the ranks that go on in slots that did. Who was to be kept and is not among them, once
    nothing is pending, did not live any more.
    """

    stopped: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    evidence: str | None = None

    @property
    def done(self) -> bool:
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class HealState:
    """What became of a device that was asked to repair itself."""

    state: Literal["healing", "healed", "failed"]
    message: str = ""


class PodRef(NamedTuple):
    """Where a slot lives. A row, as there may be a thousand in one payload."""

    node: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    """All or nothing: `slots` shall live, those in `recreate` in new pods, the others where they are.

    Pods of slots not named are removed. Old pods of `recreate` are removed first. No new pod lands on
    an isolated node, a node of `avoid`, or a device of `avoid_devices` (`(node, index)`).

    An old pod goes in two parts: its processes end, proven, and with them it gives back its devices;
    then its place is cleared (volumes unmounted). New pods are made after both, or with `clearing_s`
    so long after the first: also on the node where the old one is still being cleared, as it needs
    nothing of it any more. What is being cleared goes on being cleared, whatever comes.
    """

    job: JobRef
    phase: str
    generation: int
    slots: tuple[int, ...]
    recreate: tuple[int, ...]
    avoid: tuple[str, ...] = ()
    avoid_devices: tuple[tuple[str, int], ...] = ()
    accelerator: Accelerator = "none"
    accelerators_per_node: int | Literal["all"] = 0
    least: int | None = None  # so many of the slots are enough to go on; None: all of them
    priority: int = 0
    reissued: bool = False  # a restarted job queues before new ones
    clearing_s: float | None = None  # None: as long as it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceState:
    """`pods` holds every slot once placed. Before: `places`, how many of the slots could live now."""

    placed: bool
    pods: Mapping[int, PodRef] = field(default_factory=dict)
    places: int = 0
    waiting_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecheckOrder:
    """Look at the places of these slots before a user's command runs there."""

    job: JobRef
    generation: int
    slots: tuple[int, ...]
    accelerator: Accelerator = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecheckState:
    """`failures` are facts of kind `precheck.<check>`; details `hardware` says whose fault it is.

    `notes` are sentences about what the job should have and can do without.
    """

    done: bool
    failures: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideOrder:
    """Rename these checkpoints, so that no script takes one of them for the newest. Nothing is deleted.

    A tracker file that names a later one than `resume`, which is to be loaded, names that afterwards.
    """

    job: JobRef
    generation: int
    paths: tuple[str, ...]
    resume: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Where all are that its generation renamed, and why others are not."""

    moved: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOrder:
    """Write the generation where every older process sees it, through the lowest living slot.

    The ranks that the stop `kept` are not older; whoever else lives on unseen ends by it.
    """

    job: JobRef
    generation: int
    lowest_slot: int
    model_dir: str | None = None
    checkpoints_path: str | None = None
    checkpoints_format: str = "auto"
    checkpoints_pattern: str | None = None
    workdir: str | None = None  # never made for the sake of a folder in it
    checkpoints_of: str | None = None  # the phase whose own ones alone count; None: all do
    begins: bool = False  # the phase: what it saves comes after this
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState:
    """Done once every older pod is proven stopped, or had to stop by itself after reading the fence.

    `unwritable` is what the storage says instead of taking the fence; empty if it is not to blame. `newer`
    is a generation found there that the job has to be above: nothing is written, this one will never hold.
    """

    done: bool
    waiting_for: str = ""
    unwritable: str = ""
    newer: int = 0
    no_workdir: bool = False  # it is the workdir that is not there

    @classmethod
    def refused(cls, why: str, *, no_workdir: bool = False) -> FenceState:
        waits_for = f"the storage: {why}"
        return cls(done=False, waiting_for=waits_for, unwritable=why, no_workdir=no_workdir)


class SlotStart(NamedTuple):
    """What one slot is told at its start, beside what all are told. A row, as there may be a thousand."""

    node_rank: int
    schedule_count: int
    process_start_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """Run the command in every slot. A slot that already runs this generation is left alone.

    The ranks that the stop `kept` have their process: they are told to rebuild their group.
    """

    job: JobRef
    phase: str
    generation: int
    command: tuple[str, ...]
    slots: Mapping[int, SlotStart]
    restarts: int = 0  # of the phase until now, the one that starts this included
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Mapping[str, str] = field(default_factory=dict)  # name: a variable of the worker
    workdir: str = "."
    processes_per_node: int = 1
    resume: Checkpoint | None = None
    model_dir: str | None = None
    checkpoints_path: str | None = None
    checkpoints_format: str = "auto"
    checkpoints_pattern: str | None = None
    checkpoints_of: str | None = None
    log_pattern: str | None = None
    prewarm: tuple[str, ...] = ()
    stop_siblings: bool = True  # a failed rank ends the other ranks of its own slot
    accelerator: Accelerator = "none"
    still_s: float | None = None  # so long without I/O or device use counts: both are sampled
    kept: tuple[int, ...] = ()
    log_rules: Mapping[str, str] = field(default_factory=dict)  # to be found in logs, by name
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # that a command may read
    prefetch: PrefetchOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """Slots whose agent reported the ranks of this generation as started, even if they ended since.

    `failed` are those of the pending ones that will never be, each with the agent's words for it.
    """

    started: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneState:
    """Whether nothing of a job is left on the cluster."""

    done: bool
    waiting_for: str = ""
