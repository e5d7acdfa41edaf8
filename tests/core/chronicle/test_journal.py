"""What is written beside the model, read off the states of the loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.chronicle import happenings, record_rows, views
from everstep.chronicle.chronicle import ENTRIES_KEPT
from everstep.chronicle.journal import UNKNOWN
from everstep.chronicle.publishing import due_now
from everstep.core.levels import FaultClass, Step
from everstep.core.loop.next_actions import Watched
from everstep.core.seeing.watch_report import WatchReport
from everstep.core.state import Mode
from everstep.core.world import Checkpoint, NewerCheckpoints, PassedOver
from everstep.dialects import responses
from tests.support.builders import ScriptedJob, job_spec, running, sighting


def texts(job: ScriptedJob) -> list[tuple[int, str]]:
    return [(entry.run, entry.text) for entry in job.chronicle.entries]


def test_a_restart_ends_a_run_and_begins_the_next() -> None:
    job = running()
    job.chronicle = replace(job.chronicle, entries=())
    job.see(sighting(FaultClass.CRASH, rank=2))
    job.succeeds()
    (run, decided), (_, success), (next_run, started) = texts(job)
    assert (run, next_run) == (0, job.state.runs)
    assert decided.startswith("restart 1: crash of rank 2 -> in_place: ")
    assert success.startswith("restart 1: started")
    assert started.startswith(f"generation {job.state.generation} started on ")
    ended, _, began = job.chronicle.entries
    assert (ended.about, ended.row["status"]) == (job.state.runs - 1, "failed")
    assert ended.row["failure_reason"] == "crash of rank 2"
    assert (began.row["status"], began.row["generation"]) == ("running", job.state.generation)


ORIGINS: tuple[tuple[str, Checkpoint | None, str, int | None], ...] = (
    ("a step", Checkpoint(step=30, path="ckpt/30.pt"), "step 30 (ckpt/30.pt)", 30),
    (
        "an epoch",
        Checkpoint(step=None, number=3, path="ckpt/epoch_3.pth"),
        "an unknown step (ckpt/epoch_3.pth)",
        None,
    ),
    ("nothing that is known", None, "an unknown step", None),
)


@pytest.mark.parametrize(
    ("resume", "sentence", "step"), [row[1:] for row in ORIGINS], ids=[row[0] for row in ORIGINS]
)
def test_a_restart_says_what_is_known_of_the_step_it_goes_on_from(
    resume: Checkpoint | None, sentence: str, step: int | None
) -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(resume=resume)
    began = job.chronicle.entries[-1]
    assert began.text.endswith(f", from {sentence}")
    assert (began.row["starting_step"], job.record.resume_step) == (step, step)
    assert happenings.events(job.chronicle)[-1]["message"].endswith(f", from {sentence}")
    note = "no checkpoint names the step from which it resumes"
    assert (note in responses.record(job.record)["notes"]) == (step is None)


def test_what_a_start_passes_over_is_named_with_its_reason_wherever_people_look() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    newest = (PassedOver("step 50", "cut off"), PassedOver("step 40", ""))
    saved = Checkpoint(step=30, path="out/ckpt/30.pt")
    job.succeeds(resume=saved, newer_saved=NewerCheckpoints(count=3, newest=newest))
    newer = "3 newer ones set aside: step 50 (cut off), step 40 and 1 more"
    sentence = f"step 30 (ckpt/30.pt); {newer}"
    assert job.chronicle.entries[-1].text.endswith(f", from {sentence}")
    assert happenings.events(job.chronicle)[-1]["message"].endswith(f", from {sentence}")
    status = views.status(job.state, job.chronicle)["resumed_from"]
    assert status == {"step": 30, "path": saved.path, "text": sentence}
    record = responses.record(job.record)
    assert (record["resume_path"], record["newer_checkpoints"]) == (saved.path, newer)
    assert f"  resumed  from {sentence}" in record_rows.story(record)


def test_the_first_run_of_a_job_begins_at_the_beginning_even_after_a_restart_of_its_launch() -> (
    None
):
    job = ScriptedJob(spec=job_spec())
    job.gives_way(sighting(FaultClass.NODE), at=Step.RESUME)
    job.succeeds()
    began = job.chronicle.entries[-1]
    assert (began.text.rpartition(", ")[2], began.row["starting_step"]) == (
        "from the beginning",
        0,
    )
    assert job.record.resume_step == 0


def test_where_a_job_of_that_id_ran_before_nobody_knows_where_its_script_begins() -> None:
    job = ScriptedJob(spec=job_spec())
    job.succeeds(generation=7)
    began = job.chronicle.entries[-1]
    assert (UNKNOWN in began.text, began.row["starting_step"]) == (True, None)


def test_a_start_without_a_step_of_all_ranks_in_memory_says_which_one_is_behind() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(no_snapshot="memory holds no step of all ranks", notes=("memory holds",))
    began = job.chronicle.entries[-1].text
    assert began.endswith(", from what its script finds; memory holds no step of all ranks")


def test_what_was_chosen_before_an_outcome_was_lost_is_not_what_runs_now() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds(resume=Checkpoint(step=30, path="ckpt/30.pt"))
    job.see(sighting(FaultClass.CRASH))
    job.loses_outcome()
    job.finds(started=True, generation=job.state.generation + 1)
    assert UNKNOWN in job.chronicle.entries[-1].text


def test_steps_gained_are_not_made_up_where_the_first_one_is_unknown() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH), step=10)
    job.succeeds()
    first, second = (job.chronicle.entries[-3], sighting(FaultClass.CRASH))
    job.see(second, step=25)
    ended = job.chronicle.entries[-1]
    assert (first.row["steps_progressed"], ended.row["steps_progressed"]) == (10, None)
    assert ended.row["ending_step"] == 25


def test_what_was_written_is_not_written_again() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    job.succeeds()
    entries = job.unpublished.entries
    assert [entry.number for entry in entries] == sorted({entry.number for entry in entries})
    job.publishes(entry=entries[-2].number)
    assert job.unpublished.entries == entries[-1:]
    job.publishes(entry=entries[0].number)  # somebody who came late
    assert job.unpublished.entries == entries[-1:]


def test_what_nobody_can_write_is_given_up_before_it_is_too_much() -> None:
    job = running()
    for _ in range(ENTRIES_KEPT):
        job.see(sighting(FaultClass.SUBHEALTH))
    assert len(job.chronicle.entries) == ENTRIES_KEPT
    assert job.chronicle.entries[-1].number == job.chronicle.entry_number


def test_lines_that_were_given_up_are_counted_in_the_log_and_at_the_end() -> None:
    job = running()
    job.publishes(entry=job.chronicle.entry_number)
    for _ in range(ENTRIES_KEPT + 3):
        job.see(sighting(FaultClass.SUBHEALTH))
    assert job.unpublished.entries[0].text.startswith("3 lines are missing up to here: ")
    lost = happenings.lines_lost(job.chronicle, job.state.now)
    message = happenings.events(lost)[-1]["message"]
    assert message == f"{ENTRIES_KEPT + 3} lines of run.log could not be written"


def test_of_one_line_that_was_given_up_the_log_does_not_say_lines() -> None:
    job = running()
    job.publishes(entry=job.chronicle.entry_number)
    for _ in range(ENTRIES_KEPT + 1):
        job.see(sighting(FaultClass.SUBHEALTH))
    assert job.unpublished.entries[0].text.startswith("1 line is missing up to here: ")


def test_the_row_of_a_run_outlives_the_lines_that_were_given_up() -> None:
    job = running()
    for _ in range(ENTRIES_KEPT + 3):
        job.see(sighting(FaultClass.SUBHEALTH))
    rows = [entry.row["generation"] for entry in job.chronicle.entries if entry.row]
    assert rows == [job.state.generation]
    assert len(job.chronicle.entries) == ENTRIES_KEPT


def test_a_log_that_has_all_lines_has_lost_none() -> None:
    job = running()
    job.publishes(entry=job.chronicle.entry_number)
    assert happenings.lines_lost(job.chronicle, job.state.now) == job.chronicle


def test_the_end_is_written_while_the_job_is_cleared_away() -> None:
    job = running()
    done = WatchReport(news="done", now=job.state.now + 1, cursor="", step=60)
    job._advance(Watched(report=done))
    assert job.state.mode is Mode.CLOSING
    last = due_now(job.chronicle, job.state).entries[-1]
    assert last.text == "phase main completed"
    assert (last.row["status"], last.row["ending_step"]) == ("success", 60)
    assert last.about == job.state.runs
