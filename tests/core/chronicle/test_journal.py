"""What is written beside the model, read off the states of the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.chronicle import happenings
from everstep.chronicle.chronicle import ENTRIES_KEPT
from everstep.chronicle.journal import UNKNOWN
from everstep.chronicle.publishing import due
from everstep.core.levels import FaultClass, Step
from everstep.core.loop.next_actions import Watched
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.state import Mode
from everstep.core.world import Checkpoint
from everstep.dialects import responses
from tests.support.builders import Told, job_spec, running, sighting


def texts(told: Told) -> list[tuple[int, str]]:
    return [(entry.run, entry.text) for entry in told.chronicle.entries]


def test_a_restart_ends_a_run_and_begins_the_next() -> None:
    told = running()
    told.chronicle = replace(told.chronicle, entries=())
    told.see(sighting(FaultClass.CRASH, rank=2))
    told.succeeds()
    (run, decided), (_, success), (next_run, started) = texts(told)
    assert (run, next_run) == (0, told.state.runs)
    assert decided.startswith("restart 1: crash of rank 2 -> in_place: ")
    assert success.startswith("restart 1: success")
    assert started.startswith(f"generation {told.state.generation} started on ")
    ended, _, began = told.chronicle.entries
    assert (ended.about, ended.row["status"]) == (told.state.runs - 1, "failed")
    assert ended.row["failure_reason"] == "crash of rank 2"
    assert (began.row["status"], began.row["generation"]) == ("running", told.state.generation)


ORIGINS: tuple[tuple[str, Checkpoint | None, str, int | None], ...] = (
    ("a step", Checkpoint(step=30, path="ckpt/30.pt"), "step 30", 30),
    (
        "an epoch",
        Checkpoint(step=None, number=3, path="ckpt/epoch_3.pth"),
        "epoch_3.pth, an unknown step",
        None,
    ),
    ("nothing that is known", None, "an unknown step", None),
)


@pytest.mark.parametrize(
    ("resume", "says", "step"), [row[1:] for row in ORIGINS], ids=[row[0] for row in ORIGINS]
)
def test_a_restart_says_what_is_known_of_the_step_it_goes_on_from(
    resume: Checkpoint | None, says: str, step: int | None
) -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds(resume=resume)
    began = told.chronicle.entries[-1]
    assert began.text.endswith(f", from {says}")
    assert (began.row["starting_step"], told.record.resume_step) == (step, step)
    assert happenings.events(told.chronicle)[-1]["message"].endswith(f", from {says}")
    note = "no checkpoint names the step from which it resumes"
    assert (note in responses.record(told.record)["notes"]) == (step is None)


def test_the_first_run_of_a_job_begins_at_the_beginning_even_after_a_restart_of_its_launch() -> (
    None
):
    told = Told(spec=job_spec())
    told.gives_way(sighting(FaultClass.NODE), at=Step.RESUME)
    told.succeeds()
    began = told.chronicle.entries[-1]
    assert (began.text.rpartition(", ")[2], began.row["starting_step"]) == (
        "from the beginning",
        0,
    )
    assert told.record.resume_step == 0


def test_where_a_job_of_that_id_ran_before_nobody_knows_where_its_script_begins() -> None:
    told = Told(spec=job_spec())
    told.succeeds(generation=7)
    began = told.chronicle.entries[-1]
    assert (UNKNOWN in began.text, began.row["starting_step"]) == (True, None)


def test_what_was_chosen_before_an_outcome_was_lost_is_not_what_runs_now() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds(resume=Checkpoint(step=30, path="ckpt/30.pt"))
    told.see(sighting(FaultClass.CRASH))
    told.loses_outcome()
    told.finds(started=True, generation=told.state.generation + 1)
    assert UNKNOWN in told.chronicle.entries[-1].text


def test_steps_gained_are_not_made_up_where_the_first_one_is_unknown() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH), step=10)
    told.succeeds()
    first, second = (told.chronicle.entries[-3], sighting(FaultClass.CRASH))
    told.see(second, step=25)
    ended = told.chronicle.entries[-1]
    assert (first.row["steps_progressed"], ended.row["steps_progressed"]) == (10, None)
    assert ended.row["ending_step"] == 25


def test_what_was_written_is_not_written_again() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    entries = told.unpublished.entries
    assert [entry.number for entry in entries] == sorted({entry.number for entry in entries})
    told.publishes(entry=entries[-2].number)
    assert told.unpublished.entries == entries[-1:]
    told.publishes(entry=entries[0].number)  # somebody who came late
    assert told.unpublished.entries == entries[-1:]


def test_what_nobody_can_write_is_given_up_before_it_is_too_much() -> None:
    told = running()
    for _ in range(ENTRIES_KEPT):
        told.see(sighting(FaultClass.SUBHEALTH))
    assert len(told.chronicle.entries) == ENTRIES_KEPT
    assert told.chronicle.entries[-1].number == told.chronicle.entry_number


def test_lines_that_were_given_up_are_counted_in_the_log_and_at_the_end() -> None:
    told = running()
    told.publishes(entry=told.chronicle.entry_number)
    for _ in range(ENTRIES_KEPT + 3):
        told.see(sighting(FaultClass.SUBHEALTH))
    assert told.unpublished.entries[0].text.startswith("3 lines are missing up to here: ")
    lost = happenings.lines_lost(told.chronicle, told.state.now)
    message = happenings.events(lost)[-1]["message"]
    assert message == f"{ENTRIES_KEPT + 3} lines of run.log could not be written"


def test_a_log_that_has_all_lines_has_lost_none() -> None:
    told = running()
    told.publishes(entry=told.chronicle.entry_number)
    assert happenings.lines_lost(told.chronicle, told.state.now) == told.chronicle


def test_the_end_is_written_while_the_job_is_cleared_away() -> None:
    told = running()
    done = WatchReport(news="done", now=told.state.now + 1, cursor="", step=60)
    told._advance(Watched(report=done))
    assert told.state.mode is Mode.CLOSING
    last = due(told.chronicle, told.state).entries[-1]
    assert last.text == "phase main completed"
    assert (last.row["status"], last.row["ending_step"]) == ("success", 60)
    assert last.about == told.state.runs
