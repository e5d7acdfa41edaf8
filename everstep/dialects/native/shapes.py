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


def _no_bare_module(word: object) -> object:
    if word not in ("auto", "off"):
        raise problem(f"must be a list of modules, [{word}], or auto or off")
    return word


def _may_be_called(cls: FaultClass) -> FaultClass:
    if cls in UNCALLED:
        raise problem(f"no rule can call a fault `{cls}`: choose another class")
    return cls


Ladder = Annotated[list[v.LevelName], AfterValidator(_ladder)]
Ladders = Annotated[dict[v.Class, Ladder], AfterValidator(_possible)]


class Budget(Shape):
    limit: Annotated[int, Field(ge=0, le=1_000_000)] | None
    """Largest number of units. Null: no limit; units are counted all the same."""
    levels: Annotated[list[v.LevelName], Field(min_length=1), AfterValidator(_billed)] | None = None
    """Levels that are billed. Default: all."""
    owners: Annotated[list[v.OwnerName], Field(min_length=1), AfterValidator(v.unique)] | None = (
        None
    )
    """Owners whose faults are billed. Default: all."""
    when: Billing = "executed"
    """Whether each executed level is billed, or only one that succeeded."""


class Match(Shape):
    exit_code: Annotated[list[v.ExitCode], Field(min_length=1), AfterValidator(v.unique)] | None = (
        None
    )
    """Exit codes. One of them has to be the rank's."""
    signal: Annotated[list[v.Signal], Field(min_length=1), AfterValidator(v.unique)] | None = None
    """Signal numbers. One of them has to have ended the rank."""
    exception: v.Regex | None = None
    """Regular expression (RE2) that is searched in the last line of a traceback, and in what the rank wrote
    to the file that `TORCHELASTIC_ERROR_FILE` names, as PyTorch's `record` does."""
    log: v.Regex | None = None
    """Regular expression (RE2) that is searched in the last 200 lines of the rank. A rule that is added after
    the start of the rank sees the last 20."""
    kind: v.ShortText | None = None
    """Kind of the fact, such as `process.exit`."""
    code: v.ShortText | None = None
    """Fault code, such as `XID 79`."""
    cls: v.Class | None = Field(default=None, alias="class")
    """Class that the playbook gives the fault."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> Match:
        if all(value is None for _, value in self):
            keys = ", ".join(field.alias or name for name, field in Match.model_fields.items())
            raise problem(f"would match everything; give at least one of {keys}")
        return self


class Rename(Shape):
    """The action `{class: NAME}`: answer as if it were a fault of that class."""

    cls: Annotated[v.Class, AfterValidator(_may_be_called)] = Field(alias="class")
    """Class whose ladder answers the fault."""


Action = Annotated[
    Annotated[v.Word, BeforeValidator(_no_bare_name), Tag(v.TEXT)]
    | Annotated[Ladder, Tag(v.LIST)]
    | Annotated[Rename, Tag(v.MAPPING)],
    v.either("fail, note, ignore, resize, a list of levels, or {class: NAME}"),
]


class Rule(Shape):
    match: Match
    """Conditions. All keys that are given have to hold."""
    action: Action
    """Answer to a fault that matches: `fail`, `note`, `ignore`, `resize` (another number of nodes), a list of
    levels, or `{class: NAME}`."""
    why: Annotated[str, Field(max_length=500)] = ""
    """Reason in words. The restart record shows it."""


class Recovery(Shape):
    ladders: Ladders = Field(default_factory=dict)
    """Levels to try for a class of fault, in order. Default: the ladder of the playbook."""
    budgets: Annotated[dict[v.BudgetName, Budget], Field(max_length=20)] = Field(
        default_factory=dict
    )
    """Limits of what restarts may cost. A level bills each budget that matches it."""
    no_progress_restarts: Annotated[int, Field(ge=0, le=1000)] | None = 3
    """Number of restarts without progress after which the phase fails. Null: no limit."""
    start_failures: Annotated[int, Field(ge=0, le=1000)] | None = Policy().start_failures
    """Number of pods of a slot in a row that may fail before their agent answers. Null: no limit. Where only
    `no_progress_restarts` is given, its number."""
    rollbacks: Annotated[int, Field(ge=0, le=1000)] | None = Policy().rollbacks
    """Number of times in a row that a job may resume from an older checkpoint although a newer one is
    complete. 0: never. Null: no limit."""
    rules: Annotated[list[Rule], Field(max_length=100)] = Field(default_factory=list)
    """Rules that are tried before the playbook, in order. The first match wins."""


# --- What runs where -------------------------------------------------------------------------------


class NodeRange(Shape):
    """Range of the number of nodes on which the script can train."""

    min: v.NodeCount
    """Smallest number of nodes with which the job starts and goes on."""
    wanted: v.NodeCount
    """Number of nodes that the job uses where they are available."""

    @model_validator(mode="after")
    def _in_order(self) -> NodeRange:
        if self.min > self.wanted:
            raise problem(f"must not be more than `wanted` ({self.wanted})", "min")
        return self


SaveSignal = Annotated[
    Annotated[Literal["SIGUSR1", "SIGUSR2"], Tag(v.TEXT)] | Annotated[bool, Tag(v.SWITCH)],
    v.either("SIGUSR1, SIGUSR2, true or false"),
]


class Checkpoints(Shape):
    path: v.Path
    """Folder in which the script saves."""
    format: Annotated[str, v.Matches(v.PHASE_NAME, "be the name of a format, for example auto")] = (
        "auto"
    )
    """Format by which a checkpoint is checked. `auto` detects it."""
    pattern: v.NamePattern | None = None
    """Regular expression with a group `step` that is searched in the names of checkpoints. Other names are
    none. Of two saves of one step the one with the greater number in a group `again` is newer."""
    save_signal: SaveSignal | None = None
    """Signal on which the script saves and goes on, for `everstep checkpoint`. `true`: SIGUSR1."""


class Progress(Shape):
    log_pattern: v.LogPattern | None = None
    """What ranks print: `hf`, `lightning`, `tqdm`, `json:KEY`, or a regular expression (RE2) with a group
    `step`. Default: what usual scripts print is tried."""
    loss_pattern: v.LossPattern | None = None
    """Regular expression (RE2) with a group `loss`. Three losses in a row that are NaN or infinite are a
    fault of class `numeric`. Default: `loss 0.5` and the like are tried, though not in documents of other
    systems. `none`: losses are not read."""
    last_step: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Step at which training is over. `everstep watch` shows the time that is left."""


Hang = Annotated[
    Annotated[v.SomeSeconds, Tag(v.NUMBER)] | Annotated[Literal["auto"], Tag(v.TEXT)],
    v.either("auto or a number of seconds above 0"),
]


class Limits(Shape):
    """Time limits in seconds."""

    queue_s: v.Seconds | None = Defaults().queue_s
    """Seconds that a launch may wait for places. Null: no limit."""
    requeue_s: v.Seconds | None = Defaults().requeue_s
    """Seconds that a restart may wait for places, devices or storage. Null: no limit."""
    spare_s: v.AtMostADay = Defaults().spare_s
    """Seconds to wait for a spare node before the job goes on with fewer."""
    start_s: Annotated[v.SomeSeconds, Field(le=v.DAY_S)] = Defaults().start_s
    """Seconds that processes may take to start."""
    hang_s: Hang = "auto"
    """Seconds that a step may take. `auto` learns the limit from earlier steps, and allows ten times as long
    (at most 30 minutes) while output or I/O goes on."""
    grace_s: v.AtMostADay = Defaults().grace_s
    """Seconds between SIGTERM and SIGKILL, in which ranks may save, when they are stopped in order."""
    unreachable_s: Annotated[v.SomeSeconds, Field(le=v.DAY_S)] = Defaults().unreachable_s
    """Seconds of silence after which the node of a pod counts as lost, if the other pods make no step
    either."""
    settle_s: v.AtMostAMinute = Defaults().settle_s
    """Seconds to gather facts before a fault is named, where some agent does not answer."""
    healthy_s: v.SomeSeconds = Defaults().healthy_s
    """Seconds of running that count as progress of a job that shows neither steps nor checkpoints."""
    run_s: v.SomeSeconds | None = Defaults().run_s
    """Seconds that the phase may take from the begin of its launch, waits included. Null: no limit."""


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


Modules = Annotated[list[v.Module], Field(max_length=100), AfterValidator(v.unique)]
Prewarm = Annotated[
    Annotated[Modules, Tag(v.LIST)]
    | Annotated[Literal["auto", "off"], BeforeValidator(_no_bare_module), Tag(v.TEXT)],
    v.either("auto, off or a list of modules"),
]


class FromWorker(Shape):
    from_: Annotated[v.Variable, AfterValidator(v.handed_out)] = Field(alias="from")
    """Variable of the worker, read when ranks are started. Its value is in no history."""


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


SPARES_MOST = 100


class Settings(Shape):
    """Settings of a job for all its phases, and of a phase for itself."""

    command: Command | None = None
    """Program and arguments as a list, or one text for `/bin/sh -c`."""
    workdir: v.Path = "."
    """Working directory of the command; a relative one begins at the document, on Kubernetes at that of the
    image. Other relative paths begin there too."""
    image: v.ShortText | None = None
    """Container image. Kubernetes only."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Fields of a pod template that are merged into each pod. Kubernetes only."""
    nodes: Nodes = 1
    """Number of nodes, or a range of it."""
    spares: Annotated[int, Field(ge=0, le=SPARES_MOST)] = 0
    """Number of further pods that stand by, each on a node of its own. The first slots that need another pod
    get them."""
    processes_per_node: Annotated[int, Field(ge=1, le=v.PER_NODE)] = 1
    """Number of ranks on each node."""
    accelerators_per_node: Accelerators = 0
    """Number of devices that the job takes of each node."""
    accelerator: Accelerator = "none"
    """Kind of these devices."""
    env: Environment = Field(default_factory=dict)
    """Environment variables of each rank: a text, or the variable of the worker to take."""
    model_dir: v.Path | None = None
    """Folder for records, run.log and the fence. Default: `$EVERSTEP_HOME/jobs/<id>`; none on Kubernetes."""
    checkpoints: Checkpoints | None = None
    """Where the script saves. Restarts resume from there, and a new checkpoint is progress."""
    prewarm: Prewarm = "auto"
    """Python modules that a helper process imports ahead. Restarted ranks are forked from it. `auto`: those
    with much native code that the ranks have loaded. `off`: none."""
    prefetch: Command | None = None
    """Command that runs beside the training, for each of the next two smaller numbers of nodes (not below
    `nodes.min`), with the number in `NNODES`. A number for which it exits with 1 to 125 is not used."""
    progress: Progress = Field(default_factory=Progress)
    """How steps are recognised."""
    limits: Limits = Field(default_factory=Limits)
    """Time limits."""
    recovery: Recovery = Field(default_factory=Recovery)
    """Answers to faults."""


class Phase(Settings):
    name: v.PhaseName
    """Name of the phase: small letters, digits and `-`."""


def _named_apart(phases: list[Phase]) -> list[Phase]:
    first: dict[str, int] = {}
    for i, phase in enumerate(phases):
        if first.setdefault(phase.name, i) != i:
            raise problem(f"phase {first[phase.name]} has this name too: choose another", i, "name")
    return phases


class Spec(Settings):
    cluster: v.PhaseName = "local"
    """Cluster that runs the job. `local` is this machine."""
    namespace: v.Namespace | None = None
    """Namespace of the pods. Default: that of the workers. Kubernetes only."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Priority in the queue for places. The highest one comes first."""
    start_phase: str | None = None
    """Phase to begin with. Default: the first one."""
    phases: (
        Annotated[
            list[Phase], Field(min_length=1, max_length=v.PHASES), AfterValidator(_named_apart)
        ]
        | None
    ) = None
    """Phases that run one after the other, each with budgets and records of its own. Keys of a phase replace
    those of the job."""

    @model_validator(mode="after")
    def _starts_somewhere(self) -> Spec:
        names = [phase.name for phase in self.phases] if self.phases else ["main"]
        if self.start_phase not in (None, *names):
            raise problem(f"is not the name of a phase; there is {', '.join(names)}", "start_phase")
        return self


class Metadata(Shape):
    name: v.JobName
    """ID of the job, unless a command gives another one."""
    labels: Annotated[
        dict[v.Label, Annotated[str, Field(max_length=253)]], Field(max_length=100)
    ] = Field(default_factory=dict)
    """Labels of your own, to find jobs: `everstep list --label team=nlp`."""
    links: Annotated[dict[v.LinkName, v.WebAddress], Field(max_length=20)] = Field(
        default_factory=dict
    )
    """Pages about the job, shown in status, report and Temporal UI: `{W&B: "https://wandb.ai/team/llama"}`."""


class NativeDocument(Shape):
    api_version: Literal["everstep/v1"] = Field(alias="apiVersion")
    """Version of this form."""
    kind: Literal["TrainingJob"]
    """Kind of the document."""
    metadata: Metadata
    """Name, labels and links of the job."""
    spec: Spec
    """What to run, where, and how to answer faults."""
