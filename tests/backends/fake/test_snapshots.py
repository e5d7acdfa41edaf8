"""From where a job of the fake cluster goes on: snapshots in memory, and ranks that outlive a fault."""

from __future__ import annotations

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.fake.simulated.training import Training
from everstep.core.levels import Level
from everstep.dialects.registry import compile_document
from everstep.simulation import Simulation
from tests.support.stage import document

SNAPSHOTS = {"LIBRARY": "restore,snapshot", "SNAPSHOT_EVERY": "3", "CHECKPOINT_EVERY": "10"}
SURVIVORS = {**SNAPSHOTS, "LIBRARY": "1", "REBUILD_S": "7"}


async def trainings(env: dict[str, str], *faults: str) -> tuple[list[Training], list[Level]]:
    """Every start of a job of four pods on six nodes with these faults, and the levels of its restarts."""
    backend = FakeBackend(FakeSettings(nodes=6))
    for fault in faults:
        await backend.admin.fault(fault)
    begun: list[Training] = []

    def note(_job: object) -> None:
        training = backend.cluster.state.job("job").training
        assert training is not None
        begun.append(training)

    backend.cluster.state.steps_began = note
    spec = compile_document(document(env={"STEPS": "60", **env}))
    simulation = Simulation(backend=backend, spec=spec)
    await simulation.run()
    return begun, [record.decision.level for record in simulation.chronicle.records]


@pytest.mark.parametrize(
    ("why", "env", "faults", "resumes", "level"),
    [
        ("a crash loses the steps after a snapshot", SNAPSHOTS, ["kill job 1 exit 1"], 24, "in_place"),
        ("without snapshots those after a checkpoint", {}, ["kill job 1 exit 1"], 20, "in_place"),
        ("a copy is at the neighbour of a lost pod", SNAPSHOTS, ["node-down n1"], 24, "pod"),
        ("both are lost at once", SNAPSHOTS, ["at 29.5s node-down n1", "at 29.5s node-down n2"], 20, "pod"),
        ("the copies of the last one are at the first", SNAPSHOTS, ["node-down n3"], 24, "pod"),
        ("ranks that go on have every step", SURVIVORS, ["kill job 1 exit 1"], 25, "process"),
        ("also where a node is lost", SURVIVORS, ["node-down n1"], 25, "process"),
        ("all ranks repeat a step", SURVIVORS, ["fact job network.collective rank=1"], 25, "operator_online"),
    ],
)  # fmt: skip
async def test_the_job_goes_on_from_the_newest_step_that_all_ranks_have(
    why: str, env: dict[str, str], faults: list[str], resumes: int, level: str
) -> None:
    begun, levels = await trainings(
        env, *(f if f.startswith("at ") else f"at step 25 of job {f}" for f in faults)
    )
    assert ([training.resume for training in begun], levels) == ([0, resumes], [level]), why


async def test_a_start_takes_as_long_as_what_the_ranks_begin_from_says() -> None:
    times = {"WARMUP_S": "30", "RESTORE_S": "5", "REBUILD_S": "7"}
    crash = "at step 25 of job kill job 1 exit 1"
    for env, first_s in (({}, 30.0), (SNAPSHOTS, 5.0), (SURVIVORS, 7.0)):
        begun, _ = await trainings({**env, **times}, crash)
        assert [training.warmup_s for training in begun] == [30.0, first_s]


async def test_two_runs_begin_from_the_same_snapshots_and_the_next_one_from_the_checkpoint() -> (
    None
):
    """The state in memory may be what ends them."""
    begun, _ = await trainings({**SNAPSHOTS, "CRASH_AT_STEP": "3:26:1"})
    assert [training.resume for training in begun][:4] == [0, 24, 24, 20]


async def test_a_rollback_leaves_what_memory_holds() -> None:
    begun, levels = await trainings(SNAPSHOTS, "at step 25 of job fact job numeric.nan rank=0")
    assert ([training.resume for training in begun], levels) == ([0, 10], [Level.ROLLBACK])


async def test_the_record_says_of_which_rank_memory_holds_nothing() -> None:
    """Its node is lost together with the one that has its copies."""
    backend = FakeBackend(FakeSettings(nodes=6))
    for fault in ("at 29.5s node-down n1", "at 29.5s node-down n2"):
        await backend.admin.fault(fault)
    spec = compile_document(document(env={"STEPS": "60", **SNAPSHOTS}))
    simulation = Simulation(backend=backend, spec=spec)
    await simulation.run()
    (record,) = simulation.chronicle.records
    lacking = "memory holds neither a snapshot nor a copy of rank 1"
    assert lacking in record.notes
    started = [entry.text for entry in simulation.chronicle.entries if "started on" in entry.text]
    assert started[-1].endswith(f"; {lacking}")
