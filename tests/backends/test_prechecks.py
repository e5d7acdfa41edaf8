"""Every place is looked at before the user's command runs there: what comes of it, on every backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.dialects.modelarts.policy import modelarts
from everstep.protocol import wire
from tests.backends.lab import Lab, Run, effects
from tests.backends.local_lab import LocalLab
from tests.backends.whole import report, restarts, whole_job
from tests.telemetry.lines import logged_lines

MODELARTS = modelarts(job_retry=8)


async def ran_before(lab: Lab, generation: int) -> list[str]:
    """Where a command of an older generation ever ran."""
    if isinstance(lab, LocalLab):
        agents: Path = lab.backend.settings.agents
        logs = (f"*/logs/g{older}-*.log" for older in range(1, generation))
        return [str(path) for pattern in logs for path in agents.glob(pattern)]
    older = tuple(f"(g{number})" for number in range(1, generation))
    return [
        line for line in await effects(lab) if line.startswith("start") and line.endswith(older)
    ]


async def test_faulty_hardware_is_isolated_before_the_command_ever_ran(lab: Lab) -> None:
    job = whole_job(lab, MODELARTS)
    await lab.fault("precheck n1 gpu-check hardware")
    await job.run()
    (restart,) = restarts(job)
    assert report(job)["status"] == "Completed"
    assert report(job)["phases"][0]["isolated_nodes"] == ["n1"]
    assert restart["recover"] == "job_reschedule_with_taint"
    assert restart["bills"] == {"job": 1}
    assert "n1" not in restart["nodes"]["after"].values()
    assert await ran_before(lab, restart["generation"]["to"]) == []


async def test_a_bad_environment_on_sound_hardware_is_left_and_nobody_is_kept_from_it(
    lab: Lab,
) -> None:
    job = whole_job(lab, MODELARTS)
    await lab.fault("precheck n1 dns")
    await job.run()
    (restart,) = restarts(job)
    assert report(job)["status"] == "Completed"
    assert report(job)["phases"][0]["isolated_nodes"] == []
    assert restart["bills"] == {"job": 1}
    assert "n1" not in restart["nodes"]["after"].values()
    assert await ran_before(lab, restart["generation"]["to"]) == []


async def test_all_faulty_nodes_are_isolated_at_once(lab: Lab) -> None:
    job = whole_job(lab, MODELARTS, nodes=3)
    for node in ("n0", "n2"):
        await lab.fault(f"precheck {node} gpu-check hardware")
    await job.run()
    assert report(job)["status"] == "Completed"
    assert report(job)["phases"][0]["isolated_nodes"] == ["n0", "n2"]
    assert [restart["bills"] for restart in restarts(job)] == [{"job": 1}]


async def test_a_failed_check_without_restarts_left_fails_the_job(lab: Lab) -> None:
    job = whole_job(lab, modelarts(job_retry=1), nodes=1)
    for node in ("n0", "n1"):
        await lab.fault(f"precheck {node} dns")
    await job.run()
    assert report(job)["status"] == "Failed"
    assert [restart["recover_result"] for restart in restarts(job)] == [
        "failed",
        "quotaExceeded",
    ]
    assert report(job)["phases"][0]["budgets"]["job"] == {"limit": 1, "used": 1}
    assert await ran_before(lab, 10) == []


async def test_what_a_check_found_is_logged_with_the_job_that_it_was_for(lab: Lab) -> None:
    """Books are written in threads of their own, without an activity. The fake cluster logs nothing."""
    job = whole_job(lab, MODELARTS)
    await lab.fault("precheck n1 dns")
    async with logged_lines() as lines:
        await job.run()
    log_lines = [line for line in lines.lines if line["message"] == "the check of dns failed on n1"]
    assert [line["job"] for line in log_lines] == ["demo"] * isinstance(lab, LocalLab)


async def test_a_document_may_leave_the_checks_out(lab: Lab) -> None:
    job = whole_job(lab, replace(MODELARTS, precheck=False), env={"STEPS": "2"})
    await lab.fault("precheck n1 dns")
    await job.run()
    assert report(job)["status"] == "Completed"
    assert restarts(job) == []
    assert await ran_before(lab, 2) != []


# -- Once for each pod --------------------------------------------------------------------------


async def test_a_pod_that_passed_is_not_looked_at_again_and_a_new_one_is(job: Run) -> None:
    await job.new_generation("launch")
    await job.place()
    await job.precheck()
    for node in ("n0", "n2"):
        await job.lab.fault(f"precheck {node} dns")
    await job.new_generation("again")
    await job.stop()
    await job.place(recreate=(1,), avoid=("n1",))
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert [fact.node for fact in state.failures] == ["n2"]


async def test_a_pod_that_failed_is_looked_at_again_in_the_next_generation(job: Run) -> None:
    await job.lab.fault("precheck n0 dns")
    await job.new_generation("launch")
    await job.place()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert [fact.node for fact in state.failures] == ["n0"]
    await job.lab.fault("precheck n0 dns clear")
    assert await job.backend.ensure_prechecked(job.precheck_order()) == state
    await job.new_generation("again")
    await job.place(recreate=())
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert state.failures == ()


# -- This machine is what it is -----------------------------------------------------------------


async def checked(job: Run, **order: Any) -> Any:
    await job.new_generation("launch")
    await job.place()
    check_order = replace(job.precheck_order(), **order)
    return await job.until_done(lambda: job.backend.ensure_prechecked(check_order))


async def test_what_this_machine_lacks_is_noted_and_fails_nothing(tmp_path: Path) -> None:
    huge = wire.Thresholds(root_gb=1e9, shm_gb=1e9, cache_gb=1e9, ulimits=True, open_files=2**62)
    lab = await LocalLab.open(tmp_path, thresholds=huge)
    try:
        state = await checked(Run(lab, slots=(0, 1)))
    finally:
        await lab.end()
    assert state.failures == ()
    assert [note.split(":")[0] for note in state.notes] == [
        f"{name} failed on {node}"
        for node in ("n0", "n1")
        for name in ("disk-size-root", "disk-size-shm", "disk-size-cache", "ulimit")
    ]


async def test_what_was_only_noted_stands_in_the_record_of_the_restart(tmp_path: Path) -> None:
    lab = await LocalLab.open(tmp_path, thresholds=wire.Thresholds(root_gb=1e9))
    try:
        await lab.fault("precheck n0 dns")
        job = whole_job(lab, MODELARTS, nodes=1)
        await job.run()
    finally:
        await lab.end()
    (restart,) = restarts(job)
    assert report(job)["status"] == "Completed"
    (note,) = (note for note in restart["notes"] if note.startswith("disk-size-root"))
    assert note.startswith("disk-size-root failed on n1: ")


async def test_devices_of_a_kind_that_is_not_here_are_missing_hardware(
    local_lab: LocalLab,
) -> None:
    state = await checked(Run(local_lab, slots=(0,)), accelerator="ascend")
    (failure,) = state.failures
    assert (failure.kind, failure.node) == ("precheck.gpu-check", "n0")
    assert failure.details["hardware"] is True
    assert failure.details["measured"] == "0 ascend devices"
    assert "at least 1" in failure.message


async def test_what_was_found_is_kept_for_the_next_worker(local_lab: LocalLab) -> None:
    job = Run(local_lab, slots=(0, 1))
    await local_lab.fault("precheck n1 dns")
    state = await checked(job)
    await local_lab.another_worker()
    await local_lab.fault("precheck n1 dns clear")
    assert await job.backend.ensure_prechecked(job.precheck_order()) == state


async def test_a_worker_killed_before_it_wrote_down_what_it_heard_is_nobodys_loss(
    local_lab: LocalLab,
) -> None:
    job = Run(local_lab, slots=(0,))
    await job.new_generation("launch")
    (pod,) = (await job.place()).pods.values()
    huge: wire.CheckCommand = {
        "generation": job.generation,
        "hosts": [],
        "accelerator": "none",
        "devices": 0,
        "thresholds": {"root_gb": 1e9},
    }
    await local_lab.backend.agents.request(pod.uid, "POST", wire.CHECK, huge)
    await local_lab.another_worker()
    state = await job.until_done(lambda: job.backend.ensure_prechecked(job.precheck_order()))
    assert any("disk-size-root" in note for note in state.notes)
