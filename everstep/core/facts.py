"""Facts: what was observed, by which source, where and when. An open set: `kind` is a dotted string.

A fact has no meaning of its own; `playbook.py` gives it one. Its source makes its identity (`id`), so that
an observation reported twice is one fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from everstep.core.bounds import NAME_MOST, finite, plain, plain_end, plain_start

EXAMPLES_KEPT = 20
"""Facts are grouped: this many are kept as they are, the others only counted."""

MESSAGE_MOST = 500
"""Characters of what a fact says of itself: a record repeats it, and there are fifty."""
LOG_MOST = 4_096
"""Characters of the newest lines of a process that ended."""
LOGS_MOST = 400_000
"""Characters of the lines of all processes that ended at once; nothing repeats them."""

ALL_ENDED = "process.all_ended"
"""Nothing runs and the reason was only noted: the one fact that cannot be answered with a note."""

HEAL_FAILED = "device.heal_failed"

SCALE_OUT = "scale.out"
"""There is room for slots that were scaled away."""

STANDBY_NONE, STANDBY_OVER = "standby.none", "standby.over"
"""No pod stood by in time; or the training ended before one did."""

START_FAILED = "start.failed"
"""The command could not be executed at all."""

NUMBERS_CHECKED = "numeric.checked"
"""A run that checked its numbers came to its end."""

PODS_FAILED = "pod.start_failures"
"""The pods of a slot failed one after the other before their agent answered."""

NONE_OLDER = "checkpoint.none_older"
"""There is a good checkpoint, but none to go back to."""

RESTART_REQUESTED = "operator.restart"

WORLD_MOVED = "world.moved"
"""Another run of the job left it stopped. Where other facts came with this one, they name the fault."""

PREFETCH_FAILED, PREFETCH_DONE = "prefetch.failed", "prefetch.done"
"""How a prefetch command ended that ran beside the training, for so many `nodes` of a `phase` (details)."""

STORAGE_GIVEN_UP = "storage.given_up"
"""The storage was waited for as long as the document allows."""

LASTED_S = "lasted_s"
"""A detail: the fault was reported before, and has lasted for so long since."""

Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sighting. `generation` is 0 for what does not belong to processes (devices, nodes, jobs)."""

    id: str
    kind: str
    at: float
    generation: int = 0
    node: str | None = None
    slot: int | None = None
    rank: int | None = None
    device: int | None = None
    code: str | None = None
    message: str = ""
    details: Mapping[str, Detail] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return self.kind.partition(".")[0]

    @property
    def where(self) -> str:
        """`gpu-07/3`, `gpu-07`, `slot 2` or nothing, as a person would say it."""
        if self.node is not None:
            return self.node if self.device is None else f"{self.node}/{self.device}"
        return "" if self.slot is None else f"slot {self.slot}"


class ObserverReport(NamedTuple):
    """The facts of one message of an external observer, and a sentence for each wrong part of it."""

    facts: tuple[Fact, ...] = ()
    dropped: tuple[str, ...] = ()
    lists_all_of: str | None = None  # a node: if nothing is dropped, its other faults are over


LASTS_UNTIL_HEALED = "lasts"
"""Detail of a reported fault that is there until the observer says that it is over."""

LIST_VERSION = "list_version"
"""Detail of a fault from a list of all faults of its node: the version of the list, which grows."""

REPORTED = "report/"
"""How the IDs of facts begin that an operator or a tool reports to a job. No cluster shows their end."""


def is_reported(fact: Fact) -> bool:
    """Whether an operator or a tool reported it, and not the cluster."""
    return fact.id.startswith(REPORTED)


PROCESS_FAMILIES = frozenset({"process", "hang", "agent", "pod", "start"})
"""Facts about processes: those of an older generation are late, not news."""


COLLECTIVE = "network.collective"
"""A rank was interrupted in a collective operation, and no rank of its pod has ended."""


def gone_id(uid: str) -> str:
    """The identity of the fact that the agent in this pod ended without an order."""
    return f"{uid}/gone"


def is_late(fact: Fact, *, generation: int) -> bool:
    """Whether the fact is about processes that were already replaced."""
    is_of_processes = fact.family in PROCESS_FAMILIES or fact.kind == COLLECTIVE
    return is_of_processes and 0 < fact.generation < generation


def is_fenced_since(fact: Fact, *, generation: int) -> bool:
    """Whether a run that was replaced reported it of the storage, where this generation has put its fence.

    Each agent of a job reports the folder that they share, and some do so once the first report is answered.
    """
    return fact.family == "storage" and 0 < fact.generation < generation


def bounded(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The facts as they are carried on, in a few words each: together they fit into what an activity
    may answer, however long the last words of a script are, and however many scripts end at once.
    """
    listed = tuple(facts)
    return tuple(
        _bounded(fact, log_most=min(LOG_MOST, LOGS_MOST // len(listed))) for fact in listed
    )


def _bounded(fact: Fact, *, log_most: int) -> Fact:
    return replace(
        fact,
        id=plain(fact.id),
        kind=plain(fact.kind),
        at=finite(fact.at),
        node=None if fact.node is None else plain(fact.node),
        code=None if fact.code is None else plain_start(fact.code, NAME_MOST),
        message=plain_start(fact.message, MESSAGE_MOST),
        details={
            plain(key): _bounded_detail(key, value, log_most) for key, value in fact.details.items()
        },
    )


def _bounded_detail(key: str, value: Detail, log_most: int) -> Detail:
    if isinstance(value, float):
        return finite(value)
    if not isinstance(value, str):
        return value
    return plain_end(value, log_most) if key == "log" else plain_start(value, MESSAGE_MOST)


def distinct(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The facts without repeats: of each ID the first."""
    unique = dict[str, Fact]()
    for fact in facts:
        unique.setdefault(fact.id, fact)
    return tuple(unique.values())
