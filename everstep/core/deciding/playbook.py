"""Maps facts to fault classes: ordered rows, first match wins, the last row catches everything.

A row has the class, its owner, and the reason. `name` turns a group of facts into one fault: that of the
weightiest class, and of several the earliest; all others are consequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from everstep.core.deciding.decision import Fault
from everstep.core.facts import COLLECTIVE, NUMBERS_CHECKED, WORLD_MOVED, Detail, Fact
from everstep.core.levels import FaultClass, Owner
from everstep.core.patterns import is_found
from everstep.core.spec import Match, Rule
from everstep.protocol.exits import Exit

_C = FaultClass

PRECEDENCE: tuple[FaultClass, ...] = (
    _C.PREEMPTED,
    _C.NODE,
    _C.DEVICE_FATAL,
    _C.PRECHECK,
    _C.DEVICE,
    _C.DEVICE_USER,
    _C.MAINTENANCE,
    _C.STORAGE,
    _C.CHECKPOINT,
    _C.NETWORK,
    _C.NUMERIC,
    _C.PLANNED,
    _C.UNKNOWN,
    _C.CRASH,
    _C.HANG,
    _C.UNREACHABLE,
    _C.SUBHEALTH,
    _C.SLOW,
)
"""The class that names a group of facts, weightiest first: a lost node explains the crash it caused."""


class Condition(NamedTuple):
    """What has to hold of a fact beside its kind."""

    holds: Callable[[Fact], bool]
    text: str  # as in `it matches if {text}`


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookRow:
    """One row: the kinds it matches (a trailing `.` matches a whole family), and what they are."""

    kinds: tuple[str, ...]
    cls: FaultClass
    owner: Owner
    why: str
    only_if: Condition | None = None
    is_hardware: bool = False
    is_proven: bool = True
    is_harmless: bool = False  # only noted, whatever the ladder of its class says
    names_its_class: bool = False  # before others of its class, whichever was seen first

    @property
    def proves_broken(self) -> bool:
        """Whether the node of such a fact is broken for certain."""
        return self.is_hardware and self.is_proven

    def matches(self, fact: Fact) -> bool:
        """Whether the row names this fact, which has one of its kinds."""
        return self.only_if is None or self.only_if.holds(fact)

    def has_kind(self, kind: str) -> bool:
        return any(_kind_matches(pattern, kind) for pattern in self.kinds)


def _kind_matches(pattern: str, kind: str) -> bool:
    return kind.startswith(pattern) if pattern.endswith(".") else kind == pattern


def _severity(*names: str) -> Callable[[Fact], bool]:
    return lambda fact: fact.details.get("severity") in names


def _user_induced(fact: Fact) -> bool:
    return fact.details.get("user_induced") is True


def _is_sub_healthy(fact: Fact) -> bool:
    return fact.details.get("sub_healthy") is True


def _cannot_heal(fact: Fact) -> bool:
    """Whether the device is not to be healed: by the severity, below `critical` always, else by `heals`.

    So healing is tried even if the report of a minor fault says that it will fail.
    """
    severity = fact.details.get("severity")
    return severity == "critical" or (severity is None and fact.details.get("heals") is False)


def _is_hardware(fact: Fact) -> bool:
    return fact.details.get("hardware") is True


GOOD_NEWS = (
    *("device.healed", "node.up", "storage.writable"),
    *("agent.back", "capacity.free", "world.adopted"),
)

PLAYBOOK: tuple[PlaybookRow, ...] = (
    # Good news and warnings: worth a line in the history, nothing else.
    PlaybookRow(
        kinds=GOOD_NEWS,
        cls=_C.SUBHEALTH,
        owner=Owner.INFRA,
        is_harmless=True,
        why="it got better by itself",
    ),
    PlaybookRow(
        kinds=("prefetch.",),
        cls=_C.SUBHEALTH,
        owner=Owner.USER,
        is_harmless=True,
        why="a number of nodes was tried beside the training",
    ),
    # Before the severity: a sub-healthy device must not stop a job that trains, however severe its code is.
    PlaybookRow(
        kinds=("device.fault",),
        only_if=Condition(_is_sub_healthy, "its code means sub-health"),
        cls=_C.SUBHEALTH,
        owner=Owner.INFRA,
        why="the device works, but not as it should",
    ),
    PlaybookRow(
        kinds=("device.fault",),
        only_if=Condition(_severity("warning"), "its severity is warning"),
        cls=_C.SUBHEALTH,
        owner=Owner.INFRA,
        is_harmless=True,
        why="a warning needs no action",
    ),
    # Devices. Critical faults are not healed; user-induced ones are no hardware faults.
    PlaybookRow(
        kinds=("device.fault",),
        only_if=Condition(_user_induced, "its code is one that the user's input causes"),
        cls=_C.DEVICE_USER,
        owner=Owner.USER,
        why="the code is caused by what the device was fed",
    ),
    PlaybookRow(
        kinds=("device.fault",),
        only_if=Condition(_cannot_heal, "it is critical, or has no severity and does not heal"),
        cls=_C.DEVICE_FATAL,
        owner=Owner.INFRA,
        is_hardware=True,
        why="the device cannot repair itself",
    ),
    PlaybookRow(
        kinds=("device.fault",),
        cls=_C.DEVICE,
        owner=Owner.INFRA,
        is_hardware=True,
        why="the device may repair itself",
    ),
    PlaybookRow(
        kinds=("device.heal_failed",),
        cls=_C.DEVICE_FATAL,
        owner=Owner.INFRA,
        is_hardware=True,
        why="the device did not repair itself",
    ),
    # Nodes. Silence that lasted long enough is the same answer, but an inference.
    PlaybookRow(
        kinds=("node.silent",),
        cls=_C.NODE,
        owner=Owner.INFRA,
        is_hardware=True,
        is_proven=False,
        why="the node was silent for too long and no other one went on",
    ),
    PlaybookRow(
        kinds=("node.unhealthy",),
        cls=_C.NODE,
        owner=Owner.INFRA,
        is_hardware=True,
        why="a monitor of the cluster says the node is broken",
    ),
    PlaybookRow(
        kinds=("node.",),
        cls=_C.NODE,
        owner=Owner.INFRA,
        is_hardware=True,
        why="the cluster says the node is out of service",
    ),
    # Checks before the start: faulty hardware is isolated, a bad environment only avoided.
    PlaybookRow(
        kinds=("precheck.",),
        only_if=Condition(_is_hardware, "the check found faulty hardware"),
        cls=_C.PRECHECK,
        owner=Owner.INFRA,
        is_hardware=True,
        names_its_class=True,
        why="a check before the start found faulty hardware",
    ),
    PlaybookRow(
        kinds=("precheck.",),
        cls=_C.PRECHECK,
        owner=Owner.INFRA,
        why="a check before the start failed on sound hardware",
    ),
    # The cluster wants its machine back, or has none.
    PlaybookRow(
        kinds=("job.preempted", "pod.preempted"),
        cls=_C.PREEMPTED,
        owner=Owner.INFRA,
        why="a more important job needs the place",
    ),
    PlaybookRow(
        kinds=("pod.evicted",),
        cls=_C.PREEMPTED,
        owner=Owner.INFRA,
        why="the cluster takes the place back",
    ),
    PlaybookRow(
        kinds=("maintenance.", "pod.drained"),
        cls=_C.MAINTENANCE,
        owner=Owner.OPERATOR,
        why="the node is about to be serviced",
    ),
    PlaybookRow(
        kinds=("place.",),
        cls=_C.NODE,
        owner=Owner.INFRA,
        why="there is no place for the job",
    ),
    # What the job works with.
    PlaybookRow(
        kinds=("storage.",),
        cls=_C.STORAGE,
        owner=Owner.INFRA,
        why="the storage cannot be written",
    ),
    PlaybookRow(
        kinds=("checkpoint.",),
        cls=_C.CHECKPOINT,
        owner=Owner.UNKNOWN,
        why="the newest checkpoint is not good",
    ),
    PlaybookRow(
        kinds=("network.",),
        cls=_C.NETWORK,
        owner=Owner.INFRA,
        why="the network between the ranks failed",
    ),
    PlaybookRow(
        kinds=(NUMBERS_CHECKED,),
        cls=_C.PLANNED,
        owner=Owner.OPERATOR,
        why="its numbers were checked for as long as they were to be",
    ),
    PlaybookRow(
        kinds=("numeric.",),
        cls=_C.NUMERIC,
        owner=Owner.USER,
        why="the numbers went wrong",
    ),
    # The training processes themselves.
    PlaybookRow(
        kinds=("pod.oom_killed",),
        cls=_C.CRASH,
        owner=Owner.USER,
        why="the container used more memory than its limit",
    ),
    PlaybookRow(
        kinds=("pod.deleted",),
        cls=_C.CRASH,
        owner=Owner.UNKNOWN,
        names_its_class=True,
        why="the pod was deleted from outside, and its ranks end with it",
    ),
    PlaybookRow(
        kinds=("process.", "agent.", "pod.", "start."),
        cls=_C.CRASH,
        owner=Owner.UNKNOWN,
        why="a training process ended by itself",
    ),
    PlaybookRow(
        kinds=("hang.",),
        cls=_C.HANG,
        owner=Owner.UNKNOWN,
        why="nothing moved for longer than it ever took",
    ),
    PlaybookRow(
        kinds=("unreachable.",),
        cls=_C.UNREACHABLE,
        owner=Owner.UNKNOWN,
        is_proven=False,
        why="it cannot be reached: its state is unknown, so nothing is done",
    ),
    # Before its family: no strategy for sub-healthy devices restarts a job for these.
    PlaybookRow(
        kinds=("subhealth.node", "subhealth.lease"),
        cls=_C.SUBHEALTH,
        owner=Owner.INFRA,
        is_harmless=True,
        why="the cluster doubts the node; a rank that suffers from it shows that by itself",
    ),
    PlaybookRow(
        kinds=("subhealth.",),
        cls=_C.SUBHEALTH,
        owner=Owner.INFRA,
        why="it works, but not as it should",
    ),
    PlaybookRow(
        kinds=("slow.",),
        cls=_C.SLOW,
        owner=Owner.UNKNOWN,
        why="it works, but slower than the others",
    ),
    # Requests, and changes that were planned.
    PlaybookRow(
        kinds=("operator.", "scale.", "world."),
        cls=_C.PLANNED,
        owner=Owner.OPERATOR,
        why="it was requested",
    ),
    PlaybookRow(
        kinds=("limit.",),
        cls=_C.PLANNED,
        owner=Owner.USER,
        why="the job reached a limit of its document",
    ),
)

CATCH_ALL = PlaybookRow(
    kinds=(),
    cls=FaultClass.UNKNOWN,
    owner=Owner.UNKNOWN,
    why="the kind of this fact is unknown, so the reaction is that to a crash",
)


KINDS_CACHED = 256
"""More than the kinds of facts that we make; a reporter may send any other."""


def row_for(fact: Fact) -> PlaybookRow:
    """The first row that matches the fact. Unknown kinds match the last row."""
    return next((row for row in rows_of(fact.kind) if row.matches(fact)), CATCH_ALL)


@lru_cache(maxsize=KINDS_CACHED)
def rows_of(kind: str) -> tuple[PlaybookRow, ...]:
    """The rows of a kind. A decision reads the row of each of its facts several times."""
    return tuple(row for row in PLAYBOOK if row.has_kind(kind))


FOLLOWS_OTHERS = frozenset({WORLD_MOVED, COLLECTIVE})
"""Kinds of facts that name a fault only where there is no other one."""


def weight(fact: Fact) -> tuple[bool, int, bool, float]:
    """Sorts a group: what is no cause by itself last, then by precedence of the class, then by time.

    Within a class a fact that names it comes first.
    """
    row = row_for(fact)
    is_no_cause = row.is_harmless or fact.kind in FOLLOWS_OTHERS
    return is_no_cause, PRECEDENCE.index(row.cls), not row.names_its_class, fact.at


def name(facts: Iterable[Fact]) -> tuple[Fault, PlaybookRow]:
    """The fault that a group of facts is, and the row that says so. The group must not be empty."""
    group = sorted(facts, key=weight)
    naming_fact = group[0]
    row = row_for(naming_fact)
    same = [
        fact for fact in group if row_for(fact).cls is row.cls and not row_for(fact).is_harmless
    ]
    proven_nodes = _unique(fact.node for fact in same if row_for(fact).proves_broken)
    sound = (fact.node for fact in same if row.is_hardware and not row_for(fact).is_hardware)
    return (
        Fault(
            cls=row.cls,
            kind=naming_fact.kind,
            at=min(fact.at for fact in group),
            owner=row.owner,
            node=naming_fact.node,
            slot=naming_fact.slot,
            rank=naming_fact.rank,
            device=naming_fact.device,
            code=naming_fact.code,
            code_level=_code_level(naming_fact),
            message=_message(naming_fact) or row.why,
            nodes=_unique(fact.node for fact in same),
            slots=tuple(sorted({fact.slot for fact in same if fact.slot is not None})),
            is_hardware=row.is_hardware,
            proven_nodes=proven_nodes,
            sound_nodes=_unique(node for node in sound if node not in proven_nodes),
        ),
        row,
    )


def _code_level(fact: Fact) -> str | None:
    level = fact.details.get("level")
    return level if fact.kind == "device.fault" and isinstance(level, str) else None


def _message(fact: Fact) -> str:
    """What the fact says of itself, in words: its message, or how a process ended."""
    if fact.message and fact.message != f"{fact.code} on {fact.where}":
        return fact.message
    parts = [Exit.in_details(fact.details), fact.details.get("exception")]
    return ": ".join(filter(None, (str(part or "") for part in parts)))


def _unique(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None))


def user_rule(rules: Iterable[Rule], facts: Iterable[Fact]) -> tuple[Rule, Fact] | None:
    """The first of the user's rules that some fact of the group fulfils, with that fact."""
    group = sorted(facts, key=weight)
    return next(((r, f) for r in rules for f in group if fulfils(f, r.match)), None)


def fulfils(fact: Fact, match: Match) -> bool:
    """Whether the fact fulfils all keys that the match gives."""
    details = fact.details
    return all(
        (
            not match.exit_code or details.get("exit_code") in match.exit_code,
            not match.signal or details.get("signal") in match.signal,
            _matches(match.exception, details.get("exception")),
            _is_printed(match.log, details),
            match.kind is None or _kind_matches(match.kind, fact.kind),
            match.code is None or match.code == fact.code,
            match.cls is None or match.cls is row_for(fact).cls,
        )
    )


def log_rules(rules: Iterable[Rule]) -> dict[str, str]:
    """Patterns of log rules by name, for agents to match with the last lines of a rank."""
    patterns = (rule.match.log for rule in rules)
    return {log_rule(pattern): pattern for pattern in patterns if pattern is not None}


def log_rule(pattern: str) -> str:
    """The same name for the same pattern, in whichever rule."""
    return hashlib.sha256(pattern.encode(errors="replace")).hexdigest()[:8]


def _is_printed(pattern: str | None, details: Mapping[str, Detail]) -> bool:
    """Whether the agent reports the pattern as matched, or the lines in the fact match it."""
    if pattern is None or log_rule(pattern) in str(details.get("log_rules")).split(","):
        return True
    return _matches(pattern, details.get("log"))


def _matches(pattern: str | None, text: object) -> bool:
    return pattern is None or (isinstance(text, str) and is_found(pattern, text))
