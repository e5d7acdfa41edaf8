"""What the program of a phase reads: what was written, but for what a restart changes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import yaml

from everstep.core.world import Checkpoint, JobRef, SlotStart, StartOrder
from everstep.dialects.cerebras.params import MICRO_BATCH, params
from everstep.dialects.command_files import command_files
from everstep.protocol.wire import RunOrder

CONFIG: dict[str, Any] = {
    "trainer": {
        "init": {
            "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 4, "more": 1}},
            "autorestart": {"max_num_restarts": 3},
            "checkpoint": {"steps": 10},
            "callbacks": [{"ScopedTrainFlags": {MICRO_BATCH: 32, "other": 1}}],
            "optimizer": {"AdamW": {"eps": 1e-8, "name": "yes"}},
        },
        "fit": {"train_dataloader": {"batch_size": 8}, "ckpt_path": "first.mdl"},
        "validate": {"val_dataloader": {}},
    },
    "beside": [1],
}


def without_autorestart(*, is_first: bool = True) -> dict[str, Any]:
    """What it reads on as many systems as it wants; the first start saves what it began with."""
    config = deepcopy(CONFIG)
    del config["trainer"]["init"]["autorestart"]
    config["trainer"]["init"]["checkpoint"] = {"steps": 10, "save_initial_checkpoint": is_first}
    return config


def test_restarts_are_left_to_whoever_started_it_and_the_rest_is_as_it_was_written() -> None:
    assert params(CONFIG, systems=4, resume=None) == without_autorestart()


def test_only_what_is_restarted_has_to_save_what_it_began_with() -> None:
    for init, fit, saves in (
        ({"autorestart": {"max_num_restarts": 3}}, {}, {"save_initial_checkpoint": True}),
        ({"autorestart": {"max_num_restarts": 0}}, {}, None),
        ({}, {}, None),
        ({"autorestart": {"max_num_restarts": 3}}, None, None),
    ):
        result = params({"trainer": {"init": init, "fit": fit}}, systems=1, resume=None)
        assert result["trainer"]["init"].get("checkpoint") == saves


def test_what_says_itself_that_nothing_is_saved_at_first_saves_all_the_same() -> None:
    config = deepcopy(CONFIG)
    config["trainer"]["init"]["checkpoint"]["save_initial_checkpoint"] = False
    assert params(config, systems=4, resume=None) == without_autorestart()


def test_it_is_told_which_checkpoint_was_chosen() -> None:
    expected = without_autorestart(is_first=False)
    expected["trainer"]["fit"]["ckpt_path"] = "out/checkpoint_20.mdl"
    assert params(CONFIG, systems=4, resume="out/checkpoint_20.mdl") == expected


def test_on_fewer_systems_it_finds_its_own_micro_batches() -> None:
    expected = without_autorestart()
    expected["trainer"]["init"]["backend"]["cluster_config"]["num_csx"] = 3
    expected["trainer"]["init"]["callbacks"][0]["ScopedTrainFlags"][MICRO_BATCH] = "auto"
    assert params(CONFIG, systems=3, resume=None) == expected


def test_on_more_systems_it_keeps_them() -> None:
    expected = without_autorestart()
    expected["trainer"]["init"]["backend"]["cluster_config"]["num_csx"] = 5
    assert params(CONFIG, systems=5, resume=None) == expected


def test_a_configuration_that_says_nothing_of_systems_wants_one() -> None:
    config: dict[str, Any] = {"trainer": {"init": {}, "validate": {}}}
    assert params(config, systems=1, resume="x") == config
    result = params(config, systems=2, resume=None)["trainer"]["init"]
    assert result == {"backend": {"cluster_config": {"num_csx": 2}}}


def test_nothing_of_what_was_written_is_changed_by_it() -> None:
    before = deepcopy(CONFIG)
    params(CONFIG, systems=2, resume="x")
    assert before == CONFIG


def test_where_numbers_went_wrong_it_looks_for_the_cause() -> None:
    result = params(CONFIG, systems=4, resume=None, checked_steps=50)["trainer"]["init"][
        "callbacks"
    ]
    assert result == [*CONFIG["trainer"]["init"]["callbacks"], {"NaNChecker": {"num_steps": 50}}]


def order(**more: Any) -> StartOrder:
    slots = {slot: SlotStart(slot, 1, 1) for slot in range(4)}
    job = JobRef(id="job", run="run")
    run = RunOrder(command=["x", "{params}"])
    return StartOrder(job=job, phase="main", generation=1, run=run, slots=slots, **more)


def test_it_is_written_so_that_its_program_reads_the_same() -> None:
    (text,) = command_files(order(files={"params.yaml": CONFIG})).values()
    assert yaml.safe_load(text) == without_autorestart()


def test_it_is_written_for_each_start_with_what_its_order_says() -> None:
    resume = Checkpoint(step=20, path="out/checkpoint_20.mdl")
    run_order = order(
        files={"params.yaml": CONFIG}, resume=resume, env={"EVERSTEP_CHECK_NUMBERS": "10"}
    )
    trainer = yaml.safe_load(command_files(run_order)["params.yaml"])["trainer"]
    assert trainer["fit"]["ckpt_path"] == "out/checkpoint_20.mdl"
    assert trainer["init"]["callbacks"][-1] == {"NaNChecker": {"num_steps": 10}}


def test_without_a_configuration_there_is_no_file() -> None:
    assert command_files(order()) == {}


def test_a_command_that_does_not_read_it_gets_no_file() -> None:
    assert (
        command_files(replace(order(files={"params.yaml": CONFIG}), run=RunOrder(command=["x"])))
        == {}
    )
