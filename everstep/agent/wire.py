"""What an agent is asked and what it answers: paths, JSON fields, file names. The only shared module.

HTTP/1.1 with JSON bodies and a bearer token, over a unix socket or TCP. Every command carries the
generation: one older than the newest ever told is refused with 409 and changes nothing; the same one
again is answered like the first time. Times are seconds since the epoch, by a clock of the agent that
nobody sets; the `now` of a state is what it showed then.

The state is level-triggered: it has a version that grows with every change, `GET /v1/state?since=V`
returns at once if there is a newer one, else as soon as there is, or after `wait_s`. Who misses an
answer misses nothing. Facts stay in it until somebody says `boot=B&after=N`: those of this boot up to
that number are written down elsewhere, and let go. Who asks many agents says `quiet_s` too: that
training goes on (steps, movement) is then told so late, everything else at once. With `fresh=1` it is
looked for signs of life first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

STATE = "/v1/state"  # GET ?since=&wait_s=&quiet_s=&fresh=&boot=&after= -> AgentState
RUN = "/v1/run"  # POST RunCommand                    -> AgentState
STOP = "/v1/stop"  # POST StopCommand                 -> AgentState
FENCE = "/v1/fence"  # POST FenceCommand              -> FenceAnswer
CHECKPOINTS = "/v1/checkpoints"  # POST CheckpointsQuestion -> {"checkpoints": [SavedState, ...]}
SET_ASIDE = "/v1/set_aside"  # POST SetAsideCommand     -> {"moved": ["path", ...], "why": ""}
JOURNAL = "/v1/journal"  # POST JournalCommand          -> {}
CHECK = "/v1/check"  # POST CheckCommand               -> CheckState
STACKS = "/v1/stacks"  # POST {}                      -> {"stacks": {"0": "text"}}
LOG = "/v1/log"  # GET ?rank=&generation=&offset=&limit= -> {"text", "offset", "next"}; offset < 0: the tail
QUIT = "/v1/quit"  # POST QuitCommand                 -> {}

STALE = 409
UNAUTHORIZED = 401
NO_STORAGE = 503
"""A file could not be read or written; the answer says which, and why."""

FENCE_FOLDER = ".everstep"
FENCE_FILE = "generation"  # {"job", "run", "cluster", "generation", ...}; its generation only grows
FENCE_S = 30.0
STORAGE_S = 2.0
"""So long an agent waits for storage before it answers that this hangs."""
LOOK_S = 60.0
"""So long it looks at checkpoints: storage of many may be slow; one that takes longer does not answer."""
ORPHAN_S = 86_400.0
WAIT_S_MAX = 30.0

# Files in the agent's own folder.
SOCKET = "s"
TOKEN = "token"  # written by whoever starts the agent, mode 0600
PID = "pid"
WORDS_MOST = 4096  # bytes in either of these
LOCK = "lock"  # flock: one agent per folder, the loser exits with ALREADY
LOGS = "logs"  # g<generation>-r<rank>.log
FILES = "files"  # what the command of the newest run reads
RANKS = "ranks"  # g<generation>-r<rank>/, in which a rank and its agent speak to each other
RANK_FOLDER = "EVERSTEP_RANK_FOLDER"  # the variable in which a rank finds its own
CAN = "can.json"  # by the rank: a list of what it can do; replaced as a whole
TOLD = "told.json"  # by the agent: RankTold; replaced as a whole
LAST_WORDS = "error.json"  # by the rank, before it fails; as PyTorch's `record` writes it
LAST_WORDS_FILE = "TORCHELASTIC_ERROR_FILE"  # the variable in which it finds where to
ALREADY = 75


class RankSeen(TypedDict):
    """One training process of the newest run."""

    rank: int
    local_rank: int
    pid: int
    incarnation: int  # the generation in which this process was started
    can: list[str]  # what it says it can do: guard, pause, snapshot, rebuild, restore
    started_at: float
    exited_at: float | None
    code: int | None  # None if killed by a signal, or still there
    signal: int | None


class SavedState(TypedDict):
    """A complete checkpoint."""

    step: int | None  # of the training, where its name tells it
    number: int | None  # by which it is newer than another; None: only its time says that
    path: str
    bytes: int
    at: float
    good: bool


class RunSeen(TypedDict):
    """The newest run, and how it goes."""

    generation: int
    phase: str
    started_at: float | None  # every rank was started; stays after their exits
    failed: str | None  # why it could not be started at all
    ranks: list[RankSeen]
    stopped: bool  # ended by command, not by itself
    step: int | None
    step_at: float | None
    first_step_at: float | None
    longest_gap_s: float
    moved_at: float | None  # last movement of I/O, CPU time, log or steps of any rank
    output_at: float | None  # last output of any rank
    io_at: float | None  # last I/O of any process of the run; None: not known
    busy_at: float | None  # last change of the use of its devices; None: not known
    # The newest complete one under its checkpoints path; where none is left, the last that was.
    checkpoint: SavedState | None
    saved_at: float | None  # when it was noticed, if that was in this run
    save_every_s: float | None  # the usual time between two of them; None: too few were seen
    free_bytes: int | None  # where they are written; None: not known
    # Lines are printed, and none matched the log pattern of the command.
    unmatched_since: float | None
    unrecognised: (
        Unrecognised | None
    )  # files under its checkpoints path, as long as none is a checkpoint
    unread: bool  # the log pattern was too slow for what is printed: no more steps are read
    counts: dict[str, int]  # schedule_count, process_start_count as it was told
    prewarmed: bool | None  # every rank is a fork of the helper; None: not asked for


class Unrecognised(TypedDict):
    """Files that a run wrote where its checkpoints should be, and whose names are none of a checkpoint."""

    since: float  # when the first was noticed
    count: int
    example: str


class FactSeen(TypedDict):
    """Something seen. `n` counts the facts of this boot, first those taken over from an earlier one."""

    n: int
    id: str  # in this pod; it stays the same whichever boot tells it
    kind: str
    at: float
    generation: int
    rank: int | None
    message: str
    details: dict[str, Any]


class HelperSeen(TypedDict):
    """The prewarm helper: a process that holds the modules in memory, to be forked for the next start."""

    pid: int
    modules: list[str]
    ready: bool
    rss_bytes: int  # memory it held when it was ready; its ranks share most of it
    standing_by: int  # forks that wait for the next start


class AgentState(TypedDict):
    """All that an agent knows."""

    version: int
    news: int  # the newest version that told more than that training goes on
    now: float
    uid: str
    job: str
    slot: int
    node: str
    boot: str  # a new one for each process of the agent
    generation: int  # the newest ever told, by any command
    run: RunSeen | None
    stopped_below: int  # every process of a generation older than this is proven gone
    kept: list[int]  # ranks that the newest stop kept: they are of its generation now
    evidence: str | None  # path of what was kept before the last kill
    helper: HelperSeen | None
    notes: list[str]  # for people: what fell back to something plainer
    facts: list[FactSeen]  # that nobody said are written down
    facts_seen: int  # how many there ever were of this boot


Folder = str
"""A path that is not empty: that would be wherever the agent happens to be."""


class RankPlan(TypedDict):
    """One rank to start: its number and what only it is told."""

    rank: int
    local_rank: int
    env: dict[str, str]


class PrefetchPlan(TypedDict):
    """A command to run beside the ranks, at low priority, once they train; its environment is complete."""

    nodes: int  # for so many it is
    command: list[str]
    env: dict[str, str]
    files: dict[str, str]
    log: str  # where it prints to, in the folder of what is recorded of the phase
    began: float  # as a JournalCommand says whose folder that is
    owner: dict[str, str]


class RunCommand(TypedDict):
    """Run the command once per rank. The environment is complete but for what is listed in `ranks`."""

    generation: int
    phase: str
    command: list[str]
    env: dict[str, str]
    workdir: str
    ranks: list[RankPlan]
    keep: list[int]  # those of them that have their process already: kept by the stop before
    rebuild: dict[str, str]  # what those are told, beside their own of `ranks`
    stop_siblings: bool  # a rank that ends badly ends the others of this pod
    log_pattern: str | None
    log_rules: dict[str, str]  # by name: its end tells which the last 200 lines of a rank hold
    checkpoints_path: Folder | None
    checkpoints_format: str
    checkpoints_pattern: str | None  # how the document says that they are called
    checkpoints_of: str | None  # the phase whose own ones alone count
    model_dir: Folder | None
    run: str
    cluster: str  # whose generations these are
    fence_s: float
    counts: dict[str, int]
    prewarm: list[str]
    devices: list[int]  # of the node, held by this pod
    metrics: str | None  # file in which simulated devices show their utilisation
    accelerator: str  # nvidia and ascend devices are asked through their own tool
    still_s: float | None  # so long without I/O or device use counts: samples come oftener
    files: dict[str, str]  # written before a rank starts; {stem} in the command is the path of one
    prefetch: list[PrefetchPlan]  # one after the other


class RankTold(TypedDict):
    """What a rank that goes on is to do, in the newest generation it is a member of."""

    generation: int
    do: str  # rebuild: meet the others anew, by these variables
    env: dict[str, str]


class StopCommand(TypedDict):
    """End every process older than `generation`; 0 grace kills at once.

    But for the ranks to keep: those that live become of this generation, and the state says which. It does
    so once their warden was told, so that the fence of this generation ends only who was not kept.
    """

    generation: int
    grace_s: float
    evidence: bool
    keep: list[int]


class QuitCommand(TypedDict):
    """End every process, then the agent itself."""

    grace_s: float


def is_stopped(state: AgentState, command: StopCommand) -> bool:
    """Whether nothing older lives but for ranks to keep."""
    is_proven = state["stopped_below"] >= command["generation"]
    return is_proven and set(state["kept"]) <= set(command["keep"])


class FenceCommand(TypedDict):
    """Write the generation into these folders, unless it is outdone there, or they are another job's.

    One that is inside the first needs no fence of its own.
    """

    generation: int
    run: str
    cluster: str
    folders: list[Folder]
    left: list[Folder]  # that the job wrote to in the past
    earlier: list[str]  # clusters that had the job before, whose generations are outdated
    workdir: Folder | None  # nothing is made in it where it is not there
    begins: dict[str, str]  # a folder, and the phase that begins to save there


class FenceAnswer(TypedDict):
    """What the storage says. Without `newer`, `taken` and `no_workdir` it is written."""

    real: dict[str, str]  # each folder, whatever it is called, where it is
    newer: int  # a generation that the job has to be above; 0: none is
    is_held: bool  # that is one of the job itself, which has not ended
    taken: TakenFolder | None
    no_workdir: bool  # there is none, and a folder would be made in it


class TakenFolder(TypedDict):
    """A folder of another job that has not ended."""

    folder: str
    job: str
    cluster: str


class CheckpointsQuestion(TypedDict):
    """Which complete checkpoints are there, newest first?"""

    path: Folder
    format: str
    pattern: str | None
    phase: str | None  # those that it saved; None: all
    ended: list[float]  # when writers ended in the middle of something; seconds of the wall clock
    is_over: bool  # every rank ended well: what was written a moment ago is whole too


class SetAsideCommand(TypedDict):
    """Rename these checkpoints, before ranks of this generation run. A tracker names `resume` then.

    The answer tells of all that the generation moved: without any named it only tells.
    """

    generation: int
    path: Folder
    checkpoints: list[str]
    pattern: str | None
    resume: str | None


class JournalCommand(TypedDict):
    """Write what is not there yet into run.log and summary.json of one phase, and what lies beside them."""

    model_dir: Folder
    began: float  # the phase: the folder is named after it
    owner: dict[str, str]  # whose folder it is; others get one of their own
    lines: list[str]
    summary: dict[str, Any]  # what summary.json says of the phase
    runs: dict[str, dict[str, Any]]  # by number, from 1: what it is to say of each
    files: dict[str, str]  # others in that folder, by name
    folders: list[str]  # the same


@dataclass(frozen=True)
class Thresholds:
    """What a place needs before a command runs there. More than each number, not just as much."""

    root_gb: float = 32.0  # free on the root's disk
    shm_gb: float = 1.0
    cache_gb: float = 32.0
    cache: str = "/cache"
    ulimits: bool | None = None  # whether they are asked for; None: where there is an InfiniBand
    locked_kb: int = 16_000
    open_files: int = 1_000_000
    stack_kb: int = 8_000
    user_processes: int = 1_000_000
    within_s: float = 5.0  # so long each check may take


THRESHOLDS = Thresholds()


class CheckCommand(TypedDict):
    """Look at the place, once for each generation. What is not done yet is asked for again."""

    generation: int
    hosts: list[str]  # names that have to be found
    accelerator: str  # the kind of the devices: none, nvidia, ascend, simulated
    devices: int  # how many of them there have to be
    thresholds: dict[str, Any]  # of `Thresholds`; what is left out is as there


class CheckSeen(TypedDict):
    """What one check found."""

    name: str  # dns, disk-size-root, disk-size-shm, disk-size-cache, ulimit, gpu-check
    ok: bool
    measured: str
    wanted: str
    hardware: bool  # whose fault it is, if it failed
    took_s: float


class CheckState(TypedDict):
    """The checks that are done, in the order in which they are listed above."""

    generation: int
    done: bool
    checks: list[CheckSeen]
