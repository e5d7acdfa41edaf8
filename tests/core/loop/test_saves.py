"""A checkpoint on request: when it can be requested, and what is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep.core.errors import CommandRejected
from everstep.core.loop import commands, saving
from everstep.core.loop.commands import NOTHING_SAVES
from everstep.core.state import Mode
from everstep.core.world import Checkpoint, SaveState
from tests.support.builders import fact, running

SAVED = Checkpoint(step=140, path="out/step_140")


def refusal(mode: Mode = Mode.WATCHING, save_signal: str | None = "SIGUSR1", **state: Any) -> str:
    job = running(save_signal=save_signal)
    with pytest.raises(CommandRejected) as caught:
        commands.accept(replace(job.state, mode=mode, **state), "checkpoint", {})
    return str(caught.value)


@pytest.mark.parametrize("mode", [Mode.WATCHING, Mode.DECIDING])
def test_a_job_that_runs_takes_the_request(mode: Mode) -> None:
    job = running(save_signal="SIGUSR1")
    commands.accept(replace(job.state, mode=mode), "checkpoint", {"within_s": 5})


@pytest.mark.parametrize("mode", NOTHING_SAVES)
def test_where_no_rank_runs_the_refusal_says_why_and_names_the_newest_checkpoint(
    mode: Mode,
) -> None:
    expected = f"checkpoint: {NOTHING_SAVES[mode]}; the newest checkpoint is step 140"
    assert refusal(mode, saved=SAVED) == expected


def test_every_mode_is_answered() -> None:
    running_modes = {Mode.WATCHING, Mode.DECIDING}
    ending_modes = {Mode.CLOSING, Mode.ENDED}
    assert {*NOTHING_SAVES} == {*Mode} - running_modes - ending_modes
    assert refusal(Mode.CLOSING, ending="completed").endswith("checkpoint comes too late")


def test_a_signal_has_to_be_in_the_document() -> None:
    assert refusal(save_signal=None).endswith("set checkpoints.save_signal")


ANSWERS = [
    (SaveState(signalled=(0, 1), saved=SAVED), True, "step 140 was saved (step_140)"),
    (
        SaveState(signalled=(0,), saved=Checkpoint(step=None, path="out/last.pt")),
        True,
        "a checkpoint was saved (last.pt)",
    ),
    (
        SaveState(signalled=(0, 1), deaf=(2,)),
        False,
        "no new checkpoint was seen within 60 s; ranks 0-1 got SIGUSR1",
    ),
    (
        SaveState(deaf=(0,)),
        False,
        "nothing was saved: rank 0 has no handler for SIGUSR1, which would end a process; "
        "the script has to install one",
    ),
    (SaveState(silent=(0,)), False, "nothing was saved: no agent answered within 60 s"),
    (SaveState(), False, "nothing was saved: no rank runs"),
]


@pytest.mark.parametrize(("state", "is_saved", "text"), ANSWERS)
def test_the_answer_says_what_was_saved_or_why_nothing_was(
    state: SaveState, is_saved: bool, text: str
) -> None:
    answer = saving.answer(state, "SIGUSR1", within_s=60.0)
    assert (answer["saved"], answer["text"]) == (is_saved, text)
    assert answer["step"] == (state.saved and state.saved.step)


def test_the_wait_is_over_once_other_ranks_run() -> None:
    job = running(save_signal="SIGUSR1")
    generation = job.state.generation
    assert not saving.is_over(job.state, generation)
    assert saving.is_over(job.state, generation - 1)
    job.see(fact("process.exit", slot=1))
    assert saving.is_over(job.state, generation)
