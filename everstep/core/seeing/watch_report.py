"""The order of a watch and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from everstep.core.deciding.playbook import weight
from everstep.core.facts import (
    EXAMPLES_KEPT,
    Fact,
)
from everstep.core.recovering.placement import Need
from everstep.core.seeing.job_warnings import JobWarning
from everstep.core.seeing.progress import Yardstick
from everstep.core.slots import BySlot, Slots
from everstep.core.spec import Limits
from everstep.core.state import Learned
from everstep.core.world import Checkpoint, JobRef, PlaceOrder, PodView

News = Literal[
    "facts", "done", "back", "activity_resumed", "warned", "moved", "refresh", "interrupted"
]

REFRESH_S = 3600.0
"""Seconds after which a quiet watch reports: the job's own view of its progress is never older."""

POLL_AGAIN_S = 30.0
"""Seconds between two looks at a job whose steps, checkpoints or signs of life are awaited: none is news."""

DEFERRED_RETRY_S = 60.0
"""Seconds between two reports while an isolation is still to be sent to the quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparesOrder:
    """The pods that are to stand by while the job is watched, and no others."""

    places: PlaceOrder  # `recreate` has the numbers of the spares
    prechecks: bool = False  # whether the checks before a start run in them


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOrder:
    """What to watch, and what is already known."""

    job: JobRef
    cluster: str
    generation: int
    cursor: str
    since: float
    limits: Limits
    active: Slots
    slot_states: BySlot[str] = field(default_factory=dict)  # that the job has: the same is no news
    learned: Learned = field(default_factory=Learned)
    unreachable: Slots = ()
    suspected_at: float | None = None  # time of a hang that was only noted, until something moves
    warnings: tuple[JobWarning, ...] = ()
    seen_ids: frozenset[str] = frozenset()
    is_paused: bool = False  # facts are only gathered, and reported when the pause ends
    ends_at: float | None = None  # run_s of the phase
    ended_by: str = "its run_s"  # what sets `ends_at`, in the words of the document
    awaits: Yardstick | None = None  # progress that is reported at once: it ends rows of failures
    awaits_first_step: bool = False  # whether the first step of this generation is reported at once
    is_last_run: bool = False  # whether a failure without a newer checkpoint ends the phase
    ends_at_hang: bool = False  # whether a hang is answered with the end of the job
    refresh_s: float = REFRESH_S
    room_for: Need | None = None  # needs of a slot that was scaled away; None: all slots are there
    grows_by: int = 1  # least number of slots to add: numbers of nodes in between do not work
    grows_most: int = 1  # number of slots that the document wants and the job lacks
    # Grow after a checkpoint newer than this: it costs little then.
    grows_after: Checkpoint | None = None
    grows_from: float | None = None  # time before which a try to grow would be in vain
    # Nodes that the job avoids until their maintenance is over.
    in_maintenance: tuple[str, ...] = ()
    to_come: tuple[Fact, ...] = ()  # facts that become true at their time, unless they end before
    time_scale: float = 1.0
    spares: SparesOrder | None = None  # None: the document wants none


class PodSeen(NamedTuple):
    """A pod in a report. A named tuple, as a report may hold a thousand."""

    slot: int
    node: str
    uid: str
    state: str
    generation: int = 0
    started: bool = False
    schedule_count: int = 1
    process_start_count: int = 0


def pod_seen(pod: PodView) -> PodSeen:
    counts = pod.run.counts
    return PodSeen(
        slot=pod.slot,
        node=pod.node,
        uid=pod.uid,
        state=str(pod.state),
        generation=pod.generation,
        started=pod.run.started_at is not None,
        schedule_count=counts.get("schedule_count", 1),
        process_start_count=counts.get("process_start_count", 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReport:
    """What the watcher returns: why it returns, the facts, and how far the training is."""

    news: News
    now: float
    cursor: str
    facts: tuple[Fact, ...] = ()
    unreachable: Slots = ()
    learned: Learned = field(default_factory=Learned)
    step: int | None = None
    checkpoint: Checkpoint | None = None
    running_since: float | None = None
    alive_until: float | None = None  # the last sign of life of the stillest slot
    first_step_at: float | None = None
    generation: int = 0
    pods: tuple[PodSeen, ...] = ()  # those in another state than the job has
    lost_containers: Slots = ()  # slots whose container is no longer there
    can: tuple[str, ...] = ()  # capabilities that every rank declares
    remembered: int | None = None  # the newest step of which every rank has a whole snapshot
    # Ranks whose process an earlier generation started, each with that generation.
    older_ranks: BySlot[int] = field(default_factory=dict)
    warnings: tuple[JobWarning, ...] = ()
    maintenance_over: tuple[str, ...] = ()  # nodes of the order's `in_maintenance`


def all_started(report: WatchReport) -> Slots:
    """The slots of all pods, if each reported its start in the newest generation; else none."""
    started = [p.slot for p in report.pods if p.generation == report.generation and p.started]
    is_whole = report.generation > 0 and len(started) == len(report.pods)
    return tuple(sorted(started)) if is_whole else ()


def examples(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The weightiest facts, so that a thousand crashes fit where one does."""
    if len(facts) <= EXAMPLES_KEPT:
        return facts
    return tuple(sorted(facts, key=weight)[:EXAMPLES_KEPT])


def report_of_no_news(order: WatchOrder) -> WatchReport:
    """The report in place of that of a watch that was ended."""
    return WatchReport(
        news="interrupted",
        now=order.since,
        cursor=order.cursor,
        learned=order.learned,
        generation=order.generation,
        warnings=order.warnings,
    )
