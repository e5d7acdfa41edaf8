"""The protocol between a worker and an agent: paths, JSON shapes, names of files and variables.

HTTP/1.1 with JSON bodies and a bearer token, over a unix socket or TCP. Every command carries a
generation. A command older than the newest generation received is refused with 409 and changes nothing.
A repeated command does nothing twice and is answered with the current state. Times are seconds since the
epoch, by a monotonic clock of the agent; `now` in a state is that clock's time when the state was made.

The state is level-triggered: it has a version that grows with every change. `GET /v1/state?since=V`
returns at once if there is a newer version, else when there is one or after `wait_s`. A poller that
misses an answer misses nothing: facts stay in the state until a poll acknowledges them with
`boot=B&after=N`, all of boot B up to number N. With `quiet_s`, progress of the training (steps, I/O) is
reported at most that often and everything else at once. With `fresh=1` the agent samples before it
answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing import TypedDict
else:
    # A real one compiles the annotation of every field, which takes some milliseconds of each start. An agent
    # reads the annotations as text.
    TypedDict = dict

STATE = "/v1/state"  # GET ?since=&wait_s=&quiet_s=&fresh=&boot=&after= -> AgentState
RUN = "/v1/run"  # POST RunCommand                    -> AgentState
STOP = "/v1/stop"  # POST StopCommand                 -> AgentState
FENCE = "/v1/fence"  # POST FenceCommand              -> FenceAnswer
CHECKPOINTS = "/v1/checkpoints"  # POST CheckpointsQuestion -> {"checkpoints": [SavedState, ...]}
WRITABLE = "/v1/writable"  # POST WritableQuestion       -> {"problem": ""}
SET_ASIDE = "/v1/set_aside"  # POST SetAsideCommand     -> {"moved": ["path", ...], "why": ""}
JOURNAL = "/v1/journal"  # POST JournalCommand          -> {}
RELEASE = "/v1/release"  # POST ReleaseCommand          -> {"kept": {"folder": "why"}}
CHECK = "/v1/check"  # POST CheckCommand               -> CheckState
COPY = "/v1/copy"  # GET ?rank=&step= -> CopyHeader; POST a CopyPart, a line end, bytes -> {}
COPY_PINS = "/v1/copy/pins"  # POST PinReport       -> PinsSeen
COPY_PART = "/v1/copy/part"  # GET ?rank=&step=&offset= -> bytes
SAVE = "/v1/save"  # POST SaveCommand                -> SaveAnswer
DUMP = "/v1/dump"  # POST DumpCommand                -> DumpAnswer
PREWARM = "/v1/prewarm"  # GET -> a PrewarmCommand, or {}; POST it to the agent of another pod -> AgentState
STACKS = "/v1/stacks"  # POST {}                      -> {"stacks": {"0": "text"}}
LOG = "/v1/log"  # GET ?rank=&generation=&offset=&limit= -> {"text", "offset", "next"}; offset < 0: the tail
QUIT = "/v1/quit"  # POST QuitCommand                 -> {}

OF_AGENTS = (COPY, COPY_PART, COPY_PINS)
"""What an agent may send to another one."""

STALE = 409
UNAUTHORIZED = 401
NEVER_ACCEPTED = (400, 413)
"""A command is malformed, or too large."""
DEFECT = 500
"""The agent failed by an error of its own."""
NO_STORAGE = 503
"""A file could not be read or written; the answer says which, and why."""

FENCE_FOLDER = ".everstep"
FENCE_FILE = "generation"  # {"job", "run", "cluster", "generation", ...}; its generation only grows
FENCE_S = 30.0
"""Default of `RunCommand.fence_s`."""
PACE_S = 300.0
"""Default of `RunCommand.pace_s`."""
COPY_PART_MOST = 2 * 1024 * 1024
"""Bytes of one part of a copy."""
STORAGE_S = 2.0
"""How long an agent waits for storage before it answers that the storage hangs."""
LIST_S = 60.0
"""Time limit of listing checkpoints; storage with many of them may be slow."""
ORPHAN_S = 86_400.0
"""Default time without a request of a worker after which an agent ends itself."""
LOG_MB = 32.0
"""What of a rank's log stays on the disk."""
WAIT_S_MAX = 30.0
"""Longest wait of one poll of the state."""

SMALL_FILE_MAX = 4096
"""Largest token or PID file, in bytes."""

# Files in the agent's own folder.
SOCKET = "s"
TOKEN = "token"  # written by the process that starts the agent, mode 0600
CERTIFICATE = "tls.crt"  # beside the token where it listens with TLS
CERTIFICATE_KEY = "tls.key"
AUTHORITY = "ca.crt"  # that signed the certificates of agent and clients
AGENT_NAME = "agent"  # common name in that certificate: other agents recognise an agent by it
HOST_NAME = "agent.everstep.internal"  # in the certificate of every agent
PID = "pid"
LOCK = "lock"  # flock: one agent per folder, the loser exits with ALREADY
LOGS = "logs"  # g<generation>-r<rank>.log
FILES = "files"  # what the command of the newest run reads
RANKS = "ranks"  # g<generation>-r<rank>/: files between a rank and its agent
RANK_FOLDER = "EVERSTEP_RANK_FOLDER"  # the variable in which a rank finds its own
CAPABILITIES = "capabilities.json"  # by the rank: a list of what it can do; replaced as a whole
INSTRUCTION = (
    "instruction.json"  # by the agent: a RebuildRequest or SaveRequest, replaced as a whole
)
LAST_WORDS = "error.json"  # by the rank, before it fails; as PyTorch's `record` writes it
LAST_WORDS_FILE = "TORCHELASTIC_ERROR_FILE"  # the variable in which it finds where to
ALREADY = 75


Time = float
"""A moment by the clock of its agent. `shapes.in_time_of` translates the fields of this type."""

TimeSpan = tuple[Time, Time]
"""The moments at which a time began and ended."""


class RankSeen(TypedDict):
    """One training process of the newest run."""

    rank: int
    local_rank: int
    pid: int
    incarnation: int  # the generation in which this process was started
    can: list[str]  # capabilities it declares: guard, pause, snapshot, rebuild, restore
    started_at: Time
    exited_at: Time | None  # as near as it is known
    ended_between: TimeSpan | None  # if its end was not seen
    code: int | None  # None if killed by a signal, or still there
    signal: int | None
    recent_steps: int | None  # in the last `pace_s`; None: it shows none, or not for so long yet


class RankPosition(TypedDict):
    """Where a rank is that holds: it is in no collective operation, and waits for the order to rebuild."""

    rank: int
    completed: int | None  # the step whose state it has; None: it has none, or a part of an update
    copies: list[int]  # the ranks whose state is the same as its own; empty: that of every rank


class SnapshotSeen(TypedDict):
    """A whole snapshot, in memory that the agent holds, of a rank that would begin from it."""

    rank: int
    world: int  # number of ranks whose snapshots of this step belong together
    generation: int  # of the process that wrote it
    step: int
    at: float
    bytes: int
    saves: bool  # the rank named a function that can save it


class SavedState(TypedDict):
    """A checkpoint."""

    step: int | None  # of the training, if its name has it
    number: int | None  # by which it is newer than another; None: only by its time
    path: str
    bytes: int
    at: float
    good: bool
    is_sure: bool  # False: it may have been cut off, so that it counts as no good one
    doubt: str  # why it is not good, in words, such as `step_20.pt is cut off`; empty: it is


NO_COUNTS: dict[str, int] = {}


class RunProgress(NamedTuple):
    """The progress of a run and its signs of life. Agents fill it, and the rules of the engine read it."""

    generation: int = 0
    phase: str = ""
    started_at: Time | None = None  # every rank was started; stays after their exits
    failed: str | None = None  # why it could not be started at all
    stopped: bool = False  # ended by command, not by itself
    step: int | None = None
    step_at: Time | None = None
    first_step_at: Time | None = None
    longest_gap_s: float = 0.0  # between two steps
    moved_at: Time | None = None  # last movement of I/O, CPU time, log or steps of any rank
    output_at: Time | None = None  # last output of any rank
    io_at: Time | None = None  # last I/O of any process of the run; None: unknown
    busy_at: Time | None = None  # last change of its devices' utilisation; None: unknown
    watched_since: Time | None = None  # its agent did not stand still since then
    saved_at: Time | None = None  # when its newest checkpoint was noticed, if that was in this run
    save_every_s: float | None = None  # the usual time between two; None: too few were seen
    free_bytes: int | None = None  # where they are written; None: unknown
    unmatched_since: Time | None = None  # lines are printed, and none matches the log pattern
    unread: bool = False  # the log pattern was too slow for what is printed: no more steps are read
    steps_from: str = ""  # what its first step was found in, where no log pattern is given
    counts: dict[str, int] = NO_COUNTS  # schedule_count and process_start_count of its RunCommand
    prewarmed: bool | None = None  # every rank is a fork of the helper; None: not requested


RunSeen = dict[str, Any]
"""The newest run of an agent as JSON: the fields of `RunProgress`, and those of RUN_PARTS."""

RUN_PARTS = {
    "ranks": "list[RankSeen]",
    "checkpoint": "SavedState | None",  # newest complete one; if none is left, the last there was
    "devices": "list[DeviceUse]",  # those that show something
    "unrecognised": "Unrecognised | None",  # files in place of checkpoints, as long as none is one
}


class DeviceUse(TypedDict):
    """What a device shows of its use and its memory, for people; None: unknown."""

    index: int
    percent: float | None
    memory_mb: float | None
    memory_total_mb: float | None


class Unrecognised(TypedDict):
    """Files that a run wrote under its checkpoints path and whose names are not those of a checkpoint."""

    since: Time  # when the first was noticed
    count: int
    example: str


class FactSeen(TypedDict):
    """A fact. `n` numbers the facts of this boot; those taken over from an earlier boot come first."""

    n: int
    id: str  # unique in this pod; a later boot reports the fact under the same ID
    kind: str
    at: Time
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


class PrewarmCommand(TypedDict):
    """Import modules before the first run. Beside these fields it has those of the `RunCommand` to expect."""

    packages: list[str]  # the folders that the modules come from
    rss_bytes: int  # memory of the helper that has imported them


class WorkSeen(TypedDict):
    """A command that the agent carried out: from when it came until it was done."""

    name: str  # stop, fence, checkpoints, start
    generation: int
    began: Time
    ended: Time


WORKS_MOST = 6
"""The newest that an agent keeps: those of a restart, and of a try before it. Each state has them."""


class AgentState(TypedDict):
    """What `GET /v1/state` returns: the agent, its newest run and its unacknowledged facts."""

    version: int
    news: int  # the newest version with more than progress of the training
    now: Time
    uid: str
    job: str
    slot: int
    node: str
    boot: str  # a new one for each process of the agent
    generation: int  # the newest of any command received
    run: RunSeen | None
    stopped_below: int  # every process of a generation older than this is proven gone
    kept_ranks: list[int]  # ranks that the newest stop kept: they are of its generation now
    positions: list[RankPosition]  # where those of them are that it ordered to hold
    evidence: str | None  # folder with the stacks and logs that were collected before the last kill
    helper: HelperSeen | None
    notes: list[str]  # for people: what fell back to something plainer
    facts: list[FactSeen]  # not acknowledged yet
    facts_seen: int  # number of all facts of this boot
    works: list[WorkSeen]  # the newest; of each name and generation the first
    snapshots: list[SnapshotSeen]
    copies: list[SnapshotSeen]  # of ranks of other pods, from their agents


Folder = str
"""A path that is not empty: an empty one would be the agent's working directory."""


class RankPlan(TypedDict):
    """One rank to start: its numbers and its own variables."""

    rank: int
    local_rank: int
    env: dict[str, str]


class PrefetchPlan(TypedDict):
    """A command to run beside the ranks, at low priority, once they train; its environment is complete."""

    nodes: int  # the number of nodes it prepares
    command: list[str]
    env: dict[str, str]
    files: dict[str, str]
    log: str  # file for its output, in the phase's folder of records
    began: float  # when the phase began, as in a JournalCommand: it names the folder
    owner: dict[str, str]


class Neighbour(TypedDict):
    """Another agent of the job: where it listens, and the pod that has to be there."""

    slot: int
    uid: str
    address: str  # unix:FOLDER, or tcp:HOST:PORT


class Fetch(TypedDict):
    """The copy of a rank's snapshot that an agent fetches from another one before it starts the rank."""

    rank: int
    held_by: Neighbour


class CopyHeader(TypedDict):
    """What a copy is of: the header of a snapshot, with its age in place of a time by one machine's clock."""

    rank: int
    world: int
    step: int
    generation: int  # of the process that wrote it
    index_bytes: int
    content_bytes: int
    age_s: float
    checksum: int | None  # of all content; a whole copy has one


class CopyPart(CopyHeader):
    """A part of a copy. Parts come in their order; the last one has the checksum and makes the copy whole.

    Its bytes follow the JSON, behind a line end. A part with the offset 0 begins it again.
    """

    to: str  # uid of the pod whose agent it is meant for
    run: int  # generation of the sender's run: an agent with a newer run refuses the copy
    offset: int
    newest: (
        int | None
    )  # the newest step of its rank, whose later copies are of a training that was left
    pinned: list[int]  # steps whose copies stay, however many newer ones come


class PinsSeen(TypedDict):
    """Which snapshots all ranks of a run keep until they agree on newer ones."""

    number: int  # it grows
    step: int | None  # that all pods have, and copies of it
    next_from: int | None  # the first snapshot of this step or a later one is the next


class PinReport(PinsSeen):
    """How far the sender and the pods that report to it are with the next step, by these pins."""

    to: str  # uid of the pod whose agent it is meant for
    run: int  # generation
    slot: int  # of the sender
    done: int  # pods that have it, and copies of it
    has: int | None  # the step that these have pinned
    is_missed: bool  # some pod has not
    newest: int | None  # the newest step that some rank has a snapshot of


NO_WORDS: list[str] = []
NO_RULES: dict[str, str] = {}


class RunOrder(NamedTuple):
    """What a phase runs in every slot, and where it saves: as its document says, alike for all slots."""

    command: list[str] = NO_WORDS
    workdir: str = "."
    model_dir: Folder | None = None
    checkpoints_path: Folder | None = None
    checkpoints_format: str = "auto"
    checkpoints_pattern: str | None = None  # of their names, if the document has one
    checkpoints_of: str | None = None  # count only those of this phase; None: all
    log_pattern: str | None = None
    loss_pattern: str | None = None  # None: a usual one is tried; empty: losses are not read
    log_rules: dict[str, str] = (
        NO_RULES  # patterns by name: an exit lists those its last 200 lines match
    )
    prewarm: list[str] = NO_WORDS  # modules that the prewarm helper imports for the next start
    prewarm_auto: bool = False  # it imports the heavy ones that the ranks have loaded
    stop_siblings: bool = True  # a rank that ends badly ends the others of its own slot
    still_s: float | None = None  # limit of a time without I/O and device use; None: not sampled


class RunCommand(TypedDict):
    """Run the command once per rank. Its environment is `env` and the rank's own of `ranks`.

    In JSON the fields of `order` stand beside the others.
    """

    order: RunOrder
    generation: int
    phase: str
    env: dict[str, str]
    ranks: list[RankPlan]
    keep: list[int]  # ranks whose process runs already: the stop before kept them
    rebuild: dict[str, str]  # variables for those, beside their own of `ranks`
    snapshot_step: int | None  # ranks resume from their snapshots of this step; others are dropped
    neighbour: Neighbour | None  # the agent on another node that gets a copy of each snapshot
    fetch: list[Fetch]  # the copies of that step which other agents hold
    pods: int  # of the run: so many agree on what they pin
    leads: bool  # this agent names the step that is pinned next
    run: str  # of the job's workflow, the one that orders the start; the agent makes no use of it
    cluster: str  # that gave out the generation
    fence_s: float  # after so long with neither a fence to read nor a poll the ranks are ended
    # schedule_count and process_start_count: how often the pod and the process began.
    counts: dict[str, int]
    devices: list[int]  # of the node, held by this pod
    metrics: str | None  # file in which devices show their utilisation, memory and traffic
    accelerator: str  # nvidia and ascend devices are sampled by their own tool
    pace_s: float  # the time over which the steps of ranks are compared
    npu_look_s: float  # time between two looks of the rule for a hung NPU
    files: dict[str, str]  # written before a rank starts; {stem} in the command is the path of one
    prefetch: list[PrefetchPlan]  # one after the other


class RebuildRequest(TypedDict):
    """Instruction for a rank that was kept, in the newest generation it is a member of."""

    generation: int
    do: str  # rebuild: form the process group again, with these variables
    env: dict[str, str]


class SaveRequest(TypedDict):
    """Instruction for a rank that has a time of grace before it is killed, in the same file."""

    generation: int
    do: str  # save: write a checkpoint and end
    grace_s: float  # from the signal on that follows


class StopCommand(TypedDict):
    """End every process older than `generation`, except ranks in `keep`; 0 grace kills at once.

    Ranks in `keep` that are alive become members of this generation and appear in the state's `kept_ranks`.
    They appear after their warden was updated, so that the fence of this generation does not end them.

    With `hold_s` above 0 they are ordered to hold, and have so long to report their `positions`. A rank that
    does not, or that is stopped and cannot, is stuck: it ends with the others.
    """

    generation: int
    grace_s: float
    evidence: bool
    keep: list[int]
    hold_s: float


class SaveCommand(TypedDict):
    """Send the ranks of this generation the signal on which they save, once for each request."""

    generation: int
    request: str  # its ID
    signal: str  # its name; ranks without a handler for it get none


class SaveAnswer(TypedDict):
    """What became of a request to save so far."""

    at: float  # when the signal was sent
    signalled: list[int]  # ranks that got it
    deaf: list[int]  # ranks that have no handler for it
    saved: SavedState | None  # the newest checkpoint, if it came since


class DumpCommand(TypedDict):
    """Save the snapshots of this step by the functions of their ranks, once per generation. None of it runs.

    Sent again until all have ended; each is killed after this time.
    """

    generation: int
    step: int
    within_s: float


class DumpAnswer(TypedDict):
    """How far that is."""

    done: bool
    saved: list[int]  # ranks whose function has returned
    failed: list[str]  # why others have none, in words


class QuitCommand(TypedDict):
    """End every process, then the agent."""

    grace_s: float


def is_stopped(state: AgentState, command: StopCommand) -> bool:
    """Whether every older process has ended, except ranks in `keep`."""
    is_proven = state["stopped_below"] >= command["generation"]
    return is_proven and set(state["kept_ranks"]) <= set(command["keep"])


class FenceCommand(TypedDict):
    """Write the generation into these folders, unless they have a newer one or belong to another job.

    A folder inside the first one, on the same volume, gets no fence of its own.
    """

    generation: int
    run: str  # of the job's workflow, its first one: a continued or reset job is the same job
    cluster: str
    folders: list[Folder]
    left: list[Folder]  # folders that the job used before; its older generations are barred there
    earlier: list[str]  # clusters that had the job before: no generation of it there may go on
    workdir: Folder | None  # never created
    # Folder -> a phase that has not run yet: checkpoints that are there already are not its own.
    begins: dict[str, str]
    checkpoints: CheckpointsQuestion | None  # answered once the fence is written


class FenceAnswer(TypedDict):
    """The result of a FenceCommand. Without `newer`, `taken_by` and `no_folder` the fence is written."""

    real: dict[str, str]  # each folder: its real path
    newer: int  # a newer generation found there; 0: none
    is_held: bool  # the newer one is of a run of this job that has not ended
    taken_by: TakenFolder | None
    no_folder: str  # why a folder cannot be made; empty: it is there or can be made
    listing: CheckpointListing | None  # None: not asked for, or not read in time


class CheckpointListing(TypedDict):
    """What is saved in a folder whose fence was just written."""

    checkpoints: list[SavedState]
    set_aside: list[str]  # that the generation of the fence renamed before


class TakenFolder(TypedDict):
    """A folder of another job that has not ended, or one that contains such a folder or lies in it."""

    folder: str
    job: str
    cluster: str
    owned: str  # the other job's folder


class CheckpointsQuestion(TypedDict):
    """List the complete checkpoints of a folder, newest first."""

    path: Folder
    format: str
    pattern: str | None
    phase: str | None  # only those that it saved; None: all
    ended_between: list[TimeSpan]  # wall-clock times in which a writer was cut off
    is_over: bool  # every rank exited well, so that a file written just now is whole


class WritableQuestion(TypedDict):
    """Name what keeps this folder from being written, or from being made; empty: nothing."""

    path: Folder


class SetAsideCommand(TypedDict):
    """Rename these checkpoints before ranks of this generation run, and point tracker files at `resume`.

    The answer lists everything that the generation moved; with no checkpoints it only lists.
    """

    generation: int
    path: Folder
    checkpoints: list[str]
    pattern: str | None
    resume: str | None


class JournalCommand(TypedDict):
    """Bring run.log, summary.json and the other records of one phase up to date."""

    model_dir: Folder
    workdir: Folder | None  # never created
    began: float  # when the phase began; it names the folder
    owner: dict[str, str]  # of the folder; a different owner gets another folder
    lines: list[str]
    summary: dict[str, Any]  # fields of summary.json for the phase
    runs: dict[str, dict[str, Any]]  # by number, from 1: its fields for each run
    files: dict[str, str]  # more files of that folder, by name
    folders: list[str]  # and folders


class ReleaseCommand(TypedDict):
    """A job has ended: release its fences up to a generation, so that another job gets the folders."""

    job: str
    cluster: str
    generation: int
    folders: list[str]
    earlier: list[str]  # as in FenceCommand


class Thresholds(NamedTuple):
    """What a node needs before a command runs there: more than each of these numbers."""

    root_gb: float = 32.0  # free on the root's disk
    shm_gb: float = 1.0
    cache_gb: float = 32.0
    cache: str = "/cache"
    ulimits: bool | None = None  # whether to check them; None: only if the node has InfiniBand
    locked_kb: int = 16_000
    open_files: int = 1_000_000
    stack_kb: int = 8_000
    user_processes: int = 1_000_000
    within_s: float = 5.0  # time limit of each check


THRESHOLDS = Thresholds()


class CheckCommand(TypedDict):
    """Check the node, once per generation. Sent again until all checks are done."""

    generation: int
    hosts: list[str]  # names that have to resolve
    accelerator: str  # the kind of the devices: none, nvidia, ascend, simulated
    devices: int  # the least number of them
    thresholds: dict[str, Any]  # fields of `Thresholds`; the others have their defaults


class CheckSeen(TypedDict):
    """The result of one check."""

    name: str  # dns, disk-size-root, disk-size-shm, disk-size-cache, ulimit, gpu-check
    ok: bool
    measured: str
    needed: str
    hardware: bool  # a failure is the hardware's fault
    took_s: float


class CheckState(TypedDict):
    """The finished checks, in the order in which CheckSeen lists them."""

    generation: int
    done: bool
    checks: list[CheckSeen]
