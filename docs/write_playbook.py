"""Writes docs/playbook.md from the tables of the core: `make docs`. A test says if it is stale.

Only presentation belongs here. A sentence about a rule that is not a value of the code would be a
second copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from docs.markdown import table as _table
from everstep.agent.observing.stillness import STEADY_POINTS
from everstep.backends.kubernetes import node_facts, pod_facts
from everstep.chronicle.chronicle import RECORDS_KEPT
from everstep.chronicle.views import ENDED_STATE, SHOWN_STATE
from everstep.core.counting import occurrences
from everstep.core.deciding import exclusions, remedies, suspicion
from everstep.core.deciding.end_causes import END_CAUSES
from everstep.core.deciding.playbook import CATCH_ALL, PLAYBOOK, PRECEDENCE, PlaybookRow
from everstep.core.levels import (
    KEEPING,
    LADDERS,
    LAUNCH_STEPS,
    NEVER_BILLED,
    RESCHEDULING,
    SAME_CONTAINER,
    STEPS,
    FaultClass,
    Level,
    Step,
)
from everstep.core.loop.lifecycle import NEWS, TABLE
from everstep.core.loop.next_actions import next_action
from everstep.core.recovering import quarantine
from everstep.core.seeing import hang
from everstep.core.spec import SAVES_BEFORE_STOP, JobSpec, Limits, PhaseSpec, Policy
from everstep.core.state import JobState, Mode
from everstep.core.world import JobRef
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import IN_A_ROW, modelarts
from everstep.dialects.native import shapes
from everstep.steps.perform import HEAL_S_MAX, STOP_CONFIRM_S
from everstep.steps.resuming import STORAGE_POLL_S
from everstep.steps.watch import CHECK_S, GROW_POLL_S, GROW_SETTLE_S

PAGE = Path(__file__).with_name("playbook.md")

STEP_MEANS: Mapping[Step, str] = {
    Step.STANDBY: "create pods beside those that will be left, and see them ready",
    Step.STOP: "give out the new generation, end every older process",
    Step.SPACE: "wait a little: the last restarts brought no progress",
    Step.HEAL: "let the device repair itself",
    Step.WRITABLE: "wait until the storage can be written again",
    Step.ISOLATE: "keep all jobs off the faulty nodes",
    Step.PLACE: "remove the pods concerned, reserve and create their successors",
    Step.PRECHECK: "look at the place before the command runs there",
    Step.RESUME: "fence, prove the old processes gone, choose the checkpoint",
    Step.START: "start the ranks and see every slot report them started",
}

LEVEL_MEANS: Mapping[Level, str] = {
    Level.NOTE: "recorded, nothing else",
    Level.OPERATOR_ONLINE: "the failing collective is run again",
    Level.PROCESS_ONLINE: "all processes stay, pause, roll back in memory, go on",
    Level.PROCESS: "only the faulty process is replaced, the others wait",
    Level.IN_PLACE: "the command runs again in the same containers, after the device healed",
    Level.SUSPENSION: "the same for a hang, nothing to heal",
    Level.POD: "only the pods concerned are replaced, elsewhere if their node is isolated",
    Level.JOB: "all pods are replaced",
    Level.ELASTIC: "go on with fewer nodes, grow again when there is room",
    Level.ROLLBACK: "resume from an older checkpoint",
    Level.FAIL: "the phase ends, with the reason",
}

INTRODUCTION = """\
# The playbook

What a fact is called, what is done about it, and with which numbers. Written by `make docs` from the tables
of `everstep/core`; a test compares. What a document changes about it, `everstep explain FILE` prints.
"""


def page() -> str:
    sections = (_rows(), _cluster_facts(), _ladders(), _levels(), _loop(), _numbers())
    return "\n".join([INTRODUCTION, *("\n".join(section) for section in sections)])


# -- What a fact is called ------------------------------------------------------------------------


def _rows() -> Iterator[str]:
    yield "## See and name: from facts to a class\n"
    yield "The first row that matches a fact names it. A kind that ends in a dot stands for its family.\n"
    rows = (
        (_kinds(row), f"`{row.cls}`", str(row.owner), _marks(row), row.why)
        for row in (*PLAYBOOK, CATCH_ALL)
    )
    yield from _table(("facts", "class", "owner", "", "because"), rows)
    yield "\nOf several facts the weightiest class speaks, of several of that class the earliest:"
    yield ", ".join(str(cls) for cls in PRECEDENCE) + "."
    yield "\nWhat device codes mean, and who owns them: [faults.md](faults.md).\n"
    yield "What the last words of a process say about a crash; the first row that matches its exception, else"
    yield "its last lines. `everstep why` shows it. It changes neither level nor budget:\n"
    causes = (
        (f"`{row.cause}`", str(row.owner), "yes" if row.retry else "no", row.advice)
        for row in END_CAUSES
    )
    yield from _table(("cause", "owner", "another try can help", "it means"), causes)
    yield "\n[Real ends](../tests/ends/test_ends.py), with what a person says of each, are in `tests/ends`."
    yield "Of 51 ends that were new to them, the rows named the cause of 32 rightly, of 14 wrongly; mended,"
    yield "of 29 others, 28 rightly and none wrongly. `python -m tests.ends.measure` prints how they do.\n"


def _cluster_facts() -> Iterator[str]:
    yield "## See: what Kubernetes reports\n"
    yield "A pod that ends although no order ended it; the first row that matches speaks:\n"
    ends = ((f"`{row.field}`", f"`{row.kind}`", row.why) for row in pod_facts.ENDS)
    yield from _table(("in its status", "fact", "because"), ends)
    yield "\nA pod that does not run yet; `waiting_for` shows the words of the cluster:\n"
    waits = ((f"`{row.field}`", f"`{row.kind.reason}`", row.why) for row in pod_facts.WAITS)
    yield from _table(("in its status", "`waiting_reason`", "because"), waits)
    yield "\nConditions and taints of a node. A code of NVIDIA in one makes it a `device.fault`:\n"
    conditions = (
        (f"`{_pattern(row.condition)}` is {row.status}", row.source, f"`{row.kind}`", row.why)
        for row in node_facts.CONDITIONS
    )
    taints = (
        (f"taint `{_pattern(row.key)}`", row.source, f"`{row.kind}`", row.why)
        for row in node_facts.TAINTS
    )
    yield from _table(("on the node", "written by", "fact", "because"), (*conditions, *taints))
    yield f"\nA lease that is not renewed for {node_facts.LEASE_AGE_S:g} s is a `subhealth.lease`.\n"


def _pattern(text: str) -> str:
    """A regular expression as a table of the page can show it."""
    return text.replace("\\", "").replace("|", " or ")


def _kinds(row: PlaybookRow) -> str:
    kinds = " ".join(f"`{kind}`" for kind in row.kinds) or "everything else"
    return kinds if row.only_if is None else f"{kinds} if {row.only_if.text}"


def _marks(row: PlaybookRow) -> str:
    marks = {
        "only noted": row.is_harmless,
        "hardware": row.is_hardware,
        "inferred": not row.is_proven,
    }
    return ", ".join(name for name, holds in marks.items() if holds)


# -- What is done ---------------------------------------------------------------------------------


def _ladders() -> Iterator[str]:
    yield "## Decide: from a class to a level\n"
    yield "A ladder is tried from the left; after its last level the phase fails. A level that cannot apply"
    yield "is passed over: no bill, no record. The other systems are shown with everything switched on.\n"
    policies = {
        "native": Policy(),
        "ModelArts": modelarts(
            job_retry=1, pod_retry=1, unconditional=True, hang_retry=True, operator_retry=True
        ),
        "MindCluster": mindcluster(
            fault_scheduling="grace",
            pod_rescheduling=True,
            fault_retry_times=1,
            recover_strategy=("retry", "recover", "recover-in-place", "elastic-training"),
            sub_healthy="graceExit",
        ),
        "Cerebras": cerebras(max_num_restarts=1),
    }
    rows = (
        (f"`{cls}`", *(_arrow(policy.answer(cls).levels) for policy in policies.values()))
        for cls in LADDERS
    )
    yield from _table(("class", *policies), rows)
    yield f"\nNever billed: {_listed(NEVER_BILLED)}.\n"
    yield "Why a level is passed over, the first that holds:\n"
    yield from _table(("levels", "because"), _exclusions(policies.values()))
    yield ""


def _exclusions(policies: Iterable[Policy]) -> Iterator[tuple[str, str]]:
    pod_only = mindcluster(fault_scheduling="force", recover_policy_path_pod=True)
    for row in exclusions.ROWS:
        yield _listed(row.levels), re.sub(r"\{.*?\}", "…", row.why)
    for ruled_out in (row for policy in (*policies, pod_only) for row in policy.exclusions):
        yield _listed(ruled_out.levels), ruled_out.why


def _levels() -> Iterator[str]:
    yield "## Do: from a level to steps\n"
    yield "Each step is an activity that may be carried out twice; what a fault does not need is left out.\n"
    rows = (
        (f"`{level}`", LEVEL_MEANS[level], _arrow(STEPS[level]) or "none of ours")
        for level in Level
    )
    yield from _table(("level", "what happens", "steps"), rows)
    yield f"\nA launch: {_arrow(LAUNCH_STEPS)}.\n"
    yield from _table(("step", "what it does"), ((f"`{s}`", STEP_MEANS[s]) for s in Step))
    yield f"\nNeed the train library in every rank: {_listed(KEEPING)}."
    yield f"Need the old containers: {_listed(SAME_CONTAINER)}."
    yield f"Count as restarts in the status: {_listed(RESCHEDULING)}."
    yield f"Ask the processes to save before they end: {_listed(SAVES_BEFORE_STOP)}."
    yield f"Leave evidence before they are killed: {_listed(remedies.LEAVES_EVIDENCE)}."
    yield f"Every recovery gives way to {_listed(remedies.ALWAYS_GIVES_WAY)}.\n"


# -- The loop -------------------------------------------------------------------------------------


def _loop() -> Iterator[str]:
    yield "## The loop of a job\n"
    yield "What a job does in each mode, and what the status calls it:\n"
    modes = ((f"`{m}`", f"`{_next(m)}`", _shown(m)) for m in Mode)
    yield from _table(("mode", "next action", "shown as"), modes)
    yield "\nWhat may happen in it; any other pair is a bug with a name:\n"
    rows = (
        (f"`{mode}`", f"`{event.__name__}`", f"`{_name(handler)}`", _promise(handler))
        for (mode, event), handler in TABLE.items()
        if handler is not _BEGIN
    )
    yield from _table(("mode", "event", "row", ""), rows)
    yield f"\n`Begun` in every mode: `{_name(_BEGIN)}`, so that a new run goes on where the last one was."
    yield "\nWhat the monitor's report is about:\n"
    news = ((f"`{word}`", f"`{_name(row)}`", _promise(row)) for word, row in NEWS.items())
    yield from _table(("news", "row", ""), news)
    yield ""


def _shown(mode: Mode) -> str:
    return ", ".join(sorted(set(ENDED_STATE.values()))) if mode is Mode.ENDED else SHOWN_STATE[mode]


_BEGIN = TABLE[(Mode.PENDING, next(event for mode, event in TABLE if mode is Mode.PENDING))]


def _next(mode: Mode) -> str:
    spec = JobSpec(name="job", phases=(PhaseSpec(name="main", command=("true",)),))
    state = JobState(job=JobRef(id="job", run="run"), spec=spec, mode=mode)
    return type(next_action(state)).__name__


def _name(handler: Callable[..., object]) -> str:
    return handler.__name__.lstrip("_")


def _promise(handler: Callable[..., object]) -> str:
    return (handler.__doc__ or "").partition("\n")[0]


# -- Numbers --------------------------------------------------------------------------------------


def _numbers() -> Iterator[str]:
    yield "## Numbers\n"
    yield "Limits of a document, in seconds:\n"
    limits = ((f"`{name}`", _limit(name)) for name in shapes.Limits.model_fields)
    yield from _table(("limit", "default"), limits)
    yield "\nRules and patience, fixed:\n"
    yield from _table(("what", "value"), _fixed())


def _fixed() -> Iterable[tuple[str, str]]:
    spacing = ", ".join(f"{s:g}" for s in remedies.SPACING_S)
    brake = f"{quarantine.BRAKE_SHARE:.0%} of the nodes within {quarantine.BRAKE_WINDOW_S:g} s"
    yield (
        "restarts in a row without progress, then the phase fails",
        f"{Policy().no_progress_restarts}",
    )
    yield (
        "runs that end on one of several nodes since a checkpoint, no cause known, then the job leaves it",
        f"{remedies.RUNS_ON_A_NODE}",
    )
    yield (
        "rollbacks in a row behind a checkpoint that is whole (native, Cerebras)",
        f"{Policy().rollbacks}",
    )
    yield (
        "runs in a row that end alike make the newest checkpoint suspect (native, Cerebras)",
        f"{suspicion.ALIKE_TIMES}",
    )
    yield (
        "progress: a newer checkpoint; until one was recognised, a newer step than ever; where neither "
        "is seen, so long from the start to the last sign of life",
        f"{Limits().healthy_s:g} s",
    )
    yield "restarts without progress wait, in the row", f"{spacing} s"
    yield "restarts of one series in a row (ModelArts)", f"{IN_A_ROW}"
    (any_code,) = Policy().repeats
    same = f"{any_code.times} times in {any_code.window_s:g} s"
    yield "the same code on the same device is fatal (MindCluster has rules of its own)", same
    yield "not counted: a code that two devices show within", f"{occurrences.SHARED_WITHIN_S:g} s"
    yield (
        f"inferred isolations are held back, from {quarantine.BRAKE_FROM_NODES} nodes on, beyond",
        brake,
    )
    held_s = quarantine.HELD_WINDOWS * quarantine.BRAKE_WINDOW_S
    yield "an operator may agree to one that is held back for", f"{held_s:g} s"
    floors = f"{hang.FLOOR_UNPROVEN_S:g} s, {hang.FLOOR_S:g} s, {hang.CEILING_S:g} s"
    yield "learned hang limit: least before and after it is proven, most", floors
    busy = f"{hang.EXCUSED_TIMES:g} times as long, at most {hang.CEILING_S:g} s"
    yield "the same while output or I/O goes on, as in a validation or a long save", busy
    yield (
        "a hang that is answered with the end of the job",
        "nothing moves: steps, output, I/O, devices",
    )
    yield "the use of a device has not changed within", f"{STEADY_POINTS:g} point of a value"
    yield "a slot has to confirm its stop within", f"{STOP_CONFIRM_S:g} s"
    yield "a device has to heal within", f"{HEAL_S_MAX:g} s"
    yield "the storage is tried again every", f"{STORAGE_POLL_S:g} s"
    yield (
        "at the first fact or suspicion every agent has to answer a request within",
        f"{CHECK_S:g} s",
    )
    yield "a smaller job looks for room every", f"{GROW_POLL_S:g} s"
    yield "... and waits for more room before it grows by some of its nodes", f"{GROW_SETTLE_S:g} s"
    yield "records kept in a job; older ones live on in their Recoveries", f"{RECORDS_KEPT}"


def _limit(name: str) -> str:
    value: float | None = getattr(Limits(), name)
    if value is None:
        return "learned from the steps seen" if name == "hang_s" else "none"
    return f"{value:g}"


# -- Markdown -------------------------------------------------------------------------------------


def _arrow(words: Iterable[Step | Level]) -> str:
    return " → ".join(str(word) for word in words)


def _listed(words: Iterable[FaultClass | Level]) -> str:
    order = [*Level, *FaultClass]
    return ", ".join(str(word) for word in sorted(words, key=order.index))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
