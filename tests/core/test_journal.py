"""What is written beside the model, read off the states of the loop."""

from __future__ import annotations

from dataclasses import replace

from everstep.core import lifecycle
from everstep.core.journal import ENTRIES_KEPT
from everstep.core.levels import FaultClass
from everstep.core.moves import Clear, Keep, Watched
from everstep.core.state import Mode
from everstep.core.watching import WatchReport
from tests.support.builders import Told, running, sighting


def texts(told: Told) -> list[tuple[int, str]]:
    return [(entry.run, entry.text) for entry in told.state.journal]


def test_a_restart_ends_a_run_and_begins_the_next() -> None:
    told = running()
    told.state = replace(told.state, journal=())
    told.see(sighting(FaultClass.CRASH, rank=2))
    told.succeeds()
    (run, decided), (_, success), (next_run, started) = texts(told)
    assert (run, next_run) == (0, told.state.runs)
    assert decided.startswith("restart 1: crash of rank 2 -> in_place: ")
    assert success.startswith("restart 1: success")
    assert started.startswith(f"generation {told.state.generation} started on ")
    ended, _, began = told.state.journal
    assert (ended.about, ended.told["status"]) == (told.state.runs - 1, "failed")
    assert ended.told["failure_reason"] == "crash of rank 2"
    assert (began.told["status"], began.told["generation"]) == ("running", told.state.generation)


def test_a_watch_is_given_what_is_to_be_written_and_tells_how_far_it_came() -> None:
    told = running()
    told.see(sighting(FaultClass.CRASH))
    told.succeeds()
    action = lifecycle.next_action(told.state)
    assert isinstance(action, Keep)
    entries = action.order.journal.entries
    assert [entry.number for entry in entries] == sorted({entry.number for entry in entries})
    report = WatchReport(news="refresh", now=told.state.now, cursor=0, journaled=entries[-2].number)
    state, _ = lifecycle.advance(told.state, Watched(report=report))
    assert state.journal == entries[-1:]


def test_what_nobody_can_write_is_given_up_before_it_is_too_much() -> None:
    told = running()
    for _ in range(ENTRIES_KEPT):
        told.see(sighting(FaultClass.SUBHEALTH))
    assert len(told.state.journal) == ENTRIES_KEPT
    assert told.state.journal[-1].number == told.state.journal_number


def test_the_end_is_written_with_what_clears_up() -> None:
    told = running()
    done = WatchReport(news="done", now=told.state.now + 1, cursor=0, step=60)
    state, action = lifecycle.advance(told.state, Watched(report=done))
    assert state.mode is Mode.CLOSING
    assert isinstance(action, Clear)
    last = action.journal.entries[-1]
    assert last.text == "phase main completed"
    assert (last.told["status"], last.told["ending_step"]) == ("success", 60)
    assert last.about == state.runs
