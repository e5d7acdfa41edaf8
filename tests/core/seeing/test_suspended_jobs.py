"""Suspended jobs of ModelArts from start to end, on the simulated cluster (semantics, cases 24 to 29)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.chronicle import views
from everstep.core.deciding.decision import Decision
from everstep.core.facts import Fact
from everstep.core.levels import FaultClass, Level
from everstep.core.loop.next_actions import Action, Decide, Decided, End, Event
from everstep.core.spec import STILL_S_LEAST, JobSpec, Limits, PhaseSpec, Policy, scaled
from everstep.core.state import JobState
from everstep.core.world import JobRef, Observation, PodView
from everstep.dialects import responses
from everstep.dialects.modelarts.policy import modelarts
from everstep.dialects.modelarts.shapes import HANG_MINUTES, HANG_RETRY, JOB_RETRY
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.builders import pod_with, running, sighting

SLOTS, DEVICES = 3, 2
STILL_S = 600.0
RESTARTS = modelarts(job_retry=3, hang_retry=True)
NOTES = modelarts(job_retry=3)
OFF = modelarts(job_retry=None, hang_retry=True)


@dataclass(slots=True, kw_only=True)
class Recorded(Simulation):
    """Keeps the decisions, and the environment of each start."""

    decisions: list[Decision] = field(default_factory=list)

    async def _do(self, action: Action) -> Event:
        event = await Simulation._do(self, action)
        if isinstance(action, Decide) and isinstance(event, Decided):
            self.decisions.append(event.decision)
        return event


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How a job ended, and what was decided on the way."""

    end: End
    decisions: tuple[Decision, ...]
    restarts: Sequence[dict[str, Any]]
    status: dict[str, Any]
    uids: frozenset[str]
    hints: tuple[str | None, ...]  # what `reason` said, one after the other, as it changed

    @property
    def hangs(self) -> list[tuple[str, Level, float]]:
        """`(rule, level, when)` of every suspension."""
        return [
            (d.fault.kind, d.level, round(d.at - EPOCH))
            for d in self.decisions
            if d.fault.kind.startswith("hang.")
        ]


async def lived(
    *faults: str,
    policy: Policy = RESTARTS,
    steps: int = 2_000,
    every: int = 10,
    devices: int = DEVICES,
    time_scale: float = 1.0,
    still_s: float = STILL_S,
    backend: FakeBackend | None = None,
    spec: JobSpec | None = None,
) -> Life:
    backend = backend or FakeBackend(FakeSettings(nodes=SLOTS + 1, devices=DEVICES))
    spec = spec or scaled(
        spec_of(policy, steps=steps, every=every, devices=devices, still_s=still_s), time_scale
    )
    job = Recorded(backend=backend, spec=spec, job=JobRef(id="demo", run="r1"))
    uids: set[str] = set()
    hints: list[str | None] = [None]

    def look(state: JobState, _: Action) -> None:
        uids.update(slot.uid for slot in state.slots.values())
        if (reason := views.status(state)["reason"]) != hints[-1]:
            hints.append(reason)

    job.on_action = look
    for line in faults:
        await backend.admin.fault(line)
    end = await job.run()
    return Life(
        end=end,
        decisions=tuple(job.decisions),
        restarts=responses.restarts(job.chronicle),
        status=views.status(job.state),
        uids=frozenset(uids),
        hints=tuple(hints),
    )


def spec_of(
    policy: Policy = RESTARTS,
    *,
    steps: int = 2_000,
    every: int = 10,
    devices: int = DEVICES,
    still_s: float = STILL_S,
) -> JobSpec:
    phase = PhaseSpec(
        name="main",
        command=("train",),
        env={"STEPS": str(steps), "CHECKPOINT_EVERY": str(every)},
        nodes=SLOTS,
        accelerator="simulated" if devices else "none",
        accelerators_per_node=devices,
        checkpoints_path="out/ckpt",
        limits=Limits(still_s=still_s),
        policy=policy,
    )
    return JobSpec(name="demo", phases=(phase,), dialect="modelarts")


def every_rank(line: str) -> list[str]:
    return [line.format(rank) for rank in range(SLOTS)]


async def test_who_does_nothing_is_started_again_in_its_container() -> None:
    life = await lived("at 100s hang demo 1")
    assert life.end.status == "Completed"
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 100 + STILL_S)]
    (record,) = life.restarts
    restart_columns = (
        record["level"],
        record["recover"],
        record["fault_scenario"],
        record["start_type"],
    )
    assert restart_columns == ("suspension", "proc_restart", "job_hanged", "restarted")
    assert (record["fault"]["slot"], record["fault"]["node"]) == (1, "n1")
    assert (record["bills"], life.status["budgets"]["job"]["used"]) == ({}, 0)
    assert life.status["reschedules"] == 0, "no rescheduling"
    assert len(life.uids) == SLOTS, "the same containers"


async def test_the_processes_learn_that_they_are_started_again() -> None:
    backend = FakeBackend(FakeSettings(nodes=SLOTS, devices=DEVICES))
    start_counts: list[tuple[int, int, int]] = []
    start = backend.ensure_started

    async def started(order: Any) -> Any:
        first = order.slots[0]
        start_counts.append((order.generation, first.schedule_count, first.process_start_count))
        return await start(order)

    backend.ensure_started = started  # type: ignore[method-assign]  # only listened to
    await backend.admin.fault("at 50s hang demo 0")
    job = Simulation(backend=backend, spec=spec_of(), job=JobRef(id="demo", run="r1"))
    assert (await job.run()).status == "Completed"
    assert {one[1:] for one in start_counts if one[0] == 1} == {(1, 1)}
    assert {one[1:] for one in start_counts if one[0] == 2} == {(1, 2)}


async def test_all_flat_is_suspended_though_they_write() -> None:
    life = await lived(*every_rank("at 100s hang demo {} io"))
    assert life.hangs == [("hang.all", Level.SUSPENSION, 100 + STILL_S)]
    assert life.restarts[0]["fault"]["slot"] is None


async def test_one_that_writes_while_its_devices_idle_is_not_suspended() -> None:
    life = await lived("at 100s hang demo 1 io", "at 900s hang demo 1")
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 900 + STILL_S)]


async def test_a_change_within_the_time_begins_it_anew() -> None:
    """What the devices show changes after 500 s: nothing before the whole time has passed again."""
    life = await lived("at 100s hang demo 1", "at 600s metric n1 0 80")
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 600 + STILL_S)]


async def test_a_device_that_varies_is_in_use() -> None:
    life = await lived("metric n1 0 vary", "at 100s hang demo 1", "at 900s metric n1 0 50")
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 900 + STILL_S)]


FLAT = [f"metric n{node} {device} 100" for node in range(SLOTS) for device in range(DEVICES)]


async def test_flat_devices_of_a_job_that_saves_are_no_suspension() -> None:
    assert (await lived(*FLAT, every=100)).hangs == []


async def test_flat_devices_are_a_suspension_where_nothing_is_saved() -> None:
    life = await lived(*FLAT, every=0)
    started_s = 5  # after the checks of the places
    assert life.hangs[0] == ("hang.all", Level.SUSPENSION, started_s + STILL_S)


async def test_without_hang_retry_it_is_noted_once_for_each_start() -> None:
    life = await lived(
        "at 100s hang demo 1", "at 3000s hang demo 0", "at 9000s node-down n1", policy=NOTES
    )
    assert life.end.status == "Completed"
    assert [hang[:2] for hang in life.hangs] == [("hang.instance", Level.NOTE)]
    assert [record["level"] for record in life.restarts] == ["job"]


async def test_each_suspension_is_noted_and_shown_as_long_as_nothing_moves() -> None:
    life = await lived(
        *FLAT,
        "at 2000s metric n0 0 vary",
        "at 3000s metric n0 0 100",
        every=0,
        policy=NOTES,
        steps=4_000,
    )
    first_s, again_s = 5 + STILL_S, 3_000 + STILL_S
    assert life.hangs == [
        ("hang.all", Level.NOTE, first_s),
        ("hang.all", Level.NOTE, again_s),
    ]
    message = life.decisions[0].fault.message
    hint = f"suspected suspension: {message}"
    assert life.hints == (None, hint, None, hint, "all ranks ended well")


async def test_after_another_start_it_is_noted_again() -> None:
    life = await lived(
        "at 100s hang demo 1",
        "at 2000s node-down n1",
        "at 2200s hang demo 0",
        "at 5000s node-down n0",
        policy=modelarts(job_retry=3),
    )
    assert [hang[:2] for hang in life.hangs] == [("hang.instance", Level.NOTE)] * 2


def test_a_new_start_begins_without_an_old_suspicion() -> None:
    """Before its first look."""
    job = running(NOTES)
    job.see(sighting(FaultClass.HANG))
    assert views.status(job.state)["reason"].startswith("suspected suspension: ")
    job.see(sighting(FaultClass.NODE))
    job.succeeds()
    assert views.status(job.state)["reason"] is None


@pytest.mark.parametrize("policy", [NOTES, OFF], ids=["no hang-retry", "no job-retry-num"])
async def test_a_note_stops_nothing(policy: Policy) -> None:
    life = await lived("at 100s hang demo 1", "at 3000s kill demo 0 exit 1", policy=policy)
    assert [hang[1] for hang in life.hangs] == [Level.NOTE]
    assert (life.end.status, list(life.restarts)) == ("Failed", [])


async def test_a_job_without_devices_is_never_suspended() -> None:
    life = await lived("at 100s hang demo 1", "at 90000s kill demo 0 exit 1", devices=0)
    assert (life.hangs, life.end.status) == ([], "Failed")


async def test_three_restarts_in_a_row_and_the_next_detection_fails() -> None:
    every = [f"at {100 + 690 * n}s hang demo 1" for n in range(4)]  # each gets a little less far
    life = await lived(*every, every=10_000)
    assert [level for _, level, _ in life.hangs] == [Level.SUSPENSION] * 3 + [Level.FAIL]
    assert life.end.status == "Failed"
    assert "3 suspension restarts in a row" in life.decisions[-1].reason
    assert life.status["budgets"]["job"]["used"] == 0


HANGS = 10
SHOWS_NO_STEP = {"STEPS": "100000", "STEP_S": "1000", "SHOW_STEPS": "0"}


def hangs(limit_s: float, *, after_s: float = 100.0) -> list[str]:
    """All ranks stop, so long after each start."""
    times = [int(10 + after_s + n * (limit_s + after_s + 5)) for n in range(HANGS)]
    return [line for at_s in times for line in every_rank(f"at {at_s}s hang demo {{}}")]


@pytest.mark.parametrize("minutes", [25, 30, 60])
async def test_a_job_that_hangs_every_time_ends_however_long_that_takes_to_tell(
    minutes: int,
) -> None:
    """Only default settings, and no sign of progress: no outputs, no steps."""
    document = {
        "kind": "job",
        "metadata": {"name": "demo", "annotations": {JOB_RETRY: "3", HANG_RETRY: "true"}},
        "algorithm": {
            "command": "train",
            "environments": {**SHOWS_NO_STEP, HANG_MINUTES: str(minutes)},
        },
        "spec": {"resource": {"node_count": SLOTS}},
    }
    spec = compile_document(document)
    limits = spec.phases[0].limits
    assert (limits.still_s, limits.healthy_s, spec.time_scale) == (minutes * 60, 1_800.0, 1.0)
    life = await lived(*hangs(minutes * 60), spec=spec)
    assert [level for _, level, _ in life.hangs] == [Level.SUSPENSION] * 3 + [Level.FAIL]
    assert (life.end.status, len(life.restarts)) == ("Failed", 3)
    assert "3 suspension restarts in a row did not help" in life.end.reason


@pytest.mark.parametrize("hang_s", [1_500.0, 1_800.0, 3_600.0])
async def test_so_does_a_native_one_that_moves_no_more(hang_s: float) -> None:
    document = {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "demo"},
        "spec": {
            "command": ["train"],
            "nodes": SLOTS,
            "env": SHOWS_NO_STEP,
            "limits": {"hang_s": hang_s},
        },
    }
    life = await lived(*hangs(hang_s, after_s=400.0), spec=compile_document(document))
    assert [kind for kind, _, _ in life.hangs] == ["hang.still"] * 4
    assert (life.end.status, len(life.restarts)) == ("Failed", 3)
    assert "no progress after 3 restarts" in life.end.reason


async def test_half_an_hour_of_life_before_each_hang_is_progress() -> None:
    limit_s = 1_500.0
    spec = replace(spec_of(every=0, still_s=limit_s, steps=100_000), dialect="modelarts")
    (phase,) = spec.phases
    spec = replace(spec, phases=(replace(phase, env={**phase.env, **SHOWS_NO_STEP}),))
    life = await lived(*hangs(limit_s, after_s=1_900.0), "at 60000s kill demo 0 exit 1", spec=spec)
    assert [level for _, level, _ in life.hangs] == [Level.SUSPENSION] * HANGS


async def test_a_new_checkpoint_begins_a_new_series() -> None:
    every = [f"at {100 + 700 * n}s hang demo 1" for n in range(5)]
    life = await lived(*every, every=10)
    assert [level for _, level, _ in life.hangs] == [Level.SUSPENSION] * 5
    assert (life.end.status, life.status["series"].get("suspension", 0)) == ("Completed", 0)


async def test_the_time_goes_on_over_watches_that_end_in_between() -> None:
    """A watch reports once an hour, or restarts on another worker: agents keep since when."""
    still_s = 43_200.0
    life = await lived("at 100s hang demo 1", still_s=still_s)
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 100 + still_s)]


async def test_a_rehearsal_divides_the_time() -> None:
    life = await lived("at 100s hang demo 1", time_scale=60.0)
    assert life.hangs == [("hang.instance", Level.SUSPENSION, 110)]


def test_no_rehearsal_judges_by_less_than_samples_can_tell() -> None:
    assert scaled(spec_of(), 100.0).phases[0].limits.still_s == STILL_S / 100
    assert scaled(spec_of(), 1e6).phases[0].limits.still_s == STILL_S_LEAST


class Late(FakeBackend):
    """Signs of life are reported only on request."""

    answered_at = 0.0

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        observation = await super().observe(job, cursor=cursor, until=until, wait_s=wait_s)
        return replace(observation, pods=tuple(self.with_age(pod) for pod in observation.pods))

    def with_age(self, pod: PodView) -> PodView:
        at = max(pod.run.started_at or 0.0, self.answered_at)
        io_at, busy_at = (
            None if sign is None else min(sign, at) for sign in (pod.run.io_at, pod.run.busy_at)
        )
        return pod_with(pod, io_at=io_at, busy_at=busy_at)

    async def check(self, job: JobRef) -> tuple[Fact, ...]:
        self.answered_at = await self.clock()
        return await super().check(job)


async def test_who_is_suspected_is_asked_before_it_is_said() -> None:
    backend = Late(FakeSettings(nodes=SLOTS, devices=DEVICES))
    life = await lived("at 3000s hang demo 1", backend=backend, steps=4_000)
    assert life.end.status == "Completed"
    ((rule, _, at),) = life.hangs
    assert rule == "hang.instance"
    assert 3_000 < at <= 3_000 + 2 * STILL_S
    assert backend.answered_at > EPOCH + 3_000
