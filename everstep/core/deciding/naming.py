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
from everstep.core.facts import LASTED_S, START_FAILED, STORAGE_GIVEN_UP, Detail, Fact, is_late
from everstep.core.levels import HEALS, LASTS, RESCHEDULING, STEPS, FaultClass, Level, Owner
from everstep.core.spec import LadderRow, Policy, RelationRule, RepeatRule, Rule

NOTHING_TO_TRY = ("limit.", "place.", "checkpoint.none_left")
"""Kinds that end a phase outside of an incident; within one they only end a level."""
OF_A_PLACE = frozenset({"node", "device", "maintenance"})
"""Families that concern a job only while it has pods on the node."""
CANNOT_BEGIN = re.compile(
    r"can't open file '.*': \[Errno \d+\]"  # python train.py
    r"|python[\d.]*: No module named "  # python -m train
    r"|: cannot open .*: No such file"  # sh train.sh
)
"""Last line of an interpreter that could not read its script."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell's exit code says of the command it was given."""
LINES_SHOWN = 5
PLANNED_LEVELS = (Level.IN_PLACE, Level.POD, Level.ELASTIC, Level.JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A fault with its ladder and the remarks that explain both."""

    fault: Fault
    ladder: tuple[Level, ...]
    facts: tuple[Fact, ...]
    is_harmless: bool = False
    instead_of: Level | None = None
    remarks: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    is_fixed: bool = False  # the document has this ladder: it is not escalated
    is_asked: bool = False  # an operator or a rule requested its first level
    about: FaultClass | None = None  # the class before a rule of the user changed it
    replaces: tuple[int, ...] = ()  # slots whose pods have to be new, whatever the fault
    heals: tuple[DeviceRef, ...] = ()  # devices that may repair themselves while nothing runs
    beside: tuple[Fault, ...] = ()  # other hardware that is broken too
    later: tuple[str, ...] = ()  # facts that this answer leaves for the next one
    bad_size: int | None = None  # the number of nodes that this is the fault of
    begins_with_rollback: bool = False  # put in front of the ladder, for a suspected checkpoint


def relevant(inputs: DecisionInput) -> tuple[Fact, ...]:
    """The facts that are new to this job, of current processes, and on its nodes."""
    answered, nodes = frozenset(inputs.known), frozenset(inputs.homes.values())
    return tuple(
        fact
        for fact in inputs.facts
        if fact.id not in answered
        and not is_late(fact, generation=inputs.generation)
        and (_is_about(fact, nodes) or not inputs.is_placed)
    )


def _is_about(fact: Fact, nodes: frozenset[str]) -> bool:
    """Whether it is about a node of the job, or about no node at all.

    A slot counts too: while pods are placed it may be on a node that the state does not have yet.
    """
    if fact.node in nodes:
        return True
    return fact.family not in OF_A_PLACE and (fact.node is None or fact.slot is not None)


def name_fault(inputs: DecisionInput, facts: tuple[Fact, ...]) -> Diagnosis:
    """The fault that these facts are for this job. The group must not be empty.

    If the most severe class is only noted, the remaining facts are diagnosed instead.
    """
    diagnosis = _diagnosed(inputs, facts)
    if diagnosis.ladder[:1] != (Level.NOTE,):
        handled = (diagnosis.fault, name(facts)[0])
        return with_rest(diagnosis, other_diagnoses(inputs, facts, handled=handled))
    # The fact that named the fault is always among those left out: so this comes to an end.
    noted_classes = {diagnosis.about or diagnosis.fault.cls, name(facts)[0].cls}
    rest = tuple(
        f for f in facts if row_for(f).cls not in noted_classes and not row_for(f).is_harmless
    )
    other = name_fault(inputs, rest) if rest else diagnosis
    if other.ladder[:1] == (Level.NOTE,):
        return diagnosis
    return replace(other, facts=facts)


def _diagnosed(inputs: DecisionInput, facts: tuple[Fact, ...]) -> Diagnosis:
    fault, row = name(facts)
    ladder = row_of(inputs, fault)
    diagnosis = Diagnosis(
        fault=fault,
        ladder=ladder.levels,
        facts=facts,
        is_harmless=row.is_harmless,
        is_fixed=ladder.is_literal,
        occurrences=occurrences(facts, inputs.policy),
        heals=_devices(facts) if fault.cls in HEALS else (),
    )
    for circumstance in (
        _limit_reached,
        _never_began,
        _asked_level,
        _related,
        _repeated,
        _hot_switch_given_up,
    ):
        diagnosis = circumstance(inputs, diagnosis)
    rule = user_rule(inputs.policy.rules, facts)
    return diagnosis if rule is None else _ruled(inputs, diagnosis, *rule)


def _devices(facts: tuple[Fact, ...]) -> tuple[DeviceRef, ...]:
    devices = [
        DeviceRef(node=f.node, device=f.device)
        for f in facts
        if f.node is not None and f.device is not None and row_for(f).cls in HEALS
    ]
    return tuple(dict.fromkeys(devices))


def other_diagnoses(
    inputs: DecisionInput,
    facts: tuple[Fact, ...],
    *,
    handled: tuple[Fault, ...],
) -> tuple[Diagnosis, ...]:
    """Diagnoses of the facts that are not handled and that a restart does not remove."""
    places = {(fault.cls, node) for fault in handled for node in (*fault.nodes, None)}
    new = [
        fact
        for fact in facts
        if row_for(fact).cls in LASTS
        and not row_for(fact).is_harmless
        and (row_for(fact).cls, fact.node) not in places
    ]
    groups = (tuple(f for f in new if row_for(f).cls is cls) for cls in PRECEDENCE)
    diagnoses = (_diagnosed(inputs, group) for group in groups if group)
    return tuple(other for other in diagnoses if other.ladder[:1] != (Level.NOTE,))


def with_rest(diagnosis: Diagnosis, rest: tuple[Diagnosis, ...]) -> Diagnosis:
    """Add other diagnoses to this one where its restart can treat them too; the rest is for later.

    Devices that may heal do so while nothing runs. Other faulty hardware is avoided if pods are placed
    again anyway.
    """
    for other in rest:
        diagnosis = _along_with(diagnosis, other)
    return diagnosis


def ids(diagnoses: Iterable[Diagnosis]) -> tuple[str, ...]:
    return tuple(fact.id for one in diagnoses for fact in one.facts)


def _moves(diagnosis: Diagnosis) -> bool:
    """Whether its first level places pods again. Levels without steps are passed over."""
    first = next((level for level in diagnosis.ladder if STEPS[level]), None)
    return first in RESCHEDULING


def _along_with(diagnosis: Diagnosis, other: Diagnosis) -> Diagnosis:
    if other.heals and Level.IN_PLACE in other.ladder:
        remark = f"{other.fault.label} is to heal meanwhile"
        heals = tuple(dict.fromkeys((*diagnosis.heals, *other.heals)))
        return replace(diagnosis, heals=heals, remarks=(*diagnosis.remarks, remark))
    if {*other.fault.nodes} <= {*diagnosis.fault.nodes} and diagnosis.fault.is_hardware:
        return diagnosis
    if other.fault.is_hardware and _moves(diagnosis) and _moves(other):
        remark = f"along with {other.fault.label}"
        more_faults = (*diagnosis.beside, other.fault)
        return replace(diagnosis, beside=more_faults, remarks=(*diagnosis.remarks, remark))
    return replace(diagnosis, later=(*diagnosis.later, *ids([other])))


def row_of(inputs: DecisionInput, fault: Fault) -> LadderRow:
    """The document's ladder for this fault."""
    return inputs.policy.answer(
        fault.cls, fault.owner, code_level=fault.code_level, library=bool(inputs.can)
    )


def ends_at_hang(policy: Policy) -> bool:
    """Whether a hang is answered with the end of the job."""
    hang = Fact(id="hang", kind="hang.steps", at=0.0)
    if (ruled := user_rule(policy.rules, (hang,))) is not None:
        return ruled[0].action == "fail"
    row = row_for(hang)
    return policy.answer(row.cls, row.owner).levels[:1] in ((), (Level.FAIL,))


def _limit_reached(_inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """A limit of the document, or no place, checkpoint or storage for a job that never ran."""
    # A wait for storage ends here too, whichever component reported first that it cannot be written.
    given_up = any(fact.kind == STORAGE_GIVEN_UP for fact in diagnosis.facts)
    is_storage = given_up and diagnosis.fault.cls is FaultClass.STORAGE
    if not is_storage and not diagnosis.fault.kind.startswith(NOTHING_TO_TRY):
        return diagnosis
    return replace(diagnosis, ladder=(Level.FAIL,), is_fixed=True)


def _never_began(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """The command or its script cannot be found: where it never ran, no restart finds it either."""
    is_crash = diagnosis.fault.cls is FaultClass.CRASH and not diagnosis.is_fixed
    if (
        inputs.has_run
        or not is_crash
        or not any(is_start_in_vain(fact) for fact in diagnosis.facts)
    ):
        return diagnosis
    remark = "what never ran is not tried again"
    return replace(
        diagnosis, ladder=(Level.FAIL,), is_fixed=True, remarks=(*diagnosis.remarks, remark)
    )


def is_start_in_vain(fact: Fact) -> bool:
    """Whether the fact means that the command cannot run at all."""
    if fact.kind == START_FAILED:
        return True
    _, _, last = str(fact.details.get("log") or "").rstrip().rpartition("\n")
    is_missing = fact.details.get("exit_code") in (NOT_FOUND, NOT_EXECUTABLE)
    return fact.kind == "process.exit" and (is_missing or bool(CANNOT_BEGIN.search(last)))


def _hot_switch_given_up(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Once no pod stood by in time, what would move the job that way is noted."""
    moves = diagnosis.fault.cls in inputs.policy.stands_by and diagnosis.ladder[:1] != (Level.NOTE,)
    if not (inputs.no_standby and moves):
        return diagnosis
    remark = "no backup pod was ready in time before: the job stays"
    return replace(diagnosis, ladder=(Level.NOTE,), remarks=(*diagnosis.remarks, remark))


def _asked_level(_inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """A planned restart names its level."""
    if diagnosis.fault.cls is not FaultClass.PLANNED or diagnosis.is_harmless:
        return diagnosis
    level = min(diagnosis.facts, key=weight).details.get("level")
    ladder = (Level(str(level)),) if level in {*PLANNED_LEVELS} else diagnosis.ladder
    rest = tuple(level for level in (Level.POD, Level.JOB) if level not in ladder)
    ladder = ladder if Level.JOB in ladder else (*ladder, *rest)
    return replace(diagnosis, ladder=ladder, is_fixed=True, is_asked=True)


def occurrences(facts: tuple[Fact, ...], policy: Policy) -> tuple[Occurrence, ...]:
    """The device faults that later decisions count, or look for as the cause of another code."""
    causes = {rule.cause for rule in policy.relations}
    return tuple(
        Occurrence(node=f.node, device=f.device, code=f.code, at=f.at)
        for f in facts
        if f.kind == "device.fault" and LASTED_S not in f.details
        if not row_for(f).is_harmless or f.code in causes
        if f.node is not None and f.code is not None
        if f.device is not None or f.code in causes  # a switch between chips is of its node
    )


def _related(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """A code that is harmless by itself, soon after another one: the device of that one is at fault."""
    triggers = {f.code for f in diagnosis.facts if f.kind == "device.fault"}
    if not triggers or (diagnosis.ladder and diagnosis.fault.is_hardware):
        return diagnosis
    all_occurrences = (*inputs.occurrences, *diagnosis.occurrences)
    for rule in inputs.policy.relations:
        since = inputs.now - rule.window_s / inputs.time_scale
        causes = [o for o in all_occurrences if o.code == rule.cause and o.at >= since]
        if rule.trigger in triggers and causes:
            return _caused_by(inputs, diagnosis, rule, causes[-1])
    return diagnosis


def _caused_by(
    inputs: DecisionInput, diagnosis: Diagnosis, rule: RelationRule, cause: Occurrence
) -> Diagnosis:
    fault = replace(
        diagnosis.fault,
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
        diagnosis,
        fault=fault,
        ladder=row_of(inputs, fault).levels,
        is_harmless=False,
        remarks=(*diagnosis.remarks, remark),
    )


def _repeated(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """The same code on the same device once too often: healing it again leads nowhere."""
    fault = diagnosis.fault
    if fault.cls not in (FaultClass.DEVICE, FaultClass.DEVICE_USER):
        return diagnosis
    rule = inputs.policy.repeat_rule(fault.code)
    if rule is None:
        return diagnosis
    times, where = _times_shown(inputs, diagnosis, rule)
    if times < rule.times:
        return diagnosis
    remark = f"{fault.code} came {times} times within a day on {fault.where}{where}"
    if fault.cls is FaultClass.DEVICE_USER:
        return _without_in_place(diagnosis, remark)
    fatal = replace(fault, cls=FaultClass.DEVICE_FATAL, is_proven=False)
    return replace(
        diagnosis,
        fault=fatal,
        ladder=row_of(inputs, fatal).levels,
        instead_of=_in_place_of(diagnosis.ladder),
        remarks=(*diagnosis.remarks, remark),
        heals=(),
    )


def _times_shown(inputs: DecisionInput, diagnosis: Diagnosis, rule: RepeatRule) -> tuple[int, str]:
    """How often the device showed its code: over all jobs where the cluster counted, else for this job."""
    fault = diagnosis.fault
    key = (fault.node, fault.device, fault.code)
    counts = [c.times for c in inputs.counts if (c.node, c.device, c.code) == key]
    match = next((o for o in diagnosis.occurrences if (o.node, o.device, o.code) == key), None)
    if counts or match is None:
        return max(counts, default=0), ", counted over all jobs"
    times = count(
        (*inputs.occurrences, *diagnosis.occurrences),
        of=match,
        now=inputs.now,
        window_s=rule.window_s / inputs.time_scale,
        shared_s=SHARED_WITHIN_S / inputs.time_scale,
    )
    return times, ""


def _without_in_place(diagnosis: Diagnosis, remark: str) -> Diagnosis:
    return replace(
        diagnosis,
        ladder=tuple(level for level in diagnosis.ladder if level is not Level.IN_PLACE),
        instead_of=_in_place_of(diagnosis.ladder),
        remarks=(*diagnosis.remarks, f"{remark}, caused by its input: the node is not isolated"),
        fault=replace(diagnosis.fault, is_hardware=False),
    )


def _in_place_of(ladder: tuple[Level, ...]) -> Level | None:
    return Level.IN_PLACE if Level.IN_PLACE in ladder else None


def _ruled(inputs: DecisionInput, diagnosis: Diagnosis, rule: Rule, fact: Fact) -> Diagnosis:
    """A rule of the user, or of the dialect, has the first word. Broken hardware says nothing about sizes."""
    if rule.action == "resize" and diagnosis.fault.is_hardware:
        return diagnosis
    diagnosis = replace(
        diagnosis,
        remarks=(*diagnosis.remarks, _remark(rule)),
        is_fixed=True,
        instead_of=None,
        about=row_for(fact).cls,
        is_harmless=diagnosis.is_harmless and not _raises(rule, fact),
    )
    fixed: Mapping[str, tuple[Level, ...]] = {
        "fail": (Level.FAIL,),
        "note": (Level.NOTE,),
        "ignore": (Level.NOTE,),
        "levels": rule.levels,
        "resize": (Level.ELASTIC,),
    }
    if rule.action == "resize":
        diagnosis = _without_this_size(inputs, diagnosis)
    if rule.action in fixed:
        return replace(diagnosis, ladder=fixed[rule.action], is_asked=True)
    cls = rule.cls or FaultClass.UNKNOWN
    fault = replace(diagnosis.fault, cls=cls, message=fact.message or diagnosis.fault.message)
    return replace(diagnosis, fault=fault, ladder=row_of(inputs, fault).levels)


def _raises(rule: Rule, fact: Fact) -> bool:
    """Whether a rule that names the code of this fault answers it, which its level alone would only note."""
    is_answer = rule.action not in ("note", "ignore")
    return is_answer and rule.match.code is not None and fact.kind == "device.fault"


def _remark(rule: Rule) -> str:
    return f"{rule.origin} says {_match_sentence(rule)}" + (f": {rule.why}" if rule.why else "")


def _without_this_size(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    bad = len(inputs.living)
    return replace(
        diagnosis, bad_size=bad, remarks=(*diagnosis.remarks, f"not with {bad} nodes again")
    )


def _match_sentence(rule: Rule) -> str:
    if rule.action == "levels":
        return ", ".join(rule.levels)
    return f"class {rule.cls}" if rule.action == "class" else rule.action


def lines(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """The facts, the most severe first, a line each."""
    severest = sorted(facts, key=weight)[:LINES_SHOWN]
    rest = len(facts) - len(severest)
    shown_lines = tuple(_line(fact) for fact in severest)
    return (*shown_lines, f"and {rest} more") if rest else shown_lines


def _line(fact: Fact) -> str:
    """The fact with those details that its message does not contain, so that a cut line loses little."""
    hidden = ("level",) if fact.kind == "device.fault" else ()  # of its code: `explain` has it
    details = (
        f"{k}={v}"
        for k, v in fact.details.items()
        if k not in hidden and _is_shown(k, v, fact.message)
    )
    parts = (fact.kind, fact.code or "", fact.where, fact.message, *details)
    return cut(" ".join(part for part in parts if part), 200)


NOT_SHOWN = ("log", "log_path", "log_rules", "at_step")


def _is_shown(key: str, value: Detail, message: str) -> bool:
    if value is None or key in NOT_SHOWN:
        return False
    return not re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", message)
