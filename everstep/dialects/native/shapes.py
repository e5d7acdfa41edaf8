"""The native document, key by key: which keys there are, of which type, within which bounds.

Strict: "4" is not 4, true is not 1, a key not named here is an error. What only shows once a phase is
laid over its job (a missing command, accelerators without a kind) is judged in `document.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from everstep.core.levels import FaultClass, Level
from everstep.core.spec import Accelerator, Billing, Policy
from everstep.core.spec import Limits as Defaults
from everstep.dialects.native import values as v
from everstep.documents.problems import problem

NOTHING_TO_PROVE = (
    "a job that cannot be reached is waited for, never stopped: write [note] or leave it out"
)
UNCALLED = frozenset({FaultClass.UNREACHABLE, FaultClass.PLANNED})
"""Classes that no rule may give to a fact: one stops nothing ever, the other is for people."""


class Shape(BaseModel):
    """What all parts of a document have in common."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


# --- Recovery --------------------------------------------------------------------------------------


def _ladder(levels: list[Level]) -> list[Level]:
    if not levels:
        raise problem("is empty; write [fail] to end the phase, [note] to only record it")
    if Level.NOTE in levels and len(levels) > 1:
        raise problem("`note` does nothing and leads nowhere, so it stands alone: [note]")
    if Level.FAIL in levels[:-1]:
        raise problem("`fail` ends the phase: nothing can come after it", levels.index(Level.FAIL))
    return v.unique(levels)


def _possible(ladders: dict[FaultClass, list[Level]]) -> dict[FaultClass, list[Level]]:
    if ladders.get(FaultClass.UNREACHABLE, [Level.NOTE]) != [Level.NOTE]:
        raise problem(NOTHING_TO_PROVE, FaultClass.UNREACHABLE.value)
    return ladders


def _billed(levels: list[Level]) -> list[Level]:
    free = [i for i, level in enumerate(levels) if level in (Level.NOTE, Level.FAIL)]
    if free:
        raise problem("`note` and `fail` cost nothing: no budget can count them", free[0])
    return v.unique(levels)


def _no_bare_name(word: object) -> object:
    if word in set(Level) - {Level.FAIL, Level.NOTE}:
        raise problem(f"levels are written as a list: [{word}]")
    if word in set(FaultClass):
        raise problem(f"a class is written as a mapping: {{class: {word}}}")
    return word


def _may_be_called(cls: FaultClass) -> FaultClass:
    if cls in UNCALLED:
        raise problem(f"no rule can call a fault `{cls}`: choose another class")
    return cls


Ladder = Annotated[list[v.LevelName], AfterValidator(_ladder)]
Ladders = Annotated[dict[v.Class, Ladder], AfterValidator(_possible)]


class Budget(Shape):
    limit: Annotated[int, Field(ge=0, le=1_000_000)] | None
    """So many units at most; null counts without a limit."""
    levels: Annotated[list[v.LevelName], Field(min_length=1), AfterValidator(_billed)] | None = None
    """Only these levels are billed; else all."""
    owners: Annotated[list[v.OwnerName], Field(min_length=1), AfterValidator(v.unique)] | None = (
        None
    )
    """Only faults of these owners are billed; else all."""
    when: Billing = "executed"
    """What is billed: a level that was executed, or only one that succeeded."""


class Match(Shape):
    exit_code: Annotated[list[v.ExitCode], Field(min_length=1), AfterValidator(v.unique)] | None = (
        None
    )
    """Any of these exit codes."""
    signal: Annotated[list[v.Signal], Field(min_length=1), AfterValidator(v.unique)] | None = None
    """Ended by any of these signals."""
    exception: v.Regex | None = None
    """A regular expression that takes linear time (RE2), found in the last line of a traceback, or in
    what the rank wrote to the file that `TORCHELASTIC_ERROR_FILE` names, as PyTorch's `record` does."""
    log: v.Regex | None = None
    """The same, in the last 200 lines of the rank; a rule added after its start sees the last 20."""
    kind: v.ShortText | None = None
    """The kind of fact, such as `process.exit`."""
    code: v.ShortText | None = None
    """The fault code, such as `XID 79`."""
    cls: v.Class | None = Field(default=None, alias="class")
    """The class that our playbook gives the fault."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> Match:
        if all(value is None for _, value in self):
            keys = ", ".join(field.alias or name for name, field in Match.model_fields.items())
            raise problem(f"would match everything; give at least one of {keys}")
        return self


class Rename(Shape):
    """The action `{class: NAME}`: answer as if it were a fault of that class."""

    cls: Annotated[v.Class, AfterValidator(_may_be_called)] = Field(alias="class")
    """The class whose ladder answers."""


Action = Annotated[
    Annotated[v.Word, BeforeValidator(_no_bare_name), Tag(v.TEXT)]
    | Annotated[Ladder, Tag(v.LIST)]
    | Annotated[Rename, Tag(v.MAPPING)],
    v.either("fail, note, ignore, resize, a list of levels, or {class: NAME}"),
]


class Rule(Shape):
    match: Match
    """All keys of it must hold."""
    action: Action
    """`fail`, `note`, `ignore`, `resize` (go on with another number of nodes), a list of levels, or
    `{class: NAME}`."""
    why: Annotated[str, Field(max_length=500)] = ""
    """Why, for people: it is in the record."""


class Recovery(Shape):
    ladders: Ladders = Field(default_factory=dict)
    """For a class of fault the levels that are tried, one after the other; else those of the playbook."""
    budgets: Annotated[dict[v.BudgetName, Budget], Field(max_length=20)] = Field(
        default_factory=dict
    )
    """What restarts may cost; a level bills every budget that matches."""
    no_progress_restarts: Annotated[int, Field(ge=0, le=1000)] | None = 3
    """So many restarts without progress before the phase fails; null: no end."""
    rollbacks: Annotated[int, Field(ge=0, le=1000)] | None = Policy().rollbacks
    """So often in a row a job may resume from an older checkpoint although a newer one is complete; 0: never;
    null: no end."""
    rules: Annotated[list[Rule], Field(max_length=100)] = Field(default_factory=list)
    """Tried before our playbook, the first match wins."""


# --- What runs where -------------------------------------------------------------------------------


class NodeRange(Shape):
    """Between how few and how many nodes the script can work on."""

    min: v.NodeCount
    """The job starts and goes on with so few."""
    wanted: v.NodeCount
    """The job runs on so many where there are."""

    @model_validator(mode="after")
    def _in_order(self) -> NodeRange:
        if self.min > self.wanted:
            raise problem(f"must not be more than `wanted` ({self.wanted})", "min")
        return self


class Checkpoints(Shape):
    path: v.Path
    """The folder in which the script saves."""
    format: Annotated[str, v.Matches(v.PHASE_NAME, "be the name of a format, for example auto")] = (
        "auto"
    )
    """How a checkpoint is known to be complete; `auto` finds out."""
    pattern: v.NamePattern | None = None
    """A regular expression with a group `step`, found in the names of checkpoints; other names are none.
    Of two saves of one step, the one with the greater number in a group `again` is the newer."""


class Progress(Shape):
    log_pattern: v.StepRegex | None = None
    """A regular expression that takes linear time, with a group `step`, found in what ranks print."""
    last_step: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """The step at which training is over, for the time left that `everstep watch` shows."""


Hang = Annotated[
    Annotated[v.SomeSeconds, Tag(v.NUMBER)] | Annotated[Literal["auto"], Tag(v.TEXT)],
    v.either("auto or a number of seconds above 0"),
]


class Limits(Shape):
    """Times in seconds; null where there may be none."""

    queue_s: v.Seconds | None = Defaults().queue_s
    """A launch waits so long for places; null: without end."""
    requeue_s: v.Seconds | None = Defaults().requeue_s
    """A restart waits so long for places, devices or storage; null: without end."""
    spare_s: v.AtMostADay = Defaults().spare_s
    """So long a spare node is waited for before a job goes on with fewer."""
    start_s: Annotated[v.SomeSeconds, Field(le=v.DAY_S)] = Defaults().start_s
    """So long processes may take to start."""
    hang_s: Hang = "auto"
    """So long a step may take; `auto` learns it from the steps seen, and allows ten times as long (at most 30
    minutes) while output or I/O goes on."""
    grace_s: v.AtMostADay = Defaults().grace_s
    """So long processes may take to end and to save when they are stopped in order."""
    unreachable_s: Annotated[v.SomeSeconds, Field(le=v.DAY_S)] = Defaults().unreachable_s
    """So long a pod is silent before its node counts as lost, if the answering pods make no step either."""
    settle_s: v.AtMostAMinute = Defaults().settle_s
    """So long facts are gathered before a fault is named."""
    healthy_s: v.SomeSeconds = Defaults().healthy_s
    """So long a job without steps and checkpoints runs until that counts as progress."""
    run_s: v.SomeSeconds | None = Defaults().run_s
    """So long the phase may take from the begin of its launch, waits included; null: without end."""


Command = Annotated[
    Annotated[
        list[v.Argument],
        Field(max_length=v.ENTRIES),
        AfterValidator(v.names_a_program),
        Tag(v.LIST),
    ]
    | Annotated[v.Argument, AfterValidator(v.not_blank), Tag(v.TEXT)],
    v.either("a list of texts, or one text for /bin/sh -c"),
]
Nodes = Annotated[
    Annotated[v.NodeCount, Tag(v.NUMBER)] | Annotated[NodeRange, Tag(v.MAPPING)],
    v.either("a whole number or {min: 2, wanted: 4}"),
]
Accelerators = Annotated[
    Annotated[v.PerNode, Tag(v.NUMBER)] | Annotated[Literal["all"], Tag(v.TEXT)],
    v.either("a whole number or all"),
]


class FromWorker(Shape):
    from_: Annotated[v.Variable, AfterValidator(v.handed_out)] = Field(alias="from")
    """A variable of the worker, read where ranks are started: its value is in no history."""


Environment = Annotated[
    dict[
        v.Variable,
        Annotated[
            Annotated[v.Argument, Tag(v.TEXT)] | Annotated[FromWorker, Tag(v.MAPPING)],
            Discriminator(lambda value: v.MAPPING if isinstance(value, dict) else v.TEXT),
        ],
    ],
    Field(max_length=v.ENTRIES),
]


class Settings(Shape):
    """What a job says for all its phases, and a phase for itself."""

    command: Command | None = None
    """What to run: a list, or one text for `/bin/sh -c`."""
    workdir: v.Path = "."
    """Where it begins; relative paths of the job begin there too."""
    image: v.ShortText | None = None
    """The container image, on Kubernetes."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Merged into our pods, on Kubernetes."""
    nodes: Nodes = 1
    """On how many machines: a number, or from how few to how many."""
    processes_per_node: Annotated[int, Field(ge=1, le=v.PER_NODE)] = 1
    """So many ranks on each."""
    accelerators_per_node: Accelerators = 0
    """So many devices of each machine are the job's."""
    accelerator: Accelerator = "none"
    """Of this kind."""
    env: Environment = Field(default_factory=dict)
    """Variables of every process: a text, or where the worker has it from."""
    model_dir: v.Path | None = None
    """Where records are written; else `$EVERSTEP_HOME/jobs/<id>`."""
    checkpoints: Checkpoints | None = None
    """Where the job saves: from there it resumes, and a new one is progress."""
    prewarm: Annotated[list[v.Module], Field(max_length=100), AfterValidator(v.unique)] = Field(
        default_factory=list
    )
    """Modules that a helper imports ahead, so that restarts need not."""
    prefetch: Command | None = None
    """A command that runs beside the training, for each of the next two smaller numbers of nodes (not below
    `nodes.min`), with the number in `NNODES`. If it exits with 1 to 125, the number is not used."""
    progress: Progress = Field(default_factory=Progress)
    """How steps are seen."""
    limits: Limits = Field(default_factory=Limits)
    """Times, in seconds."""
    recovery: Recovery = Field(default_factory=Recovery)
    """What is done about faults."""


class Phase(Settings):
    name: v.PhaseName
    """Small letters, digits and `-`."""


def _named_apart(phases: list[Phase]) -> list[Phase]:
    first: dict[str, int] = {}
    for i, phase in enumerate(phases):
        if first.setdefault(phase.name, i) != i:
            raise problem(f"phase {first[phase.name]} has this name too: choose another", i, "name")
    return phases


class Spec(Settings):
    cluster: v.PhaseName = "local"
    """Where it runs; `local` is this machine."""
    namespace: v.Namespace | None = None
    """Where its pods are made, on Kubernetes; else where the cluster's workers are."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Higher ones get places first."""
    start_phase: str | None = None
    """Begin with this phase."""
    phases: (
        Annotated[
            list[Phase], Field(min_length=1, max_length=v.PHASES), AfterValidator(_named_apart)
        ]
        | None
    ) = None
    """One after the other, each with its budgets and records; what a phase says is laid over the job's."""

    @model_validator(mode="after")
    def _starts_somewhere(self) -> Spec:
        names = [phase.name for phase in self.phases] if self.phases else ["main"]
        if self.start_phase not in (None, *names):
            raise problem(f"is not the name of a phase; there is {', '.join(names)}", "start_phase")
        return self


class Metadata(Shape):
    name: v.JobName
    """The job's ID, unless another one is given."""
    labels: Annotated[
        dict[v.Label, Annotated[str, Field(max_length=253)]], Field(max_length=100)
    ] = Field(default_factory=dict)
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
