"""The native document, key by key: which keys there are, of which type, within which bounds.

Strict: "4" is not 4, true is not 1, a key not named here is an error. What only shows once a phase is
laid over its job (a missing command, accelerators without a kind) is judged in `native`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    Tag,
    model_validator,
)
from pydantic_core import core_schema

from everstep.core import patterns
from everstep.core.levels import FaultClass, Level, Owner
from everstep.core.spec import Accelerator, Billing
from everstep.core.spec import Limits as Defaults
from everstep.documents.problems import HIDDEN, told

NODES = 10_000
PHASES = 100
PER_NODE = 1024
ENTRIES = 10_000
TEXT_LENGTH = 100_000  # the longest argument or variable that every Linux passes to a process
PATTERN_LENGTH = 1000
GROUPS = 50
LINEAR = r"leave out lookaround, backreferences, possessive quantifiers, \Z and repeats above 1000"
YEAR_S = 365 * 24 * 3600
DAY_S = 24 * 3600

PHASE_NAME = r"[a-z0-9][a-z0-9-]{0,39}"
# It becomes the workflow ID and a directory below the state directory: no slash, no dot in front.
JOB_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
BUDGET_NAME = r"[a-z][a-z0-9_-]{0,39}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?"
MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"

NOTHING_TO_PROVE = (
    "a job that cannot be reached is waited for, never stopped: write [note] or leave it out"
)
UNCALLED = frozenset({FaultClass.UNREACHABLE, FaultClass.PLANNED})
"""Classes that no rule may give to a fact: one stops nothing ever, the other is for people."""

T = TypeVar("T")


class Shape(BaseModel):
    """What all parts of a document have in common."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


# --- Small types ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Matches:
    """A text of this pattern, as a whole; `otherwise` completes "must ..."."""

    pattern: str
    otherwise: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$"}

    def _checked(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise told(f"must {self.otherwise}")
        return text


def _unique(values: list[T]) -> list[T]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise told(f"is in the list twice ({value}): keep one", i)
    return values


def _regex(pattern: str) -> str:
    if pattern.count("(") > GROUPS:  # its parser recurses: how deep it gets must not be chance
        raise told(f"has more than {GROUPS} groups: make it simpler")
    with warnings.catch_warnings(action="ignore"):  # doubtful, but Python knows what it means
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            raise told(f"is not a regular expression: {error}") from None
    if why := patterns.refused(pattern):
        raise told(f"cannot be matched in linear time ({why}): {LINEAR}")
    return pattern


def _finds_step(pattern: str) -> str:
    if "step" not in re.compile(pattern).groupindex:
        raise told(r"must have a group named step, for example 'step (?P<step>\d+)'")
    return pattern


def _not_blank(text: str) -> str:
    if not text.strip():
        raise told("is empty; say what to run, for example [python, train.py]")
    return text


def _names_a_program(arguments: list[str]) -> list[str]:
    if not arguments:
        raise told("is empty; say what to run, for example [python, train.py]")
    if not arguments[0].strip():
        raise told("is empty, but the first entry is the program to run", 0)
    return arguments


def _handed_out(name: str) -> str:
    if name.startswith(("TEMPORAL_", "EVERSTEP_")):
        raise told("is the worker's own: variables of Temporal and Everstep are given to no job")
    return name


def _kind(value: object) -> str:
    """Which member of a union a value is meant for; hidden in paths."""
    kinds: dict[type, str] = {int: NUMBER, float: NUMBER, str: TEXT, list: LIST, dict: MAPPING}
    return kinds.get(type(value), HIDDEN)


def _either(otherwise: str) -> Discriminator:
    """Chooses by the kind of the value; `otherwise` completes "must be ..."."""
    return Discriminator(_kind, custom_error_type="choose", custom_error_message=otherwise)


NUMBER, TEXT, LIST, MAPPING = (HIDDEN + kind for kind in ("number", "text", "list", "mapping"))

ShortText = Annotated[str, Field(min_length=1, max_length=500)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Argument = Annotated[str, Field(max_length=TEXT_LENGTH)]
Regex = Annotated[str, Field(min_length=1, max_length=PATTERN_LENGTH), AfterValidator(_regex)]
StepRegex = Annotated[Regex, AfterValidator(_finds_step)]

Word = Literal["fail", "note", "ignore"]
Class = Annotated[FaultClass, Strict(False)]
LevelName = Annotated[Level, Strict(False)]
OwnerName = Annotated[Owner, Strict(False)]

JobName = Annotated[
    str,
    _Matches(
        JOB_NAME,
        "be 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
    ),
]
PhaseName = Annotated[
    str,
    _Matches(
        PHASE_NAME,
        "be 1 to 40 small letters, digits and '-', and begin with a letter or digit",
    ),
]
BudgetName = Annotated[
    str, _Matches(BUDGET_NAME, "be named by small letters, digits, '-' and '_' (at most 40)")
]
Variable = Annotated[
    str, _Matches(VARIABLE, "be a variable's name: letters, digits and '_', no digit in front")
]
Label = Annotated[str, _Matches(LABEL, "be a label's name: letters, digits, '-', '_', '.' and '/'")]
Module = Annotated[str, _Matches(MODULE, "be a module to import, for example torch._dynamo")]

Seconds = Annotated[float, Field(ge=0, le=YEAR_S, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(gt=0, le=YEAR_S, allow_inf_nan=False)]
AtMostADay = Annotated[float, Field(ge=0, le=DAY_S, allow_inf_nan=False)]
AtMostAMinute = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
NodeCount = Annotated[int, Field(ge=1, le=NODES)]
PerNode = Annotated[int, Field(ge=0, le=PER_NODE)]


# --- Recovery --------------------------------------------------------------------------------------


def _ladder(levels: list[Level]) -> list[Level]:
    if not levels:
        raise told("is empty; write [fail] to end the phase, [note] to only record it")
    if Level.NOTE in levels and len(levels) > 1:
        raise told("`note` does nothing and leads nowhere, so it stands alone: [note]")
    if Level.FAIL in levels[:-1]:
        raise told("`fail` ends the phase: nothing can come after it", levels.index(Level.FAIL))
    return _unique(levels)


def _possible(ladders: dict[FaultClass, list[Level]]) -> dict[FaultClass, list[Level]]:
    if ladders.get(FaultClass.UNREACHABLE, [Level.NOTE]) != [Level.NOTE]:
        raise told(NOTHING_TO_PROVE, FaultClass.UNREACHABLE.value)
    return ladders


def _billed(levels: list[Level]) -> list[Level]:
    free = [i for i, level in enumerate(levels) if level in (Level.NOTE, Level.FAIL)]
    if free:
        raise told("`note` and `fail` cost nothing: no budget can count them", free[0])
    return _unique(levels)


def _no_bare_name(word: object) -> object:
    if word in set(Level) - {Level.FAIL, Level.NOTE}:
        raise told(f"levels are written as a list: [{word}]")
    if word in set(FaultClass):
        raise told(f"a class is written as a mapping: {{class: {word}}}")
    return word


def _may_be_called(cls: FaultClass) -> FaultClass:
    if cls in UNCALLED:
        raise told(f"no rule can call a fault `{cls}`: choose another class")
    return cls


Ladder = Annotated[list[LevelName], AfterValidator(_ladder)]
Ladders = Annotated[dict[Class, Ladder], AfterValidator(_possible)]


class Budget(Shape):
    limit: Annotated[int, Field(ge=0, le=1_000_000)] | None
    """So many units at most; null counts without a limit."""
    levels: Annotated[list[LevelName], Field(min_length=1), AfterValidator(_billed)] | None = None
    """Only these levels are billed; else all."""
    owners: Annotated[list[OwnerName], Field(min_length=1), AfterValidator(_unique)] | None = None
    """Only faults of these owners are billed; else all."""
    when: Billing = "executed"
    """What is billed: a level that was executed, or only one that succeeded."""


class Match(Shape):
    exit_code: Annotated[list[ExitCode], Field(min_length=1), AfterValidator(_unique)] | None = None
    """Any of these exit codes."""
    signal: Annotated[list[Signal], Field(min_length=1), AfterValidator(_unique)] | None = None
    """Ended by any of these signals."""
    exception: Regex | None = None
    """A regular expression that takes linear time (RE2), found in the last line of a traceback."""
    log: Regex | None = None
    """The same, in the last 200 lines of the rank; of a rule younger than its start, the last 20."""
    kind: ShortText | None = None
    """The kind of fact, such as `process.exit`."""
    code: ShortText | None = None
    """The fault code, such as `XID 79`."""
    cls: Class | None = Field(default=None, alias="class")
    """The class that our playbook gives the fault."""

    @model_validator(mode="after")
    def _says_something(self) -> Match:
        if all(value is None for _, value in self):
            known = ", ".join(field.alias or name for name, field in Match.model_fields.items())
            raise told(f"would match everything; give at least one of {known}")
        return self


class Rename(Shape):
    """The action `{class: NAME}`: answer as if it were a fault of that class."""

    cls: Annotated[Class, AfterValidator(_may_be_called)] = Field(alias="class")
    """The class whose ladder answers."""


Action = Annotated[
    Annotated[Word, BeforeValidator(_no_bare_name), Tag(TEXT)]
    | Annotated[Ladder, Tag(LIST)]
    | Annotated[Rename, Tag(MAPPING)],
    _either("fail, note, ignore, a list of levels, or {class: NAME}"),
]


class Rule(Shape):
    match: Match
    """All keys of it must hold."""
    action: Action
    """`fail`, `note`, `ignore`, a list of levels, or `{class: NAME}`."""
    why: Annotated[str, Field(max_length=500)] = ""
    """Why, for people: it is in the record."""


class Recovery(Shape):
    ladders: Ladders = Field(default_factory=dict)
    """For a class of fault the levels that are tried, one after the other; else those of the playbook."""
    budgets: Annotated[dict[BudgetName, Budget], Field(max_length=20)] = Field(default_factory=dict)
    """What restarts may cost; a level bills every budget that matches."""
    no_progress_restarts: Annotated[int, Field(ge=0, le=1000)] | None = 3
    """So many restarts without progress before the phase fails; null: no end."""
    rules: Annotated[list[Rule], Field(max_length=100)] = Field(default_factory=list)
    """Tried before our playbook, the first match wins."""


# --- What runs where -------------------------------------------------------------------------------


class NodeRange(Shape):
    """Between how few and how many nodes the script can work on."""

    min: NodeCount
    """The job starts and goes on with so few."""
    wanted: NodeCount
    """The job runs on so many where there are."""

    @model_validator(mode="after")
    def _in_order(self) -> NodeRange:
        if self.min > self.wanted:
            raise told(f"must not be more than `wanted` ({self.wanted})", "min")
        return self


class Checkpoints(Shape):
    path: Path
    """The folder in which the script saves."""
    format: Annotated[str, _Matches(PHASE_NAME, "be the name of a format, for example auto")] = (
        "auto"
    )
    """How a checkpoint is known to be complete; `auto` finds out."""


class Progress(Shape):
    log_pattern: StepRegex | None = None
    """A regular expression that takes linear time, with a group `step`, found in what ranks print."""


Hang = Annotated[
    Annotated[SomeSeconds, Tag(NUMBER)] | Annotated[Literal["auto"], Tag(TEXT)],
    _either("auto or a number of seconds above 0"),
]


class Limits(Shape):
    """Times in seconds; null where there may be none."""

    queue_s: Seconds | None = Defaults().queue_s
    """A launch waits so long for places; null: without end."""
    requeue_s: Seconds | None = Defaults().requeue_s
    """A restart waits so long for places, devices or storage; null: without end."""
    spare_s: AtMostADay = Defaults().spare_s
    """So long a spare node is waited for before a job goes on with fewer."""
    start_s: Annotated[SomeSeconds, Field(le=DAY_S)] = Defaults().start_s
    """So long processes may take to start."""
    hang_s: Hang = "auto"
    """So long a step may take; `auto` learns it from the steps that were seen."""
    grace_s: AtMostADay = Defaults().grace_s
    """So long processes may take to end and to save when they are stopped in order."""
    unreachable_s: Annotated[SomeSeconds, Field(le=DAY_S)] = Defaults().unreachable_s
    """So long a pod is silent before its node counts as lost, if nothing else moves."""
    settle_s: AtMostAMinute = Defaults().settle_s
    """So long facts are gathered before a fault is named."""
    healthy_s: SomeSeconds = Defaults().healthy_s
    """So long a job without steps and checkpoints runs until that counts as progress."""
    run_s: SomeSeconds | None = Defaults().run_s
    """So long the job may run in all; null: without end."""


Command = Annotated[
    Annotated[
        list[Argument], Field(max_length=ENTRIES), AfterValidator(_names_a_program), Tag(LIST)
    ]
    | Annotated[Argument, AfterValidator(_not_blank), Tag(TEXT)],
    _either("a list of texts, or one text for /bin/sh -c"),
]
Nodes = Annotated[
    Annotated[NodeCount, Tag(NUMBER)] | Annotated[NodeRange, Tag(MAPPING)],
    _either("a whole number or {min: 2, wanted: 4}"),
]
Accelerators = Annotated[
    Annotated[PerNode, Tag(NUMBER)] | Annotated[Literal["all"], Tag(TEXT)],
    _either("a whole number or all"),
]


class FromWorker(Shape):
    from_: Annotated[Variable, AfterValidator(_handed_out)] = Field(alias="from")
    """A variable of the worker, read where ranks are started: its value is in no history."""


Environment = Annotated[
    dict[
        Variable,
        Annotated[
            Annotated[Argument, Tag(TEXT)] | Annotated[FromWorker, Tag(MAPPING)],
            Discriminator(lambda value: MAPPING if isinstance(value, dict) else TEXT),
        ],
    ],
    Field(max_length=ENTRIES),
]


class Settings(Shape):
    """What a job says for all its phases, and a phase for itself."""

    command: Command | None = None
    """What to run: a list, or one text for `/bin/sh -c`."""
    workdir: Path = "."
    """Where it begins; relative paths of the job begin there too."""
    image: ShortText | None = None
    """The container image, on Kubernetes."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Merged into our pods, on Kubernetes."""
    nodes: Nodes = 1
    """On how many machines: a number, or from how few to how many."""
    processes_per_node: Annotated[int, Field(ge=1, le=PER_NODE)] = 1
    """So many ranks on each."""
    accelerators_per_node: Accelerators = 0
    """So many devices of each machine are the job's."""
    accelerator: Accelerator = "none"
    """Of this kind."""
    env: Environment = Field(default_factory=dict)
    """Variables of every process: a text, or where the worker has it from."""
    model_dir: Path | None = None
    """Where records are written; else `$EVERSTEP_HOME/jobs/<id>`."""
    checkpoints: Checkpoints | None = None
    """Where the job saves: from there it resumes, and a new one is progress."""
    prewarm: Annotated[list[Module], Field(max_length=100), AfterValidator(_unique)] = Field(
        default_factory=list
    )
    """Modules that a helper imports ahead, so that restarts need not."""
    progress: Progress = Field(default_factory=Progress)
    """How steps are seen."""
    limits: Limits = Field(default_factory=Limits)
    """Times, in seconds."""
    recovery: Recovery = Field(default_factory=Recovery)
    """What is done about faults."""


class Phase(Settings):
    name: PhaseName
    """Small letters, digits and `-`."""


def _named_apart(phases: list[Phase]) -> list[Phase]:
    first: dict[str, int] = {}
    for i, phase in enumerate(phases):
        if first.setdefault(phase.name, i) != i:
            raise told(f"phase {first[phase.name]} has this name too: choose another", i, "name")
    return phases


class Spec(Settings):
    cluster: PhaseName = "local"
    """Where it runs; `local` is this machine."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Higher ones get places first."""
    start_phase: str | None = None
    """Begin with this phase."""
    phases: (
        Annotated[list[Phase], Field(min_length=1, max_length=PHASES), AfterValidator(_named_apart)]
        | None
    ) = None
    """One after the other, each with books of its own; what a phase says is laid over the job's."""

    @model_validator(mode="after")
    def _starts_somewhere(self) -> Spec:
        names = [phase.name for phase in self.phases] if self.phases else ["main"]
        if self.start_phase not in (None, *names):
            raise told(f"is not the name of a phase; there is {', '.join(names)}", "start_phase")
        return self


class Metadata(Shape):
    name: JobName
    """The job's ID, unless another one is given."""
    labels: Annotated[dict[Label, Annotated[str, Field(max_length=253)]], Field(max_length=100)] = (
        Field(default_factory=dict)
    )
    """Yours, to find jobs by: `everstep list --label team=nlp`."""


class NativeDocument(Shape):
    api_version: Literal["everstep/v1"] = Field(alias="apiVersion")
    """This version of the document."""
    kind: Literal["TrainingJob"]
    """This kind of document."""
    metadata: Metadata
    """What the job is called."""
    spec: Spec
    """What it does."""
