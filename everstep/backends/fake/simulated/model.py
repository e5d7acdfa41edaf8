"""What the fake cluster consists of: nodes, devices, pods, processes, jobs. Plain mutable state.

Nothing here acts: the modules beside it do, one per topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from everstep.agent.observing.stillness import Band
from everstep.backends.fake.simulated.timeline import Timer
from everstep.backends.fake.simulated.training import Training
from everstep.backends.rules import nodes
from everstep.backends.rules.placing import queue_key
from everstep.core.facts import Fact
from everstep.core.world import NodeView, PlaceOrder, PodRef, PodView
from everstep.protocol.exits import RankExit

FACTS_KEPT = 10_000


@dataclass(slots=True, eq=False, kw_only=True)
class Device(nodes.Device):
    """One device of a node, its holder, and the utilisation that a fault line set."""

    pod: Pod | None = None  # its holder
    varies: bool = False  # its utilisation goes up and down
    metric: str | None = None  # the value of the fault line
    metric_at: float | None = None  # when it last changed
    band: Band = field(default_factory=Band)
    used_at: float | None = None  # when it left the band, so that the use counts as changed

    def end_rehearsal(self) -> None:
        """Let its use be that of its processes again, whatever a fault line set."""
        self.varies, self.used_at = False, None
        self.band.forget()


@dataclass(slots=True, eq=False, kw_only=True)
class Node(nodes.Node):
    """A machine with its pods."""

    devices: tuple[Device, ...]  # type: ignore[mutable-override]  # it never holds others
    slots: int
    silenced_since: float | None = None  # agents do not answer, the cluster has noticed nothing
    pods: list[Pod] = field(default_factory=list)  # those on their way out included
    unreported: list[tuple[Job, Fact]] = field(default_factory=list)  # until it answers again
    shows_utilisation: bool = False  # a fault line set the use of one of its devices
    cached_view: tuple[list[object], NodeView] | None = None  # with what it was made of

    @property
    def cut_off_since(self) -> float | None:
        return self.since if self.service == "cut_off" else None

    @property
    def silent_since(self) -> float | None:
        times = [t for t in (self.cut_off_since, self.silenced_since) if t is not None]
        return min(times) if times else None

    @property
    def answers(self) -> bool:
        return self.service == "ready" and self.silenced_since is None

    @property
    def is_reported(self) -> bool:
        """Whether the state of its pods is known: their agents answer, or nothing runs there any more."""
        return self.answers or self.service == "down"


NO_RANKS: Mapping[int, Any] = MappingProxyType({})
"""An empty mapping that all pods share: a thousand of them start at once."""


@dataclass(slots=True, eq=False, kw_only=True)
class Processes:
    """The ranks of a pod in one generation. Never changed, but replaced: pods in the same state share it.

    Ranks that a stop kept have its generation while `training` is still that of the generation before.
    """

    training: Training
    schedule_count: int
    process_start_count: int
    generation: int
    count: int  # of ranks
    older: Mapping[int, int]  # kept ranks, and which generation started them
    stop_siblings: bool
    starts_at: float = 0.0  # when the start is to end
    started_at: float | None = None  # when it ended; None: not yet
    failed: str | None = None  # why they cannot be started
    exits: Mapping[int, RankExit] = field(default_factory=lambda: NO_RANKS)
    is_ended: bool = False  # by an order, a fence, or with their pod
    ending: Timer | None = None  # an end with grace goes on
    _ended: Processes | None = field(init=False, default=None)

    @property
    def ended(self) -> Processes:
        """These processes after their end: pods that were alike still are."""
        if self._ended is None:
            self._ended = replace(self, is_ended=True)
        return self._ended

    @property
    def is_alive(self) -> bool:
        return not self.is_ended and len(self.exits) < self.count

    @property
    def has_start_order(self) -> bool:
        """Whether this generation was started here."""
        return self.training.generation == self.generation


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    """One place of a job on a node."""

    job: Job
    slot: int
    uid: str
    generation: int  # that created it
    node: Node
    devices: tuple[Device, ...]
    is_ready: bool = False
    is_lost: bool = False  # its container is gone
    is_checked: bool = False  # it passed the checks before a start
    stood_up_s: float | None = None  # of a spare: how long it took to be ready
    dead_at: float | None = None  # ordered to end, and since then nothing of it runs any more
    processes: Processes | None = None
    ranks: Sequence[int] = ()  # of these processes
    last_seen: PodView | None = None  # the last answer of its agent before it fell silent
    name: str = field(init=False)
    place: tuple[int, str, str] = field(init=False)  # what every view of it begins with

    def __post_init__(self) -> None:
        self.give_slot(self.slot)

    def give_slot(self, slot: int) -> None:
        self.slot = slot
        self.name = f"{self.job.id}/{self.slot}"
        self.place = (self.slot, self.node.name, self.uid)

    @property
    def has_living_processes(self) -> bool:
        return self.processes is not None and self.processes.is_alive

    @property
    def living(self) -> list[int]:
        """Ranks that have a process."""
        processes = self.processes
        if (
            processes is None
            or processes.is_ended
            or (processes.started_at is None and processes.has_start_order)
        ):
            return []
        return [rank for rank in self.ranks if rank not in processes.exits]


@dataclass(slots=True, eq=False, kw_only=True)
class WaitingJob:
    """A job that waits for places. `number` is its turn among equals."""

    order: PlaceOrder
    number: int
    has_removed_old: bool = True  # its old pods were ordered to end
    wakes_at: float | None = None  # when the next old pod is no longer in its way

    @property
    def queue_key(self) -> tuple[bool, int, int]:
        return queue_key(self.order, self.number)


@dataclass(slots=True, eq=False, kw_only=True)
class Placement:
    """The pods that a generation was given, once and for all."""

    generation: int
    pods: Mapping[int, PodRef]
    is_ready: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Precheck:
    """The checks of one pod in one generation. `failures` is None until they are done."""

    failures: tuple[Fact, ...] | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class FakeFence:
    """A generation's fence."""

    generation: int
    holds_at: float | None  # without proof; None: there was nowhere to write it
    is_proven: bool = False
    timers: list[Timer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedViews:
    """The views of a job's pods, and the version and time they were made for."""

    version: int
    now: float
    pods: tuple[PodView, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """Everything about a job ID. Generations and the version outlive its runs."""

    id: str
    version: int = 0  # grows with every change and every fact; what cursors count
    facts: deque[tuple[int, Fact]] = field(default_factory=lambda: deque(maxlen=FACTS_KEPT))
    generations: dict[tuple[str, str], int] = field(default_factory=dict)  # by run and key
    newest: int = 0
    newest_run: str = ""
    newest_on_storage: int = 0  # the newest generation that was found on storage
    may_have_unknown_pods: bool = False  # of earlier books
    adopted: int = 0  # the generation at which these books took it over
    closed: int = 0  # generations up to this one were ended by `ensure_gone`
    holds_clock: bool = False  # the clock jumps only while it waits in `observe`
    pods: dict[int, Pod] = field(default_factory=dict)
    leaving: list[Pod] = field(default_factory=list)  # ordered to end, not gone yet
    # Made to replace the pod of a slot, or, with a number behind all slots, that of any.
    standbys: dict[int, Pod] = field(default_factory=dict)
    standbys_made: int = 0
    lacks_standby: bool = False  # for want of a node
    cached_views: CachedViews | None = None
    training: Training | None = None  # of the newest generation started
    trainings: list[Training] = field(default_factory=list)  # whose checkpoints are still counted
    waiting: WaitingJob | None = None  # its order in the queue for places
    placement: Placement | None = None
    prechecks: dict[tuple[int, str], Precheck] = field(default_factory=dict)
    fence: FakeFence | None = None
    checkpoints_path: str | None = None
    checkpoints_of: str | None = None
    fenced_for: str = ""  # the submission of the newest fence
    has_saved_before: bool = False  # an earlier submission saved where that one does
    unwritable: Fact | None = None  # the fact that reported its storage as unwritable
