"""A job ready to run: the JobSpec that every kind of document becomes.

Only values; reading and checking documents is `everstep.dialects`. Every number has its unit in its
name; `None` as a limit means there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from everstep.core.levels import (
    LADDERS,
    LIBRARY_CLASSES,
    LIBRARY_LEVELS,
    NEVER_BILLED,
    SAME_CONTAINER,
    FaultClass,
    Level,
    Owner,
)

Billing = Literal["executed", "succeeded"]
Accelerator = Literal["none", "nvidia", "ascend", "simulated"]

ALL_LEVELS: tuple[Level, ...] = tuple(Level)
ALL_OWNERS: tuple[Owner, ...] = tuple(Owner)
LOST_WORK_OWNERS: tuple[Owner, ...] = (Owner.USER, Owner.UNKNOWN)
SAVES_BEFORE_STOP = (FaultClass.PLANNED, FaultClass.PREEMPTED, FaultClass.MAINTENANCE)
"""Default of `Policy.saves_before_stop`: the processes still work, so they may save before they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How often something may happen. A level bills every budget it matches."""

    name: str
    limit: int | None
    levels: tuple[Level, ...] = ALL_LEVELS
    owners: tuple[Owner, ...] = ALL_OWNERS
    free: tuple[FaultClass, ...] = ()  # classes that bill none, whoever owns them
    when: Billing = "executed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How often something may happen *in a row*: progress, or any other recovery between, ends it."""

    name: str
    limit: int
    levels: tuple[Level, ...]
    owners: tuple[Owner, ...] = LOST_WORK_OWNERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The condition of a user's rule: all keys given must hold for one fact of the group."""

    exit_code: tuple[int, ...] = ()
    signal: tuple[int, ...] = ()
    exception: str | None = None
    log: str | None = None
    kind: str | None = None
    code: str | None = None
    cls: FaultClass | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of a document, tried before the playbook. `resize`: go on with another number of nodes."""

    match: Match
    action: Literal["fail", "note", "ignore", "resize", "levels", "class"]
    levels: tuple[Level, ...] = ()  # of the action `levels`
    cls: FaultClass | None = None  # of the action `class`
    why: str = ""
    origin: str = "your rule"  # what a reason calls it; a rule that a dialect adds has another name


CHECKS_NUMBERS = "EVERSTEP_CHECK_NUMBERS"
"""Environment variable of a rank: check the numbers for so many steps, and end well if they are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberCheck:
    """How to find the node that makes numbers wrong (NaN, a bad norm): later runs check them.

    Such a run has CHECKS_NUMBERS in its environment, and reports by the exception it ends with.
    """

    steps: int
    wrong: str  # pattern of the exception of a run whose numbers went wrong
    stuck: str  # pattern of that of a run that could not go on, as of a check that found something


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times of one phase, in seconds: how long ..."""

    queue_s: float | None = None  # a launch waits for places
    requeue_s: float | None = 1800.0  # a restart waits for places, devices or storage
    spare_s: float = 60.0  # a job waits for a spare node before it goes on with fewer
    start_s: float = 1200.0  # processes may take to start
    hang_s: float | None = None  # a step may take; None: learned from the steps seen (`auto`)
    still_s: float | None = None  # I/O and device use may stand still; set: in place of `hang_s`
    grace_s: float = 15.0  # processes may take to save and end when they are stopped in order
    unreachable_s: float = 60.0  # a pod may be silent before its node counts as lost
    settle_s: float = 0.1  # facts are gathered before their fault is named
    healthy_s: float = 1800.0  # a job without steps and checkpoints runs until that is progress
    run_s: float | None = None  # the phase may take, from the begin of its launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """A command that tries beside the training whether it works with fewer nodes."""

    command: tuple[str, ...]
    log: str = "prefetch_nodes_{nodes}.log"  # in the phase's folder of records


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchOrder:
    """The numbers of nodes to try now."""

    what: Prefetch
    nodes: tuple[int, ...]
    began: float  # the phase; its folder of records is named after this time


class LadderRow(NamedTuple):
    """The levels for faults that match, gentlest first; after the last one the phase fails.

    An empty condition matches every fault. A named tuple, as a plan has all rows: without the names of
    the fields they take a third of the space.
    """

    levels: tuple[Level, ...]
    classes: tuple[FaultClass, ...] = ()
    owners: tuple[Owner, ...] = ()
    code_levels: tuple[str, ...] = ()  # how the reporter of a device fault calls its gravity
    needs_library: bool = False  # only where every rank uses the train library
    is_literal: bool = False  # the author wrote it: it is always tried from its beginning
    why: str = ""  # why the row has no more levels; part of the reason where it ends a phase


class Exclusion(NamedTuple):
    """Levels that a document rules out, and the sentence that says why."""

    levels: tuple[Level, ...]
    why: str
    under_rank0: bool = False  # only for a fault of the lowest slot, or of its node
    spares: tuple[FaultClass, ...] = ()  # classes for which the levels may be tried all the same


class RepeatRule(NamedTuple):
    """A device is broken once it shows the same code `times` times within a window."""

    times: int
    window_s: float
    codes: tuple[str, ...] = ()  # none: any code
    release_s: float | None = None  # quiet for so long releases the device; None: an operator does


class DurationRule(NamedTuple):
    """A device that shows the code for too long is isolated until it was without it for `sound_for_s`."""

    code: str
    longer_than_s: float
    sound_for_s: float
    level: str  # of the code then, in the words of its catalogue (`code_levels` of a ladder row)


class JobDurationRule(NamedTuple):
    """A fault of a node concerns the jobs on it only once it has lasted for too long."""

    code: str
    longer_than_s: float
    level: str  # as above


class RelationRule(NamedTuple):
    """A code `trigger` within `window_s` after a code `cause` is blamed on the device of `cause`."""

    trigger: str
    cause: str
    window_s: float
    level: str  # as above
    cls: FaultClass  # of the fault of that device


def ladder_rows(
    answers: Mapping[FaultClass, tuple[Level, ...]], *, why: str = "", is_whole: bool = False
) -> tuple[LadderRow, ...]:
    """A row for each list of levels, with the classes that have it; rows for the train library come first.

    `is_whole`: the lists have the levels of the train library already, where a document wants them.
    """
    classes_by_levels: dict[tuple[Level, ...], list[FaultClass]] = {}
    for cls, levels in answers.items():
        classes_by_levels.setdefault(levels, []).append(cls)
    plain = [
        LadderRow(levels, tuple(classes), why=why) for levels, classes in classes_by_levels.items()
    ]
    return (*(row for one in plain for row in _with_library(one) if not is_whole), *plain)


def _with_library(row: LadderRow) -> Iterator[LadderRow]:
    """The row with the levels of our library before the first level that ends all processes."""
    classes = tuple(cls for cls in row.classes if cls in LIBRARY_CLASSES)
    ends_all = {*SAME_CONTAINER, Level.POD}
    at = next((i for i, level in enumerate(row.levels) if level in ends_all), None)
    if classes and at is not None:
        new = tuple(level for level in LIBRARY_LEVELS if level not in row.levels)
        levels = (*row.levels[:at], *new, *row.levels[at:])
        yield row._replace(levels=levels, classes=classes, needs_library=True)


DEFAULT_ROWS = ladder_rows(LADDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Ladders, budgets and series: everything in which the dialects differ."""

    ladders: tuple[LadderRow, ...] = DEFAULT_ROWS
    exclusions: tuple[Exclusion, ...] = ()
    budgets: tuple[Budget, ...] = ()
    series: tuple[Series, ...] = ()
    rules: tuple[Rule, ...] = ()
    no_progress_restarts: int | None = 3
    no_progress_owners: tuple[Owner, ...] = LOST_WORK_OWNERS
    # Pods of a slot in a row may fail before their agent answers; None: any number.
    start_failures: int | None = 3
    # In a row, from a newest checkpoint that is complete; None: any number.
    rollbacks: int | None = 2
    suspects_checkpoints: bool = True  # two runs in a row that end alike lead to a rollback
    escalates: bool = True  # the same class again without progress leaves out the gentlest level
    spaced: bool = True  # restarts without progress wait longer and longer
    precheck: bool = False  # the nodes are checked before the command runs there
    # For these classes processes get `grace_s` to save and end; for others they are killed at once.
    saves_before_stop: tuple[FaultClass, ...] = SAVES_BEFORE_STOP
    only_checkpoints: bool = False  # nothing but a newer checkpoint is progress
    # A phase begins as its document says; restarts choose among the checkpoints that it saved itself.
    own_checkpoints: bool = False
    needs_checkpoint: bool = False  # a run that failed before any was saved is not started again
    number_check: NumberCheck | None = None
    # For these classes a standby is made before a pod is left. If it is not ready within `standby_s`, the
    # job goes on in the pod that it has.
    stands_by: tuple[FaultClass, ...] = ()
    standby_s: float = 60.0
    repeats: tuple[RepeatRule, ...] = (RepeatRule(3, 86_400.0),)
    durations: tuple[DurationRule, ...] = ()
    relations: tuple[RelationRule, ...] = ()
    job_durations: tuple[JobDurationRule, ...] = ()
    counts_over_jobs: bool = False  # the quarantine counts repeats, over all jobs of the cluster
    stops_at_limit: bool = False  # at `run_s` the job is stopped in order, it has not failed

    def repeat_rule(self, code: str | None) -> RepeatRule | None:
        """The first rule for this code."""
        return next((r for r in self.repeats if not r.codes or code in r.codes), None)

    @property
    def may_restart(self) -> bool:
        """Whether any fault is answered with a restart."""
        answers = (self.answer(cls).levels for cls in FaultClass if cls not in NEVER_BILLED)
        return any({*levels} - {Level.NOTE, Level.FAIL} for levels in answers)

    def answer(
        self,
        cls: FaultClass,
        owner: Owner = Owner.UNKNOWN,
        *,
        code_level: str | None = None,
        library: bool = False,
    ) -> LadderRow:
        """The first row that fits such a fault; where none does the phase fails."""
        fit = (
            row
            for row in self.ladders
            if (not row.classes or cls in row.classes)
            and (not row.owners or owner in row.owners)
            and (not row.code_levels or code_level in row.code_levels)
            and (library or not row.needs_library)
        )
        return next(fit, LadderRow((Level.FAIL,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpec:
    """One phase, every default filled in."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Mapping[str, str] = field(default_factory=dict)  # name: a variable of the worker
    workdir: str = "."
    image: str | None = None
    pod_template: Mapping[str, Any] = field(default_factory=dict)  # merged into each pod
    nodes: int = 1
    nodes_min: int = 1
    first_nodes_min: int | None = None  # with which the job may begin; None: with nodes_min
    spares: int = 0  # further pods that stand by to replace the first ones that are lost
    processes_per_node: int = 1
    accelerators_per_node: int | Literal["all"] = 0
    accelerator: Accelerator = "none"
    model_dir: str | None = None
    checkpoints_path: str | None = None
    checkpoints_format: str = "auto"
    checkpoints_pattern: str | None = None  # of their names; None: that of `checkpoints_format`
    save_signal: str | None = None  # on which the ranks save and go on
    prewarm: tuple[str, ...] | None = None  # None: what the ranks have loaded
    log_pattern: str | None = None
    loss_pattern: str | None = None  # None: a usual one is tried; empty: losses are not read
    prefetch: Prefetch | None = None
    last_step: int | None = None  # at which its training is over
    # A new pod starts so long after the processes of the old one ended, even if its volumes are not
    # unmounted yet; None: only once they are.
    clearing_s: float | None = None
    limits: Limits = Limits()
    policy: Policy = field(default_factory=Policy)
    # Files written for the author's programs: name -> content. `{params}` in a command becomes the path of
    # its params.yaml.
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Names of fields for messages: native name -> the name in the author's dialect, where they differ.
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> dict[str, str]:
        """Where the phase writes: path -> the field that names it."""
        field_names: dict[str, str] = {}
        for name, path in (
            ("model_dir", self.model_dir),
            ("checkpoints.path", self.checkpoints_path),
        ):
            if path is not None:
                field_names.setdefault(path, self.called.get(name, name))
        return field_names

    @property
    def spare_slots(self) -> tuple[int, ...]:
        """The numbers of its spares, behind those of its slots."""
        return tuple(range(self.nodes, self.nodes + self.spares))

    @property
    def run_limit(self) -> str:
        """The author's name for `limits.run_s`."""
        return self.called.get("limits.run_s", "its run_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note for the document's author: what was ignored, and why."""

    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Fields of a document of another system that have no effect here and are returned as they were."""

    kind: str = "job"
    description: str = ""
    workspace_id: str = "0"
    annotations: Mapping[str, str] = field(default_factory=dict)
    pool_id: str | None = None
    flavor_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A whole job. `time_scale` above 1 shortens long limits for rehearsals."""

    name: str
    phases: tuple[PhaseSpec, ...]
    cluster: str = "local"
    namespace: str = ""  # of its pods, on Kubernetes; empty: that of the cluster's workers
    labels: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # to pages about the job, by their names
    start_phase: str | None = None
    dialect: str = "native"
    origin: Origin = Origin()
    topic: str = ""  # where events are sent
    events: tuple[str, ...] = ()  # the names of those that are sent; empty: all
    notes: tuple[Note, ...] = ()
    priority: int = 0
    time_scale: float = 1.0

    @property
    def folders(self) -> dict[str, str]:
        """Where the job writes, over all its phases: path -> the field that names it."""
        field_names: dict[str, str] = {}
        for phase in self.phases:
            for path, field_name in phase.folders.items():
                field_names.setdefault(path, field_name)
        return field_names

    @property
    def first_phase(self) -> int:
        """Where the job begins: the index of `start_phase`, else 0."""
        names = [phase.name for phase in self.phases]
        return names.index(self.start_phase) if self.start_phase else 0


STILL_S_LEAST = 2.0
"""Signs of life are sampled and reported with a delay: no rehearsal has a shorter limit."""


def scaled(spec: JobSpec, time_scale: float) -> JobSpec:
    """The same job with its long limits divided by `time_scale`; short ones are left alone."""
    if time_scale == 1.0:
        return spec
    return replace(
        spec,
        time_scale=time_scale,
        phases=tuple(replace(p, limits=_scaled_limits(p.limits, time_scale)) for p in spec.phases),
    )


def _scaled_limits(limits: Limits, time_scale: float) -> Limits:
    def shorter(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / time_scale

    return replace(
        limits,
        queue_s=shorter(limits.queue_s),
        requeue_s=shorter(limits.requeue_s),
        hang_s=shorter(limits.hang_s),
        still_s=None if limits.still_s is None else max(limits.still_s / time_scale, STILL_S_LEAST),
        run_s=shorter(limits.run_s),
    )
