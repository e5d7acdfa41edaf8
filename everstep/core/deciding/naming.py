"""From a group of facts to a fault and the ladder that answers it: rules of the user, repeats, history.

`playbook.py` says what one fact is called; here the job's own circumstances have their say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from everstep.core.bounds import cut
from everstep.core.counting.occurrences import SHARED_WITHIN_S, Occurrence, count
from everstep.core.counting.relations import first_relation
from everstep.core.deciding.decision import DeviceRef, Fault
from everstep.core.deciding.decision_input import DecisionInput
from everstep.core.deciding.end_causes import cause_of
from everstep.core.deciding.playbook import PRECEDENCE, name, row_for, user_rule, weight
from everstep.core.deciding.run_ends import run_end
from everstep.core.facts import (
    LASTED_S,
    PODS_FAILED,
    START_FAILED,
    STORAGE_GIVEN_UP,
    Detail,
    Fact,
    is_late,
)
from everstep.core.levels import (
    ALL_STAY,
    HEALS,
    LASTS,
    NEVER_BILLED,
    RESCHEDULING,
    STAYS_WHERE_SOUND,
    STEPS,
    FaultClass,
    Level,
    Owner,
    Step,
)
from everstep.core.spec import LadderRow, Policy, RepeatRule, Rule

FAILS_AT_ONCE = ("limit.", "place.", "checkpoint.none_left")
"""Kinds of fault that end a phase. If a step of an incident fails with one, `decide._step_down` answers it
instead."""
OF_A_PLACE = frozenset({"node", "device", "maintenance"})
"""Families that concern a job only while it has pods on the node."""
CANNOT_BEGIN = re.compile(
    r"can't open file '.*': \[Errno \d+\]"  # python train.py
    r"|python[\d.]*: No module named "  # python -m train
    r"|: cannot open .*: No such file"  # sh train.sh
)
"""Last line of an interpreter that could not read its script."""
IMPORT = re.compile(r"(\w+\.)*(ModuleNotFound|Import)Error\b")
"""The exception of a script that lacks a module, or a part of one."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell's exit code says of the command it was given."""
LINES_SHOWN = 5
DETAILS_LEFT_OUT = ("log", "log_path", "log_rules", "at_step")
"""Details of a fact that its line does not have."""
MOVES_ALONG = frozenset({FaultClass.STORAGE, FaultClass.CHECKPOINT, FaultClass.NUMERIC})
"""Faults of what the job works with: it has them on whatever nodes it runs."""
PLANNED_LEVELS = (Level.IN_PLACE, Level.POD, Level.ELASTIC, Level.JOB)
"""Levels that an operator may request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A fault with its ladder and the remarks that explain both."""

    fault: Fault
    ladder: tuple[Level, ...]
    facts: tuple[Fact, ...]
    # The playbook only notes such a fact, whatever the ladder of its class.
    is_harmless: bool = False
    instead_of: Level | None = None  # the level that failed, or `in_place` if the ladder lost it
    remarks: tuple[str, ...] = ()  # parts of the reason
    occurrences: tuple[Occurrence, ...] = ()  # device faults of these facts that rules count
    ladder_is_final: bool = False  # no level of it is left out, and none is put before it
    is_requested: bool = False  # an operator or a rule requested its first level
    class_before_rule: FaultClass | None = None  # None: no rule of the user applied
    replaces: tuple[int, ...] = ()  # slots that need new pods, whatever the fault
    heals: tuple[DeviceRef, ...] = ()  # devices that may repair themselves while nothing runs
    other_faults: tuple[Fault, ...] = ()  # other broken hardware, left by the same restart
    waits_for_storage: bool = False  # its restart waits for storage that has a fault as well
    facts_for_later: tuple[str, ...] = ()  # IDs of facts that the next decision answers
    bad_size: int | None = None  # a number of nodes that does not work
    elsewhere_helps: bool = False  # other nodes need not have what ended it
    begins_with_rollback: bool = False  # for a suspected checkpoint, before the ladder of the fault

    @property
    def is_only_noted(self) -> bool:
        return self.ladder[:1] == (Level.NOTE,)

    @property
    def ends_phase(self) -> bool:
        """Whether the phase fails at once."""
        return self.ladder[:1] == (Level.FAIL,)


def relevant(inputs: DecisionInput) -> tuple[Fact, ...]:
    """The new facts of current processes on the job's nodes; on any node while it has no pods."""
    answered_ids, nodes = frozenset(inputs.answered_ids), frozenset(inputs.nodes_by_slot.values())
    return tuple(
        fact
        for fact in inputs.facts
        if fact.id not in answered_ids
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
    diagnosis = _diagnose(inputs, facts)
    fault_of_playbook, _ = name(facts)
    if not diagnosis.is_only_noted:
        # Both: the job's circumstances or a rule may have changed the class that the playbook gave.
        handled = (diagnosis.fault, fault_of_playbook)
        return with_others(diagnosis, other_diagnoses(inputs, facts, handled=handled))
    noted_classes = {diagnosis.class_before_rule or diagnosis.fault.cls, fault_of_playbook.cls}
    facts_of_other_classes = tuple(
        f for f in facts if row_for(f).cls not in noted_classes and not row_for(f).is_harmless
    )
    if not facts_of_other_classes:
        return diagnosis
    # Fewer facts than before: the one that named this fault is not among them.
    other = name_fault(inputs, facts_of_other_classes)
    return diagnosis if other.is_only_noted else replace(other, facts=facts)


def _diagnose(inputs: DecisionInput, facts: tuple[Fact, ...]) -> Diagnosis:
    """The fault by the playbook, changed by the job's circumstances, then by its rules."""
    fault, row = name(facts)
    ladder = ladder_row(inputs, fault)
    diagnosis = Diagnosis(
        fault=fault,
        ladder=ladder.levels,
        facts=facts,
        is_harmless=row.is_harmless,
        ladder_is_final=ladder.is_literal,
        occurrences=occurrences(facts, inputs.policy),
        heals=_devices(facts) if fault.cls in HEALS else (),
    )
    # In this order: a later one may override the ladder of an earlier one.
    for apply_circumstance in (
        _fail_at_limit,
        _fail_if_it_cannot_begin,
        _try_imports_once_more,
        _use_requested_level,
        _blame_related_device,
        _escalate_repeated_code,
        _note_without_standby,
        _explain_end,
    ):
        diagnosis = apply_circumstance(inputs, diagnosis)
    rule_and_fact = user_rule(inputs.policy.rules, facts)
    return diagnosis if rule_and_fact is None else _apply_rule(inputs, diagnosis, *rule_and_fact)


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
    """Diagnoses of the facts that are not handled and that a restart does not remove, one per class."""
    # None: a fact of a handled class that names no node is handled with it.
    handled_places = {(fault.cls, node) for fault in handled for node in (*fault.nodes, None)}
    open_facts = [
        fact
        for fact in facts
        if row_for(fact).cls in LASTS
        and not row_for(fact).is_harmless
        and (row_for(fact).cls, fact.node) not in handled_places
    ]
    groups = (tuple(f for f in open_facts if row_for(f).cls is cls) for cls in PRECEDENCE)
    diagnoses = (_diagnose(inputs, group) for group in groups if group)
    return tuple(other for other in diagnoses if not other.is_only_noted)


def with_others(diagnosis: Diagnosis, rest: tuple[Diagnosis, ...]) -> Diagnosis:
    """Treat the other diagnoses with the restart of this one where that is possible, else later."""
    for other in rest:
        diagnosis = _with_other(diagnosis, other)
    return diagnosis


def fact_ids(diagnoses: Iterable[Diagnosis]) -> tuple[str, ...]:
    return tuple(fact.id for one in diagnoses for fact in one.facts)


def _first_level(diagnosis: Diagnosis) -> Level | None:
    """The first level that does something to processes; those that keep all of them are passed over."""
    acting = (level for level in diagnosis.ladder if STEPS[level] and level not in ALL_STAY)
    return next(acting, None)


def places_pods(diagnosis: Diagnosis) -> bool:
    """Whether its first level places pods again, at least those of broken hardware."""
    first = _first_level(diagnosis)
    return first in RESCHEDULING or first in STAYS_WHERE_SOUND


def _answers(diagnosis: Diagnosis, other: Diagnosis) -> bool:
    """Whether the answer to the diagnosis is one to the other fault as well."""
    if other.fault.cls not in MOVES_ALONG:
        return _leaves_nodes_of(diagnosis, other.fault)
    # Going back answers the data as well, if the main fault is another one. Two faults of the data get a
    # restart each.
    goes_back = _first_level(diagnosis) is _first_level(other) is Level.ROLLBACK
    return goes_back and diagnosis.fault.cls not in MOVES_ALONG


def _waits_for(diagnosis: Diagnosis, other: Diagnosis) -> bool:
    """Whether the other fault is one of storage for which the restart of the diagnosis may wait.

    A place that the cluster takes back is left at once.
    """
    first, other_first = _first_level(diagnosis), _first_level(other)
    may_wait = first is not None and Step.WRITABLE in STEPS[first]
    is_left_at_once = diagnosis.fault.cls in NEVER_BILLED
    is_storage = other.fault.cls is FaultClass.STORAGE and other_first in (Level.IN_PLACE, first)
    return may_wait and not is_left_at_once and is_storage


def _leaves_nodes_of(diagnosis: Diagnosis, fault: Fault) -> bool:
    """Whether the diagnosis leaves all nodes of the fault, and isolates as proven those that it proves."""
    main = diagnosis.fault
    leaves_its_nodes = main.is_hardware and places_pods(diagnosis)
    has_its_proofs = {*fault.proven_nodes} <= {*main.proven_nodes}
    return leaves_its_nodes and has_its_proofs and {*fault.nodes} <= {*main.nodes}


def _with_other(diagnosis: Diagnosis, other: Diagnosis) -> Diagnosis:
    """Devices heal and storage is waited for while nothing runs; other faulty hardware is left if pods are
    placed again anyway.
    """
    if other.heals and Level.IN_PLACE in other.ladder:
        remark = f"{other.fault.label} is to heal meanwhile"
        heals = tuple(dict.fromkeys((*diagnosis.heals, *other.heals)))
        return replace(diagnosis, heals=heals, remarks=(*diagnosis.remarks, remark))
    if _answers(diagnosis, other):
        return diagnosis
    if _waits_for(diagnosis, other):
        remarks = (*diagnosis.remarks, f"{other.fault.label} has to be writable first")
        return replace(diagnosis, waits_for_storage=True, remarks=remarks)
    if other.fault.is_hardware and places_pods(diagnosis) and places_pods(other):
        remark = f"along with {other.fault.label}"
        other_faults = (*diagnosis.other_faults, other.fault)
        return replace(diagnosis, other_faults=other_faults, remarks=(*diagnosis.remarks, remark))
    return replace(diagnosis, facts_for_later=(*diagnosis.facts_for_later, *fact_ids([other])))


def ladder_row(inputs: DecisionInput, fault: Fault) -> LadderRow:
    """The document's ladder for this fault."""
    # Ranks that declare capabilities run the train library.
    return inputs.policy.answer(
        fault.cls, fault.owner, code_level=fault.code_level, library=bool(inputs.can)
    )


def ends_at_hang(policy: Policy) -> bool:
    """Whether a hang is answered with the end of the job."""
    hang = Fact(id="hang", kind="hang.steps", at=0.0)
    if (rule_and_fact := user_rule(policy.rules, (hang,))) is not None:
        return rule_and_fact[0].action == "fail"
    row = row_for(hang)
    return policy.answer(row.cls, row.owner).levels[:1] in ((), (Level.FAIL,))


def _fail_at_limit(_inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Fail at a limit of the document, and where a launch found no place, checkpoint or storage."""
    # The wait for storage is over, though the fault may have the kind of an earlier fact about storage.
    has_given_up = any(fact.kind == STORAGE_GIVEN_UP for fact in diagnosis.facts)
    is_storage = has_given_up and diagnosis.fault.cls is FaultClass.STORAGE
    if not is_storage and not diagnosis.fault.kind.startswith(FAILS_AT_ONCE):
        return diagnosis
    return replace(diagnosis, ladder=(Level.FAIL,), ladder_is_final=True)


def _fail_if_it_cannot_begin(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Fail if the command or its script cannot be found and never ran: no restart finds it."""
    is_crash = diagnosis.fault.cls is FaultClass.CRASH and not diagnosis.ladder_is_final
    is_in_vain = is_crash and any(is_start_in_vain(fact) for fact in diagnosis.facts)
    if inputs.has_run or not is_in_vain:
        return diagnosis
    remark = "what never ran is not tried again"
    return replace(
        diagnosis, ladder=(Level.FAIL,), ladder_is_final=True, remarks=(*diagnosis.remarks, remark)
    )


def _try_imports_once_more(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Try a failed import once more in new pods if the job never trained, and fail if it fails again.

    One end may come from a mount that is late, or missing on one node. The same end in new pods comes from an
    image or an environment that lacks the module.
    """
    end = run_end(inputs, diagnosis.facts)
    is_answered = inputs.incident is not None or diagnosis.ladder_is_final
    is_crash = diagnosis.fault.cls is FaultClass.CRASH and inputs.policy.escalates
    is_first = inputs.step is None and inputs.saved is None
    if is_answered or end is None or not (is_crash and is_first and IMPORT.match(end.exception)):
        return diagnosis
    if end.times == 1:
        remark, ladder = "an import is tried once more, in new pods", (Level.JOB,)
        return replace(diagnosis, ladder=ladder, remarks=(*diagnosis.remarks, remark))
    remark = "the same import failed again in new pods"
    return replace(
        diagnosis, ladder=(Level.FAIL,), ladder_is_final=True, remarks=(*diagnosis.remarks, remark)
    )


def is_start_in_vain(fact: Fact) -> bool:
    """Whether the fact means that the command cannot run at all."""
    if fact.kind in (START_FAILED, PODS_FAILED):
        return True
    _, _, last = str(fact.details.get("log") or "").rstrip().rpartition("\n")
    is_missing = fact.details.get("exit_code") in (NOT_FOUND, NOT_EXECUTABLE)
    return fact.kind == "process.exit" and (is_missing or bool(CANNOT_BEGIN.search(last)))


def _note_without_standby(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Only note a fault that needs a backup pod, once none was ready in time."""
    needs_standby = diagnosis.fault.cls in inputs.policy.stands_by and not diagnosis.is_only_noted
    if not (inputs.no_standby and needs_standby):
        return diagnosis
    remark = "no backup pod was ready in time before: the job stays"
    return replace(diagnosis, ladder=(Level.NOTE,), remarks=(*diagnosis.remarks, remark))


def _explain_end(_inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Add what the last words of a crashed process mean, where they say more than its exception."""
    if diagnosis.fault.cls is not FaultClass.CRASH:
        return diagnosis
    causes = (cause_of(fact) for fact in sorted(diagnosis.facts, key=weight))
    cause = next((each for each in causes if each is not None), None)
    if cause is None or not cause.is_remark:
        return diagnosis
    remarks = (*diagnosis.remarks, cause.sentence)
    return replace(diagnosis, remarks=remarks, elsewhere_helps=cause.elsewhere)


def _use_requested_level(_inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Begin a planned restart with the level it was requested with; coarser ones follow if it fails."""
    if diagnosis.fault.cls is not FaultClass.PLANNED or diagnosis.is_harmless:
        return diagnosis
    level = min(diagnosis.facts, key=weight).details.get("level")
    ladder = (Level(str(level)),) if level in {*PLANNED_LEVELS} else diagnosis.ladder
    if Level.JOB not in ladder:
        coarser = (level for level in (Level.POD, Level.JOB) if level not in ladder)
        ladder = (*ladder, *coarser)
    return replace(diagnosis, ladder=ladder, ladder_is_final=True, is_requested=True)


def occurrences(facts: tuple[Fact, ...], policy: Policy) -> tuple[Occurrence, ...]:
    """The device faults that later decisions count, or look for as the cause of another code."""
    causes = {rule.cause for rule in policy.relations}
    return tuple(
        Occurrence(node=f.node, device=f.device, code=f.code, at=f.at)
        for f in facts
        # A fact with LASTED_S was counted already when its fault began.
        if f.kind == "device.fault" and LASTED_S not in f.details
        if not row_for(f).is_harmless or f.code in causes
        if f.node is not None and f.code is not None
        if f.device is not None or f.code in causes  # a switch chip belongs to its node
    )


def _blame_related_device(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Blame the device of an earlier code for a later one that is harmless by itself."""
    codes = {f.code for f in diagnosis.facts if f.kind == "device.fault" and f.code is not None}
    if not codes or (diagnosis.ladder and diagnosis.fault.is_hardware):
        return diagnosis
    relation = first_relation(
        inputs.policy.relations,
        codes,
        (*inputs.occurrences, *diagnosis.occurrences),
        now=inputs.now,
        time_scale=inputs.time_scale,
    )
    if relation is None:
        return diagnosis
    rule, cause = relation
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
        proven_nodes=(),
    )
    remark = f"{rule.trigger} within {rule.window_s:g} s of {rule.cause} makes it {rule.level}"
    return replace(
        diagnosis,
        fault=fault,
        ladder=ladder_row(inputs, fault).levels,
        is_harmless=False,
        remarks=(*diagnosis.remarks, remark),
    )


def _escalate_repeated_code(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    """Leave each device that showed one code too often: healing it again leads nowhere. Others heal."""
    fault = diagnosis.fault
    if fault.cls not in HEALS:
        return diagnosis
    remarks = [(one, _repeat_remark(inputs, diagnosis, one)) for one in _faults_of_codes(diagnosis)]
    repeated = {one: remark for one, remark in remarks if remark is not None}
    if not repeated:
        return diagnosis
    if fault.cls is FaultClass.DEVICE_USER:
        return _without_in_place(diagnosis, next(iter(repeated.values())))
    fatal, *other_faults = (
        replace(one, cls=FaultClass.DEVICE_FATAL, proven_nodes=()) for one in repeated
    )
    worn_out = {(one.node, one.device) for one in repeated}
    return replace(
        diagnosis,
        fault=fatal,
        ladder=ladder_row(inputs, fatal).levels,
        instead_of=_in_place_of(diagnosis.ladder),
        remarks=(*diagnosis.remarks, *repeated.values()),
        heals=tuple(ref for ref in diagnosis.heals if (ref.node, ref.device) not in worn_out),
        other_faults=tuple(other_faults),
    )


def _faults_of_codes(diagnosis: Diagnosis) -> list[Fault]:
    """The fault of each code of each device that the diagnosis is about, its own one first."""
    faults = [diagnosis.fault]
    for fact in sorted(diagnosis.facts, key=weight):
        one, row = name((fact,))
        is_known = any(_code_key(one) == _code_key(fault) for fault in faults)
        if row.cls is diagnosis.fault.cls and fact.kind == "device.fault" and not is_known:
            faults.append(one)
    if len(faults) == 1:
        return faults
    # `name` gave the first fault the nodes and slots of the whole group: keep those of its own code.
    first = name([fact for fact in diagnosis.facts if _code_key(fact) == _code_key(faults[0])])[0]
    return [replace(faults[0], nodes=first.nodes, slots=first.slots), *faults[1:]]


def _code_key(of: Fault | Fact) -> tuple[str | None, int | None, str | None]:
    return of.node, of.device, of.code


def _repeat_remark(inputs: DecisionInput, diagnosis: Diagnosis, fault: Fault) -> str | None:
    """The sentence that a device showed this code too often; None if it did not."""
    rule = inputs.policy.repeat_rule(fault.code)
    if rule is None:
        return None
    times, counted_by = _times_shown(inputs, diagnosis, fault, rule)
    within = f"within {rule.window_s / inputs.time_scale:g} s"
    remark = f"{fault.code} came {times} times {within} on {fault.where}{counted_by}"
    return remark if times >= rule.times else None


def _times_shown(
    inputs: DecisionInput, diagnosis: Diagnosis, fault: Fault, rule: RepeatRule
) -> tuple[int, str]:
    """How often the device showed its code, and who counted.

    The cluster counts over all jobs; where it has no count, the job's own occurrences are counted.
    """
    key = _code_key(fault)
    counts = [c.times for c in inputs.counts if (c.node, c.device, c.code) == key]
    newest = next((o for o in diagnosis.occurrences if (o.node, o.device, o.code) == key), None)
    if counts or newest is None:
        return max(counts, default=0), ", counted over all jobs"
    times = count(
        (*inputs.occurrences, *diagnosis.occurrences),
        of=newest,
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


def _apply_rule(inputs: DecisionInput, diagnosis: Diagnosis, rule: Rule, fact: Fact) -> Diagnosis:
    """Change the diagnosis as a rule of the user, or of the dialect, says. `fact` fulfils the rule.

    A job with broken hardware is not resized: its number of nodes is not at fault.
    """
    if rule.action == "resize" and diagnosis.fault.is_hardware:
        return diagnosis
    diagnosis = replace(
        diagnosis,
        remarks=(*diagnosis.remarks, _remark(rule)),
        ladder_is_final=True,
        instead_of=None,
        class_before_rule=row_for(fact).cls,
        is_harmless=diagnosis.is_harmless and not _answers_its_code(rule, fact),
    )
    ladders: Mapping[str, tuple[Level, ...]] = {
        "fail": (Level.FAIL,),
        "note": (Level.NOTE,),
        "ignore": (Level.NOTE,),
        "levels": rule.levels,
        "resize": (Level.ELASTIC,),
    }
    if rule.action == "resize":
        diagnosis = _without_this_size(inputs, diagnosis)
    if rule.action in ladders:
        return replace(diagnosis, ladder=ladders[rule.action], is_requested=True)
    cls = rule.cls or FaultClass.UNKNOWN
    fault = replace(diagnosis.fault, cls=cls, message=fact.message or diagnosis.fault.message)
    return replace(diagnosis, fault=fault, ladder=ladder_row(inputs, fault).levels)


def _answers_its_code(rule: Rule, fact: Fact) -> bool:
    """Whether the rule names the device code of the fact and is more than a note: then it is not harmless."""
    is_answer = rule.action not in ("note", "ignore")
    return is_answer and rule.match.code is not None and fact.kind == "device.fault"


def _remark(rule: Rule) -> str:
    return f"{rule.origin} says {_action_words(rule)}" + (f": {rule.why}" if rule.why else "")


def _without_this_size(inputs: DecisionInput, diagnosis: Diagnosis) -> Diagnosis:
    bad = len(inputs.active)
    return replace(
        diagnosis, bad_size=bad, remarks=(*diagnosis.remarks, f"not with {bad} nodes again")
    )


def _action_words(rule: Rule) -> str:
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
    """The fact, with what its message does not contain: nothing twice, so that a cut line loses little."""
    is_device = fact.kind == "device.fault"  # the level of a device's code is in the catalogue
    left_out = (*DETAILS_LEFT_OUT, "level") if is_device else DETAILS_LEFT_OUT
    details = (
        f"{key}={value}"
        for key, value in fact.details.items()
        if key not in left_out and value is not None and not _contains(fact.message, value)
    )
    labels = (
        part for part in (fact.code, fact.where) if part and not _contains(fact.message, part)
    )
    parts = (fact.kind, *labels, fact.message, *details)
    return cut(" ".join(part for part in parts if part), 200)


def _contains(message: str, value: Detail) -> bool:
    """Whether the message has the value as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", message) is not None
