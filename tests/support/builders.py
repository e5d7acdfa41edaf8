"""Values of the core in a line each, and a job whose faults and outcomes a test scripts. No clock.

A `ScriptedJob` goes through `lifecycle.advance` and `decide` like a real one; a test reports the faults and
how each plan ends, and reads the decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from everstep.chronicle import records
from everstep.chronicle.chronicle import Chronicle, Record
from everstep.chronicle.fold import folded
from everstep.chronicle.publishing import (
    Publication,
    PublishedUpTo,
    after_publishing,
    all_unpublished,
)
from everstep.core.deciding.decide import decide
from everstep.core.deciding.decision import Decision, Isolation, Outcome, Plan
from everstep.core.facts import Fact
from everstep.core.levels import LAUNCH_STEPS, FaultClass, Level, Step
from everstep.core.loop import commands, lifecycle, next_actions, operators
from everstep.core.loop.job_events import JobEvent
from everstep.core.loop.next_actions import Begun, Decide, Decided, PlanEnded, RunPlan, Watched
from everstep.core.seeing.watch_report import News, PodSeen, WatchOrder, WatchReport
from everstep.core.spec import JobSpec, LadderRow, Limits, PhaseSpec, Policy
from everstep.core.state import JobState
from everstep.core.world import Checkpoint, JobRef, PodRef, PodState, PodView
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from everstep.protocol.wire import RunProgress

START = 1_000.0
_numbers = count(1)


def fact(kind: str, *, at: float = START, **places: Any) -> Fact:
    """A fact of its own identity; keys that are no fields of a fact are details."""
    columns = {"id", "generation", "node", "slot", "rank", "device", "code", "message"}
    fields = {key: places.pop(key) for key in columns & places.keys()}
    fields.setdefault("id", f"{kind}/{next(_numbers)}")
    return Fact(kind=kind, at=at, details=places, **fields)


SIGHTINGS: Mapping[FaultClass, Fact] = {
    FaultClass.CRASH: fact("process.exit", slot=1, rank=1, exit_code=1),
    FaultClass.HANG: fact("hang.steps", slot=1),
    FaultClass.DEVICE: fact("device.fault", node="n1", device=3, code="80E01801"),
    FaultClass.DEVICE_USER: fact(
        "device.fault", node="n1", device=3, code="80C98002", user_induced=True
    ),
    FaultClass.DEVICE_FATAL: fact(
        "device.fault", node="n1", device=3, code="80E18402", severity="critical"
    ),
    FaultClass.NODE: fact("node.down", node="n1"),
    FaultClass.UNREACHABLE: fact("unreachable.agent", node="n1", slot=1),
    FaultClass.PRECHECK: fact("precheck.disk", node="n1", slot=1, hardware=True),
    FaultClass.NETWORK: fact("network.link", node="n1", slot=1),
    FaultClass.SUBHEALTH: fact("subhealth.power", node="n1"),
    FaultClass.SLOW: fact("slow.rank", slot=1),
    FaultClass.NUMERIC: fact("numeric.nan", slot=1),
    FaultClass.CHECKPOINT: fact("checkpoint.bad", step=40),
    FaultClass.STORAGE: fact("storage.unwritable"),
    FaultClass.PREEMPTED: fact("job.preempted"),
    FaultClass.MAINTENANCE: fact("maintenance.notice", node="n1"),
    FaultClass.PLANNED: fact("operator.restart", level="job"),
    FaultClass.UNKNOWN: fact("weather.storm", slot=1),
}
"""One sighting of every class."""


COLUMNS: Mapping[str, Policy] = {
    "native": Policy(),
    "modelarts": modelarts(job_retry=8),
    "modelarts with all": modelarts(job_retry=8, pod_retry=3, unconditional=True, hang_retry=True),
    "mindcluster": mindcluster(fault_scheduling="force"),
    "mindcluster with all": mindcluster(
        fault_scheduling="grace",
        pod_rescheduling=True,
        fault_retry_times=3,
        recover_strategy=("dump", "elastic-training", "recover", "recover-in-place", "retry"),
        sub_healthy="graceExit",
    ),
    "mindcluster pod only": mindcluster(
        fault_scheduling="force", fault_retry_times=3, recover_policy_path_pod=True
    ),
    "mindcluster off": mindcluster(fault_retry_times=3),
    "mindcluster off, retried": mindcluster(backoff_limit=3),
    "cerebras": cerebras(max_num_restarts=3),
    "modelarts off": modelarts(job_retry=None, pod_retry=3, unconditional=True),
}
"""The columns of the ladder table, with and without what a document may switch on."""


def with_ladder(policy: Policy, cls: FaultClass, *levels: Level, **options: Any) -> Policy:
    """The policy with another answer to this class."""
    return replace(policy, ladders=(LadderRow(levels, (cls,), **options), *policy.ladders))


def sighting(cls: FaultClass, **changes: Any) -> Fact:
    """A new fact of this class: that of SIGHTINGS with these changes."""
    return replace(SIGHTINGS[cls], id=f"{cls}/{next(_numbers)}", **changes)


def job_spec(policy: Policy | None = None, *, nodes: int = 4, **phase: Any) -> JobSpec:
    limits = Limits(**phase.pop("limits", {}))
    phase.setdefault("checkpoints_path", "ckpt")
    main = PhaseSpec(
        name="main",
        command=("train",),
        nodes=nodes,
        nodes_min=phase.pop("nodes_min", nodes),
        limits=limits,
        policy=policy or Policy(),
        **phase,
    )
    return JobSpec(name="demo", phases=(main,))


def watch_order(*slots: int, **changes: Any) -> WatchOrder:
    """The order to watch these slots of the first generation, by limits that nothing reaches."""
    order = WatchOrder(
        job=JobRef(id="demo", run="r1"),
        cluster="local",
        generation=1,
        cursor="",
        since=0.0,
        limits=Limits(hang_s=100_000.0),
        active=slots,
    )
    return replace(order, **changes)


def pod(slot: int, **changes: Any) -> PodView:
    """A pod that started at 0 and made its newest step just now."""
    view = PodView(
        slot=slot,
        node=f"n{slot}",
        uid=f"pod-{slot}",
        state=changes.pop("state", PodState.RUNNING),
        run=RunProgress(generation=1, started_at=0.0),
    )
    return pod_with(view, **changes)


def pod_with(view: PodView, **changes: Any) -> PodView:
    """The view with other fields, its own or those of its run."""
    run = {name: changes.pop(name) for name in RunProgress._fields if name in changes}
    return view._replace(run=view.run._replace(**run), **changes)


@dataclass(slots=True, kw_only=True)
class ScriptedJob:
    """A job of the lifecycle on nodes n0, n1 ...; a test reports what happens to it."""

    spec: JobSpec
    state: JobState = field(init=False)
    chronicle: Chronicle = field(init=False, default_factory=Chronicle)
    action: next_actions.Action = field(init=False)
    decisions: list[Decision] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = JobState(job=JobRef(id="demo", run="r1"), spec=self.spec, now=START)
        self._advance(Begun())

    # -- what happens ------------------------------------------------------------------------

    def see(self, *facts: Fact, **details: Any) -> Decision:
        """The watcher reports these facts; the answer."""
        self.report("facts", facts=facts, **details)
        return self.decisions[-1]

    def report(self, news: News = "refresh", **details: Any) -> None:
        saved = details.pop("checkpoint", None)
        if isinstance(saved, int):
            saved = Checkpoint(step=saved, path=f"ckpt/{saved}")
        now = details.pop("now", self.state.now + 10.0)
        watch_report = WatchReport(
            news=news,
            now=now,
            alive_until=details.pop("alive_until", now),
            cursor=_later(self.state.cursor),
            learned=details.pop("learned", self.state.learned),
            generation=details.pop("generation", self.state.generation),
            checkpoint=saved,
            **details,
        )
        self._advance(Watched(report=watch_report))

    def succeeds(self, **details: Any) -> None:
        self._end("success", None, details)

    def fails(self, kind: str, at: Step | None = None, **details: Any) -> Decision:
        """The plan fails at a step (the last one unless given); the answer to that."""
        places = {
            key: details.pop(key) for key in ("slot", "node", "device", "message") & details.keys()
        }
        self._end("failed", at or self.plan.remedy.steps[-1], details, fact(kind, **places))
        return self.decisions[-1]

    def gives_way(self, *facts: Fact, at: Step | None = None, **details: Any) -> Decision:
        self._end("superseded", at or self.plan.remedy.steps[0], {"facts": facts, **details})
        return self.decisions[-1]

    def loses_outcome(self) -> None:
        """The Recovery is taken away; the job looks at the world next."""
        self._advance(PlanEnded(outcome=None))

    def finds(
        self,
        *,
        started: bool,
        generation: int,
        there: Collection[int] | None = None,
        ran: int | None = None,
    ) -> None:
        """What the look at the world shows; of all slots, or of those that are there.

        `ran`: the generation whose processes were the last there, if it is an older one.
        """
        pods = tuple(
            PodSeen(
                slot=slot,
                node=slot_state.node,
                uid=slot_state.uid or f"pod-{slot}-g{generation}",
                state="running",
                generation=ran or generation,
                started=started,
            )
            for slot, slot_state in self.state.slots.items()
            if there is None or slot in there
        )
        self.report("refresh", generation=generation, pods=pods)

    def launches(self) -> ScriptedJob:
        self.succeeds()
        return self

    def saves(self, step: int | Checkpoint) -> None:
        """A newer checkpoint is seen: progress."""
        self.report("refresh", checkpoint=step)

    def command(self, name: str, /, **args: Any) -> None:
        """An operator's command; an interrupting one ends the watch."""
        command = commands.accept(self.state, name, args)
        self.state = operators.commanded(self.state, command)
        self.action = next_actions.next_action(self.state)

    def publishes(self, *, entry: int = 0, notice: int = 0) -> None:
        """Everything up to these numbers is published."""
        done = PublishedUpTo(entry=entry, notice=notice)
        self.chronicle = after_publishing(self.chronicle, self.unpublished, done)

    def interrupted(self) -> None:
        """What is being done ends because of a command."""
        if isinstance(self.action, RunPlan):
            self._advance(PlanEnded(outcome=None, interrupted=True))
        else:
            self.report("interrupted")

    # -- what a test reads -------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        assert isinstance(self.action, RunPlan), f"nothing is carried out: {self.action}"
        return self.action.plan

    @property
    def unpublished(self) -> Publication:
        return all_unpublished(self.chronicle, self.state)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of this phase."""
        return records.of_phase(self.chronicle, self.state.phase.name)

    @property
    def record(self) -> Record:
        return self.records[-1]

    @property
    def used(self) -> dict[str, int]:
        ledger = self.state.finished[-1].ledger if self.state.finished else self.state.ledger
        return dict(ledger.used)

    # -- how it goes on ------------------------------------------------------------------------

    def _end(
        self, result: Any, step: Step | None, details: dict[str, Any], cause: Any = None
    ) -> None:
        slots, leaving = self.state.slots, self.plan.remedy.recreate
        nodes_in_use = (slot.node for n, slot in slots.items() if n not in leaving)
        closed = (*self.state.isolated, *nodes_in_use)
        if Step.RESUME in self.plan.remedy.steps:  # what was saved last is still there
            details = {"resume": self.state.saved, **details}
        ended = outcome(self.plan, result, step, cause, marked=closed, **details)
        self._advance(PlanEnded(outcome=ended))

    def _advance(self, event: next_actions.Event) -> None:
        self._turn(event)
        while isinstance(self.action, Decide):
            decision = decide(self.action.inputs)
            self.decisions.append(decision)
            self._turn(Decided(decision=decision))

    def _turn(self, event: next_actions.Event) -> None:
        self.state, self.action, events = lifecycle.advance(self.state, event)
        self.events += events
        self.chronicle = folded(self.chronicle, events)


def outcome(
    plan: Plan,
    result: Any,
    step: Step | None,
    cause: Fact | None,
    *,
    marked: tuple[str, ...] = (),
    **details: Any,
) -> Outcome:
    """The outcome of the plan in a cluster with enough nodes for every slot.

    New pods come on n0, n1 ... without `marked`: nodes that are isolated or in use. `details` are fields of
    the outcome that differ.
    """
    reached = plan.remedy.steps.index(step) if step is not None else len(plan.remedy.steps)
    done = plan.remedy.steps[:reached]
    generation = plan.generation + 1
    plain = Outcome(
        result=result,
        now=plan.since + 5.0,
        cursor=_later(plan.cursor),
        generation=generation,
        active=tuple(plan.slots),
        step=step,
        cause=cause,
        was_started=step in (None, Step.START),
        pods=_pods(plan, generation, marked) if Step.PLACE in done else {},
        isolated=tuple(i.node for i in plan.remedy.isolate) if Step.ISOLATE in done else (),
        avoid=plan.remedy.avoid,
        avoid_devices=plan.avoid_devices,
    )
    return replace(plain, **details)


def _later(cursor: str) -> str:
    return str(int(cursor or 0) + 1)


def _pods(plan: Plan, generation: int, marked: tuple[str, ...]) -> dict[int, PodRef]:
    """The new pods, on the first free nodes."""
    is_launch = plan.remedy.steps[: len(LAUNCH_STEPS)] == plan.remedy.steps and plan.n == 0
    closed = {*marked, *plan.remedy.avoid, *(i.node for i in plan.remedy.isolate)}
    names = (f"n{i}" for i in count() if f"n{i}" not in closed)
    new = {slot: next(names) for slot in plan.slots if slot in plan.remedy.recreate or is_launch}
    return {slot: PodRef(node=node, uid=f"pod-{slot}-g{generation}") for slot, node in new.items()}


def running(policy: Policy | None = None, **spec: Any) -> ScriptedJob:
    """A job that was launched and trains."""
    return ScriptedJob(spec=job_spec(policy, **spec)).launches()


def restarted(policy: Policy, cls: FaultClass, *, times: int = 1) -> ScriptedJob:
    """A job that trains again after so many faults of the class, each at a time of its own."""
    job = running(policy)
    for number in range(times):
        job.see(sighting(cls, at=job.state.now if number else START))
        job.succeeds()
    return job


def isolation(node: str, **details: Any) -> Isolation:
    return Isolation(node=node, reason="test", **details)


def levels(job: ScriptedJob) -> list[Level]:
    return [decision.level for decision in job.decisions]
