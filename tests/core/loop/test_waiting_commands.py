"""Commands that wait: what repeats or undoes something is folded, and there is an end to the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.bounds import TEXT_MOST, json_bytes
from everstep.core.errors import CommandRejected
from everstep.core.levels import FaultClass
from everstep.core.loop import commands, operators
from everstep.core.loop.waiting_commands import REPORTS_BYTES_MOST, REPORTS_MOST, queued
from everstep.core.state import Command, JobState, Mode
from tests.support.builders import START, running

Row = tuple[str, dict[str, object]]


def job_in(mode: Mode) -> JobState:
    return replace(running().state, mode=mode)


def waiting(rows: Iterable[Row]) -> list[Row]:
    """What is left of these commands, each accepted in this order."""
    waiting: tuple[Command, ...] = ()
    for name, args in rows:
        waiting = queued(waiting, Command(name=name, args=args))
    return [(command.name, dict(command.args)) for command in waiting]


PAUSE: Row = ("pause", {"reason": "lunch"})
RESUME: Row = ("resume", {})
FULL = (Mode.RECOVERING, Mode.LAUNCHING)
"""Modes in which reported faults wait, as in a pause."""
REPORT: Row = ("report_fault", {"kind": "node.down", "node": "n1"})


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([PAUSE, RESUME], []),
        ([PAUSE, RESUME, PAUSE], [PAUSE]),
        ([RESUME, PAUSE], []),  # of a paused job, which stays so
        ([PAUSE, REPORT, RESUME], [REPORT]),
        ([PAUSE, RESUME] * 1500 + [PAUSE], [PAUSE]),
        ([REPORT, REPORT], [REPORT]),
        ([("stop", {"grace_s": 3}), ("stop", {"grace_s": 60})], [("stop", {"grace_s": 3})]),
        ([("stop", {}), ("cancel", {})], [("stop", {}), ("cancel", {})]),
    ],
)
def test_what_repeats_or_undoes_something_is_folded(rows: list[Row], left: list[Row]) -> None:
    assert waiting(rows) == left


def test_restarts_become_one_of_the_hardest_level_with_the_newest_reason() -> None:
    rows: list[Row] = [
        ("restart", {"reason": "first", "id": "a"}),
        ("restart", {"level": "job", "id": "b"}),
        ("restart", {"level": "pod", "reason": "last", "id": "c"}),
    ]
    one = ("restart", {"level": "job", "reason": "last", "id": "a"})
    assert waiting(rows) == [one]
    assert waiting(rows * 300) == [one]


def full_of_reports(mode: Mode) -> JobState:
    state = job_in(mode)
    for number in range(REPORTS_MOST):
        state = commanded(state, "report_fault", {**REPORT[1], "code": f"{number}"})
    return state


PATCH: dict[str, object] = {"patch": {"nodes": 2}}
OPERATORS: tuple[Row, ...] = (
    ("pause", {}),
    ("restart", {}),
    ("stop", {}),
    ("adopt", {}),
    ("hot_update", PATCH),
)


@pytest.mark.parametrize(
    ("mode", "name", "args"),
    [(Mode.PAUSED, "resume", {}), *((mode, *row) for mode in FULL for row in OPERATORS)],
)
def test_an_operator_finds_room_however_many_faults_are_reported(
    mode: Mode, name: str, args: dict[str, object]
) -> None:
    commands.accept(full_of_reports(mode), name, args)


def test_one_more_reported_fault_than_may_wait_is_refused() -> None:
    state = full_of_reports(Mode.RECOVERING)
    with pytest.raises(CommandRejected, match="100 reported faults wait for an answer"):
        commands.accept(state, "report_fault", REPORT[1])


def test_a_report_of_what_waits_already_finds_room_and_is_counted() -> None:
    state = full_of_reports(Mode.RECOVERING)
    again = {**REPORT[1], "code": "7", "at": START + 1}
    state = commanded(state, "report_fault", again)
    assert len(state.commands) == REPORTS_MOST
    (folded,) = [command for command in state.commands if command.args["code"] == "7"]
    fact = commands.reported_fact(folded.args, at=START + 9, earlier_ids=frozenset())
    assert (fact.at, fact.details) == (START + 1, {"times": 2})
    assert fact.message.endswith("(reported 2 times)")


def test_of_one_fault_ten_reports_wait_as_they_are_and_the_rest_is_counted() -> None:
    rows: list[Row] = [("report_fault", {**REPORT[1], "at": START + n}) for n in range(300)]
    left = waiting(rows)
    assert left[:9] == rows[:9]
    assert left[9:] == [("report_fault", {**rows[-1][1], "times": 291})]
    assert waiting([*rows, rows[-1]]) == left, "the same report twice is one"


def test_reports_that_wait_are_small_together_however_long_their_texts() -> None:
    state = job_in(Mode.RECOVERING)
    long = {"kind": "node.down", "node": "n1", "message": "\N{GRINNING FACE}" * TEXT_MOST}
    for number in range(REPORTS_MOST):
        code = "\N{GRINNING FACE}" * 250 + f"{number}"
        with contextlib.suppress(CommandRejected):
            state = commanded(state, "report_fault", {**long, "code": code})
    assert 10 < len(state.commands) < REPORTS_MOST
    assert json_bytes([dict(command.args) for command in state.commands]) <= REPORTS_BYTES_MOST


def test_reports_of_a_long_pause_stay_bounded_and_are_answered_at_the_resume() -> None:
    job = running()
    job.command("pause")
    job.interrupted()
    job.succeeds()
    for hour in range(50):
        for number in range(20):
            with contextlib.suppress(CommandRejected):
                job.command("report_fault", **REPORT[1], code=f"{hour}/{number}")
        job.report("refresh", now=job.state.now + 3_600)
    assert (job.state.mode, job.state.pending_facts) == (Mode.PAUSED, ())
    assert len(job.state.commands) == REPORTS_MOST
    job.command("resume")
    job.interrupted()
    assert job.state.commands == ()
    assert job.decisions[-1].fault.cls is FaultClass.NODE, (
        "the resume answers the faults of the pause"
    )


def commanded(state: JobState, name: str, args: dict[str, object]) -> JobState:
    return operators.commanded(state, commands.accept(state, name, args))


NAMES = ("pause", "resume", "restart", "stop", "report_fault", "adopt")


@given(st.lists(st.sampled_from(NAMES), max_size=300), st.sampled_from(list(Mode)))
def test_no_flood_grows_the_queue_beyond_its_bound_nor_changes_whether_the_job_pauses(
    names: list[str], mode: Mode
) -> None:
    state, is_paused = job_in(mode), mode in (Mode.PAUSED, Mode.PAUSING)
    for number, name in enumerate(names):
        args = {**REPORT[1], "code": f"{number}"} if name == "report_fault" else {}
        try:
            state = commanded(state, name, args)
        except CommandRejected:
            continue
        is_paused = {"pause": True, "resume": False}.get(name, is_paused)
    assert len(state.commands) <= REPORTS_MOST + len(NAMES) - 1  # and one of each other name
    left = [c.name for c in state.commands if c.name in ("pause", "resume")]
    assert len(left) <= 1
    ends = left[0] == "pause" if left else mode in (Mode.PAUSED, Mode.PAUSING)
    assert ends == is_paused
