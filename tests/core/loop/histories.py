"""Random histories of a job: what breaks and when, which outcomes are lost; and a driver that checks it.

`live` plays a `History` by the simulation on a fake cluster, set to lose outcomes, to break off plans in the
middle, to do steps twice and to repeat facts. After each action it compares what the job has with the state
of the cluster, which no job can see, and it returns the `Life` of the job for a test to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.chronicle.chronicle import Chronicle, Record
from everstep.core.deciding.decision import Outcome, Plan
from everstep.core.errors import CommandRejected
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop import next_actions, operators
from everstep.core.loop.next_actions import Event, PlanEnded, RunPlan, WatchAction, Watched
from everstep.core.recovering import recovery
from everstep.core.spec import Budget, JobSpec, Limits, PhaseSpec, Policy
from everstep.core.state import JobState, Mode
from everstep.core.world import JobRef, StartOrder
from everstep.dialects import responses
from everstep.dialects.mindcluster.policy import mindcluster
from everstep.dialects.modelarts.policy import modelarts
from everstep.simulation import Simulation
from everstep.steps.perform import perform
from tests.support.builders import with_ladder
from tests.support.patience import HUNG_S

JOB = "demo"
SLOTS = 4
NODES = 12
LAST_FAULT_S = 400
STEPS = 600
ACTIONS_MAX = 5_000
"""Far more than any history needs: a job that goes on acting without time passing is caught here."""
PATIENCE_S = 30 * 86_400.0
"""Of virtual time, far more than any history needs."""

# -- Whose job it is ----------------------------------------------------------------------------

_NATIVE = Policy(
    no_progress_restarts=None,
    budgets=(
        Budget(name="all", limit=None),
        Budget(name="successes", limit=None, when="succeeded"),
        Budget(name="pods", limit=2, levels=(Level.POD,)),
    ),
)
_MODELARTS = modelarts(job_retry=100, pod_retry=1, unconditional=True, hang_retry=True)
_MINDCLUSTER = mindcluster(
    fault_scheduling="force", pod_rescheduling=True, fault_retry_times=100, backoff_limit=100
)
POLICIES: Mapping[str, Policy] = {
    "native": _NATIVE,
    "modelarts": _MODELARTS,
    # A hang that is only noted never ends: that is no history for "the job completes".
    "mindcluster": with_ladder(_MINDCLUSTER, FaultClass.HANG, Level.JOB),
}


# -- What may happen ----------------------------------------------------------------------------

_nodes = st.integers(0, SLOTS + 1).map(lambda n: f"n{n}")
_ranks = st.integers(0, SLOTS - 1)
_codes = st.sampled_from(["80E01801", "80CB8002", "79"])
# Many at about the same time: what comes during a recovery is what recoveries are bad at.
_times = st.one_of(st.integers(0, LAST_FAULT_S), st.integers(100, 115))


def _lines(template: str, **words: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(words).map(lambda match: template.format(**match))


FAULTS = st.one_of(
    _lines("kill demo {rank}", rank=_ranks),
    _lines("kill demo {rank} exit 1", rank=_ranks),
    _lines("hang demo {rank}", rank=_ranks),
    _lines("device {node} {device} {code}", node=_nodes, device=st.integers(0, 1), code=_codes),
    _lines("device {node} 0 {code} no-heals", node=_nodes, code=_codes),
    _lines("device {node} 1 {code} critical", node=_nodes, code=_codes),
    _lines("device {node} 1 {code} warning", node=_nodes, code=_codes),
    _lines("node-down {node}", node=_nodes),
    _lines("node-down {node} partition", node=_nodes),
    _lines("node-up {node}", node=_nodes),
    _lines("silence {node}", node=_nodes),
    _lines("unsilence {node}", node=_nodes),
    _lines("kill-agent demo {rank}", rank=_ranks),
    _lines("slow-teardown {node} {seconds}", node=_nodes, seconds=st.integers(1, 50)),
    _lines(
        "fact demo {kind}", kind=st.sampled_from(["weather.storm", "network.link", "slow.rank"])
    ),
    st.just("preempt demo"),
    st.just("storage demo unwritable"),
    st.just("storage demo writable"),
)
_CLEARING = _lines("slow-teardown {node} {seconds}", node=_nodes, seconds=st.integers(1, 50))
CLEARING = st.one_of(_CLEARING, _CLEARING, FAULTS)
"""Faults while places take long to be cleared."""
SILENCE = st.one_of(_lines("silence {node}", node=_nodes), _lines("unsilence {node}", node=_nodes))

COMMANDS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("pause", {}),
    ("restart", {"level": "in_place"}),
    ("restart", {"level": "pod"}),
    ("restart", {"level": "job"}),
    ("report_fault", {"kind": "node.down", "node": "n1"}),
    ("report_fault", {"kind": "device.fault", "node": "n2", "device": 0, "code": "79"}),
    ("set_budget", {"name": "pods", "limit": None}),
    ("stop", {"grace_s": 2}),
)

TRICKS = ("none", "none", "none", "lost", "broken off", "twice")
"""What becomes of a plan: nothing special, its outcome is lost, half of it is done, steps are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Faults with their times, and what happens to plans; both in the order in which they come."""

    faults: tuple[tuple[int, str], ...]
    tricks: tuple[
        tuple[str, int], ...
    ] = ()  # for each plan: one of TRICKS, and at which of its steps
    commands: tuple[tuple[int, int], ...] = ()  # when, and which of COMMANDS
    repeats_facts: bool = False
    policy: str = "native"
    nodes_min: int = SLOTS
    clearing_s: float | None = None


def histories(
    faults: st.SearchStrategy[str] = FAULTS,
    *,
    commands: int = 3,
    policies: Collection[str] = POLICIES,
) -> st.SearchStrategy[History]:
    return st.builds(
        History,
        faults=st.lists(st.tuples(_times, faults), max_size=6).map(tuple),
        tricks=st.lists(st.tuples(st.sampled_from(TRICKS), st.integers(0, 6)), max_size=6).map(
            tuple
        ),
        commands=st.lists(st.tuples(_times, st.integers(0, len(COMMANDS) - 1)), max_size=commands)
        .map(sorted)
        .map(tuple),
        repeats_facts=st.booleans(),
        policy=st.sampled_from([*policies]),
        nodes_min=st.sampled_from([2, SLOTS]),
    )


# -- Who watches --------------------------------------------------------------------------------


class Witness(FakeBackend):
    """A fake cluster that asserts that never two generations of a job are alive, or hold one device."""

    def _order(self, verb: str, args: Mapping[str, Any]) -> object:
        order = args.get("order")
        if isinstance(order, StartOrder):
            self._see_nothing_older_alive(order)
        answer = super()._order(verb, args)
        self._see_every_device_held_once()
        return answer

    def _see_every_device_held_once(self) -> None:
        for node in self.cluster.state.nodes.values():
            active = [pod for pod in node.pods if pod.dead_at is None]
            held = [device.index for pod in active for device in pod.devices]
            assert sorted(held) == [d.index for d in node.devices if d.pod is not None], (
                f"devices {held} of {node.name} are held by {[pod.uid for pod in active]}"
            )

    def _see_nothing_older_alive(self, order: StartOrder) -> None:
        job = self.cluster.state.job(order.job.id)
        for pod in (*job.pods.values(), *job.leaving):
            if pod.processes is not None and pod.processes.generation < order.generation:
                assert not pod.has_living_processes, (
                    f"generation {order.generation} starts while {pod.name} of generation "
                    f"{pod.processes.generation} is alive on {pod.node.name}"
                )


@dataclass(slots=True, kw_only=True)
class Tricked(Simulation):
    """The simulation with the tricks of its history. `check` runs after every action."""

    history: History
    latest: object = None
    plans: int = 0
    commanded: int = 0
    stopped: bool = False
    actions: int = 0
    facts_reported: tuple[Fact, ...] = ()
    records_seen: dict[tuple[str, int], Record] = field(default_factory=dict)

    def check(self, state: JobState, action: next_actions.Action) -> None:
        self.actions += 1
        self.latest = action
        assert self.actions < ACTIONS_MAX, f"goes round in circles: {action}"
        assert state.now - EPOCH < PATIENCE_S, f"never ends: {action}"
        for record in self.chronicle.records:
            self.records_seen[record.phase, record.n] = record
        responses.closing_memo(state, self.chronicle)  # whoever asks, and whenever, is answered
        if isinstance(action, WatchAction) and state.mode is Mode.WATCHING:
            self._see_no_known_fault_ignored(state)

    def _see_no_known_fault_ignored(self, state: JobState) -> None:
        """No job trains on a device with a reported fault: every such fault had its answer."""
        seen_ids = frozenset(state.seen_ids)
        assert isinstance(self.backend, Witness)
        for node in self.backend.cluster.state.nodes.values():
            for device in node.devices:
                reported_ids = {f.id for f in device.faults.values()} & seen_ids
                pod = device.pod
                held = pod is not None and pod.job.pods.get(pod.slot) is pod
                assert not (device.is_faulty and reported_ids and held), (
                    f"{node.name}/{device.index} is known to be broken, and training goes on there"
                )

    async def _do(self, action: next_actions.Action) -> Event:
        await self._command(action)
        if isinstance(action, RunPlan) and operators.interrupts(self.state):
            return PlanEnded(outcome=None, interrupted=True)
        if isinstance(action, RunPlan) and action.plan.n:
            return PlanEnded(outcome=await self._tricked(action.plan))
        event = await Simulation._do(self, action)
        if (
            isinstance(action, WatchAction)
            and isinstance(event, Watched)
            and self.history.repeats_facts
        ):
            return self._with_repeated_facts(event)
        return event

    async def _command(self, action: next_actions.Action) -> None:
        """The commands whose time has come; a paused job is resumed as soon as it is paused."""
        if isinstance(action, WatchAction) and self.state.mode is Mode.PAUSED:
            self.tell("resume")
        now_s = await self.backend.clock() - EPOCH
        while self.commanded < len(self.history.commands):
            at_s, which = self.history.commands[self.commanded]
            if at_s > now_s:
                return
            self.commanded += 1
            name, args = COMMANDS[which]
            with contextlib.suppress(CommandRejected):
                self.tell(name, **args)
                self.stopped = self.stopped or name == "stop"

    def _with_repeated_facts(self, event: Watched) -> Watched:
        """Facts come twice: once when they come, once more with the next ones."""
        report = event.report
        facts = (*self.facts_reported, *report.facts) if report.news == "facts" else report.facts
        self.facts_reported = report.facts
        return Watched(report=replace(report, facts=facts))

    async def _tricked(self, plan: Plan) -> Outcome | None:
        tricks = self.history.tricks
        trick, after = tricks[self.plans] if self.plans < len(tricks) else ("none", 0)
        self.plans += 1
        progress = recovery.begin(plan)
        for number in range(len(plan.remedy.steps) + 1):
            order = recovery.next_step(progress)
            if isinstance(order, Outcome):
                return None if trick == "lost" else order
            await self._command(RunPlan(plan=plan))
            if (trick == "broken off" and number == after) or operators.interrupts(self.state):
                return None
            result = await perform(self._context(), order)
            if trick == "twice" and result.end == "done":
                result = await perform(self._context(), order)
            following = recovery.after(progress, result)
            if isinstance(following, Outcome):
                return None if trick == "lost" else following
            progress = following
        raise AssertionError("a plan has more steps than it names")


# -- How it is played ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is left of a job afterwards."""

    state: JobState
    chronicle: Chronicle
    end: next_actions.End
    stopped: bool
    records: tuple[Record, ...]
    effects: tuple[tuple[float, str], ...]
    calls: Mapping[str, int]


def live(history: History) -> Life:
    """The whole life of a job in this history, in virtual time."""
    return asyncio.run(_live(history))


async def _live(history: History) -> Life:
    backend = Witness(FakeSettings(nodes=NODES, devices=2))
    job = Tricked(
        backend=backend, spec=spec(history), job=JobRef(id=JOB, run="r1"), history=history
    )
    job.on_action = job.check
    await _break(backend, history)
    try:
        end = await asyncio.wait_for(job.run(), timeout=HUNG_S)
    except TimeoutError:
        raise AssertionError(f"stands still in {job.state.mode}: {job.latest}") from None
    effects = tuple((e.at, e.what) for e in await backend.admin.effects())
    return Life(
        state=job.state,
        chronicle=job.chronicle,
        end=end,
        stopped=job.stopped,
        records=tuple(job.records_seen[key] for key in sorted(job.records_seen)),
        effects=effects,
        calls=dict(backend.calls),
    )


async def _break(backend: FakeBackend, history: History) -> None:
    """Every fault at its time, and the end of all of them."""
    for at_s, line in history.faults:
        await backend.admin.fault(f"at {at_s + 1}s {line}")
    mended = [f"clear n{n}" for n in range(SLOTS + 2)] + ["storage demo writable"]
    for line in mended:
        await backend.admin.fault(f"at {LAST_FAULT_S + 60}s {line}")


def spec(history: History) -> JobSpec:
    phase = PhaseSpec(
        name="main",
        command=("train",),
        env={"STEPS": str(STEPS), "CHECKPOINT_EVERY": "20"},
        nodes=SLOTS,
        nodes_min=history.nodes_min,
        accelerator="simulated",
        accelerators_per_node=2,
        clearing_s=history.clearing_s,
        model_dir="out",
        checkpoints_path="out/ckpt",
        limits=Limits(),
        policy=POLICIES[history.policy],
    )
    return JobSpec(name=JOB, phases=(phase,))


HARDNESS: tuple[Level, ...] = (
    Level.NOTE,
    Level.IN_PLACE,
    Level.SUSPENSION,
    Level.ROLLBACK,
    Level.POD,
    Level.ELASTIC,
    Level.JOB,
)
"""The levels in the order in which ladders try them."""
