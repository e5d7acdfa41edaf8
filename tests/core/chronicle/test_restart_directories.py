"""What a job of a trainer configuration leaves in its restart directories, read by its own tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.agent.storage import journal as storage
from everstep.backends.agents.commands.storage import journal_commands
from everstep.chronicle.chronicle import Entry, SummaryValue
from everstep.core.levels import FaultClass
from everstep.core.loop.lifecycle import enter_phase
from everstep.core.loop.next_actions import Begun
from everstep.core.spec import JobSpec
from everstep.core.world import Checkpoint
from everstep.dialects import journals
from everstep.dialects.cerebras.journal import formatted
from everstep.dialects.cerebras.policy import cerebras
from everstep.dialects.registry import compile_document
from tests.support.builders import ScriptedJob, fact, job_spec, sighting

LOGS = "model/cerebras_logs"
HEAD = {"workflow_id": "demo", "max_num_restarts": 2, "min_num_csx": 2}


def spec(*phases: str) -> JobSpec:
    one = job_spec(cerebras(max_num_restarts=2), nodes=4, nodes_min=2).phases[0]
    many = tuple(replace(one, name=name, model_dir="model") for name in phases or ("main",))
    return JobSpec(name="demo", phases=many, dialect="cerebras")


def trains(*phases: str) -> ScriptedJob:
    return ScriptedJob(spec=spec(*phases)).launches()


def crashes(job: ScriptedJob, **details: Any) -> None:
    job.see(sighting(FaultClass.CRASH, rank=1, message="exit code 1: no room"), **details)


def saved(step: int, run: str = "run1") -> Checkpoint:
    return Checkpoint(step=step, path=f"{LOGS}/{run}/trainer_state_{step}.mdl")


def write(job: ScriptedJob, root: Path) -> None:
    """All that is to be written, as a publication does it."""
    due = job.unpublished
    entries = tuple(replace(one, model_dir=str(root), workdir=None) for one in due.entries)
    for command in journal_commands("demo", journals.formatted(job.spec, entries)):
        storage.write(command)
    job.publishes(entry=due.newest.entry)


def folders(root: Path) -> list[Path]:
    return sorted(root.glob("*_restartable"))


def summary(root: Path) -> dict[str, Any]:
    (only,) = folders(root)
    return summary_in(only)


def summary_in(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def summary_values(root: Path, *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(run[key] for key in keys) for run in summary(root)["runs"]]


def test_a_run_that_succeeds_is_told_in_the_words_of_its_dialect_and_no_others(
    tmp_path: Path,
) -> None:
    job = trains()
    write(job, tmp_path)
    assert summary(tmp_path) == {**HEAD, "runs": []}
    job.saves(saved(60))
    job.report("done", step=60)
    write(job, tmp_path)
    (run,) = summary(tmp_path)["runs"]
    assert summary(tmp_path) == {**HEAD, "runs": [run]}
    times = run.pop("start_time"), run.pop("end_time")
    assert times[0] < times[1]
    assert run == {
        "artifact_dir": f"{LOGS}/run1",
        "status": "success",
        "failure_reason": "",
        "starting_step": 0,
        "ending_step": 60,
        "steps_progressed": 60,
        "compile_job_ids": [],
        "execute_job_ids": [],
        "loaded_trainer_state_file": None,
        "num_csx": 4,
        "nan_checker_enabled": False,
    }
    assert (folders(tmp_path)[0] / "prefetched_compiles").is_dir()


def test_a_failure_that_is_recovered_and_the_run_after_it_are_two_runs(tmp_path: Path) -> None:
    job = trains()
    job.saves(saved(20))
    crashes(job, step=27)
    job.succeeds(resume=saved(20))
    write(job, tmp_path)
    job.saves(saved(60, "run2"))
    job.report("done", step=60)
    write(job, tmp_path)
    keys = ("status", "starting_step", "ending_step", "steps_progressed", "num_csx")
    assert summary_values(tmp_path, *keys) == [("failed", 0, 20, 20, 4), ("success", 20, 60, 40, 4)]
    assert summary_values(tmp_path, "artifact_dir", "loaded_trainer_state_file") == [
        (f"{LOGS}/run1", None),
        (f"{LOGS}/run2", saved(20).path),
    ]
    assert summary_values(tmp_path, "failure_reason") == [
        ("crash of rank 1: exit code 1: no room",),
        ("",),
    ]


def test_a_checkpoint_that_nobody_saw_before_the_failure_is_progress_of_the_run_that_saved_it(
    tmp_path: Path,
) -> None:
    job = trains()
    crashes(job, step=21)
    job.succeeds(resume=saved(20))
    write(job, tmp_path)
    assert summary_values(tmp_path, "ending_step", "steps_progressed") == [(20, 20)]


def line_about(row: Mapping[str, SummaryValue]) -> Entry:
    return Entry(phase="main", model_dir="model", began=1.0, at=2.0, run=2, text="", row=row)


@pytest.mark.parametrize(
    ("loaded", "resumed", "saved_step", "steps"),
    [
        (None, None, None, (0, 0, 0)),
        (None, None, 20, (0, 20, 20)),
        ("out/checkpoint_10.mdl", 10, 0, (10, 10, 0)),  # what it began with was set aside
        ("out/checkpoint_10.mdl", 10, 20, (10, 20, 10)),
        ("out/last.mdl", None, 20, (None, 20, None)),
    ],
)
def test_a_run_begins_with_what_it_loaded_and_never_ends_before(
    loaded: str | None, resumed: int | None, saved_step: int | None, steps: tuple[int | None, ...]
) -> None:
    row: dict[str, SummaryValue] = {
        **dict.fromkeys(("failure_reason", "error")),
        "start_time": 1.0,
        "end_time": 2.0,
        "status": "failed",
        "nodes": 4,
        "starting_step": resumed,
        "loaded_checkpoint": loaded,
        "saved_step": saved_step,
        "saved_checkpoint": "out/x.mdl",
    }
    row_written = formatted(spec().phases[0], line_about(row)).row
    assert tuple(row_written[f"{key}_step"] for key in ("starting", "ending")) == steps[:2]
    assert row_written["steps_progressed"] == steps[2]


def test_a_first_run_begins_with_the_checkpoint_that_is_written_down() -> None:
    config = {"trainer": {"init": {}, "fit": {"ckpt_path": "first/checkpoint_30.mdl"}}}
    phase = replace(spec().phases[0], files={"params.yaml": config})
    row: dict[str, SummaryValue] = {
        "start_time": 1.0,
        "end_time": 2.0,
        "status": "success",
        "nodes": 4,
    }
    row_written = formatted(
        phase, line_about({**row, "failure_reason": None, "saved_step": None})
    ).row
    assert (row_written["starting_step"], row_written["ending_step"]) == (30, 30)


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [(r"ckpt_(?P<step>\w+)", "ckpt_last", 0), (r"ckpt(_(?P<step>\d+))?", "ckpt", 0)],
)
def test_a_written_checkpoint_whose_name_has_no_number_is_the_beginning(
    pattern: str, name: str, step: int
) -> None:
    config = {"trainer": {"init": {}, "fit": {"ckpt_path": f"first/{name}"}}}
    phase = replace(spec().phases[0], files={"params.yaml": config}, checkpoints_pattern=pattern)
    row: dict[str, SummaryValue] = {
        **dict.fromkeys(("failure_reason", "saved_step")),
        "start_time": 1.0,
        "end_time": 2.0,
        "status": "success",
        "nodes": 4,
    }
    assert formatted(phase, line_about(row)).row["starting_step"] == step


def test_a_run_that_saves_nothing_made_no_progress_however_many_steps_it_made(
    tmp_path: Path,
) -> None:
    job = trains()
    job.saves(saved(20))
    for step in (27, 28):
        crashes(job, step=step)
        job.succeeds(resume=saved(20))
    write(job, tmp_path)
    assert summary_values(
        tmp_path, "starting_step", "ending_step", "steps_progressed", "artifact_dir"
    ) == [
        (0, 20, 20, f"{LOGS}/run1"),
        (20, 20, 0, ""),
    ]


def test_a_failure_that_cannot_be_recovered_says_so_and_why(tmp_path: Path) -> None:
    job = trains()
    job.see(fact("process.exit", slot=1, rank=1, exit_code=1, exception="AssertionError"), step=3)
    write(job, tmp_path)
    ((status, reason),) = summary_values(tmp_path, "status", "failure_reason")
    assert status == "non_recoverable_failure"
    assert "a failed assertion comes again at every start" in reason


def test_a_run_whose_restart_comes_to_nothing_is_one_run_that_ended_when_it_failed(
    tmp_path: Path,
) -> None:
    job = trains()
    crashes(job, step=7)
    began = job.state.now
    job.fails("place.none", message="1 system is there, 2 are the minimum")
    assert job.state.ending == "Failed"
    write(job, tmp_path)
    (row,) = summary(tmp_path)["runs"]
    assert row["status"] == "non_recoverable_failure"
    assert "1 system is there, 2 are the minimum" in row["failure_reason"]
    assert row["end_time"] == f"1970-01-01T00:16:{began - 960:06.3f}Z"


def test_a_pause_ends_a_run_that_is_not_lost(tmp_path: Path) -> None:
    job = trains()
    job.saves(saved(20))
    job.command("pause", reason="a look")
    job.interrupted()
    job.succeeds()
    job.command("resume")
    job.interrupted()
    job.succeeds(resume=saved(20))
    job.report("done", step=60)
    write(job, tmp_path)
    assert summary_values(tmp_path, "status", "failure_reason", "ending_step") == [
        ("failed", "a look", 20),
        ("success", "", 20),
    ]


def test_fewer_systems_are_told_of_the_run_that_had_fewer(tmp_path: Path) -> None:
    job = trains()
    job.see(sighting(FaultClass.NODE))
    job.succeeds(active=(0, 1, 2), pods={}, resume=saved(20))
    crashes(job)
    write(job, tmp_path)
    assert [n for (n,) in summary_values(tmp_path, "num_csx")] == [4, 3]


def test_each_phase_has_its_own_folder_and_one_that_never_starts_has_none(tmp_path: Path) -> None:
    job = trains("a", "b", "c")
    job.report("done", step=60)
    job.state = enter_phase(job.state, 1)
    job._advance(Begun())
    job.succeeds()
    job.see(fact("process.exit", slot=1, rank=1, exit_code=1, exception="AssertionError"))
    write(job, tmp_path)
    first, second = folders(tmp_path)
    assert [run["status"] for run in summary_in(first)["runs"]] == ["success"]
    assert [run["status"] for run in summary_in(second)["runs"]] == ["non_recoverable_failure"]
    logs = [(folder / "run.log").read_text().splitlines() for folder in (first, second)]
    assert [log[0].partition(" ")[0] for log in logs] == ["[run_1]", "[run_1]"]
    assert logs[0][-1].endswith("phase a completed")
    assert "phase b failed" in logs[1][-1]


def test_a_run_that_checks_its_numbers_says_so_and_succeeds_where_it_ends_well(
    tmp_path: Path,
) -> None:
    policy = cerebras(max_num_restarts=2, save_every=20)
    job = ScriptedJob(
        spec=replace(job_spec(policy, model_dir="model"), dialect="cerebras")
    ).launches()
    job.saves(saved(20))
    job.see(fact("process.exit", slot=1, rank=1, exit_code=1, exception="ApplianceNanError"))
    job.succeeds(resume=saved(20))
    job.saves(saved(40, "run2"))
    job.report("done", step=40)
    job.succeeds(resume=saved(40, "run2"))
    job.saves(saved(60, "run3"))
    job.report("done", step=60)
    write(job, tmp_path)
    assert summary_values(
        tmp_path, "status", "nan_checker_enabled", "starting_step", "ending_step"
    ) == [
        ("failed", False, 0, 20),
        ("success", True, 20, 40),
        ("success", False, 40, 60),
    ]


def test_each_folder_has_the_configuration_of_its_own_phase(tmp_path: Path) -> None:
    init = {"autorestart": {"max_num_restarts": 1}, "seed": 1, "precision": {"loss_scale": 1e-05}}
    trainers = [
        {
            "init": {**init, "model_dir": "model"},
            "fit": {"ckpt_path": None, "name": "yes", "at": at},
        }
        for at in ("1e-5", "07:30")
    ]
    document = {"trainer": trainers, "everstep": {"command": "train"}}
    job = ScriptedJob(spec=compile_document(document)).launches()
    job.report("done", step=60)
    job.state = enter_phase(job.state, 1)
    job._advance(Begun())
    job.succeeds()
    write(job, tmp_path)
    params = [yaml.safe_load((folder / "params.yaml").read_text()) for folder in folders(tmp_path)]
    assert params == [{"trainer": trainer} for trainer in trainers]


def test_the_configuration_goes_out_once() -> None:
    (phase,) = spec().phases
    reading = replace(phase, files={"params.yaml": {"trainer": {}}})
    job = ScriptedJob(spec=replace(spec(), phases=(reading,))).launches()
    crashes(job)
    job.succeeds()
    entries = journals.formatted(job.spec, job.unpublished.entries)
    assert [e.run for e in entries if e.dialect_files is not None and e.dialect_files.files] == [1]
    assert [e.run for e in entries] == [1, 0, 0, 2]


@pytest.mark.parametrize("dialect", ["native", "modelarts"])
def test_jobs_of_other_dialects_have_the_records_that_all_jobs_have(
    tmp_path: Path, dialect: str
) -> None:
    job = ScriptedJob(spec=replace(spec(), dialect=dialect)).launches()
    crashes(job)
    write(job, tmp_path)
    assert {"workflow_id", "phase", "began", "runs"} == {*summary(tmp_path)}
    assert summary_values(tmp_path, "run", "status", "nodes") == [(1, "failed", 4)]
    assert sorted(path.name for path in folders(tmp_path)[0].iterdir()) == [
        *(".lock", "run.log", "summary.json")
    ]
