"""How a case of a document is written down: its input, its events, its expected outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RETRY = "fault-tolerance/job-retry-num"
UNCONDITIONAL = "fault-tolerance/job-unconditional-retry"
HANG = "fault-tolerance/hang-retry"
POD = "fault-tolerance/pod-retry-num"
MINUTES = "MA_HANG_DETECT_TIME"
CLEARING = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"

SLOTS = 4
RUSHED = 600.0
"""Time scale of rehearsals of half an hour; a killed worker is away for as long as a job waits for places."""
RUNS = 100.0
"""Virtual seconds from one deed to the next: every recovery is long over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something that happens while training runs in its `start`-th start.

    `what`: fault lines with JOB for the job's ID, `; ` between them, or `exit RANK CODE [EXCEPTION]`,
    `still`, `validate` (only output goes on, for as long as a hang), `log EXCEPTION`, `save STEP`, `saved
    STEP` (and the job has seen it), `end`, `window` (a day has passed), `long` (much longer than anything may
    be still).
    `notes` it leaves: the deed after it waits for them. With `records` it happens once there are so
    many, while nothing runs.
    """

    start: int
    what: str
    at_s: float | None = None  # in virtual time, where the usual distance does not do
    notes: int = 0
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a record has to say."""

    recover: str | None
    result: str = "success"
    scenario: str | None = "node_fault"
    start_type: str = "init_or_rescheduled"
    before: str | None = None  # recover_before_downgrade
    isolated: bool = False
    billed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What summary.json has to say of a run."""

    status: str
    start: int
    end: int
    systems: int = SLOTS
    because: str = ""  # what its reason holds


Trainers = Mapping[str, Any] | tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    number: int
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None  # of an AscendJob with one Master
    backoff_limit: int | None = None
    trainer: Trainers | None = None  # of Cerebras; its folder is the case's
    deeds: tuple[Deed, ...]
    rows: tuple[Row, ...] = ()
    kinds: tuple[str, ...] = ()  # of the records' faults
    ends: str = "Completed"
    because: str = ""  # what the report's reason holds
    counts: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """MA_SCHEDULE_CNT and MA_PROC_START_CNT of every start of a slot, as in the script's environment."""
    pods: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The pod that each start of a slot ran in; 0 is the first one."""
    slots: tuple[tuple[int, ...], ...] = ()  # who ran in each start, each told how many they are
    micro_batches: tuple[str, ...] = ()  # which size each start was given
    used: Mapping[str, int] = field(default_factory=dict)
    resumed: tuple[int | None, ...] = ()  # which step each start was told to resume from
    logged: tuple[str, ...] = ()  # what lines of run.log hold, in this order
    unlogged: tuple[str, ...] = ()  # what none of them holds
    attempts: tuple[tuple[Attempt, ...], ...] = ()  # by phase, as its restart directory tells them
    checks: tuple[str | None, ...] = ()  # for how many steps each start was to check its numbers
    stale: int | None = None  # a checkpoint that was in the folder before the job
    saved: int | None = None  # the newest checkpoint at the end
    isolated: tuple[str, ...] = ()
    restarts: int = 0
    events: tuple[str, ...] = ()  # names that have to be among those told, in this order
    silent: tuple[str, ...] = ()  # names that must not be among them
    place_s: tuple[float, float] | None = None  # how long the last restart waited for its places
    nodes: int = 6
    variables: Mapping[str, str] = field(default_factory=dict)
    overlay: Mapping[str, Any] = field(default_factory=dict)
    auto_stop_h: int | None = None
    before: tuple[str, ...] = ()  # faults that are there before the job
    fake: Mapping[str, str] = field(default_factory=dict)  # how the simulated script behaves
    time_scale: float = 1.0  # with real processes
    is_real: bool = (
        True  # whether it is played with real processes too; of rows that differ in a word, one is
    )

    def ranks(self, start: int) -> int:
        """How many there are in this start."""
        return len(self.slots[start - 1]) if self.slots else SLOTS

    @property
    def id(self) -> str:
        return f"{self.number:02}-{self.name.replace(' ', '-')}"


def exits(start: int, code: int = 1) -> Deed:
    return Deed(start=start, what=f"exit 0 {code}")


def device(start: int, code: str, *more: str, node: str = "n2", index: int = 3, **k: Any) -> Deed:
    return Deed(start=start, what=" ".join(("device", node, str(index), code, *more)), **k)


def ends(start: int, **k: Any) -> Deed:
    return Deed(start=start, what="end", **k)


REBUILT = Row(recover="job_reschedule", scenario="job_failed", billed={"job": 1})
HEALED = Row(recover="npu_proc_restart", scenario="chip_fault", start_type="restarted")
ISOLATED = Row(recover="job_reschedule_with_taint", isolated=True, billed={"job": 1})
RESTARTED = Row(recover="proc_restart", scenario="job_hanged", start_type="restarted")
MOVED = Row(recover="pod_reschedule", isolated=True, billed={"pod": 1})


def every_slot(*counts: Any) -> dict[int, tuple[Any, ...]]:
    return dict.fromkeys(range(SLOTS), counts)


ONCE = every_slot((1, 1))
HBM, OPERATOR_ERROR, VECTOR_ERROR, FATAL, ALARM = (
    *("80E01801", "80C98002", "80CB8002"),
    *("80E18402", "80E21007"),
)
