"""What a wrong trainer configuration is answered with: one line that names the field, and exit code 2."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import pytest

from everstep.core.errors import InvalidSpec
from everstep.dialects.registry import compile_document

AUTORESTART = "trainer[1].init.autorestart"
CSX = "init.backend.cluster_config.num_csx"


def configuration() -> dict[str, Any]:
    """Two phases on four systems each, as `test_the_configuration_itself_is_right` says."""
    phase = {
        "init": {
            "model_dir": "out",
            "model": {"name": "tiny"},
            "backend": {"backend_type": "CSX", "cluster_config": {"num_csx": 4}},
            "checkpoint": {"steps": 10},
            "autorestart": {"max_num_restarts": 3, "min_num_csx": 2},
        },
        "fit": {"train_dataloader": {"data_processor": "Synthetic"}},
    }
    phases = [deepcopy(phase), {"trainer": {**deepcopy(phase)}}]
    return {"trainer": phases, "everstep": {"command": "train"}}


REMOVED = object()
WHOLE, LIST, SECTION = ("trainer",), ("trainer", 1, "trainer"), ("everstep",)
INIT = (*LIST, "init")
RESTART = (*INIT, "autorestart")


class Wrong(NamedTuple):
    at: tuple[str | int, ...]
    value: Any  # that stands there instead
    field: str  # that is named
    message: str  # what is said of it, or a piece


W = Wrong
WRONG: tuple[Wrong, ...] = (
    W(WHOLE, None, "trainer", "must be a mapping, or a list of them, not nothing (null)"),
    W(WHOLE, 3, "trainer", "must be a mapping, or a list of them, not the number 3"),
    W(WHOLE, "fit", "trainer", 'must be a mapping, or a list of them, not the text "fit"'),
    W(WHOLE, [], "trainer", "must have 1 to 100 trainers, one for each phase, not 0"),
    W(WHOLE, [{"init": {}}] * 101, "trainer", "one for each phase, not 101"),
    W(WHOLE, {}, "trainer.init", "missing; a trainer begins with it"),
    W(WHOLE, {"init": []}, "trainer.init", "must be a mapping of keys to values, not a list"),
    W(("trainer", 0), None, "trainer[0]", "must be a mapping of keys to values, not nothing (null)"),
    W(("trainer", 1), "b.yaml", "trainer[1]", 'must be a mapping of keys to values, not the text "b.yaml"'),
    W(LIST, None, "trainer[1]", "must be a mapping of keys to values, not nothing (null)"),
    W(LIST, [], "trainer[1]", "must be a mapping of keys to values, not a list"),
    W(INIT, REMOVED, "trainer[1].init", "missing; a trainer begins with it"),
    W(INIT, None, "trainer[1].init", "must be a mapping of keys to values, not nothing (null)"),
    W((*INIT, "model_dir"), 7, "trainer[1].init.model_dir", "must be text, not the number 7"),
    W((*INIT, "model_dir"), "", "trainer[1].init.model_dir", "must not be empty"),
    W((*INIT, "model_dir"), ["a"], "trainer[1].init.model_dir", "must be text, not a list"),
    W((*INIT, "backend"), "CSX", "trainer[1].init.backend", 'not the text "CSX"'),
    W((*INIT, "backend", "cluster_config"), 4, "trainer[1].init.backend.cluster_config", "not the number 4"),
    W((*LIST, *CSX.split(".")), 0, f"trainer[1].{CSX}", "must be at least 1, not 0"),
    W((*LIST, *CSX.split(".")), -4, f"trainer[1].{CSX}", "must be at least 1, not -4"),
    W((*LIST, *CSX.split(".")), 10_001, f"trainer[1].{CSX}", "must be at most 10000, not 10001"),
    W((*LIST, *CSX.split(".")), 2.5, f"trainer[1].{CSX}", "not the number 2.5"),
    W((*LIST, *CSX.split(".")), "4", f"trainer[1].{CSX}", "write it without quotes"),
    W((*LIST, *CSX.split(".")), True, f"trainer[1].{CSX}", "must be a whole number, not true"),
    W((*LIST, *CSX.split(".")), "${NUM_CSX}", f"trainer[1].{CSX}", 'not the text "${NUM_CSX}"'),
    W((*INIT, "checkpoint"), 10, "trainer[1].init.checkpoint", "must be a mapping of keys to values"),
    W((*INIT, "checkpoint", "steps"), -1, "trainer[1].init.checkpoint.steps", "must be at least 0, not -1"),
    W((*INIT, "checkpoint", "steps"), "all", "trainer[1].init.checkpoint.steps", "must be a whole number"),
    W(RESTART, REMOVED, AUTORESTART, "missing, but trainer[0] has it: either every phase"),
    W(RESTART, None, AUTORESTART, "missing, but trainer[0] has it: either every phase"),
    W(RESTART, True, AUTORESTART, "must be a mapping of keys to values, not true"),
    W(RESTART, 3, AUTORESTART, "a mapping of keys to values, not the number 3"),
    W(RESTART, {}, f"{AUTORESTART}.max_num_restarts", "missing; say how many restarts in a row"),
    W((*RESTART, "max_num_restarts"), REMOVED, f"{AUTORESTART}.max_num_restarts", "missing; say how many"),
    W((*RESTART, "max_num_restarts"), None, f"{AUTORESTART}.max_num_restarts", "not nothing (null)"),
    W((*RESTART, "max_num_restarts"), -1, f"{AUTORESTART}.max_num_restarts", "must be at least 0, not -1"),
    W((*RESTART, "max_num_restarts"), 1.5, f"{AUTORESTART}.max_num_restarts", "not the number 1.5"),
    W((*RESTART, "max_num_restarts"), "3", f"{AUTORESTART}.max_num_restarts", "write it without quotes"),
    W((*RESTART, "max_num_restarts"), True, f"{AUTORESTART}.max_num_restarts", "not true"),
    W((*RESTART, "max_num_restarts"), [3], f"{AUTORESTART}.max_num_restarts", "not a list"),
    W((*RESTART, "min_num_csx"), 0, f"{AUTORESTART}.min_num_csx", "must be at least 1, not 0"),
    W((*RESTART, "min_num_csx"), -2, f"{AUTORESTART}.min_num_csx", "must be at least 1, not -2"),
    W((*RESTART, "min_num_csx"), 5, f"{AUTORESTART}.min_num_csx", "must not be more than num_csx"),
    W((*RESTART, "min_num_csx"), "two", f"{AUTORESTART}.min_num_csx", "must be a whole number"),
    W((*RESTART, "min_num_csx"), None, f"{AUTORESTART}.min_num_csx", "not nothing (null)"),
    W((*RESTART, "min_num_cxs"), 2, f"{AUTORESTART}.min_num_cxs", "did you mean `min_num_csx`?"),
    W((*RESTART, "restarts"), 2, f"{AUTORESTART}.restarts", "unknown key"),
    W((*INIT, "backend"), REMOVED, f"{AUTORESTART}.min_num_csx", "the number of systems wanted (1)"),
    W((*LIST, "fit"), "data", "trainer[1].fit", "must be a mapping of keys to values"),
    W((*LIST, "validate"), [], "trainer[1].validate", "must be a mapping of keys to values, not a list"),
    W((*LIST, "validate_all"), 1, "trainer[1].validate_all", "must be a mapping of keys to values"),
    W(SECTION, "train", "everstep", "must be a mapping of keys to values"),
    W((*SECTION, "command"), [], "everstep.command", "is empty; say what to run"),
    W((*SECTION, "node"), 3, "everstep.node", "did you mean `nodes`?"),
    W((*SECTION, "phases"), [{"name": "a"}], "everstep.phases", "each of the 2 trainers"),
    W((*SECTION, "phases"), [{"name": "a"}, {"name": "a"}], "everstep.phases.1.name", "choose another"),
    W((*SECTION, "start_phase"), "main", "everstep.start_phase", "there is phase-1, phase-2"),
)  # fmt: skip


def changed(wrong: Wrong) -> dict[str, Any]:
    """The configuration with this mistake."""
    document: Any = configuration()
    place = document
    for key in wrong.at[:-1]:
        place = place[key]
    if wrong.value is REMOVED:
        del place[wrong.at[-1]]
    else:
        place[wrong.at[-1]] = wrong.value
    assert isinstance(document, dict)
    return document


def test_the_configuration_itself_is_right() -> None:
    assert len(compile_document(configuration()).phases) == 2
    assert len(WRONG) >= 40


ROWS = pytest.mark.parametrize(
    "wrong", WRONG, ids=[f"{number} {row.field}" for number, row in enumerate(WRONG)]
)


@ROWS
def test_a_wrong_one_gets_one_line_that_names_its_field(wrong: Wrong) -> None:
    with pytest.raises(InvalidSpec) as caught:
        compile_document(changed(wrong))
    ((field, message),) = caught.value.problems
    assert field == wrong.field
    assert wrong.message in message
    assert str(caught.value).isprintable()
