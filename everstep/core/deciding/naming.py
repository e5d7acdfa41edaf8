"""From a group of facts to a fault and the ladder that answers it: rules of the user, repeats, history.

`playbook.py` says what one fact is called; here the job's own circumstances have their say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from everstep.core.bounds import cut
from everstep.core.deciding.decision import DeviceRef, Fault, Occurrence
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.playbook import PRECEDENCE, name, row_for, user_rule, weight
from everstep.core.deciding.repeats import SHARED_WITHIN_S, count
from everstep.core.facts import START_FAILED, STORAGE_GIVEN_UP, Detail, Fact, is_late
from everstep.core.levels import HEALS, LASTS, RESCHEDULING, FaultClass, Level, Owner
from everstep.core.spec import LadderRow, Policy, RelationRule, RepeatRule, Rule

NOTHING_TO_TRY = ("limit.", "place.", "checkpoint.none_left")
"""Kinds that end a phase outside of an incident; within one they only end a level."""
OF_A_PLACE = frozenset({"node", "device", "maintenance"})
"""Families that concern a job only while it is there, whatever slot they speak of."""
CANNOT_BEGIN = re.compile(
    r"can't open file '.*': \[Errno \d+\]"  # python train.py
    r"|python[\d.]*: No module named "  # python -m train
    r"|: cannot open .*: No such file"  # sh train.sh
)
"""What an interpreter says last of a script that it could not even read."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell's exit code says of the command it was given."""
LINES_SHOWN = 5
PLANNED_LEVELS = (Level.IN_PLACE, Level.POD, Level.ELASTIC, Level.JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A fault with the ladder that answers it and the words that explain both."""

    fault: Fault
    ladder: tuple[Level, ...]
    facts: tuple[Fact, ...]
    is_harmless: bool = False
    instead_of: Level | None = None
    remarks: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    is_fixed: bool = False  # the ladder was written by somebody: no escalation on it
    is_asked: bool = False  # somebody asked for its first level
    about: FaultClass | None = None  # what a rule of the user spoke of, if one did
    replaces: tuple[int, ...] = ()  # slots whose pods have to be new, whatever the fault says
    heals: tuple[DeviceRef, ...] = ()  # devices that may repair themselves while nothing runs
    beside: tuple[Fault, ...] = ()  # other hardware that is broken too
    later: tuple[str, ...] = ()  # facts that this answer leaves for the next one
    bad_size: int | None = None  # the number of nodes that this is the fault of
    leaves: bool = False  # its first level goes back behind a suspected checkpoint


def relevant(given: DecisionInput) -> tuple[Fact, ...]:
    """The facts that are news to this job: not told before, not of replaced processes, on its nodes."""
    known, nodes = frozenset(given.known), frozenset(given.homes.values())
    return tuple(
        fact
        for fact in given.facts
        if fact.id not in known
        and not is_late(fact, generation=given.generation)
        and (_is_about(fact, nodes) or not given.is_placed)
    )


def _is_about(fact: Fact, nodes: frozenset[str]) -> bool:
    """Whether it is about a node of the job, or about no node at all.

    A slot counts as well: while pods are placed it may be on a node that the books do not know yet.
    """
    if fact.node in nodes:
        return True
    return fact.family not in OF_A_PLACE and (fact.node is None or fact.slot is not None)


def name_fault(given: DecisionInput, facts: tuple[Fact, ...]) -> Named:
    """The fault that these facts are for this job. The group must not be empty.

    A class that is only noted does not swallow what else was seen: the rest speaks for itself.
    """
    named = _named(given, facts)
    if named.ladder[:1] != (Level.NOTE,):
        known = (named.fault, name(facts)[0])
        return with_rest(named, others(given, facts, known=known))
    noted = named.about or named.fault.cls
    rest = tuple(f for f in facts if row_for(f).cls is not noted and not row_for(f).is_harmless)
    other = name_fault(given, rest) if rest else named
    if other.ladder[:1] == (Level.NOTE,):
        return named
    return replace(other, facts=facts, occurrences=named.occurrences)


def _named(given: DecisionInput, facts: tuple[Fact, ...]) -> Named:
    fault, row = name(facts)
    ladder = row_of(given, fault)
    named = Named(
        fault=fault,
        ladder=ladder.levels,
        facts=facts,
        is_harmless=row.is_harmless,
        is_fixed=ladder.is_literal,
        occurrences=occurrences(facts, given.policy),
        heals=_devices(facts) if fault.cls in HEALS else (),
    )
    for circumstance in (_limit_reached, _never_began, _asked_level, _related, _repeated):
        named = circumstance(given, named)
    found = user_rule(given.policy.rules, facts)
    return named if found is None else _ruled(given, named, *found)


def _devices(facts: tuple[Fact, ...]) -> tuple[DeviceRef, ...]:
    found = [
        DeviceRef(node=f.node, device=f.device)
        for f in facts
        if f.node is not None and f.device is not None and row_for(f).cls in HEALS
    ]
    return tuple(dict.fromkeys(found))


def others(
    given: DecisionInput,
    facts: tuple[Fact, ...],
    *,
    known: tuple[Fault, ...],
) -> tuple[Named, ...]:
    """The other matters among these facts that a restart does not put right, each with its name."""
    places = {(fault.cls, node) for fault in known for node in (*fault.nodes, None)}
    new = [
        fact
        for fact in facts
        if row_for(fact).cls in LASTS
        and not row_for(fact).is_harmless
        and (row_for(fact).cls, fact.node) not in places
    ]
    groups = (tuple(f for f in new if row_for(f).cls is cls) for cls in PRECEDENCE)
    named = (_named(given, group) for group in groups if group)
    return tuple(other for other in named if other.ladder[:1] != (Level.NOTE,))


def with_rest(named: Named, rest: tuple[Named, ...]) -> Named:
    """What else was seen is answered along with it, or has its turn later.

    A device that may heal is asked to while nothing runs; other hardware is kept clear of when pods
    are placed anew anyway.
    """
    for other in rest:
        named = _along_with(named, other)
    return named


def ids(named: Iterable[Named]) -> tuple[str, ...]:
    return tuple(fact.id for one in named for fact in one.facts)


def _moves(named: Named) -> bool:
    """Whether its pods are placed anew, whatever is tried first."""
    return named.ladder[:1] != () and named.ladder[0] in RESCHEDULING


def _along_with(named: Named, other: Named) -> Named:
    if other.heals and Level.IN_PLACE in other.ladder:
        remark = f"{other.fault.label} is to heal meanwhile"
        heals = tuple(dict.fromkeys((*named.heals, *other.heals)))
        return replace(named, heals=heals, remarks=(*named.remarks, remark))
    if {*other.fault.nodes} <= {*named.fault.nodes} and named.fault.is_hardware:
        return named
    if other.fault.is_hardware and _moves(named) and _moves(other):
        remark = f"along with {other.fault.label}"
        beside = (*named.beside, other.fault)
        return replace(named, beside=beside, remarks=(*named.remarks, remark))
    return replace(named, later=(*named.later, *ids([other])))


def row_of(given: DecisionInput, fault: Fault) -> LadderRow:
    """How the document has this fault answered."""
    return given.policy.answer(
        fault.cls, fault.owner, code_level=fault.code_level, library=bool(given.can)
    )


def ends_at_hang(policy: Policy) -> bool:
    """Whether a hang is answered with the end of the job."""
    hang = Fact(id="hang", kind="hang.steps", at=0.0)
    if (ruled := user_rule(policy.rules, (hang,))) is not None:
        return ruled[0].action == "fail"
    row = row_for(hang)
    return policy.answer(row.cls, row.owner).levels[:1] in ((), (Level.FAIL,))


def _limit_reached(_given: DecisionInput, named: Named) -> Named:
    """A limit of the document, or no place, checkpoint or storage for a job that never ran."""
    # Whoever told first that it cannot be written, it was waited for.
    given_up = any(fact.kind == STORAGE_GIVEN_UP for fact in named.facts)
    is_storage = given_up and named.fault.cls is FaultClass.STORAGE
    if not is_storage and not named.fault.kind.startswith(NOTHING_TO_TRY):
        return named
    return replace(named, ladder=(Level.FAIL,), is_fixed=True)


def _never_began(given: DecisionInput, named: Named) -> Named:
    """The command or its script cannot be found: where it never ran, no restart finds it either."""
    is_crash = named.fault.cls is FaultClass.CRASH and not named.is_fixed
    if given.has_run or not is_crash or not any(is_start_in_vain(fact) for fact in named.facts):
        return named
    remark = "what never ran is not tried again"
    return replace(named, ladder=(Level.FAIL,), is_fixed=True, remarks=(*named.remarks, remark))


def is_start_in_vain(fact: Fact) -> bool:
    """Whether it says that there is nothing to run."""
    if fact.kind == START_FAILED:
        return True
    _, _, last = str(fact.details.get("log") or "").rstrip().rpartition("\n")
    is_missing = fact.details.get("exit_code") in (NOT_FOUND, NOT_EXECUTABLE)
    return fact.kind == "process.exit" and (is_missing or bool(CANNOT_BEGIN.search(last)))


def _asked_level(_given: DecisionInput, named: Named) -> Named:
    """A planned restart says its own level."""
    if named.fault.cls is not FaultClass.PLANNED or named.is_harmless:
        return named
    asked = min(named.facts, key=weight).details.get("level")
    ladder = (Level(str(asked)),) if asked in {*PLANNED_LEVELS} else named.ladder
    rest = tuple(level for level in (Level.POD, Level.JOB) if level not in ladder)
    ladder = ladder if Level.JOB in ladder else (*ladder, *rest)
    return replace(named, ladder=ladder, is_fixed=True, is_asked=True)


def occurrences(facts: tuple[Fact, ...], policy: Policy) -> tuple[Occurrence, ...]:
    """The device faults that later decisions count, or look for as the cause of another code."""
    causes = {rule.cause for rule in policy.relations}
    return tuple(
        Occurrence(node=f.node, device=f.device, code=f.code, at=f.at)
        for f in facts
        if f.kind == "device.fault" and (not row_for(f).is_harmless or f.code in causes)
        if f.node is not None and f.device is not None and f.code is not None
    )


def _related(given: DecisionInput, named: Named) -> Named:
    """A code that is harmless by itself, soon after another one: the device of that one is at fault."""
    triggers = {f.code for f in named.facts if f.kind == "device.fault"}
    if not triggers or (named.ladder and named.fault.is_hardware):
        return named
    seen = (*given.occurrences, *named.occurrences)
    for rule in given.policy.relations:
        since = given.now - rule.window_s / given.time_scale
        causes = [o for o in seen if o.code == rule.cause and o.at >= since]
        if rule.trigger in triggers and causes:
            return _caused_by(given, named, rule, causes[-1])
    return named


def _caused_by(given: DecisionInput, named: Named, rule: RelationRule, cause: Occurrence) -> Named:
    fault = replace(
        named.fault,
        cls=rule.cls,
        owner=Owner.INFRA,
        node=cause.node,
        device=cause.device,
        slot=None,
        code=cause.code,
        code_level=rule.level,
        nodes=(cause.node,),
        slots=(),
        is_hardware=rule.cls is FaultClass.DEVICE_FATAL,
        is_proven=False,
    )
    remark = f"{rule.trigger} within {rule.window_s:g} s of {rule.cause} makes it {rule.level}"
    return replace(
        named,
        fault=fault,
        ladder=row_of(given, fault).levels,
        is_harmless=False,
        remarks=(*named.remarks, remark),
    )


def _repeated(given: DecisionInput, named: Named) -> Named:
    """The same code on the same device once too often: healing it again leads nowhere."""
    fault = named.fault
    if fault.cls not in (FaultClass.DEVICE, FaultClass.DEVICE_USER):
        return named
    rule = given.policy.repeat_rule(fault.code)
    if rule is None:
        return named
    times, where = _times_shown(given, named, rule)
    if times < rule.times:
        return named
    remark = f"{fault.code} came {times} times within a day on {fault.where}{where}"
    if fault.cls is FaultClass.DEVICE_USER:
        return _without_in_place(named, remark)
    fatal = replace(fault, cls=FaultClass.DEVICE_FATAL, is_proven=False)
    return replace(
        named,
        fault=fatal,
        ladder=row_of(given, fatal).levels,
        instead_of=_in_place_of(named.ladder),
        remarks=(*named.remarks, remark),
        heals=(),
    )


def _times_shown(given: DecisionInput, named: Named, rule: RepeatRule) -> tuple[int, str]:
    """How often the device showed its code: over all jobs where the cluster counted, else for this job."""
    fault = named.fault
    key = (fault.node, fault.device, fault.code)
    counts = [c.times for c in given.counts if (c.node, c.device, c.code) == key]
    own = next((o for o in named.occurrences if (o.node, o.device, o.code) == key), None)
    if counts or own is None:
        return max(counts, default=0), ", counted over all jobs"
    times = count(
        (*given.occurrences, *named.occurrences),
        of=own,
        now=given.now,
        window_s=rule.window_s / given.time_scale,
        shared_s=SHARED_WITHIN_S / given.time_scale,
    )
    return times, ""


def _without_in_place(named: Named, remark: str) -> Named:
    return replace(
        named,
        ladder=tuple(level for level in named.ladder if level is not Level.IN_PLACE),
        instead_of=_in_place_of(named.ladder),
        remarks=(*named.remarks, f"{remark}, caused by its input: the node is not isolated"),
        fault=replace(named.fault, is_hardware=False),
    )


def _in_place_of(ladder: tuple[Level, ...]) -> Level | None:
    return Level.IN_PLACE if Level.IN_PLACE in ladder else None


def _ruled(given: DecisionInput, named: Named, rule: Rule, fact: Fact) -> Named:
    """A rule of the user, or of the dialect, has the first word. Broken hardware says nothing about sizes."""
    if rule.action == "resize" and named.fault.is_hardware:
        return named
    named = replace(
        named,
        remarks=(*named.remarks, _remark(rule)),
        is_fixed=True,
        instead_of=None,
        about=row_for(fact).cls,
    )
    fixed: Mapping[str, tuple[Level, ...]] = {
        "fail": (Level.FAIL,),
        "note": (Level.NOTE,),
        "ignore": (Level.NOTE,),
        "levels": rule.levels,
        "resize": (Level.ELASTIC,),
    }
    if rule.action == "resize":
        named = _without_this_size(given, named)
    if rule.action in fixed:
        return replace(named, ladder=fixed[rule.action], is_asked=True)
    cls = rule.cls or FaultClass.UNKNOWN
    fault = replace(named.fault, cls=cls, message=fact.message or named.fault.message)
    return replace(named, fault=fault, ladder=row_of(given, fault).levels)


def _remark(rule: Rule) -> str:
    return f"{rule.origin} says {_said(rule)}" + (f": {rule.why}" if rule.why else "")


def _without_this_size(given: DecisionInput, named: Named) -> Named:
    bad = len(given.living)
    return replace(named, bad_size=bad, remarks=(*named.remarks, f"not with {bad} nodes again"))


def _said(rule: Rule) -> str:
    if rule.action == "levels":
        return ", ".join(rule.levels)
    return f"class {rule.cls}" if rule.action == "class" else rule.action


def lines(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """What was seen, the weightiest first, a line each."""
    shown = sorted(facts, key=weight)[:LINES_SHOWN]
    rest = len(facts) - len(shown)
    shown_lines = tuple(_line(fact) for fact in shown)
    return (*shown_lines, f"and {rest} more") if rest else shown_lines


def _line(fact: Fact) -> str:
    """Of its details those that its message does not say: a line that is cut loses the least then."""
    hidden = ("level",) if fact.kind == "device.fault" else ()  # of its code: `explain` has it
    shown = ((k, v) for k, v in fact.details.items() if k not in hidden)
    details = (f"{k}={v}" for k, v in shown if _is_shown(k, v, fact.message))
    parts = (fact.kind, fact.code or "", fact.where, fact.message, *details)
    return cut(" ".join(part for part in parts if part), 200)


NOT_SHOWN = ("log", "log_path", "log_rules", "at_step")


def _is_shown(key: str, value: Detail, message: str) -> bool:
    if value is None or key in NOT_SHOWN:
        return False
    return not re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", message)
