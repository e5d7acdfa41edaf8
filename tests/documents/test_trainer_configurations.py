"""Trainer configurations of the Model Zoo: what each key becomes, and what a wrong one is answered with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from everstep.agent.storage import checkpoint_names
from everstep.backends.fake.settings import FakeSettings
from everstep.core.deciding.decision import StepOrder
from everstep.core.errors import InvalidSpec
from everstep.core.levels import FaultClass, Level, Step
from everstep.core.loop import lifecycle
from everstep.core.recovering import recovery
from everstep.core.recovering.plans import launch_plan
from everstep.core.spec import JobSpec, PhaseSpec, Prefetch
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.dialects import responses
from everstep.dialects.registry import compile_document, patch, read_text, validate
from everstep.documents.merge import merged
from everstep.documents.text import to_yaml
from tests.support.patience import HUNG_S
from tests.support.playing.simulated import Interruptible, PromptBackend

RESTARTS = {"max_num_restarts": 3, "min_num_csx": 2}
EVERSTEP_SECTION = {"command": "train", "env": {"STEPS": "60", "CHECKPOINT_EVERY": "10"}}


def trainer(**init: Any) -> dict[str, Any]:
    """A trainer that restarts; null takes a key of its `init` away."""
    plain = {
        "model_dir": "out",
        "model": {"name": "tiny"},
        "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 4}},
        "checkpoint": {"steps": 10},
        "autorestart": RESTARTS,
    }
    config = merged(plain, init)
    return {
        "init": {key: value for key, value in config.items() if value is not None},
        "fit": {"train_dataloader": {"data_processor": "Synthetic"}},
    }


def document(*trainers: dict[str, Any], **section: Any) -> dict[str, Any]:
    whole = trainers[0] if len(trainers) == 1 else list(trainers)
    return {"trainer": whole, "everstep": {**EVERSTEP_SECTION, **section}}


def test_a_key_beside_the_trainer_that_nobody_reads_is_noted() -> None:
    top_notes = notes({**document(trainer()), "everstpe": {}, "comment": "mine"})
    assert top_notes["everstpe"] == "is not read; did you mean `everstep`?"
    assert top_notes["comment"] == "is not read; known are everstep, trainer"


def phase(**init: Any) -> PhaseSpec:
    (one,) = compile_document(document(trainer(**init))).phases
    return one


def notes(document: dict[str, Any]) -> dict[str, str]:
    verdict = validate(json.dumps(document))
    assert verdict.ok, verdict.errors
    return dict(verdict.notes)


def problems(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSpec) as caught:
        compile_document(document)
    return list(caught.value.problems)


def play(spec: JobSpec, *faults: str) -> dict[str, Any]:
    """The job's report, after these faults on the fake cluster."""

    async def played() -> dict[str, Any]:
        backend = PromptBackend()
        backend.build(FakeSettings(nodes=6))
        for line in faults:
            await backend.admin.fault(line)
        job = Interruptible(backend=backend, spec=spec, job=JobRef(id="job", run="run"))
        await asyncio.wait_for(job.run(), HUNG_S)
        return responses.report(job.state, job.chronicle)

    return asyncio.run(played())


# --- One trainer ------------------------------------------------------------------------------------


def test_a_trainer_that_restarts_becomes_a_phase() -> None:
    one = phase()
    assert (one.name, one.nodes, one.nodes_min) == ("main", 4, 2)
    assert (one.model_dir, one.checkpoints_path) == ("out", "out")
    assert one.command == ("/bin/sh", "-c", "train")
    assert one.policy.no_progress_restarts == 3
    assert one.policy.only_checkpoints
    assert one.policy.answer(FaultClass.CRASH).levels == (Level.JOB,)
    assert set(one.called.values()) == {"trainer.init.model_dir"}


@pytest.mark.parametrize("backend", [None, {"backend_type": "CSX"}, {"cluster_config": {}}])
def test_a_backend_that_does_not_say_how_many_systems_has_one(backend: Any) -> None:
    config = trainer(autorestart={"min_num_csx": 1})
    config["init"]["backend"] = backend
    (one,) = compile_document(document(config)).phases
    assert (one.nodes, one.nodes_min) == (1, 1)


def test_a_trainer_without_a_model_dir_has_the_usual_one() -> None:
    assert phase(model_dir=None).model_dir == "model_dir"


@pytest.mark.parametrize("section", ["validate", "validate_all"])
def test_a_validation_begins_anew_each_time(section: str) -> None:
    config = {**trainer(), section: {"val_dataloader": {}}}
    del config["fit"]
    (one,) = compile_document(document(config)).phases
    assert one.checkpoints_path is None
    assert "from scratch" in notes(document(config))["trainer"]


def test_without_autorestart_it_is_valid_and_says_that_nothing_restarts() -> None:
    body = document(trainer(autorestart=None))
    assert notes(body)["trainer.init.autorestart"] == "missing: every failure is final"
    (one,) = compile_document(body).phases
    assert not {FaultClass.CRASH, FaultClass.NODE} & {
        cls for cls in FaultClass if one.policy.answer(cls).levels != (Level.FAIL,)
    }


def test_without_checkpoints_it_says_where_restarts_begin() -> None:
    notes_by_key = notes(document(trainer(checkpoint={"steps": 0})))
    assert "from the initial state" in notes_by_key["trainer.init.checkpoint.steps"]


def test_a_crash_is_restarted_from_the_newest_checkpoint() -> None:
    report = play(compile_document(document(trainer())), "at 25s kill job 2 exit 1")
    assert report["status"] == "Completed"
    (restart,) = report["phases"][0]["restarts"]
    assert (restart["level"], restart["resume_step"]) == ("job", 20)


def test_without_autorestart_a_crash_ends_it() -> None:
    spec = compile_document(document(trainer(autorestart=None)))
    report = play(spec, "at 25s kill job 2 exit 1")
    assert report["status"] == "Failed"
    assert report["phases"][0]["restarts"] == []
    assert "without init.autorestart" in report["reason"]


# --- Commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fit", "validate", "validate_all"])
def test_without_a_command_its_own_program_does_what_there_is_a_section_for(mode: str) -> None:
    config = {"init": trainer()["init"], mode: {}}
    (one,) = compile_document({"trainer": config}).phases
    assert one.command == ("cszoo", mode, "{params}")
    assert one.files == {"params.yaml": {"trainer": config}}


def restarting(**section: Any) -> Prefetch | None:
    config = trainer(autorestart={"max_num_restarts": 3})
    (one,) = compile_document({"trainer": config, "everstep": section}).phases
    return one.prefetch


def test_its_own_program_compiles_for_fewer_systems_ahead() -> None:
    log = "prefetched_compiles/prefetch_num_csx_{nodes}.log"
    words = ("cszoo", "fit", "{params}", "--compile_only")
    assert restarting() == Prefetch(command=words, log=log)
    assert restarting(prefetch=["compile", "{params}"]) == Prefetch(
        command=("compile", "{params}"), log=log
    )


@pytest.mark.parametrize(
    ("least", "section", "has_note"),
    [
        (4, {"prefetch": "compile {params}"}, ["everstep.phases.0.prefetch"]),
        (4, {}, []),  # what nobody wrote is not noted
        (2, {"prefetch": "compile {params}"}, []),
    ],
)
def test_where_no_number_of_systems_is_smaller_a_prefetch_has_no_effect(
    least: int, section: dict[str, Any], has_note: list[str]
) -> None:
    config = trainer(autorestart={"max_num_restarts": 3, "min_num_csx": least})
    notes_by_key = notes({"trainer": config, "everstep": section})
    assert [field for field in notes_by_key if "prefetch" in field] == has_note


def test_another_command_has_to_say_how_it_compiles() -> None:
    assert restarting(command="train {params}") is None


def test_the_command_says_what_is_done_where_there_are_more_sections() -> None:
    config = {**trainer(), "validate": {}}
    (fit,) = compile_document({"trainer": config}).phases
    section = {"command": "exec cszoo validate {params} --mount /data"}
    (validation,) = compile_document({"trainer": config, "everstep": section}).phases
    assert (fit.command[1], fit.checkpoints_path) == ("fit", "out")
    assert validation.checkpoints_path is None
    assert validation.files == {"params.yaml": {"trainer": config}}


@pytest.mark.parametrize(
    ("generation", "runs", "least"),
    [(0, 0, 4), (1, 0, 4), (1, 1, 2)],
    ids=["first", "after a pause in the queue", "once it has run"],
)
def test_fewer_systems_are_for_restarts_the_job_begins_with_all(
    generation: int, runs: int, least: int
) -> None:
    backend = {"backend_type": "CSX", "cluster_config": {"num_csx": 4}}
    restart = {"max_num_restarts": 3, "min_num_csx": 2}
    spec = compile_document(document(trainer(backend=backend, autorestart=restart)))
    job = JobRef(id="job", run="run")
    state = JobState(job=job, spec=spec, generation=generation, runs=runs)
    places = launch_plan(state).places
    assert places is not None
    assert (places.least, places.wanted) == (least, 4)


def test_each_phase_reads_its_own_configuration() -> None:
    phase_config = {**three(), "everstep": {"command": "train {params}"}}
    configs = [p.files["params.yaml"] for p in compile_document(phase_config).phases]
    assert [config["trainer"]["init"]["model_dir"] for config in configs] == ["a", "b", "c"]


def test_only_the_start_is_ordered_with_what_the_command_reads() -> None:
    spec = compile_document({"trainer": trainer()})
    state = lifecycle.opened(JobRef(id="job", run="run"), spec)
    progress = recovery.begin(launch_plan(state))
    orders = {}
    for index, step in enumerate(progress.plan.remedy.steps):
        order = recovery.next_step(replace(progress, index=index))
        assert isinstance(order, StepOrder)
        orders[step] = order.plan.phase.files
    assert orders.pop(Step.START) == {"params.yaml": {"trainer": trainer()}}
    assert not any(orders.values())


def test_checkpoints_are_where_the_trainer_saves_them() -> None:
    one = phase(checkpoint={"checkpoint_root": "elsewhere"})
    assert (one.model_dir, one.checkpoints_path) == ("out", "elsewhere")
    assert one.called["checkpoints.path"] == "trainer.init.checkpoint.checkpoint_root"


def test_what_is_saved_where_there_are_no_folders_is_not_seen() -> None:
    config = document(trainer(checkpoint={"checkpoint_root": "s3://bucket/out"}))
    (one,) = compile_document(config).phases
    assert (one.checkpoints_path, one.policy.needs_checkpoint) == (None, False)
    assert "is not a folder" in notes(config)["trainer.init.checkpoint.checkpoint_root"]


def test_steps_that_are_counted_from_each_start_are_noted() -> None:
    assert (
        "write max_steps"
        in notes(document(trainer(loop={"num_steps": 9})))["trainer.init.loop.num_steps"]
    )
    assert "trainer.init.loop.num_steps" not in notes(document(trainer(loop={"max_steps": 9})))


# --- Phases -----------------------------------------------------------------------------------------


def three(**section: Any) -> dict[str, Any]:
    """Each with a folder of its own; the last entry stands under a `trainer` of its own."""
    first, second, third = (trainer(model_dir=name) for name in ("a", "b", "c"))
    return {
        "trainer": [first, second, {"trainer": third}],
        "everstep": {**EVERSTEP_SECTION, **section},
    }


def test_trainers_of_a_list_are_phases() -> None:
    spec = compile_document(three())
    assert [(p.name, p.model_dir) for p in spec.phases] == [
        ("phase-1", "a"),
        ("phase-2", "b"),
        ("phase-3", "c"),
    ]
    assert spec.phases[2].called["model_dir"] == "trainer[2].init.model_dir"


def test_a_list_of_one_is_one_phase() -> None:
    config = {**three(), "trainer": [trainer()]}
    assert [p.name for p in compile_document(config).phases] == ["main"]


def test_phases_run_one_after_another_each_with_its_own_books() -> None:
    faults = ("at 25s kill job 0 exit 1", "at 95s kill job 0 exit 1")
    report = play(compile_document(three()), *faults)
    assert report["status"] == "Completed"
    restarts = [[r["resume_step"] for r in p["restarts"]] for p in report["phases"]]
    assert restarts == [[20], [20], []]


def test_after_a_phase_that_failed_no_other_one_begins() -> None:
    config = three()
    config["trainer"][0]["init"]["autorestart"] = {"max_num_restarts": 0}
    report = play(compile_document(config), "at 25s kill job 0 exit 1")
    assert report["status"] == "Failed"
    assert [(p["name"], p["state"]) for p in report["phases"]] == [("phase-1", "failed")]


def test_the_overlay_names_phases_and_changes_each() -> None:
    phases = [
        {"name": "short", "nodes": 1, "env": {"STEPS": "5"}},
        {"name": "long", "command": ["other"], "recovery": {"no_progress_restarts": 7}},
        {"name": "last", "model_dir": "elsewhere"},
    ]
    spec = compile_document(three(phases=phases, start_phase="long"))
    first, second, third = spec.phases
    assert (first.name, first.nodes, first.env["STEPS"]) == ("short", 1, "5")
    assert (second.command, second.policy.no_progress_restarts) == (("other",), 7)
    assert (third.model_dir, third.checkpoints_path, third.env["STEPS"]) == ("elsewhere", "c", "60")
    assert "model_dir" not in third.called
    assert spec.first_phase == 1


def test_a_hot_update_reaches_one_phase() -> None:
    changed = patch(three(), {"phases": [{"name": "phase-2", "env": {"LR": "1"}}]})
    assert [p.env.get("LR") for p in compile_document(changed).phases] == [None, "1", None]


def test_a_hot_update_moves_no_folder() -> None:
    with pytest.raises(InvalidSpec, match=r"patch\.phases\.0\.model_dir: cannot change"):
        patch(three(), {"phases": [{"name": "phase-2", "model_dir": "x"}]})


# --- Cases ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("autorestart", "field"),
    [
        ({"min_num_csx": 2}, "max_num_restarts"),
        ({"max_num_restarts": -1}, "max_num_restarts"),
        ({"max_num_restarts": 3, "min_num_csx": 0}, "min_num_csx"),
        ({"max_num_restarts": 3, "min_num_csx": 5}, "min_num_csx"),
    ],
)
def test_case_40_wrong_numbers_are_rejected_before_the_first_run(
    autorestart: dict[str, int], field: str
) -> None:
    config = trainer()
    config["init"]["autorestart"] = autorestart
    ((at, _),) = problems(document(config))
    assert at == f"trainer.init.autorestart.{field}"


def test_case_40_no_restarts_are_none_and_one_system_is_enough_by_default() -> None:
    config = trainer()
    config["init"]["autorestart"] = {"max_num_restarts": 0}
    assert (
        "first failure is final"
        in notes(document(config))["trainer.init.autorestart.max_num_restarts"]
    )
    spec = compile_document(document(config))
    assert spec.phases[0].nodes_min == 1
    report = play(spec, "at 25s kill job 2 exit 1")
    assert (report["status"], report["phases"][0]["restarts"]) == ("Failed", [])


def test_case_46_a_phase_without_autorestart_beside_one_with_it_is_rejected() -> None:
    ((at, what),) = problems(document(trainer(), trainer(autorestart=None)))
    assert at == "trainer[1].init.autorestart"
    assert "either every phase" in what


# --- As people write them ---------------------------------------------------------------------------

WRITTEN = """
# A model that is no bigger than it has to be
 trainer:
   init:
     backend:
       backend_type: CSX
       cluster_config: {num_csx: 2, num_workers_per_csx: 1}
     model_dir: ./model_dir
     seed: 1
     model: {name: tiny, vocab_size: 1_024, dropout_rate: 0.0, use_bias: no}
     optimizer: {AdamW: {betas: [0.9, 0.95], eps: 1e-8, correct_bias: true}}
     schedulers:
     - SequentialLR:
         schedulers:
         - LinearLR: {initial_learning_rate: 0.0, end_learning_rate: 2.5e-04, total_iters: 10}
         - CosineDecayLR: {initial_learning_rate: 2.5e-04, total_iters: 90}
     callbacks:
     - ScopedTrainFlags: {csx.performance.micro_batch_size: auto}
     - GradientClipping: &clipping {max_gradient_norm: 1.0}
     - SelectiveGrad: {selective_grads: [{loss_scale: *clipping}]}
     loop: {max_steps: 100, eval_frequency: 50}
     checkpoint: {steps: 50, save_initial_checkpoint: false}
     autorestart:
       max_num_restarts: 3
   fit:
     train_dataloader: {data_processor: Synthetic, data_dir: "${DATA}/train", batch_size: 8}
     val_dataloader: &val
       data_processor: Synthetic
       data_dir: ./eval
   validate: {val_dataloader: *val}
   validate_all: {val_dataloaders: *val}
"""


def test_a_configuration_is_read_as_its_own_program_reads_it() -> None:
    read = read_text(WRITTEN)
    assert read == yaml.safe_load(WRITTEN)
    assert yaml.safe_load(to_yaml(read)) == read
    verdict = validate(WRITTEN)
    assert (verdict.ok, verdict.dialect) == (True, "cerebras")
    assert [field for field, _ in verdict.notes] == ["trainer"]


# --- How checkpoints are called ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "older", "newer", "other"),
    [
        ("{step}.mdl", "9.mdl", "10.mdl", "10.json"),
        ("run1-{step}.mdl", "run1-9.mdl", "run1-10.mdl", "run2-11.mdl"),
        ("llama_iter1_{step}.mdl", "llama_iter1_9.mdl", "llama_iter1_10.mdl", "checkpoint_11.mdl"),
        ("{step}.mdl", "10.mdl", "10_20261123_211500.mdl", "final.mdl"),
        ("c{step:06d}", "c000010", "c000010_20261123_211500", "c"),
        (None, "checkpoint_10.mdl", "checkpoint_10_20261123_211500.mdl", "params.yaml"),
        (None, "checkpoint_10_20261123_211500.mdl", "checkpoint_11.mdl", "params.yaml"),
    ],
)
def test_checkpoints_are_recognised_by_the_name_that_the_trainer_gives_them(
    template: str | None, older: str, newer: str, other: str
) -> None:
    checkpoint = {} if template is None else {"checkpoint_name": template}
    pattern = phase(checkpoint=checkpoint).checkpoints_pattern
    first, second = (checkpoint_names.read(name, pattern) for name in (older, newer))
    assert first is not None
    assert second is not None
    assert first < second
    assert checkpoint_names.read(other, pattern) is None
    assert (first.step, second.step) in {(9, 10), (10, 10), (10, 11)}


# --- Where it differs from the source's own words ----------------------------------------------------


@pytest.mark.parametrize(("config", "is_suspected"), [({}, False), ({"rollbacks": 2}, True)])
def test_going_back_behind_a_checkpoint_has_to_be_asked_for(
    config: dict[str, Any], is_suspected: bool
) -> None:
    (only,) = compile_document(document(trainer(), recovery=config)).phases
    assert only.policy.suspects_checkpoints is is_suspected
    assert only.policy.rollbacks == 2  # after bad numbers


def test_restarts_have_no_upper_end() -> None:
    assert phase(autorestart={"max_num_restarts": 10**9}).policy.no_progress_restarts == 10**9


def test_numbers_of_systems_are_compared_where_there_are_systems() -> None:
    only = phase(backend={"backend_type": "GPU", "cluster_config": {"num_csx": 1}})
    assert (only.nodes_min, only.nodes) == (1, 1)


def test_epochs_that_are_counted_from_each_start_are_noted() -> None:
    epochs = {"num_epochs": 2, "steps_per_epoch": 100}
    assert (
        "write max_steps" in notes(document(trainer(loop=epochs)))["trainer.init.loop.num_epochs"]
    )
